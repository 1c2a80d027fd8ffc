/* SPDX-License-Identifier: MIT */
#include "daemon/pool-scratch.h"

#include <assert.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "base/util.h"

#define SCRATCH_MIN ((size_t)64 << 10)
#define SCRATCH_HUGE ((size_t)2 << 20)

/* The descriptor stands at the start of its block, on a cache line of its own. */
_Static_assert(sizeof(struct scratch) <= CACHE_LINE, "scratch descriptor");

void scratch_cache_init(struct scratch_cache *cache)
{
	*cache = (struct scratch_cache){.kept = NULL};
	pthread_mutex_init(&cache->lock, NULL);
}

static void scratch_unmap_list(struct scratch *scratch)
{
	while (scratch) {
		struct scratch *next = scratch->next;

		munmap(scratch, scratch->bytes + CACHE_LINE);
		scratch = next;
	}
}

void scratch_cache_destroy(struct scratch_cache *cache)
{
	for (enum pool_priority p = 0; p < POOL_PRIORITIES; p++)
		assert(atomic_load(&cache->used[p]) == 0);
	scratch_unmap_list(cache->kept);
	pthread_mutex_destroy(&cache->lock);
}

/* The smallest kept block that is large enough, but not so large that it is missed elsewhere. */
static struct scratch *scratch_reuse(struct scratch_cache *cache, size_t bytes)
{
	const size_t most = 8 * MAX(bytes, SCRATCH_MIN);
	struct scratch **best = NULL, *found = NULL;

	pthread_mutex_lock(&cache->lock);
	for (struct scratch **at = &cache->kept; *at; at = &(*at)->next)
		if ((*at)->bytes >= bytes && (*at)->bytes <= most && (!best || (*at)->bytes < (*best)->bytes))
			best = at;
	if (best) {
		found = *best;
		*best = found->next;
	}
	pthread_mutex_unlock(&cache->lock);
	return found;
}

/* A little larger than asked for, so that the next job of about that size finds room in it. */
static struct scratch *scratch_map(size_t bytes)
{
	uint64_t size;
	struct scratch *scratch;

	if (!checked_add(&size, bytes, CACHE_LINE + bytes / 8) ||
	    !checked_align(&size, size, size < SCRATCH_HUGE ? SCRATCH_MIN : SCRATCH_HUGE))
		return NULL;
	scratch = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (scratch == MAP_FAILED)
		return NULL;
	if (size >= SCRATCH_HUGE)
		madvise(scratch, size, MADV_HUGEPAGE); /* only faster: without huge pages small ones do */
	scratch->bytes = size - CACHE_LINE;
	scratch->base = (char *)scratch + CACHE_LINE;
	return scratch;
}

struct scratch *scratch_get(struct scratch_cache *cache, size_t bytes, enum pool_priority priority)
{
	struct scratch *scratch = scratch_reuse(cache, bytes);

	if (!scratch)
		scratch = scratch_map(bytes);
	if (!scratch)
		return NULL;
	scratch->next = NULL;
	scratch->priority = priority;
	scratch->asked = bytes;
	atomic_fetch_add(&cache->used[priority], bytes);
	return scratch;
}

/* Takes those off the list that the bound has no room for beside what lay there for a shorter time; one that is larger
 * than the bound by itself does not push out the others. */
static struct scratch *scratch_evict(struct scratch_cache *cache)
{
	struct scratch **at = &cache->kept, *evicted = NULL, *block;
	size_t bytes = 0;

	while ((block = *at)) {
		if (block->bytes <= SCRATCH_KEPT_MAX - bytes) {
			bytes += block->bytes;
			at = &block->next;
			continue;
		}
		*at = block->next;
		block->next = evicted;
		evicted = block;
	}
	return evicted;
}

struct scratch *scratch_put(struct scratch_cache *cache, struct scratch *scratch)
{
	struct scratch *evicted;

	if (!scratch)
		return NULL;
	atomic_fetch_sub(&cache->used[scratch->priority], scratch->asked);
	pthread_mutex_lock(&cache->lock);
	scratch->next = cache->kept;
	cache->kept = scratch;
	evicted = scratch_evict(cache);
	pthread_mutex_unlock(&cache->lock);
	scratch_unmap_list(evicted);
	return NULL;
}

void scratch_trim(struct scratch_cache *cache)
{
	struct scratch *kept;

	pthread_mutex_lock(&cache->lock);
	kept = cache->kept;
	cache->kept = NULL;
	pthread_mutex_unlock(&cache->lock);
	scratch_unmap_list(kept);
}
