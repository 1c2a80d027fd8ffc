/* SPDX-License-Identifier: MIT */
/* The cache's books and its policies: invariants on random steps, published LRU vectors, the K/U rule restated. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "cache.h"
#include "policy/heat.h"
#include "tests/tap.h"

static unsigned long long seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

static struct cache *new_cache(uint32_t n_experts, uint32_t n_slots, const char *policy)
{
	struct cache *cache = NULL;

	if (cache_new(&cache, n_experts, n_slots, policy_find(policy), NULL) < 0)
		abort();
	return cache;
}

/* Distinct experts in ascending id, each with some pairs. */
static uint32_t random_requests(uint32_t n_experts, struct cache_request *ret)
{
	const uint32_t share = 1 + below(16);
	uint32_t e, n = 0;

	for (e = 0; e < n_experts; e++)
		if (below(16) < share)
			ret[n++] = (struct cache_request){(int32_t)e, 1 + below(5), below(4) > 0};
	return n;
}

/* -- heat --------------------------------------------------------------------------------------------------------- */

static void test_heat(void)
{
	uint64_t keys[200];
	bool sorted = true, kept = true;
	int round, i;

	for (round = 0; round < 200; round++) {
		const uint32_t n = below(200);
		uint64_t sum = 0, after = 0;

		for (i = 0; i < (int)n; i++)
			sum += keys[i] = heat_key(below(4), i);
		heat_sort(keys, n);
		for (i = 0; i < (int)n; i++) {
			after += keys[i];
			sorted &= i == 0 || keys[i - 1] > keys[i];
		}
		kept &= sum == after;
	}
	ok(sorted && kept, "heat_sort gives a descending permutation");
	ok(heat_key(3, 7) > heat_key(2, 0) && heat_key(3, 7) > heat_key(3, 8), "more pairs are hotter, then lower ids");
	ok(heat_expert(heat_key(9, 4095)) == 4095 && heat_pairs(heat_key(9, 4095)) == 9,
	   "a key holds expert and pairs");
}

/* -- invariants --------------------------------------------------------------------------------------------------- */

struct step_facts {
	int32_t before[CACHE_EXPERTS_MAX]; /* cache_map */
	uint32_t n_cached, n_free;
};

static const char *judge_step(struct cache *c, const struct step_facts *f, const struct cache_request *requests,
			      uint32_t n, uint32_t max_fills, const struct moe_copy *fills, uint32_t n_fills)
{
	const bool pinned = strcmp(c->policy->name, "lru") == 0;
	uint32_t i, missing = 0;

	for (i = 0; i < n; i++) {
		const int32_t e = requests[i].expert;

		missing += requests[i].touched && f->before[e] < 0;
		if (pinned && requests[i].touched && f->before[e] >= 0 && c->cache_map[e] != f->before[e])
			return "a touched expert left or moved in its own step";
	}
	if (n_fills > max_fills || n_fills > missing)
		return "too many fills";
	for (i = 0; i < n_fills; i++) {
		if (f->before[fills[i].expert] >= 0 || c->cache_map[fills[i].expert] != fills[i].slot)
			return "a fill is not a missing expert in its slot";
		if (i > 0 && fills[i - 1].expert >= fills[i].expert)
			return "fills are not in ascending id";
	}
	if (c->n_cached < f->n_cached || c->n_cached - f->n_cached > n_fills)
		return "the number cached does not follow from the fills";
	if (n_fills < MIN(missing, max_fills) && (c->n_free || !pinned) && n_fills < c->n_slots)
		return "a fill was left out while there was room";
	for (i = 0; i < c->n_experts; i++)
		if (f->before[i] >= 0 && c->cache_map[i] >= 0 && c->cache_map[i] != f->before[i])
			return "an expert moved from slot to slot";
	return cache_check(c);
}

static void test_invariants(const char *policy)
{
	static struct cache_request requests[CACHE_EXPERTS_MAX];
	static struct moe_copy fills[CACHE_EXPERTS_MAX];
	static struct step_facts facts;
	const char *wrong = NULL;
	int round, step, steps = 0;

	for (round = 0; round < 300 && !wrong; round++) {
		const uint32_t n_experts = round < 20 ? 1 + (uint32_t)round : 2 + below(511);
		const uint32_t n_slots = below(n_experts + 1);
		struct cache *c = new_cache(n_experts, n_slots, policy);

		for (step = 0; step < 40 && !wrong; step++, steps++) {
			const uint32_t n = random_requests(n_experts, requests),
				       limit = below(2) ? below(4) : n_experts;
			uint32_t done;

			memcpy(facts.before, c->cache_map, n_experts * sizeof(int32_t));
			facts.n_cached = c->n_cached;
			facts.n_free = c->n_free;
			done = cache_update(c, requests, n, limit, fills);
			wrong = judge_step(c, &facts, requests, n, limit, fills, done);
			if (c->n_cached && below(3) == 0)
				cache_remove(c, cache_sort(c)[below(c->n_cached)]);
			if (!wrong)
				wrong = cache_check(c);
		}
		cache_free(c);
	}
	ok(!wrong, "%s: %d random steps keep every invariant%s%s", policy, steps, wrong ? ": " : "",
	   wrong ? wrong : "");
}

static void test_largest(void)
{
	static struct cache_request requests[CACHE_EXPERTS_MAX];
	static struct moe_copy fills[CACHE_EXPERTS_MAX];
	struct cache *c = new_cache(CACHE_EXPERTS_MAX, 1000, "lru"), *none = NULL;
	uint32_t i;

	for (i = 0; i < CACHE_EXPERTS_MAX; i++)
		requests[i] = (struct cache_request){(int32_t)i, 1, true};
	ok(cache_update(c, requests, CACHE_EXPERTS_MAX, UINT32_MAX, fills) == 1000 && fills[999].expert == 999,
	   "4096 experts, 1000 slots: the lowest ids get them");
	cache_free(c);
	ok(cache_new(&none, CACHE_EXPERTS_MAX + 1, 0, &policy_lru, NULL) == -EINVAL &&
		   cache_new(&none, 0, 0, &policy_lru, NULL) == -EINVAL &&
		   cache_new(&none, 8, 9, &policy_lru, NULL) == -EINVAL && !none,
	   "too many experts, none, or more slots than experts are refused");
	ok(policy_find("original") == &policy_original && policy_find(NULL) == &policy_ema && !policy_find("mru"),
	   "policies are found by name");
}

/* -- by hand ------------------------------------------------------------------------------------------------------ */

static void test_maps(void)
{
	struct cache *c = new_cache(6, 2, "lru");
	struct cache_request both[] = {{1, 1, true}, {4, 1, true}}, other[] = {{5, 1, true}};
	struct moe_copy fills[2];
	int32_t number;

	cache_update(c, both, 2, 2, fills);
	ok(fills[0].expert == 1 && fills[0].slot == 0 && fills[1].expert == 4 && fills[1].slot == 1,
	   "free slots are taken from 0 up, misses in ascending id");
	number = c->miss_map[5];
	cache_update(c, other, 1, 2, fills);
	ok(c->cache_map[5] == 0 && c->cache_map[1] == -1 && c->miss_map[5] == -1 && c->miss_map[1] == number,
	   "the victim inherits the incoming expert's miss number");
	ok(cache_sort(c)[0] == 4 && cache_sort(c)[1] == 5, "policy_sort runs from cold to hot");
	cache_remove(c, 4);
	ok(c->cache_map[4] == -1 && c->n_free == 1 && !cache_check(c), "a removed expert leaves its slot free");
	ok(cache_insert(c, 3, 1) == 0 && c->cache_map[3] == 1 && cache_insert(c, 3, 1) == 0,
	   "insert takes a free slot");
	ok(cache_insert(c, 3, 0) == -EEXIST && cache_insert(c, 6, 0) == -EINVAL && cache_insert(c, 0, 2) == -EINVAL,
	   "insert refuses an expert that is elsewhere, and numbers out of range");
	ok(cache_insert(c, 0, 0) == 0 && c->cache_map[5] == -1 && !cache_check(c), "insert turns out who was there");
	cache_free(c);
}

static void test_limited_fills_go_to_heat(void)
{
	struct cache_request r[] = {{0, 1, true}, {3, 7, true}, {5, 2, true}, {6, 7, true}};
	struct moe_copy fills[4];
	struct cache *c = new_cache(8, 4, "lru");
	uint32_t n = cache_update(c, r, 4, 2, fills);

	ok(n == 2 && fills[0].expert == 3 && fills[1].expert == 6, "lru: two fills for four misses go to most pairs");
	cache_free(c);
	c = new_cache(8, 4, "original");
	n = cache_update(c, r, 4, 2, fills);
	ok(n == 2 && fills[0].expert == 0 && fills[1].expert == 3, "original: they go to the lowest ids");
	cache_free(c);
}

static void test_prefetch_moves_nobody(void)
{
	struct cache_request first[] = {{2, 1, true}, {7, 1, true}}, second[] = {{2, 3, true}, {4, 9, true}};
	struct moe_copy fills[3];
	const int32_t admit[] = {4};
	struct cache *c = new_cache(8, 3, "lru");

	cache_update(c, first, 2, 2, fills);
	cache_prefetch(c, second, 2, admit, 1, fills);
	ok(c->cache_map[2] == 0 && c->cache_map[7] == 1 && c->cache_map[4] == 2 && fills[0].slot == 2,
	   "prefetch fills a free slot and evicts nobody");
	ok(cache_sort(c)[0] == 7 && cache_sort(c)[1] == 2 && cache_sort(c)[2] == 4, "and makes the touched ones hot");
	cache_free(c);
}

/* -- published vectors: pinned LRU with unlimited fills ----------------------------------------------------------- */

struct counts {
	json_int_t hits_unique, misses_unique, hits_pairs, misses_pairs, insertions, evictions, bypasses;
};

static json_int_t number(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

/* One (step, layer) of the trace. Appends [t, victim, incoming] for each eviction to `log`. */
static void replay_event(struct cache *c, const json_t *tokens, json_int_t t, struct counts *ret, json_t *log)
{
	struct cache_request requests[256];
	struct moe_copy fills[256];
	uint32_t pairs[256] = {0}, n = 0, i, done;
	int32_t before[256];
	size_t at, k;

	for (at = 0; at < json_array_size(tokens); at++)
		for (k = 0; k < json_array_size(json_array_get(tokens, at)); k++)
			pairs[json_integer_value(json_array_get(json_array_get(tokens, at), k))]++;
	for (i = 0; i < c->n_experts; i++)
		if (pairs[i])
			requests[n++] = (struct cache_request){(int32_t)i, pairs[i], true};
	for (i = 0; i < n; i++) {
		const bool hit = c->cache_map[requests[i].expert] >= 0;

		*(hit ? &ret->hits_unique : &ret->misses_unique) += 1;
		*(hit ? &ret->hits_pairs : &ret->misses_pairs) += requests[i].pairs;
		ret->bypasses += !hit;
	}
	memcpy(before, c->slot_expert, c->n_slots * sizeof *before);
	done = cache_update(c, requests, n, UINT32_MAX, fills);
	ret->bypasses -= done;
	ret->insertions += done;
	for (i = 0; i < done; i++) {
		if (before[fills[i].slot] < 0)
			continue;
		ret->evictions++;
		json_array_append_new(log, json_pack("[I,i,i]", t, before[fills[i].slot], fills[i].expert));
	}
}

static bool same_counts(const struct counts *have, const json_t *want)
{
	return have->hits_unique == number(want, "hits_unique") &&
	       have->misses_unique == number(want, "misses_unique") && have->hits_pairs == number(want, "hits_pairs") &&
	       have->misses_pairs == number(want, "misses_pairs") && have->insertions == number(want, "insertions") &&
	       have->evictions == number(want, "evictions") && have->bypasses == number(want, "bypasses");
}

static bool replay_layer(const json_t *trace, const json_t *result, size_t layer)
{
	const json_t *steps = json_object_get(trace, "steps");
	const json_t *want = json_array_get(json_object_get(result, "per_layer"), layer);
	const json_t *evictions = json_array_get(json_object_get(result, "evictions_t_victim_incoming"), layer);
	struct cache *c = new_cache((uint32_t)number(trace, "experts"), (uint32_t)number(result, "capacity"), "lru");
	struct counts counts = {0};
	json_t *log = json_array(), *final = json_array();
	json_int_t t = 0;
	uint32_t e;
	bool good;
	size_t s;

	for (s = 0; s < json_array_size(steps); s++) {
		const json_t *tokens = json_array_get(json_array_get(steps, s), layer);

		if (json_array_size(tokens))
			replay_event(c, tokens, t++, &counts, log);
	}
	for (e = 0; e < c->n_experts; e++)
		if (c->cache_map[e] >= 0)
			json_array_append_new(final, json_integer(e));
	good = same_counts(&counts, want) && json_equal(final, json_object_get(want, "final")) &&
	       (!evictions || json_equal(log, evictions)); /* the smallest case comes without a log */
	json_decref(log);
	json_decref(final);
	cache_free(c);
	return good;
}

static void test_vectors(void)
{
	const char *source = getenv("MOE_SOURCE");
	json_t *file, *cases;
	json_error_t error;
	char path[4096];
	size_t i, j, layer, run = 0;

	snprintf(path, sizeof path, "%s/tests/data/cache.json", source ? source : ".");
	file = json_load_file(path, 0, &error);
	cases = json_object_get(file, "cases");
	require(file, "tests/data/cache.json is read%s%s", file ? "" : ": ", file ? "" : error.text);
	for (i = 0; i < json_array_size(cases); i++) {
		const json_t *one = json_array_get(cases, i), *trace = json_object_get(one, "trace");
		const json_t *results = json_object_get(one, "results");

		for (j = 0; j < json_array_size(results); j++) {
			const json_t *result = json_array_get(results, j);
			bool good = true;

			if (strcmp(json_string_value(json_object_get(result, "policy")), "lru") != 0 ||
			    strcmp(json_string_value(json_object_get(result, "mode")), "pinned") != 0)
				continue;
			for (layer = 0; layer < (size_t)number(trace, "layers"); layer++)
				good &= replay_layer(trace, result, layer);
			ok(good, "%s, %d slots: lru has the published hits, misses and evictions",
			   json_string_value(json_object_get(one, "id")), (int)number(result, "capacity"));
			run++;
		}
	}
	ok(run >= 7, "%zu lru vectors were run", run);
	json_decref(file);
}

/* -- the K/U rule, restated on plain arrays ----------------------------------------------------------------------- */

struct plain {
	int n_experts, n_slots;
	int sort[512];             /* cold to hot */
	int slot_of[512];          /* -1 */
	int filled[512], n_filled; /* this step */
};

static bool contains(const int *list, int n, int value)
{
	while (n-- > 0)
		if (list[n] == value)
			return true;
	return false;
}

/* touched[] is ascending and the cache is full, as in the source. */
static void plain_step(struct plain *p, const int *touched, int n_touched, int fills)
{
	int order[512], n = 0, misses[512], n_misses = 0, i, u;

	for (i = 0; i < n_touched; i++)
		if (p->slot_of[touched[i]] < 0)
			misses[n_misses++] = touched[i];
	for (i = 0; i < p->n_slots; i++) /* untouched keep their order at the cold end */
		if (!contains(touched, n_touched, p->sort[i]))
			order[n++] = p->sort[i];
	for (i = 0; i < p->n_slots; i++) /* hits keep theirs at the hot end */
		if (contains(touched, n_touched, p->sort[i]))
			order[n++] = p->sort[i];
	p->n_filled = 0;
	for (u = 0; u < fills && u < n_misses && u < p->n_slots; u++) {
		p->slot_of[misses[u]] = p->slot_of[order[u]];
		p->slot_of[order[u]] = -1;
		p->filled[p->n_filled++] = misses[u];
	}
	for (i = u; i < n; i++)
		p->sort[i - u] = order[i];
	for (i = 0; i < u; i++)
		p->sort[n - u + i] = misses[i];
}

static bool same_as_plain(struct cache *c, const struct plain *p, const struct moe_copy *fills, uint32_t n)
{
	const int32_t *sort = cache_sort(c);
	uint32_t i;

	if ((int)n != p->n_filled)
		return false;
	for (i = 0; i < n; i++)
		if (fills[i].expert != p->filled[i] || fills[i].slot != p->slot_of[p->filled[i]])
			return false;
	for (i = 0; i < c->n_slots; i++)
		if (sort[i] != p->sort[i])
			return false;
	for (i = 0; i < c->n_experts; i++)
		if (c->cache_map[i] != p->slot_of[i])
			return false;
	return true;
}

/* Starts as the source does: experts 0 .. n_slots-1 in slots 0 .. n_slots-1. */
static struct cache *start_full(struct plain *p, int n_experts, int n_slots)
{
	struct cache *c = new_cache((uint32_t)n_experts, (uint32_t)n_slots, "original");
	int i;

	*p = (struct plain){.n_experts = n_experts, .n_slots = n_slots};
	for (i = 0; i < n_experts; i++)
		p->slot_of[i] = i < n_slots ? i : -1;
	for (i = 0; i < n_slots; i++) {
		cache_insert(c, i, i);
		p->sort[i] = i;
	}
	return c;
}

static void test_original_against_plain(void)
{
	static struct cache_request requests[512];
	static struct moe_copy fills[512];
	static struct plain plain;
	bool good = true;
	int round, step, steps = 0, fresh_hits_evicted = 0;

	for (round = 0; round < 300 && good; round++) {
		const int n_experts = 2 + (int)below(511), n_slots = (int)below((uint32_t)n_experts + 1);
		struct cache *c = start_full(&plain, n_experts, n_slots);

		for (step = 0; step < 30 && good; step++, steps++) {
			const uint32_t n = random_requests((uint32_t)n_experts, requests), limit = below(6);
			int touched[512], n_touched = 0;
			uint32_t i, done;

			for (i = 0; i < n; i++)
				if (requests[i].touched)
					touched[n_touched++] = requests[i].expert;
			for (i = 0; i < (uint32_t)n_touched; i++)
				fresh_hits_evicted += plain.slot_of[touched[i]] >= 0;
			plain_step(&plain, touched, n_touched, (int)limit);
			for (i = 0; i < (uint32_t)n_touched; i++)
				fresh_hits_evicted -= plain.slot_of[touched[i]] >= 0 &&
						      !contains(plain.filled, plain.n_filled, touched[i]);
			done = cache_update(c, requests, n, limit, fills);
			good = same_as_plain(c, &plain, fills, done);
		}
		cache_free(c);
	}
	ok(good, "original: %d random steps equal the K/U rule restated", steps);
	ok(fresh_hits_evicted > 0, "of them %d evicted a fresh hit for want of untouched experts", fresh_hits_evicted);
}

static void test_original_fresh_hit(void)
{
	struct cache_request r[] = {{0, 1, true}, {1, 1, true}, {2, 1, true}, {3, 1, true}};
	struct moe_copy fills[4];
	struct plain unused;
	struct cache *c = start_full(&unused, 4, 2);
	uint32_t n = cache_update(c, r, 4, 1, fills);

	ok(n == 1 && fills[0].expert == 2 && c->cache_map[0] == -1 && c->cache_map[1] == 1,
	   "original: without untouched experts the coldest hit leaves");
	ok(cache_sort(c)[0] == 1 && cache_sort(c)[1] == 2, "and does not come back in the same step");
	cache_free(c);
}

/* What is on its way to a slot: until it is released nobody gets the slot. */
static void test_reserved(void)
{
	const struct cache_request all[] = {{0, 1, true}, {1, 1, true}, {2, 1, true}, {3, 1, true}};
	struct moe_copy fills[4];
	struct cache *cache;
	uint32_t n;

	require(cache_new(&cache, 8, 3, policy_find("lru"), NULL) == 0, "a cache");
	require(cache_insert(cache, 5, 1) == 0, "an expert in slot 1");
	cache_reserve(cache, 1);
	ok(cache->cache_map[5] < 0 && cache->n_reserved == 1 && !cache_check(cache), "a reserved slot is nobody's");
	ok(cache_insert(cache, 6, 1) == -EBUSY && cache->cache_map[6] < 0, "nobody is put into it by hand");
	n = cache_update(cache, all, 4, 4, fills);
	for (uint32_t i = 0; i < n; i++)
		n = fills[i].slot == 1 ? 99 : n;
	ok(n > 0 && n <= 4 && cache->slot_expert[1] == CACHE_RESERVED && !cache_check(cache), "nor by a step");
	cache_release(cache, 1);
	ok(cache->n_free == 1 && cache_insert(cache, 6, 1) == 0 && !cache_check(cache), "released it is free");
	cache_free(cache);
}

int main(void)
{
	seed = tap_seed();
	test_heat();
	test_invariants("lru");
	test_invariants("original");
	test_largest();
	test_maps();
	test_limited_fills_go_to_heat();
	test_prefetch_moves_nobody();
	test_vectors();
	test_original_against_plain();
	test_original_fresh_hit();
	test_reserved();
	return tap_done();
}
