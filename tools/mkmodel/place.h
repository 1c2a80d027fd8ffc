/* SPDX-License-Identifier: MIT */
/*
 * place - where a model is written to: a folder that is new or empty, and what every model has beside its shards.
 *
 * config.json is written last, so that a folder that was left half done is never taken for a model; after a failure
 * what was written is removed.
 */
#ifndef MKMODEL_PLACE_H
#define MKMODEL_PLACE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "moe-error.h"

struct place {
	const char *path;
	bool created;       /* the folder is ours to remove */
	uint32_t shards;    /* files of shards in all */
	uint32_t written;   /* that are there */
	json_t *weight_map; /* tensor -> file name */
};

/* Creates the folder, or finds it empty; there must be room for `bytes`. */
int place_open(struct place *ret, const char *path, uint32_t shards, uint64_t bytes, struct moe_error *err);

/* A model of one shard has no number in its name and no index, as published. malloc'ed, inside the folder, or NULL. */
char *place_shard_name(const struct place *place, uint32_t shard);

/* Shard `written` is there: counts it, and notes where its tensors are. */
int place_add(struct place *place, const char *tensor, const char *shard, struct moe_error *err);

int place_write_json(const char *folder, const char *name, const json_t *json, struct moe_error *err);

/* The index (of `bytes` of tensors) and config.json. */
int place_finish(struct place *place, uint64_t bytes, const json_t *config, struct moe_error *err);

/* Closes what place_open opened; after a failure the folder is as it was. Returns `code`. */
int place_close(struct place *place, int code);

/* An error when the file system of `path` has less than `bytes` left. */
int place_check_room(const char *path, uint64_t bytes, struct moe_error *err);

#endif
