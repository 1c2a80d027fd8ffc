/* SPDX-License-Identifier: MIT */
/*
 * test-cuda-policy - the cache policy of the device against that of the library, on random traces: maps, ages, fills.
 */
#include <string.h>
#include <time.h>

#include "cache.h"
#include "kernels/cuda/launch.h"
#include "tests/tap.h"

#define EXPERTS_MAX 600
#define PAIRS_MAX 4096

static unsigned long long seed;

/* The device's state, which a test may look at. */
struct device_cache {
	struct cuda_policy_heads heads;
	int32_t cache_map[EXPERTS_MAX], miss_map[EXPERTS_MAX], miss_expert[EXPERTS_MAX], free_slots[EXPERTS_MAX];
	uint64_t age[EXPERTS_MAX], scratch[2 * EXPERTS_MAX];
	struct cuda_fill fills[EXPERTS_MAX];
	int32_t ids[PAIRS_MAX];
	struct cuda_policy params;
};

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

static uint64_t at(const void *p)
{
	return (uint64_t)(uintptr_t)p;
}

static void device_init(struct device_cache *d, uint32_t n_experts, uint32_t n_slots, uint32_t rule)
{
	memset(d, 0, sizeof *d);
	d->heads.n_free = n_slots;
	for (uint32_t i = 0; i < n_experts; i++) {
		d->cache_map[i] = -1;
		d->miss_map[i] = d->miss_expert[i] = (int32_t)i;
	}
	for (uint32_t i = 0; i < n_slots; i++)
		d->free_slots[i] = (int32_t)(n_slots - 1 - i);
	d->params = (struct cuda_policy){.ids = at(d->ids),
					 .heads = at(&d->heads),
					 .cache_map = at(d->cache_map),
					 .miss_map = at(d->miss_map),
					 .miss_expert = at(d->miss_expert),
					 .free_slots = at(d->free_slots),
					 .age = at(d->age),
					 .fills = at(d->fills),
					 .scratch = at(d->scratch),
					 .n_experts = n_experts,
					 .n_slots = n_slots,
					 .rule = rule};
}

/* Skewed routing, with padding; a token may name an expert once only. */
static void route(struct device_cache *d)
{
	const uint32_t n = d->params.n_experts, hot = 1 + below(n);

	d->params.topk = 1 + below(n < 8 ? n : 8);
	d->params.tokens = below(8) ? 1 + below(4) : below(1 + PAIRS_MAX / d->params.topk / 8);
	d->params.cache_topk = 1 + below(d->params.topk);
	d->params.max_fills = below(4) ? below(4) : n;
	for (uint32_t t = 0; t < d->params.tokens; t++) {
		int32_t *ids = d->ids + t * d->params.topk;

		for (uint32_t k = 0; k < d->params.topk; k++) {
			uint32_t i = 0;

			ids[k] = below(10) ? (int32_t)below(below(3) ? hot : n) : -1;
			while (i < k && ids[i] != ids[k])
				i++;
			ids[k] = i < k ? -1 : ids[k];
		}
	}
}

static uint32_t requests_of(const struct device_cache *d, struct cache_request *ret)
{
	static uint32_t pairs[EXPERTS_MAX];
	static bool touched[EXPERTS_MAX];
	uint32_t n = 0;

	memset(pairs, 0, sizeof pairs);
	memset(touched, 0, sizeof touched);
	for (uint32_t i = 0; i < d->params.tokens * d->params.topk; i++) {
		if (d->ids[i] < 0)
			continue;
		pairs[d->ids[i]]++;
		touched[d->ids[i]] |= d->params.rule != CUDA_POLICY_ORIGINAL ||
				      i % d->params.topk < d->params.cache_topk;
	}
	for (uint32_t e = 0; e < d->params.n_experts; e++)
		if (pairs[e])
			ret[n++] = (struct cache_request){(int32_t)e, pairs[e], touched[e]};
	return n;
}

/* The ages rank the cached experts as policy_sort does. */
static bool same_order(const struct device_cache *d, struct cache *c)
{
	const int32_t *sort = cache_sort(c);

	for (uint32_t i = 0; i + 1 < c->n_cached; i++)
		if (d->age[sort[i]] >= d->age[sort[i + 1]])
			return false;
	return true;
}

static bool step_same(struct device_cache *d, struct cache *c, enum cuda_twin_order order)
{
	static struct cache_request requests[EXPERTS_MAX];
	static struct moe_copy fills[EXPERTS_MAX];
	struct cuda_launch launch;
	uint32_t n;

	route(d);
	n = cache_update(c, requests, requests_of(d, requests), d->params.max_fills, fills);
	cuda_launch_policy(&d->params, &launch);
	cuda_launch_twin(&launch, order);
	for (uint32_t i = 0; i < n && n == d->heads.n_fills; i++)
		if (fills[i].expert != d->fills[i].expert || fills[i].slot != d->fills[i].slot)
			return false;
	return n == d->heads.n_fills && c->n_cached == d->heads.n_cached && c->n_free == d->heads.n_free &&
	       memcmp(c->cache_map, d->cache_map, c->n_experts * sizeof *c->cache_map) == 0 &&
	       memcmp(c->miss_map, d->miss_map, c->n_experts * sizeof *c->miss_map) == 0 &&
	       memcmp(c->free_slots, d->free_slots, c->n_free * sizeof *c->free_slots) == 0 && same_order(d, c);
}

static void test_rule(const char *name, uint32_t rule, int traces)
{
	static struct device_cache d;
	uint64_t steps = 0, fills = 0, evictions = 0;
	bool good = true;

	for (int trace = 0; trace < traces && good; trace++) {
		const uint32_t n_experts = 1 + below(trace % 4 ? 48 : EXPERTS_MAX), n_slots = below(n_experts + 1);
		struct cache *c = NULL;

		if (cache_new(&c, n_experts, n_slots, policy_find(name), NULL) < 0)
			abort();
		device_init(&d, n_experts, n_slots, rule);
		for (int i = 0; i < 40 && good; i++, steps++) {
			const uint32_t before = d.heads.n_cached;

			good = step_same(&d, c, below(2) ? CUDA_TWIN_FORWARDS : CUDA_TWIN_BACKWARDS);
			fills += d.heads.n_fills;
			evictions += before + d.heads.n_fills - d.heads.n_cached;
			if (!good)
				diag("%s: trace %d, step %d: %u experts, %u slots, %u tokens, topk %u, %u fills", name,
				     trace, i, n_experts, n_slots, d.params.tokens, d.params.topk, d.params.max_fills);
		}
		cache_free(c);
	}
	ok(good, "%s: %llu steps on the device are those of the library", name, (unsigned long long)steps);
	ok(fills > evictions && evictions > steps / 10, "with %llu fills, of which %llu turned an expert out",
	   (unsigned long long)fills, (unsigned long long)evictions);
}

int main(void)
{
	seed = tap_seed();
	test_rule("lru", CUDA_POLICY_LRU, 60);
	test_rule("original", CUDA_POLICY_ORIGINAL, 60);
	return tap_done();
}
