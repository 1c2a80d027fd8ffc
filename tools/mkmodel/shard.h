/* SPDX-License-Identifier: MIT */
/*
 * shard - one safetensors file: which tensors, in which order, and their bytes.
 */
#ifndef MKMODEL_SHARD_H
#define MKMODEL_SHARD_H

#include "tools/mkmodel/catalog.h"
#include "tools/mkmodel/normal.h"

struct progress {
	bool shown;
	uint64_t done, total; /* bytes */
	uint64_t started_ns, printed_ns;
};

/* Prints a line when it is time to. */
void progress_add(struct progress *progress, uint64_t bytes);

/*
 * Writes items[0 .. n) to a new file, sorted as the reference writer sorts them: wider types first, then by name.
 * Reorders `items`. On failure the file is removed.
 */
int shard_write(const char *path, struct item *items, uint64_t n, uint64_t seed, struct normal *normal,
		struct progress *progress, struct moe_error *err);

#endif
