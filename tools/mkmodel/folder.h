/* SPDX-License-Identifier: MIT */
/*
 * folder - a model is written the way published folders are: shards, their index, config.json.
 *
 * Nothing of the model is held in memory but its list of tensors. config.json is written last, so that a folder that
 * was left half done is never taken for a model; after a failure what was written is removed. The data of a shard
 * begins 8 bytes off a multiple of 16, as it may in published files: their headers are padded to 8 bytes and no more.
 */
#ifndef MKMODEL_FOLDER_H
#define MKMODEL_FOLDER_H

#include "tools/mkmodel/catalog.h"
#include "tools/mkmodel/spec.h"

struct folder_result {
	uint64_t n_tensors;
	uint64_t bytes; /* of tensor data */
	uint32_t shards;
};

/* `path` does not exist yet or is an empty folder. `progress`: lines on stderr while a large model is written. */
int folder_write(const char *path, const struct spec *spec, bool progress, struct folder_result *ret,
		 struct moe_error *err);

#endif
