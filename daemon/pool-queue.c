/* SPDX-License-Identifier: MIT */
#include "daemon/pool-queue.h"

#include <assert.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>

#include "base/futex.h"

/* Turns of a polling loop between two looks at the clock or two calls of sched_yield: about a microsecond. */
#define SPIN_TURNS 32
#define PINNED_TURNS 2048 /* of who waits for another CPU's thread, before it yields: a tenth of a millisecond */

static void lock_init(pthread_mutex_t *lock)
{
	pthread_mutexattr_t attr;

	/* The sections are a few instructions long: polling beats sleeping. */
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
	pthread_mutex_init(lock, &attr);
	pthread_mutexattr_destroy(&attr);
}

void pool_queue_init(struct pool_queue *queue, uint32_t n_teams)
{
	*queue = (struct pool_queue){.n_teams = n_teams};
	lock_init(&queue->lock);
	for (uint32_t t = 0; t < n_teams; t++)
		lock_init(&queue->teams[t].lock);
	for (enum pool_priority p = 0; p < POOL_PRIORITIES; p++) {
		atomic_init(&queue->first[p], POOL_ORDER_NONE);
		for (uint32_t t = 0; t < n_teams; t++)
			atomic_init(&queue->teams[t].first[p], POOL_ORDER_NONE);
	}
}

void pool_queue_destroy(struct pool_queue *queue)
{
	for (enum pool_priority p = 0; p < POOL_PRIORITIES; p++) {
		assert(!queue->inbox[p]);
		for (uint32_t t = 0; t < queue->n_teams; t++)
			assert(!queue->teams[t].views[p]);
	}
	for (uint32_t t = 0; t < queue->n_teams; t++)
		pthread_mutex_destroy(&queue->teams[t].lock);
	pthread_mutex_destroy(&queue->lock);
}

/* -- bells -------------------------------------------------------------------------------------------------------- */

/* Returns true when a sleeper was woken. One that is only about to sleep sees the new bell and does not. */
static bool ring(struct pool_team *team, uint32_t wake)
{
	atomic_store_explicit(&team->rung_ns, now_ns(), memory_order_relaxed);
	atomic_fetch_add(&team->bell, 1);
	if (wake == 0 || atomic_load(&team->sleepers) == 0)
		return false;
	return futex_wake(&team->bell, wake > INT_MAX ? INT_MAX : (int)wake) > 0;
}

void pool_queue_ring_one(struct pool_queue *queue)
{
	const uint32_t first = atomic_fetch_add_explicit(&queue->turn, 1, memory_order_relaxed);
	uint32_t wake = 1;

	for (uint32_t i = 0; i < queue->n_teams; i++)
		if (ring(&queue->teams[(first + i) % queue->n_teams], wake))
			wake = 0;
}

void pool_queue_ring_all(struct pool_queue *queue)
{
	for (uint32_t t = 0; t < queue->n_teams; t++)
		ring(&queue->teams[t], INT_MAX);
}

void pool_queue_wait(struct pool_queue *queue, uint32_t team, uint32_t heard, uint64_t spin_ns, struct crowd *crowd)
{
	struct pool_team *t = &queue->teams[team];
	uint64_t now = now_ns();
	const uint64_t deadline = now + spin_ns;

	while (now < deadline && !crowd_is(crowd, now)) {
		for (int i = 0; i < SPIN_TURNS; i++) {
			if (atomic_load(&t->bell) != heard) {
				crowd_found(crowd, atomic_load_explicit(&t->rung_ns, memory_order_relaxed));
				return;
			}
			cpu_relax();
		}
		now = crowd_yield(crowd);
	}

	atomic_fetch_add(&t->sleepers, 1);
	while (atomic_load(&t->bell) == heard)
		futex_wait(&t->bell, heard, 0);
	atomic_fetch_sub(&t->sleepers, 1);
}

void pool_wait_zero(_Atomic uint32_t *word)
{
	for (uint32_t turn = 1; atomic_load_explicit(word, memory_order_acquire); turn++) {
		if (turn < PINNED_TURNS || turn % SPIN_TURNS)
			cpu_relax();
		else
			sched_yield();
	}
}

/* -- inbox -------------------------------------------------------------------------------------------------------- */

static bool goes_before(struct pool_place a, struct pool_place b)
{
	return a.order != b.order ? a.order < b.order : a.seq < b.seq;
}

/* The right way down is the shortest to an end: its length, the rank, is at most the logarithm of their number. */
static struct pool_entry *meld(struct pool_entry *a, struct pool_entry *b)
{
	struct pool_entry *top, *under;

	if (!a || !b)
		return a ? a : b;
	top = goes_before(a->place, b->place) ? a : b;
	under = meld(top->right, top == a ? b : a);
	if (top->left && top->left->rank >= under->rank) {
		top->right = under;
	} else {
		top->right = top->left;
		top->left = under;
	}
	top->rank = top->right ? top->right->rank + 1 : 1;
	return top;
}

/* Under the lock. */
static void inbox_set(struct pool_queue *queue, enum pool_priority priority, struct pool_entry *top)
{
	queue->inbox[priority] = top;
	atomic_store(&queue->takes_scratch[priority], top && top->takes_scratch);
	atomic_store(&queue->first[priority], top ? top->place.order : POOL_ORDER_NONE);
}

/* Under the lock. */
static void inbox_add(struct pool_queue *queue, enum pool_priority priority, struct pool_entry *entry)
{
	entry->left = entry->right = NULL;
	entry->rank = 1;
	inbox_set(queue, priority, meld(queue->inbox[priority], entry));
}

void pool_queue_submit(struct pool_queue *queue, struct pool_entry *entry, enum pool_priority priority, uint64_t order)
{
	pthread_mutex_lock(&queue->lock);
	entry->place = (struct pool_place){.order = order, .seq = queue->seq++};
	inbox_add(queue, priority, entry);
	pthread_mutex_unlock(&queue->lock);
	pool_queue_ring_one(queue);
}

void pool_queue_return(struct pool_queue *queue, struct pool_entry *entry, enum pool_priority priority)
{
	pthread_mutex_lock(&queue->lock);
	inbox_add(queue, priority, entry);
	pthread_mutex_unlock(&queue->lock);
	pool_queue_ring_one(queue);
}

struct pool_entry *pool_queue_take(struct pool_queue *queue, enum pool_priority priority, bool room)
{
	struct pool_entry *entry, *next;

	pthread_mutex_lock(&queue->lock);
	entry = queue->inbox[priority];
	if (entry && entry->takes_scratch && !room) { /* another thread has taken what was first at the last look */
		pthread_mutex_unlock(&queue->lock);
		return NULL;
	}
	next = entry ? meld(entry->left, entry->right) : NULL;
	inbox_set(queue, priority, next);
	pthread_mutex_unlock(&queue->lock);
	if (next) /* each submission woke one thread at most, perhaps the same one */
		pool_queue_ring_one(queue);
	return entry;
}

/* -- batches ------------------------------------------------------------------------------------------------------ */

void pool_batch_init(struct pool_batch *batch, pool_run *run, enum pool_priority priority, struct pool_place place)
{
	*batch = (struct pool_batch){.run = run, .priority = priority, .place = place, .refs = 1};
	for (uint32_t t = 0; t < HOST_NODES_MAX; t++)
		batch->views[t].batch = batch;
}

void pool_batch_unref(struct pool_batch *batch)
{
	if (atomic_fetch_sub_explicit(&batch->refs, 1, memory_order_acq_rel) == 1)
		free(batch);
}

/* Under the team's lock, after a change. */
static void team_first(struct pool_team *team, enum pool_priority priority)
{
	const struct pool_view *view = team->views[priority];

	atomic_store(&team->first[priority], view ? view->batch->place.order : POOL_ORDER_NONE);
}

/* Under the team's lock. */
static void view_link(struct pool_team *team, struct pool_view *view)
{
	const enum pool_priority priority = view->batch->priority;
	struct pool_view **at = &team->views[priority];

	while (*at && !goes_before(view->batch->place, (*at)->batch->place))
		at = &(*at)->next;
	view->next = *at;
	view->linked = true;
	*at = view;
	atomic_fetch_add_explicit(&view->batch->refs, 1, memory_order_relaxed);
	team_first(team, priority);
}

void pool_queue_add(struct pool_queue *queue, struct pool_batch *batch, uint32_t team, uint32_t units)
{
	struct pool_team *t = &queue->teams[team];
	struct pool_view *view = &batch->views[team];

	if (units == 0)
		return;
	pthread_mutex_lock(&t->lock);
	atomic_fetch_add_explicit(&view->units, units, memory_order_release);
	if (!view->linked)
		view_link(t, view);
	pthread_mutex_unlock(&t->lock);
	ring(t, units);
}

struct pool_view *pool_queue_view(struct pool_queue *queue, uint32_t team, enum pool_priority priority)
{
	struct pool_team *t = &queue->teams[team];
	struct pool_view *view;

	if (atomic_load(&t->first[priority]) == POOL_ORDER_NONE)
		return NULL;
	pthread_mutex_lock(&t->lock);
	view = t->views[priority];
	if (view)
		atomic_fetch_add_explicit(&view->batch->refs, 1, memory_order_relaxed);
	pthread_mutex_unlock(&t->lock);
	return view;
}

void pool_queue_exhausted(struct pool_queue *queue, uint32_t team, struct pool_view *view)
{
	struct pool_team *t = &queue->teams[team];
	const enum pool_priority priority = view->batch->priority;
	bool mine = false;

	pthread_mutex_lock(&t->lock);
	if (view->linked && atomic_load(&view->cursor) == atomic_load(&view->units)) {
		struct pool_view **at = &t->views[priority];

		while (*at != view)
			at = &(*at)->next;
		*at = view->next;
		view->linked = false;
		team_first(t, priority);
		mine = true;
	}
	pthread_mutex_unlock(&t->lock);
	if (mine)
		pool_batch_unref(view->batch);
}
