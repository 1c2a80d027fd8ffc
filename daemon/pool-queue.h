/* SPDX-License-Identifier: MIT */
/*
 * pool-queue - what the pool's threads take their work from, and where they sleep when there is none.
 *
 * A submitted job is an entry in the inbox; one thread takes it and turns it into batches of units. A batch has one
 * view per team: a cursor from which that team's threads draw unit numbers until none is left. The inbox and each
 * team's queue hold, for each priority, entries and views in the order of their jobs' places.
 *
 * Law of references: each link in a queue and each thread that works on a batch holds one; the last one frees the
 * batch. All that a thread touches after it drew a number beyond the end is the view itself, never the job, which
 * may be gone.
 *
 * Law of sleeping: who adds work then rings (bell + 1, then looks for sleepers); who finds no work has read the bell
 * before it looked, counts itself as a sleeper and sleeps only while the bell is as it was read. All of that is
 * sequentially consistent, so one of the two sees the other.
 */
#ifndef DAEMON_POOL_QUEUE_H
#define DAEMON_POOL_QUEUE_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/host.h"
#include "base/util.h"
#include "daemon/pool.h"

struct pool_batch;

struct pool_view {
	struct pool_batch *batch;
	struct pool_view *next; /* under the team's lock, as `linked` */
	uint32_t units;
	bool linked;
	alignas(CACHE_LINE) _Atomic uint32_t cursor;
};

/* The first member of something from aligned_alloc. */
struct pool_batch {
	void (*run)(struct pool_batch *batch, uint32_t team, uint32_t unit);
	enum pool_priority priority;
	struct pool_place place; /* the job's */
	_Atomic uint32_t refs;
	struct pool_view views[HOST_NODES_MAX];
};

struct pool_team {
	pthread_mutex_t lock;
	struct pool_view *views[POOL_PRIORITIES];
	_Atomic uint64_t first[POOL_PRIORITIES]; /* orders of the first views, for a look without the lock */
	alignas(CACHE_LINE) _Atomic uint32_t bell;
	_Atomic uint32_t sleepers;
};

struct pool_queue {
	uint32_t n_teams;
	_Atomic uint32_t turn; /* the team whose sleeper is woken next */
	pthread_mutex_t lock;
	struct pool_entry *inbox[POOL_PRIORITIES];
	uint64_t seq;
	_Atomic uint64_t first[POOL_PRIORITIES]; /* orders of the first entries */
	struct pool_team teams[HOST_NODES_MAX];
};

void pool_queue_init(struct pool_queue *queue, uint32_t n_teams);
void pool_queue_destroy(struct pool_queue *queue); /* asserts that it is empty */

/* The inbox. Taking returns NULL when it is empty. */
void pool_queue_submit(struct pool_queue *queue, struct pool_entry *entry, enum pool_priority priority, uint64_t order);
struct pool_entry *pool_queue_take(struct pool_queue *queue, enum pool_priority priority);

static inline bool pool_queue_waiting(struct pool_queue *queue)
{
	for (enum pool_priority p = 0; p < POOL_PRIORITIES; p++)
		if (atomic_load(&queue->first[p]) != POOL_ORDER_NONE)
			return true;
	return false;
}

/* True when an entry of this priority goes before all the team's views of it. */
static inline bool pool_queue_new_first(struct pool_queue *queue, uint32_t team, enum pool_priority priority)
{
	return atomic_load(&queue->first[priority]) < atomic_load(&queue->teams[team].first[priority]);
}

/* Sets the batch's head; its views have no units yet. */
void pool_batch_init(struct pool_batch *batch, void (*run)(struct pool_batch *, uint32_t, uint32_t),
		     enum pool_priority priority, struct pool_place place);

/* Hands the batch to the teams whose views have units (at least one has). It may be run, and gone, when this
 * returns. */
void pool_queue_publish(struct pool_queue *queue, struct pool_batch *batch);

/* The first view of a priority with a reference to its batch, or NULL. */
struct pool_view *pool_queue_view(struct pool_queue *queue, uint32_t team, enum pool_priority priority);
/* Takes an exhausted view off its queue, once. */
void pool_queue_exhausted(struct pool_queue *queue, uint32_t team, struct pool_view *view);
void pool_batch_unref(struct pool_batch *batch);

/* True when a thread of this team that works on `batch` should look for something more urgent. */
static inline bool pool_queue_urgent(struct pool_queue *queue, uint32_t team, const struct pool_batch *batch)
{
	for (enum pool_priority p = 0; p <= batch->priority; p++) {
		const uint64_t order = p < batch->priority ? POOL_ORDER_NONE : batch->place.order;

		if (atomic_load_explicit(&queue->first[p], memory_order_relaxed) < order ||
		    atomic_load_explicit(&queue->teams[team].first[p], memory_order_relaxed) < order)
			return true;
	}
	return false;
}

/* Bells of all teams; wakes one sleeper: for work that any team can do. */
void pool_queue_ring_one(struct pool_queue *queue);
/* Bells of all teams; wakes everybody. */
void pool_queue_ring_all(struct pool_queue *queue);

static inline uint32_t pool_queue_listen(struct pool_queue *queue, uint32_t team)
{
	return atomic_load(&queue->teams[team].bell);
}

/* Returns once the bell is no longer `heard`: polls for spin_ns, then sleeps. */
void pool_queue_wait(struct pool_queue *queue, uint32_t team, uint32_t heard, uint64_t spin_ns);

/* Waits for other threads' running units: polls, then gives the CPU away. */
void pool_wait_zero(_Atomic uint32_t *word);

#endif
