/* SPDX-License-Identifier: MIT */
/*
 * group - the processes of one tensor-parallel replica: one per rank, forked from the first, with shared memory
 * between them.
 *
 * All ranks go through the same sequence of calls. A sum adds the ranks' rows in the order of their numbers, so every
 * rank holds the same bits afterwards. Nobody waits for the dead: rank 0 collects its children while it waits, the
 * kernel kills the children when rank 0 dies, and whoever fails says so in shared memory and wakes the others.
 * Buffers exist twice and are used in turn: a rank is at most one barrier ahead of another.
 */
#ifndef WORKER_GROUP_H
#define WORKER_GROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "moe-error.h"

struct group_shared;

struct group {
	uint32_t rank, size;
	uint64_t id;     /* random, the same in all ranks; 0 when size is 1 */
	uint64_t floats; /* most of one sum */
	uint64_t bytes;
	struct group_shared *shared; /* NULL when size is 1 */
	uint32_t turn;
	pid_t *children; /* rank 0: [size], 0 where collected */
};

/* Forks size - 1 processes; each returns from this call with its own rank. Call it before there are threads. On failure
 * it returns in rank 0 only. */
int group_new(struct group *ret, uint32_t size, uint64_t floats, struct moe_error *err);

/* values[i] = sum over ranks. Every rank must come. n <= floats. */
int group_sum(struct group *group, float *values, uint64_t n, struct moe_error *err);

/* Tells the others that `rank` (this one) leaves with an error. */
void group_fail(struct group *group, uint32_t rank, const char *text);

/* Rank 0 waits for its children, or ends them when `failed`; the others do nothing. 0, or -ECHILD when one failed. */
int group_end(struct group *group, bool failed, struct moe_error *err);

#endif
