/* SPDX-License-Identifier: MIT */
/*
 * pool-queue - what the pool's threads take their work from, and where they sleep when there is none.
 *
 * A submitted job is an entry in the inbox; one thread takes it and turns it into batches of units. A batch has one
 * view per team: a cursor from which that team's threads draw units, one or several at once, until none is left. The
 * inbox and each team's queue hold, for each priority, entries and views in the order of their jobs' places: the inbox
 * a heap, for thousands may wait there, a team's queue a list. A unit that needs others is added to its view when they
 * are done, by the thread that did the last of them: no unit ever waits for one that nobody runs.
 *
 * Law of references: each link in a queue and each thread that works on a batch holds one; the last one frees the
 * batch. Units are added by a thread that holds one. All that a thread touches after it found no unit is the view
 * itself, never the job, which may be gone.
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

#include "base/crowd.h"
#include "base/host.h"
#include "base/util.h"
#include "daemon/pool.h"

struct pool_batch;

struct pool_view {
	struct pool_batch *batch;
	struct pool_view *next; /* under the team's lock, as `linked` */
	bool linked;
	alignas(CACHE_LINE) _Atomic uint32_t cursor; /* never beyond `units`, which grow under the team's lock */
	_Atomic uint32_t units;
};

/* Units first .. first + n; none when n is 0. */
struct pool_units {
	uint32_t first, n;
};

/* Does units of a team. next: those that the same thread does after them, none: not known. */
typedef void pool_run(struct pool_batch *batch, uint32_t team, struct pool_units units, struct pool_units next);

/* How many units a thread takes at once, from `unit` on: 1 .. left. Another thread may have taken them meanwhile, and
 * even ended the job: nothing but the batch's own struct is there for certain. */
typedef uint32_t pool_several(const struct pool_batch *batch, uint32_t team, uint32_t unit, uint32_t left);

/* The first member of something from aligned_alloc. */
struct pool_batch {
	pool_run *run;
	pool_several *several; /* NULL: one */
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
	_Atomic uint64_t rung_ns; /* when last */
};

struct pool_queue {
	uint32_t n_teams;
	_Atomic uint32_t turn; /* the team whose sleeper is woken next */
	pthread_mutex_t lock;
	struct pool_entry *inbox[POOL_PRIORITIES]; /* leftist heaps by place */
	uint64_t seq;
	_Atomic uint64_t first[POOL_PRIORITIES];     /* orders of the first entries */
	_Atomic bool takes_scratch[POOL_PRIORITIES]; /* whether the first entries do */
	struct pool_team teams[HOST_NODES_MAX];
};

void pool_queue_init(struct pool_queue *queue, uint32_t n_teams);
void pool_queue_destroy(struct pool_queue *queue); /* asserts that it is empty */

/* The inbox. Taking returns NULL when it is empty, or has no `room` for the first one's scratch memory. */
void pool_queue_submit(struct pool_queue *queue, struct pool_entry *entry, enum pool_priority priority, uint64_t order);
struct pool_entry *pool_queue_take(struct pool_queue *queue, enum pool_priority priority, bool room);
/* A job that had begun goes on when its place's turn comes again. */
void pool_queue_return(struct pool_queue *queue, struct pool_entry *entry, enum pool_priority priority);

static inline bool pool_queue_waiting(struct pool_queue *queue)
{
	for (enum pool_priority p = 0; p < POOL_PRIORITIES; p++)
		if (atomic_load(&queue->first[p]) != POOL_ORDER_NONE)
			return true;
	return false;
}

/* True when a team has a view: of units that are left to draw, or of none that a thread has not found out yet. */
static inline bool pool_queue_has_views(struct pool_queue *queue)
{
	for (uint32_t t = 0; t < queue->n_teams; t++)
		for (enum pool_priority p = 0; p < POOL_PRIORITIES; p++)
			if (atomic_load(&queue->teams[t].first[p]) != POOL_ORDER_NONE)
				return true;
	return false;
}

/* Of the first entry of this priority, if there is one. */
static inline bool pool_queue_first_takes_scratch(struct pool_queue *queue, enum pool_priority priority)
{
	return atomic_load(&queue->takes_scratch[priority]);
}

/* True when an entry of this priority goes before all the team's views of it. */
static inline bool pool_queue_new_first(struct pool_queue *queue, uint32_t team, enum pool_priority priority)
{
	return atomic_load(&queue->first[priority]) < atomic_load(&queue->teams[team].first[priority]);
}

/* Sets the batch's head; its views have no units yet. Threads take one at a time, unless `several` is set then. The
 * caller has a reference, to be dropped once the first units are added: then the batch may be run, and gone. */
void pool_batch_init(struct pool_batch *batch, pool_run *run, enum pool_priority priority, struct pool_place place);

/* Gives a team so many more units of the batch (0: nothing happens). The caller holds a reference. */
void pool_queue_add(struct pool_queue *queue, struct pool_batch *batch, uint32_t team, uint32_t units);

/* The first view of a priority with a reference to its batch, or NULL. */
struct pool_view *pool_queue_view(struct pool_queue *queue, uint32_t team, enum pool_priority priority);
/* The next units; none when there are none now. */
static inline struct pool_units pool_view_draw(struct pool_view *view, uint32_t team)
{
	pool_several *several = view->batch->several;
	struct pool_units drawn = {.first = atomic_load_explicit(&view->cursor, memory_order_relaxed)};

	do {
		/* Acquire: what the units need was done before they were added (release, in pool_queue_add). */
		const uint32_t units = atomic_load_explicit(&view->units, memory_order_acquire);

		if (drawn.first >= units)
			return (struct pool_units){0};
		drawn.n = several ? several(view->batch, team, drawn.first, units - drawn.first) : 1;
	} while (!atomic_compare_exchange_weak_explicit(&view->cursor, &drawn.first, drawn.first + drawn.n,
							memory_order_relaxed, memory_order_relaxed));
	return drawn;
}

/* How many units are left to draw. */
static inline uint32_t pool_view_left(struct pool_view *view)
{
	return atomic_load_explicit(&view->units, memory_order_relaxed) -
	       atomic_load_explicit(&view->cursor, memory_order_relaxed);
}

/* Takes a view that has no unit now off its queue. */
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

/* Returns once the bell is no longer `heard`: polls for spin_ns, but in no crowd, then sleeps. */
void pool_queue_wait(struct pool_queue *queue, uint32_t team, uint32_t heard, uint64_t spin_ns, struct crowd *crowd);

/* Waits for other threads' running units: polls, then gives the CPU away. */
void pool_wait_zero(_Atomic uint32_t *word);

#endif
