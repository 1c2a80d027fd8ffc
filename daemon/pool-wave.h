/* SPDX-License-Identifier: MIT */
/*
 * pool-wave - one wave of a computation: as many of its tokens as scratch memory has room for, their (token, expert)
 * pairs sorted by expert, and the buffers and counters that its units work on.
 *
 * The units of a team, in the order in which they are drawn: first every block of gate and up rows of every expert of
 * the team, then every block of down rows. Buffers:
 *
 *   x        [tokens][x_stride]  the activations as gate and up take them; none where they already are
 *   wide     [tokens][y_stride]  the activations as FP32, on their way from BF16 to x
 *   h        [pairs][h_stride]   act(gate . x) * (up . x), written by the gate-and-up units
 *   h_packed [pairs]             h as down takes it; none where it already is
 *   partial  [pairs][y_stride]   down . h, written by the down units
 *
 * Packing is work that the threads which wait for it share: whoever needs packed rows packs until none are left, then
 * waits for those that others have begun.
 *
 * Each counter says how many units are still to come: of rows to pack, of an expert's gate-and-up blocks, of
 * the experts of an output block, of output blocks. Who takes one to zero (acquire and release order) sees all
 * that the others wrote.
 */
#ifndef DAEMON_POOL_WAVE_H
#define DAEMON_POOL_WAVE_H

#include "daemon/pool-internal.h"
#include "kernels/record.h"

/* Rows of a turn of packing. */
#define PACK_ROWS 8

/* Rows of a block at most: an output block is summed on the stack. */
#define BLOCK_ROWS_MAX 512

/* A computation from its start to its end; its waves follow one another. */
struct ffn_job {
	struct pool *pool;
	struct pool_compute *compute;
	struct pool_place place;
	uint64_t start_ns, pairs;
	uint32_t next_token; /* where the next wave begins */
	struct scratch *scratch;
};

/* Rows that are packed together: turns to begin, turns not ended. */
struct wave_pack {
	_Atomic uint32_t next, left;
};

struct wave_expert {
	struct kernel_matrix gate, up, down;
	uint32_t number, first, pairs; /* in its layer; of the wave's pairs: first .. first + pairs */
	_Atomic uint32_t gate_up_left;
	struct wave_pack h_pack;
};

struct wave {
	struct pool_batch batch;
	struct ffn_job *job;
	uint32_t token, tokens, pairs;             /* tokens token .. token + tokens of the job */
	uint32_t team_experts[HOST_NODES_MAX + 1]; /* team t has experts team_experts[t] .. team_experts[t + 1] */
	uint32_t gate_rows, gate_blocks;           /* rows of a block of gate and up, blocks of an expert */
	uint32_t down_rows, down_blocks;           /* the same of down */
	const struct kernel_ops *gate_ops, *down_ops;
	struct kernel_act act;
	size_t h_stride, y_stride;   /* floats, a multiple of a cache line */
	size_t x_bytes, h_bytes;     /* of a row of x and of h_packed */
	struct wave_expert *experts; /* ordered by team, then by number */
	uint32_t *cursors;           /* [n_experts of the layer]: for sorting */
	const void **x;              /* [pairs] */
	int32_t *pair_of;            /* [tokens][topk], -1: no pair */
	uint8_t *x_packed, *h_packed;
	float *wide, *h, *partial;
	_Atomic uint32_t *down_left; /* [down_blocks]: experts */
	struct wave_pack x_pack;
	_Atomic uint32_t blocks_left;
};

/* The next tokens of the job that fit in one wave (at least one) and how many pairs they have. */
void wave_extent(const struct ffn_job *job, uint32_t *ret_tokens, uint32_t *ret_pairs);

/* Whether the job's activations need a row of their own: they are not FP32, or are taken in another form. */
static inline bool wave_packs_x(const struct pool_compute *c, const struct kernel_ops *ops)
{
	return c->x_type == MOE_TYPE_BF16 || ops->pack != PACK_F32;
}

static inline bool wave_widens_x(const struct pool_compute *c, const struct kernel_ops *ops)
{
	return c->x_type == MOE_TYPE_BF16 && ops->pack != PACK_F32;
}

static inline bool wave_packs_h(const struct kernel_ops *ops)
{
	return ops->pack != PACK_F32;
}

/* Builds the wave of the next `tokens` with `pairs` > 0 pairs, ready to be published with `run`, in the job's scratch,
 * which it replaces when it is too small. 0 or -ENOMEM. */
int wave_new(struct wave **ret, struct ffn_job *job, uint32_t tokens, uint32_t pairs,
	     void (*run)(struct pool_batch *batch, uint32_t team, uint32_t unit));

#endif
