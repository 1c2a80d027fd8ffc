/* SPDX-License-Identifier: MIT */
/*
 * pool-internal - the pool as its own files see it, and how a job begins.
 *
 * pool.c has the threads, pool-queue the work they take, pool-scratch their memory; pool-ffn and pool-copy are the two
 * kinds of job that clients ask for, pool-move the third; pool-wave has the tables of one wave of a computation, and
 * pool-deal says which experts are not cut.
 */
#ifndef DAEMON_POOL_INTERNAL_H
#define DAEMON_POOL_INTERNAL_H

#include "daemon/pool-queue.h"
#include "daemon/pool-scratch.h"
#include "daemon/pool.h"

struct pool_worker {
	struct pool *pool;
	pthread_t thread;
	uint32_t team, index; /* in the team */
	uint32_t node;        /* of the host */
	int cpu;
	_Atomic uint64_t busy_ns;
	_Atomic uint32_t turns; /* odd: in the midst of a unit, or of beginning a job */
	uint32_t seen;          /* turns at the last pool_look */
	struct crowd crowd;
};

/* What was read of the shares of a node, counted when a wave or a copy begins. */
struct pool_share {
	_Atomic uint64_t read_bytes, copy_bytes, whole;
};

struct pool {
	const struct kernels *kernels;
	uint64_t spin_ns;
	uint32_t team_of[MOE_POOLS_MAX];  /* whose threads read a share */
	uint32_t node_of[HOST_NODES_MAX]; /* where a team's threads are */
	struct pool_queue queue;
	struct scratch_cache scratch;
	_Atomic bool stop;
	bool waited; /* at the last pool_look something had not begun */
	_Atomic uint64_t jobs, pairs, copy_bytes;
	struct pool_share shares[MOE_POOLS_MAX];
	uint32_t n_workers; /* that run */
	struct pool_worker *workers;
};

/* Begin a job on a thread of the pool. They publish its batches or end it at once. */
void ffn_start(struct pool *pool, struct pool_entry *entry);
void copy_start(struct pool *pool, struct pool_entry *entry);
void move_start(struct pool *pool, struct pool_entry *entry);

/* Counts a job that ends. */
static inline void pool_count(struct pool *pool, const struct pool_result *result)
{
	atomic_fetch_add_explicit(&pool->jobs, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&pool->pairs, result->pairs, memory_order_relaxed);
	atomic_fetch_add_explicit(&pool->copy_bytes, result->bytes, memory_order_relaxed);
}

#endif
