/* SPDX-License-Identifier: MIT */
/*
 * pool - the CPU threads that compute experts and copy slices.
 *
 * One team of pinned threads per NUMA node; a team reads only what its own node has: its share of the rows of each
 * expert, or a whole copy where there is one and the teams stay even (pool-deal.h). A job is cut into units, blocks of
 * rows, that the team's threads take in order from one atomic cursor. There is no global barrier: whoever finishes the
 * last gate-and-up rows of an expert, of all teams, gives each team the expert's down rows, and whoever finishes the
 * last part of an output block adds it up. Sums are formed in a fixed order, so a result depends neither on the number
 * of nodes, of threads or who was faster, nor on what other tokens are in the job; but for formats in panels at level
 * amx, whose experts with many tokens are computed in bfloat16 (docs/decisions/0096).
 *
 * An idle thread polls for spin_us and then sleeps: an idle pool uses no CPU. Between units the most urgent job goes
 * first: that of the highest priority, within it that of the lowest `order`; a unit that runs is not interrupted.
 * Scratch memory is bounded: a computation is cut into waves of tokens.
 */
#ifndef DAEMON_POOL_H
#define DAEMON_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/host.h"
#include "daemon/store.h"
#include "kernels/kernels.h"
#include "moe-error.h"
#include "uapi/moe_manifest.h"
#include "uapi/moe_ring.h"

struct pool;

struct pool_params {
	const struct host *host; /* read by pool_new only; a share of a record belongs to the node of that index */
	/* In all, dealt evenly to the nodes; 0: one for each core of the process's affinity mask, or fewer where the
	 * control group's CPU quota allows no more, or where nodes have more cores than their even part. A node that
	 * gets none, or has no CPU, is served by the others. */
	uint32_t threads;
	const struct kernels *kernels;
	uint32_t spin_us; /* how long an idle thread polls before it sleeps */
};

enum pool_priority { POOL_DECODE, POOL_PREFILL, POOL_BACKGROUND, POOL_PRIORITIES };

#define POOL_ORDER_NONE UINT64_MAX /* after every job: no job */

/* Why a job ended, with the times that a completion reports. */
struct pool_result {
	int status;                /* 0 or -errno (-ENOMEM) */
	uint64_t start_ns, end_ns; /* now_ns() of first and last unit; what lay between two waves is not between them */
	uint64_t pairs, bytes;     /* computed; copied */
};

/* A job's place among those of its priority: the lower `order` first, equal ones as they were submitted. */
struct pool_place {
	uint64_t order, seq;
};

/* The pool's own, from submit to `done`; the caller leaves it alone. */
struct pool_entry {
	struct pool_entry *left, *right; /* of the inbox's heap */
	uint32_t rank;
	struct pool_place place;
	bool takes_scratch; /* not begun while its priority has as much as it may */
	void (*start)(struct pool *pool, struct pool_entry *entry);
};

/*
 * y[t] = sum_k weights[t][k] * W_down(act(W_gate x[t]) * (W_up x[t])) over the pairs with ids[t][k] >= 0; rows
 * without a pair are written as zeros. The caller has checked ids (-1 .. n_experts-1) and owns all memory until
 * `done` is called (from a pool thread, exactly once). x and y may be shared with a client that writes them
 * meanwhile: then the result is garbage, and nothing else happens.
 */
struct pool_compute {
	const struct resident *model;
	uint32_t row;                    /* layer_index[layer] */
	const struct moe_layout *layout; /* the row's, in the manifest */
	const struct moe_slice *slice;   /* of this layout */
	enum pool_priority priority;
	uint64_t order; /* below POOL_ORDER_NONE */
	uint32_t tokens, topk;
	const void *x;           /* [tokens][hidden] of x_type */
	void *y;                 /* [tokens][hidden] of y_type */
	uint32_t x_type, y_type; /* MOE_TYPE_F32, MOE_TYPE_BF16 */
	const int32_t *ids;      /* [tokens][topk], private to the daemon */
	const float *weights;    /* [tokens][topk], private to the daemon */
	void (*done)(struct pool_compute *job, const struct pool_result *result); /* may free the job */
	struct pool_entry entry;
};

/* Copies one slice of one record, packed, to dst (slice->bytes, of which the padding between the planes stays as it
 * was), or a range of it: then these bytes of the same copy are written, and nothing else. */
struct pool_copy {
	const struct resident *model;
	uint32_t row, expert;
	const struct moe_slice *slice; /* of the row's layout */
	uint64_t from, bytes;          /* the range, in the slice's packed bytes */
	enum pool_priority priority;
	uint64_t order; /* below POOL_ORDER_NONE */
	void *dst;      /* where the slice begins, not the range */
	void (*done)(struct pool_copy *job, const struct pool_result *result); /* may free the job */
	struct pool_entry entry;
};

/* Bytes of the daemon's own, none of them overlapping, to where only this job writes: at background priority, by the
 * team of the node. */
struct pool_range {
	const uint8_t *from;
	uint8_t *to;
	uint64_t bytes; /* > 0 */
};

struct pool_move {
	struct pool_range ranges[MOE_POOLS_MAX];
	uint32_t n; /* > 0 */
	uint32_t node;
	void (*done)(struct pool_move *job, int status); /* 0 or -ENOMEM; may free the job */
	struct pool_entry entry;
};

int pool_new(struct pool **ret, const struct pool_params *params, struct moe_error *err);
/* Every job must have ended. Takes NULL, returns NULL. */
struct pool *pool_free(struct pool *pool);
uint32_t pool_threads(const struct pool *pool);

/* Whether the pool has moved since the last look, as far as it had to: false, with the reason in `why`, when a thread
 * is still in the unit that it was in then (units take milliseconds), or jobs wait and no thread has done anything.
 * For one caller, seconds apart. */
bool pool_look(struct pool *pool, char *why, size_t size);

/* Gives intermediate memory that no job uses back to the system. Thread-safe; the next jobs fault pages in anew. */
void pool_trim(struct pool *pool);

/* Thread-safe; never blocks on work. The structs must stay in place until `done`. */
void pool_submit_compute(struct pool *pool, struct pool_compute *job);
void pool_submit_copy(struct pool *pool, struct pool_copy *job);
void pool_submit_move(struct pool *pool, struct pool_move *job);

/* So many pairs of an expert cost as much arithmetic as reading it once costs time: about, on a CPU with AVX-512. */
#define POOL_PAIRS_PER_READ 16

/* Cumulative: nanoseconds that the threads worked, jobs, pairs, bytes copied. */
struct pool_stats {
	uint64_t busy_ns, jobs, pairs, copy_bytes;
};
void pool_stats(struct pool *pool, struct pool_stats *ret);

/* What the pool asked of one node's memory since it began: the weights of each expert of each wave, once, and what it
 * copied into slots; threads that are pinned there, and how long they worked. node: an index of the host's nodes. */
struct pool_node_stats {
	uint32_t threads;
	uint64_t busy_ns, read_bytes, copy_bytes;
	uint64_t whole; /* experts of a wave that this node alone computed */
};
void pool_node_stats(struct pool *pool, uint32_t node, struct pool_node_stats *ret);

#endif
