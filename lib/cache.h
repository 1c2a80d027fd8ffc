/* SPDX-License-Identifier: MIT */
/*
 * cache - which experts of one layer lie in which device slots.
 *
 * Invariants, between any two calls (cache_check proves them; debug builds assert it after each change):
 *   - cache_map[e] is the slot of expert e or -1; no two experts share a slot; slot_expert is its inverse;
 *   - miss_map numbers exactly the experts that are not cached, 0 .. n_experts - n_cached - 1, each number once, and is
 *     -1 for the others; an expert that leaves inherits the number of the one that takes its slot;
 *   - policy_sort is a permutation of exactly the cached experts, coldest first;
 *   - a slot is some expert's, free, or reserved for what may come, and only one of these.
 *
 * The cache starts empty. It only keeps books: who calls must fill the slots it names before anybody reads them, and
 * must call cache_remove for a fill that failed. Any number of experts from 1 to CACHE_EXPERTS_MAX, any number of slots
 * from 0 to n_experts. Not thread-safe. Nothing allocates after cache_new.
 */
#ifndef LIB_CACHE_H
#define LIB_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "moe-expert.h"
#include "policy/policy.h"

#define CACHE_EXPERTS_MAX 4096
#define CACHE_RESERVED (-2)

struct cache {
	uint32_t n_experts, n_slots;
	uint32_t n_cached, n_free, n_reserved;
	int32_t *cache_map;   /* [n_experts] */
	int32_t *miss_map;    /* [n_experts] */
	int32_t *miss_expert; /* [n_experts] inverse of miss_map */
	int32_t *slot_expert; /* [n_slots] or -1, CACHE_RESERVED */
	int32_t *free_slots;  /* [n_slots] a stack */
	int32_t *policy_sort; /* [n_slots] see cache_sort */
	int32_t *missing;     /* [n_experts] scratch: the touched experts that this step misses */
	int32_t *cached;      /* [n_experts] scratch: those that it finds, or those that are there when it is done */
	int32_t *touched;     /* [n_experts] scratch: all of them */
	int32_t *leaving;     /* [n_experts] scratch: who leaves in it */
	uint32_t *pairs;      /* [n_experts] scratch: of each that is touched */
	uint64_t *keys;       /* [n_experts] scratch */
	const struct policy_ops *policy;
	void *state;
};

/* One distinct expert of a step. */
struct cache_request {
	int32_t expert;
	uint32_t pairs; /* (token, expert) pairs that want it */
	bool touched;   /* counts as an access under this policy */
	bool passes;    /* gets no slot in this step */
};

/* -EINVAL when n_experts or n_slots is out of range, -ENOMEM. */
int cache_new(struct cache **ret, uint32_t n_experts, uint32_t n_slots, const struct policy_ops *policy,
	      struct moe_error *err);
struct cache *cache_free(struct cache *cache); /* takes NULL, returns NULL */

/* Before a step: what the router said of its tokens. A policy that does not look at tokens does not need it. */
void cache_route(struct cache *cache, const struct policy_tokens *tokens);

/*
 * One decode step. Requests are distinct and in ascending id; only the touched ones count. Missing ones that do
 * not pass are given slots in ascending id: a free slot first, else the policy's victim's, until max_fills or until the
 * policy gives none. When max_fills is smaller than the number missing, the policy's `by_heat` says which ones are
 * chosen. Returns how many fills it wrote to ret_fills, which has room for max_fills or n_slots, whichever is smaller.
 */
uint32_t cache_update(struct cache *cache, const struct cache_request *requests, uint32_t n, uint32_t max_fills,
		      struct moe_copy *ret_fills);

/*
 * One prefetch step: touched experts grow hot, nobody leaves. The n_admit experts (distinct, missing, ascending; at
 * most n_free of them) take free slots: ret_fills[n_admit].
 */
void cache_prefetch(struct cache *cache, const struct cache_request *requests, uint32_t n, const int32_t *admit,
		    uint32_t n_admit, struct moe_copy *ret_fills);

/* Puts an expert into a slot by hand, at the hot end; who was there leaves. -EINVAL: out of range; -EEXIST: the expert
 * is cached in another slot; -EBUSY: the slot is reserved. */
int cache_insert(struct cache *cache, int32_t expert, int32_t slot);

/* Forgets a cached expert; its slot becomes free. Does nothing when it is not cached. */
void cache_remove(struct cache *cache, int32_t expert);

/* Takes a slot that is in range and not reserved out of the game: whoever is cached there leaves, and nobody gets it.
 * Releasing it makes it free. */
void cache_reserve(struct cache *cache, int32_t slot);
void cache_release(struct cache *cache, int32_t slot);

/* policy_sort, brought up to date: n_cached experts, coldest first. Valid until the next change. */
const int32_t *cache_sort(struct cache *cache);

/* NULL when all invariants hold, else which one does not. O(n_experts). */
const char *cache_check(struct cache *cache);

#endif
