/* SPDX-License-Identifier: MIT */
/*
 * pool-wave - one wave of a computation: as many of its tokens as scratch memory has room for, their (token, expert)
 * pairs sorted by expert, and the buffers and counters that its units work on.
 *
 * The units of a team, in the order in which they are drawn: first every block of gate and up rows of every expert of
 * the team, then every block of down rows. Buffers:
 *
 *   wide     [tokens][y_stride]  the activations as FP32, when they came as BF16
 *   h        [pairs][h_stride]   act(gate . x) * (up . x), written by the gate-and-up units
 *   partial  [pairs][y_stride]   down . h, written by the down units
 *
 * Each counter says how many units are still to come: of activations to widen, of an expert's gate-and-up blocks,
 * of the experts of an output block, of output blocks. Who takes one to zero (acquire and release order) sees all
 * that the others wrote.
 */
#ifndef DAEMON_POOL_WAVE_H
#define DAEMON_POOL_WAVE_H

#include "daemon/pool-internal.h"

/* Tokens of a unit of widening. */
#define WIDEN_TOKENS 8

/* Rows of a block at most: an output block is summed on the stack. */
#define BLOCK_ROWS_MAX 512

/* A computation from its start to its end; its waves follow one another. */
struct ffn_job {
	struct pool *pool;
	struct pool_compute *compute;
	uint64_t seq, start_ns, pairs;
	uint32_t next_token; /* where the next wave begins */
	struct scratch *scratch;
};

struct wave_expert {
	const uint8_t *record;
	uint32_t number, first, pairs; /* in its layer; of the wave's pairs: first .. first + pairs */
	_Atomic uint32_t gate_up_left;
};

struct wave {
	struct pool_batch batch;
	struct ffn_job *job;
	uint32_t token, tokens, pairs;             /* tokens token .. token + tokens of the job */
	uint32_t team_experts[HOST_NODES_MAX + 1]; /* team t has experts team_experts[t] .. team_experts[t + 1] */
	uint32_t gate_rows, gate_blocks;           /* rows of a block of gate and up, blocks of an expert */
	uint32_t down_rows, down_blocks;           /* the same of down */
	size_t h_stride, y_stride;                 /* floats, a multiple of a cache line */
	struct wave_expert *experts;               /* ordered by team, then by number */
	uint32_t *cursors;                         /* [n_experts of the layer]: for sorting */
	const float **x;                           /* [pairs] */
	int32_t *pair_of;                          /* [tokens][topk], -1: no pair */
	float *wide, *h, *partial;
	_Atomic uint32_t *down_left; /* [down_blocks]: experts */
	_Atomic uint32_t widen_next, widen_left, blocks_left;
};

/* The next tokens of the job that fit in one wave (at least one) and how many pairs they have. */
void wave_extent(const struct ffn_job *job, uint32_t *ret_tokens, uint32_t *ret_pairs);

/* Builds the wave of the next `tokens` with `pairs` > 0 pairs, ready to be published with `run`, in the job's scratch,
 * which it replaces when it is too small. 0 or -ENOMEM. */
int wave_new(struct wave **ret, struct ffn_job *job, uint32_t tokens, uint32_t pairs,
	     void (*run)(struct pool_batch *batch, uint32_t team, uint32_t unit));

#endif
