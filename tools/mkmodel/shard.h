/* SPDX-License-Identifier: MIT */
/*
 * shard - one safetensors file: which tensors, in which order, and their bytes.
 */
#ifndef MKMODEL_SHARD_H
#define MKMODEL_SHARD_H

#include "tools/mkmodel/catalog.h"
#include "tools/mkmodel/normal.h"
#include "tools/mkmodel/progress.h"

/* The 8 bytes of length and the header, padded so that the data begins at 8 modulo 16; malloc'ed. */
int shard_header(char **ret, size_t *ret_bytes, const char *path, const struct item *items, uint64_t n,
		 struct moe_error *err);

/*
 * Writes items[0 .. n) to a new file, sorted as the reference writer sorts them: wider types first, then by name.
 * Reorders `items`. On failure the file is removed.
 */
int shard_write(const char *path, struct item *items, uint64_t n, uint64_t seed, struct normal *normal,
		struct progress *progress, struct moe_error *err);

#endif
