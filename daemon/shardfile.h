/* SPDX-License-Identifier: MIT */
/*
 * shardfile - one shard, open for reading, around the page cache (O_DIRECT) where its file system can do that.
 *
 * The file must be the one whose header was read, where that is known, and have the size that it was checked against,
 * when it is opened and when all has been read; one that was replaced or written to in between is an error, not a
 * model.
 */
#ifndef DAEMON_SHARDFILE_H
#define DAEMON_SHARDFILE_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "model/model.h"
#include "moe-error.h"

/* Offsets, lengths and addresses of reads are multiples of this; file systems that want more are read buffered. */
#define SHARDFILE_ALIGN 4096u

struct shardfile {
	int fd; /* -1: not open */
	bool direct;
	const struct shard *shard;
	struct timespec modified;
};

/* `buffered`: do not try O_DIRECT. */
int shardfile_open(struct shardfile *ret, const struct shard *shard, bool buffered, struct moe_error *err);

/* 0 when the file still is what was opened. */
int shardfile_check(const struct shardfile *file, struct moe_error *err);

/* A read at `offset` that should have brought `expected` bytes brought `found`: the error for it. */
int shardfile_short(const struct shardfile *file, uint64_t offset, uint64_t expected, uint64_t found,
		    struct moe_error *err);

/* A buffered file's pages before `offset` (0: all of it) need not stay in the page cache: they would be a second copy
 * of the model. Whole large folios go or stay, so this is for long ranges. */
void shardfile_drop(const struct shardfile *file, uint64_t offset);

void shardfile_close(struct shardfile *file);

#endif
