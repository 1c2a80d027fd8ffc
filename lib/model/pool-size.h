/* SPDX-License-Identifier: MIT */
/*
 * pool-size - how much room a model's records need: in each file of its pool, under a limit, and of a machine's memory.
 *
 * Law: numbers in, numbers out; nothing is made or asked for here. The daemon lays models out by these rules (its
 * manifest, tiered, room and pages), and moectl doctor says by them what a daemon would do.
 */
#ifndef MODEL_POOL_SIZE_H
#define MODEL_POOL_SIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "moe-error.h"

struct model;

/* -- of a model --------------------------------------------------------------------------------------------------- */

struct pool_size {
	uint32_t pools;   /* files of equal size: one a node, or fewer where a record has not so many rows to share */
	uint64_t records; /* of all layers */
	uint64_t record;  /* bytes of the largest one's share in a file */
	uint64_t file;    /* bytes of a file that holds all of them */
};

/* Of an opened model on so many nodes, 1 on. False: more than 2^63 bytes in all; `file` is nothing then. */
bool pool_size(struct pool_size *ret, const struct model *model, uint32_t nodes);

/* -- under a limit ------------------------------------------------------------------------------------------------ */

/* In bytes of all files together; 0: none. */
struct pool_limits {
	uint64_t memory_max; /* what may be taken at all */
	uint64_t pool_max;   /* a model that needs more is tiered: only a part of it stays in memory */
};

/* So many frames a tiered model needs at least: a layer's experts, and room for a token's beside them. */
static inline uint64_t pool_frames_min(uint32_t experts, uint32_t topk)
{
	return (uint64_t)experts + (topk ? topk : 1);
}

/* *ret_frames: 0 where all records stay, else in how many frames, with room for the largest each, those that do.
 * -ENOMEM: there is too little for that, and *err says how much would do, not by which option. */
int pool_frames(const struct pool_size *size, uint32_t experts, uint32_t topk, const struct pool_limits *limits,
		uint64_t *ret_frames, struct moe_error *err);

/* -- of a machine ------------------------------------------------------------------------------------------------- */

/* Without being told otherwise a file is on pages of 1 GiB from this size on: below, too much of the last one would be
 * lost. */
#define POOL_1G_MIN (512ull << 20)

/* What a daemon with a pool in ordinary memory needs besides: page tables are 1/512 of what 4 KiB pages map, in two
 * mappings at most, and everything else of its process and its neighbours must go on living. */
static inline uint64_t pool_besides(uint64_t bytes)
{
	return bytes / 256 + (64u << 20);
}

/* Whether so much is too little for a pool of these bytes; below 0: it is not known, and refuses nothing. */
static inline bool pool_lacks(int64_t available, uint64_t bytes)
{
	return available >= 0 && (bytes > INT64_MAX / 2 || (uint64_t)available < bytes + pool_besides(bytes));
}

#endif
