/* SPDX-License-Identifier: MIT */
/*
 * pool-wave - one wave of a computation: as many of its tokens as scratch memory has room for, their (token, expert)
 * pairs sorted by expert, and the buffers and counters that its units work on.
 *
 * The units of a team, in the order in which they are drawn: first every block of its rows of gate and up of every
 * expert, then, expert by expert as these are done, every block of its rows of down. Experts that one team computes
 * whole (pool-deal.h) are in a lane of that team's: a batch of its own, with the same blocks, all of them the team's.
 * Who runs a block is all that differs. The wave outlives its lanes' units: it ends with its last output block.
 *
 * Buffers:
 *
 *   x        [tokens][x_stride]  the activations as gate and up take them; none where they already are
 *   wide     [tokens][y_stride]  the activations as FP32, on their way from BF16 to x
 *   h        [pairs][h_stride]   act(gate . x) * (up . x), written by the gate-and-up units
 *   h_packed [pairs]             h as down takes it; none where it already is
 *   x_groups, h_groups           the same of experts with many tokens, KERNEL_GROUP together (kernels.h), where the
 *                                level has that
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

#include "daemon/pool-deal.h"
#include "daemon/pool-internal.h"
#include "daemon/replicas.h"
#include "kernels/record.h"

/* Rows of a turn of packing. */
#define PACK_ROWS 8

/* Rows of a block at most: an output block is summed on the stack. */
#define BLOCK_ROWS_MAX 576

/* A computation from its start to its end; its waves follow one another. */
struct ffn_job {
	struct pool *pool;
	struct pool_compute *compute;
	struct pool_place place;
	uint64_t start_ns, pairs;
	uint32_t next_token; /* where the next wave begins */
	bool zeroes_last;    /* rows without a pair are many: no wave writes them */
	struct scratch *scratch;
	struct replica_table *replicas; /* held; NULL: there are no copies */
	struct pool_entry again;        /* while it waits between two waves, ... */
	uint64_t gave_way_ns;           /* ... since then */
};

/* Rows or groups that are packed together: turns to begin, turns not ended. */
struct wave_pack {
	_Atomic uint32_t next, left;
};

/* Rows of a part of every expert that are one unit. */
struct wave_block {
	uint32_t share, row, rows; /* row: of the share's */
	uint32_t out;              /* the row of the slice's h, or of y */
};

/* Team t has blocks team[t] .. team[t + 1]. */
struct wave_cut {
	uint64_t bytes; /* of the weights of a block, about */
	uint32_t team[HOST_NODES_MAX + 1];
};

/* What a share has of an expert. */
struct wave_matrices {
	struct kernel_matrix gate, up, down;
};

struct wave_expert {
	struct wave_lane *lane;
	uint32_t number, first, pairs; /* in its layer; of the wave's pairs: first .. first + pairs */
	_Atomic uint32_t gate_up_left;
	struct wave_pack x_pack, h_pack; /* x_pack: of x_groups */
	uint8_t *x_groups, *h_groups;    /* NULL: its rows are taken one by one */
};

/* Experts whose blocks are cut alike among the teams. Drawing units looks at nothing else: the wave may be gone. */
struct wave_lane {
	struct pool_batch batch;
	struct wave *wave;
	struct wave_expert *experts;
	uint32_t n_experts, threads; /* threads: of a team */
	struct wave_cut gate, down;  /* gate: of gate and up */
	pthread_mutex_t ready_lock;  /* held while units are added: all teams have the experts in the same order */
	uint32_t *ready;             /* [n_experts]: those whose down units are added */
	uint32_t n_ready;
};

struct wave {
	struct wave_lane rows;                   /* the first member; each team has its shares of these experts */
	struct wave_lane *whole[HOST_NODES_MAX]; /* of each team; NULL: it has no whole expert */
	struct ffn_job *job;
	uint32_t token, tokens, pairs;                /* tokens token .. token + tokens of the job */
	uint32_t n_experts, n_shares;                 /* n_experts: that have pairs */
	uint32_t pairs_most;                          /* of one expert */
	struct wave_block *gate_blocks, *down_blocks; /* ordered by team */
	const struct kernel_ops *gate_ops, *down_ops;
	struct kernel_act act;
	size_t h_stride, y_stride;      /* floats, a multiple of a cache line */
	size_t x_bytes, h_bytes;        /* of a row of x and of h_packed */
	size_t x_group, h_group;        /* bytes of a group; 0: there are none */
	struct moe_slice *shares;       /* [shares]: what each has of the job's slice */
	struct wave_expert *experts;    /* [n_experts], by lane, then by number */
	struct wave_matrices *matrices; /* [n_experts][shares] */
	uint32_t *cursors;              /* [n_experts of the layer]: for sorting */
	struct deal_expert *deal;       /* [n_experts] */
	uint32_t *home;                 /* [n_experts of the layer]: the team that has it whole, or DEAL_ROWS */
	const void **x;                 /* [pairs] */
	int32_t *pair_of;               /* [tokens][topk], -1: no pair */
	uint8_t *x_packed, *h_packed, *x_groups, *h_groups;
	float *wide, *h, *partial;
	_Atomic uint32_t *down_left; /* [blocks of down]: experts */
	struct wave_pack x_pack;
	_Atomic uint32_t blocks_left;
	uint32_t *ready; /* [n_experts], of all lanes */
};

static inline struct wave_matrices *wave_matrices(const struct wave *w, const struct wave_expert *expert,
						  uint32_t share)
{
	return &w->matrices[(size_t)(expert - w->experts) * w->n_shares + share];
}

/* Gate-and-up units of a team. */
static inline uint32_t lane_gate_units(const struct wave_lane *lane, uint32_t team)
{
	return (lane->gate.team[team + 1] - lane->gate.team[team]) * lane->n_experts;
}

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

/* Which block a unit of a team is, and how many of the team's blocks of the same expert and part begin with it. */
struct wave_place {
	bool down;
	uint32_t expert; /* its place in the lane's `experts`; of down: in `ready` */
	uint32_t block, n;
};
struct wave_place lane_place(const struct wave_lane *lane, uint32_t team, uint32_t number);

/* Builds the wave of the next `tokens` with `pairs` > 0 pairs, the gate-and-up units of its lanes ready to be added,
 * in the job's scratch, which it replaces when it is too small. 0 or -ENOMEM. */
int wave_new(struct wave **ret, struct ffn_job *job, uint32_t tokens, uint32_t pairs, pool_run *run);

#endif
