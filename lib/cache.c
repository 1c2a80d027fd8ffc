/* SPDX-License-Identifier: MIT */
#include "cache.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "policy/heat.h"

int cache_new(struct cache **ret, uint32_t n_experts, uint32_t n_slots, const struct policy_ops *policy,
	      struct moe_error *err)
{
	const size_t numbers = 8 * (size_t)n_experts + 3 * (size_t)n_slots;
	struct cache *c;
	uint32_t i;

	if (n_experts == 0 || n_experts > CACHE_EXPERTS_MAX)
		return moe_error_set(err, -EINVAL, "n_experts: %u found, 1 to %u expected", n_experts,
				     CACHE_EXPERTS_MAX);
	if (n_slots > n_experts)
		return moe_error_set(err, -EINVAL, "cache_expert_num: %u found, at most %u (n_experts) expected",
				     n_slots, n_experts);
	c = calloc(1, sizeof *c + n_experts * sizeof(uint64_t) + ALIGN_UP(numbers * sizeof(int32_t), 8) +
			      policy->bytes(n_experts, n_slots));
	if (!c)
		return moe_error_set(err, -ENOMEM, "no memory for the cache maps of %u experts", n_experts);
	*c = (struct cache){.n_experts = n_experts, .n_slots = n_slots, .n_free = n_slots, .policy = policy};
	c->keys = (uint64_t *)(c + 1);
	c->cache_map = (int32_t *)(c->keys + n_experts);
	c->miss_map = c->cache_map + n_experts;
	c->miss_expert = c->miss_map + n_experts;
	c->missing = c->miss_expert + n_experts;
	c->cached = c->missing + n_experts;
	c->touched = c->cached + n_experts;
	c->pairs = (uint32_t *)(c->touched + n_experts);
	c->leaving = (int32_t *)(c->pairs + n_experts);
	c->slot_expert = c->leaving + n_experts;
	c->free_slots = c->slot_expert + n_slots;
	c->policy_sort = c->free_slots + n_slots;
	c->state = (uint8_t *)c->cache_map + ALIGN_UP(numbers * sizeof(int32_t), 8);
	for (i = 0; i < n_experts; i++) {
		c->cache_map[i] = -1;
		c->miss_map[i] = c->miss_expert[i] = (int32_t)i;
	}
	for (i = 0; i < n_slots; i++) {
		c->slot_expert[i] = -1;
		c->free_slots[i] = (int32_t)(n_slots - 1 - i); /* slot 0 is taken first */
	}
	policy->init(c->state, n_experts, n_slots);
	*ret = c;
	return 0;
}

struct cache *cache_free(struct cache *cache)
{
	free(cache);
	return NULL;
}

/* The expert leaves its slot and takes the next miss number. Returns the slot, which is nobody's for the moment. */
static int32_t drop_expert(struct cache *c, int32_t expert)
{
	int32_t slot = c->cache_map[expert], number;

	c->cache_map[expert] = -1;
	c->slot_expert[slot] = -1;
	c->n_cached--;
	number = (int32_t)(c->n_experts - c->n_cached - 1);
	c->miss_map[expert] = number;
	c->miss_expert[number] = expert;
	return slot;
}

/* The expert takes a slot that is nobody's; whoever has the highest miss number inherits its number. */
static void put_expert(struct cache *c, int32_t expert, int32_t slot)
{
	int32_t number = c->miss_map[expert], heir = c->miss_expert[c->n_experts - c->n_cached - 1];

	c->miss_expert[number] = heir;
	c->miss_map[heir] = number;
	c->miss_map[expert] = -1;
	c->cache_map[expert] = slot;
	c->slot_expert[slot] = expert;
	c->n_cached++;
}

static void admit_free(struct cache *c, int32_t expert, struct moe_copy *ret)
{
	const int32_t slot = c->free_slots[--c->n_free];

	put_expert(c, expert, slot);
	c->policy->admit(c->state, expert);
	*ret = (struct moe_copy){expert, slot};
}

/* n experts come, into free slots first, then into those of whom the policy lets go; returns how many found one. */
static uint32_t admit_all(struct cache *c, const int32_t *experts, uint32_t n, struct moe_copy *ret_fills)
{
	uint32_t i, free_slots = MIN(n, c->n_free), left;

	for (i = 0; i < free_slots; i++)
		admit_free(c, experts[i], &ret_fills[i]);
	if (free_slots == n)
		return n;
	left = c->policy->replace(c->state, experts + free_slots, n - free_slots, c->leaving);
	for (i = 0; i < left; i++) {
		const int32_t expert = experts[free_slots + i], slot = drop_expert(c, c->leaving[i]);

		put_expert(c, expert, slot);
		ret_fills[free_slots + i] = (struct moe_copy){expert, slot};
	}
	return free_slots + left;
}

/* Those touched that are cached, ascending; without a branch: no processor foresees which of a step's experts are. */
static uint32_t list_cached(struct cache *c, const struct cache_request *requests, uint32_t n)
{
	uint32_t i, cached = 0;

	for (i = 0; i < n; i++) {
		c->cached[cached] = requests[i].expert;
		cached += (uint32_t)requests[i].touched & (uint32_t)(c->cache_map[requests[i].expert] >= 0);
	}
	return cached;
}

static void request_all(struct cache *c, const struct cache_request *requests, uint32_t n)
{
	uint32_t i, touched = 0;

	for (i = 0; i < n; i++) {
		assert(requests[i].expert >= 0 && (uint32_t)requests[i].expert < c->n_experts);
		assert(i == 0 || requests[i - 1].expert < requests[i].expert);
		c->touched[touched] = requests[i].expert;
		c->pairs[touched] = requests[i].pairs;
		touched += requests[i].touched;
	}
	c->policy->hold(c->state, c->cached, list_cached(c, requests, n));
	c->policy->request(c->state, c->touched, c->pairs, touched);
}

/* What the step has touched and is cached was held; so was what it has filled, which it had touched. */
static void settle(struct cache *c, const struct cache_request *requests, uint32_t n)
{
	c->policy->release(c->state, c->cached, list_cached(c, requests, n));
	c->policy->settle(c->state);
	assert(cache_check(c) == NULL);
}

void cache_route(struct cache *cache, const struct policy_tokens *tokens)
{
	if (cache->policy->route)
		cache->policy->route(cache->state, tokens);
}

/* Lists the touched experts that are not cached, ascending, in c->missing; without a branch, as request_all(). */
static uint32_t list_missing(struct cache *c, const struct cache_request *requests, uint32_t n)
{
	uint32_t i, missing = 0;

	for (i = 0; i < n; i++) {
		c->keys[missing] = heat_key(requests[i].pairs, requests[i].expert);
		c->missing[missing] = requests[i].expert;
		missing += (uint32_t)requests[i].touched & (uint32_t)!requests[i].passes &
			   (uint32_t)(c->cache_map[requests[i].expert] < 0);
	}
	return missing;
}

/* Keeps the max_fills hottest of c->missing, in ascending id. */
static uint32_t keep_hottest(struct cache *c, const struct cache_request *requests, uint32_t missing,
			     uint32_t max_fills)
{
	uint32_t i, at = 0, kept = 0;

	heat_sort(c->keys, missing);
	for (i = 0; i < missing; i++) {
		int32_t expert = c->missing[i];

		while (requests[at].expert != expert)
			at++;
		if (heat_key(requests[at].pairs, expert) >= c->keys[max_fills - 1])
			c->missing[kept++] = expert;
	}
	return kept;
}

uint32_t cache_update(struct cache *cache, const struct cache_request *requests, uint32_t n, uint32_t max_fills,
		      struct moe_copy *ret_fills)
{
	/* Listed before anything moves: an expert that leaves in this step does not come back in it. */
	uint32_t filled, missing = list_missing(cache, requests, n);

	if (max_fills == 0)
		missing = 0;
	else if (missing > max_fills)
		missing = cache->policy->by_heat ? keep_hottest(cache, requests, missing, max_fills) : max_fills;
	request_all(cache, requests, n);
	filled = admit_all(cache, cache->missing, missing, ret_fills);
	settle(cache, requests, n);
	return filled;
}

void cache_prefetch(struct cache *cache, const struct cache_request *requests, uint32_t n, const int32_t *admit,
		    uint32_t n_admit, struct moe_copy *ret_fills)
{
	uint32_t i;

	assert(n_admit <= cache->n_free);
	request_all(cache, requests, n);
	for (i = 0; i < n_admit; i++)
		admit_free(cache, admit[i], &ret_fills[i]);
	settle(cache, requests, n);
}

/* The slot is nobody's for the moment. */
static void clear_slot(struct cache *c, int32_t slot)
{
	uint32_t i;

	if (c->slot_expert[slot] >= 0)
		cache_remove(c, c->slot_expert[slot]);
	for (i = 0; c->free_slots[i] != slot; i++)
		;
	c->free_slots[i] = c->free_slots[--c->n_free];
}

void cache_reserve(struct cache *cache, int32_t slot)
{
	assert(cache->slot_expert[slot] != CACHE_RESERVED);
	clear_slot(cache, slot);
	cache->slot_expert[slot] = CACHE_RESERVED;
	cache->n_reserved++;
	assert(cache_check(cache) == NULL);
}

void cache_release(struct cache *cache, int32_t slot)
{
	assert(cache->slot_expert[slot] == CACHE_RESERVED);
	cache->slot_expert[slot] = -1;
	cache->n_reserved--;
	cache->free_slots[cache->n_free++] = slot;
	assert(cache_check(cache) == NULL);
}

int cache_insert(struct cache *cache, int32_t expert, int32_t slot)
{
	if (expert < 0 || (uint32_t)expert >= cache->n_experts || slot < 0 || (uint32_t)slot >= cache->n_slots)
		return -EINVAL;
	if (cache->cache_map[expert] >= 0)
		return cache->cache_map[expert] == slot ? 0 : -EEXIST;
	if (cache->slot_expert[slot] == CACHE_RESERVED)
		return -EBUSY;
	clear_slot(cache, slot);
	put_expert(cache, expert, slot);
	cache->policy->admit(cache->state, expert);
	cache->policy->release(cache->state, &expert, 1);
	cache->policy->settle(cache->state);
	assert(cache_check(cache) == NULL);
	return 0;
}

void cache_remove(struct cache *cache, int32_t expert)
{
	if (cache->cache_map[expert] < 0)
		return;
	cache->policy->remove(cache->state, expert);
	cache->free_slots[cache->n_free++] = drop_expert(cache, expert);
	assert(cache_check(cache) == NULL);
}

const int32_t *cache_sort(struct cache *cache)
{
	cache->policy->sort(cache->state, cache->policy_sort);
	return cache->policy_sort;
}

static const char *check_slots(struct cache *c)
{
	uint32_t i, cached = 0, reserved = 0;

	for (i = 0; i < c->n_experts; i++) {
		int32_t slot = c->cache_map[i];

		if (slot < 0)
			continue;
		cached++;
		if ((uint32_t)slot >= c->n_slots || c->slot_expert[slot] != (int32_t)i)
			return "cache_map is not injective onto the slots";
	}
	for (i = 0; i < c->n_slots; i++)
		reserved += c->slot_expert[i] == CACHE_RESERVED;
	if (cached != c->n_cached || reserved != c->n_reserved || cached + c->n_free + reserved != c->n_slots)
		return "cached experts, free and reserved slots do not add up";
	memset(c->keys, 0, c->n_slots * sizeof *c->keys);
	for (i = 0; i < c->n_free; i++)
		if (c->slot_expert[c->free_slots[i]] != -1 || c->keys[c->free_slots[i]]++)
			return "a free slot has an expert or is listed twice";
	return NULL;
}

static const char *check_misses(const struct cache *c)
{
	uint32_t i;

	for (i = 0; i < c->n_experts; i++) {
		int32_t number = c->miss_map[i];

		if ((number >= 0) != (c->cache_map[i] < 0))
			return "miss_map does not number exactly the experts that are not cached";
		if (number >= 0 &&
		    ((uint32_t)number >= c->n_experts - c->n_cached || c->miss_expert[number] != (int32_t)i))
			return "miss_map gives a number twice or skips one";
	}
	return NULL;
}

const char *cache_check(struct cache *cache)
{
	const char *what = check_slots(cache);
	uint32_t i;

	if (!what)
		what = check_misses(cache);
	if (what)
		return what;
	if (cache->policy->sort(cache->state, cache->policy_sort) != cache->n_cached)
		return "policy_sort has another length than the cache";
	memset(cache->keys, 0, cache->n_experts * sizeof *cache->keys);
	for (i = 0; i < cache->n_cached; i++) {
		int32_t expert = cache->policy_sort[i];

		if (expert < 0 || (uint32_t)expert >= cache->n_experts || cache->cache_map[expert] < 0 ||
		    cache->keys[expert]++)
			return "policy_sort is not a permutation of the cached experts";
	}
	return NULL;
}
