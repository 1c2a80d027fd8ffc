/* SPDX-License-Identifier: MIT */
/*
 * index - model.safetensors.index.json: which shard holds which tensor.
 *
 * A shard's name is a plain file name inside the folder, so that no index can lead a reader elsewhere (what a symbolic
 * link of that name leads to is the owner's business: the Hugging Face cache links to its blobs).
 */
#ifndef MODEL_INDEX_H
#define MODEL_INDEX_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "moe-error.h"

#define INDEX_FILE "model.safetensors.index.json"
#define SINGLE_FILE "model.safetensors" /* where there is no index */
#define INDEX_BYTES_MAX (64u << 20)     /* published ones have up to 9 MiB, some 100 bytes for each tensor */
#define INDEX_CONTAINERS_MAX 64u        /* objects and lists: the whole, "metadata", "weight_map" */

struct index {
	json_t *json;
	json_t *weight_map;  /* tensor -> shard's file name; in json */
	const char **shards; /* sorted; the strings are in json */
	uint32_t n_shards;
};

int index_parse(struct index *ret, const char *file, const char *text, size_t bytes, struct moe_error *err);
void index_free(struct index *index); /* takes a zeroed one */

#endif
