/* SPDX-License-Identifier: MIT */
/*
 * pool-scratch - the memory that computations put their intermediate values in.
 *
 * Blocks are kept and given out again, because fresh ones cost a page fault per page; what is kept is bounded, and
 * so is what the jobs of one priority hold before another one of that priority may start. A service without sessions
 * gives back what is kept. Thread-safe.
 */
#ifndef DAEMON_POOL_SCRATCH_H
#define DAEMON_POOL_SCRATCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "daemon/pool.h"

#define SCRATCH_KEPT_MAX ((size_t)256 << 20) /* bytes kept unused */
#define SCRATCH_USED_MAX ((size_t)256 << 20) /* bytes in use by a priority from which no further job of it starts */

struct scratch {
	struct scratch *next;
	enum pool_priority priority;
	size_t asked; /* bytes: what counts as in use */
	size_t bytes; /* usable */
	void *base;   /* on a cache line */
};

struct scratch_cache {
	pthread_mutex_t lock;
	struct scratch *kept; /* the latest first */
	_Atomic size_t used[POOL_PRIORITIES];
};

void scratch_cache_init(struct scratch_cache *cache);
void scratch_cache_destroy(struct scratch_cache *cache); /* asserts that all blocks came back */

/* At least `bytes`, of any content; NULL when there is no memory. */
struct scratch *scratch_get(struct scratch_cache *cache, size_t bytes, enum pool_priority priority);
/* Takes NULL, returns NULL. */
struct scratch *scratch_put(struct scratch_cache *cache, struct scratch *scratch);

/* Gives all that is unused back to the system. */
void scratch_trim(struct scratch_cache *cache);

static inline bool scratch_has_room(struct scratch_cache *cache, enum pool_priority priority)
{
	return atomic_load(&cache->used[priority]) < SCRATCH_USED_MAX;
}

#endif
