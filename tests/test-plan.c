/* SPDX-License-Identifier: MIT */
/*
 * Plans: each (token, k) pair on exactly one path, with maps that tell the truth about what lies in the slots. The
 * slots are simulated here: a plan's copies are applied to plain arrays, and the map is held against those.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "policy/heat.h"
#include "plan.h"
#include "tests/tap.h"
#include "uapi/moe_ring.h"

#define EXPERTS_MAX 512
#define STALE 100000 /* what lies in a miss buffer from earlier: nobody's expert */

static unsigned long long seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

/* One layer, its slots as they really are, and the routing of the step. */
struct world {
	struct cache *cache;
	struct ncopy costs;
	uint32_t n_experts, n_slots, miss_slots;
	int32_t content[3 * EXPERTS_MAX]; /* cache slots, then the miss buffer; then the pool, as the plan has it */
	struct reuse reuse;
	struct plan_params params;
	int32_t *ids;
	float *weights;
	uint32_t pairs[EXPERTS_MAX];
	bool was_cached[EXPERTS_MAX];
};

static void world_init(struct world *w, uint32_t n_experts, uint32_t n_slots, uint32_t miss_slots, const char *policy)
{
	*w = (struct world){.n_experts = n_experts, .n_slots = n_slots, .miss_slots = miss_slots};
	if (cache_new(&w->cache, n_experts, n_slots, policy_find(policy), NULL) < 0)
		abort();
	ncopy_init(&w->costs, 1 << 16, 1 << 16, 2);
	memset(w->content, -1, sizeof w->content);
	if (reuse_init(&w->reuse, n_experts, NULL) < 0)
		abort();
	w->params = (struct plan_params){
		.mode = MOE_MODE_DECODE,
		.max_tokens = 4096,
		.cache_topk = 2,
		.update_expert_num = 2,
		.miss_slots = miss_slots,
		.n_copy = UINT32_MAX,
		.costs = &w->costs,
		.slot_bytes = 1 << 16,
		.read_pairs = 4,
		.reuse = &w->reuse,
	};
}

static void world_route(struct world *w, uint32_t tokens, uint32_t topk, const int32_t *ids)
{
	const size_t n = (size_t)tokens * topk;

	free(w->ids);
	free(w->weights);
	w->ids = malloc(n * sizeof *w->ids); /* exactly: a read past the end is seen by the sanitizer */
	w->weights = malloc(n * sizeof *w->weights);
	if (!w->ids || !w->weights)
		abort();
	memcpy(w->ids, ids, n * sizeof *ids);
	for (size_t i = 0; i < n; i++)
		w->weights[i] = 1;
	w->params.tokens = tokens;
	w->params.topk = topk;
	w->params.ids = w->ids;
	w->params.weights = w->weights;
}

static void world_fini(struct world *w)
{
	cache_free(w->cache);
	reuse_fini(&w->reuse);
	free(w->ids);
	free(w->weights);
}

/* Makes the plan and carries out its copies. */
static struct moe_plan *world_plan(struct world *w)
{
	struct moe_plan *plan = NULL;
	struct moe_error err;
	uint32_t i;

	memset(w->pairs, 0, sizeof w->pairs);
	for (i = 0; i < w->params.tokens * w->params.topk; i++)
		if (w->ids[i] >= 0)
			w->pairs[w->ids[i]]++;
	for (i = 0; i < w->n_experts; i++)
		w->was_cached[i] = w->cache->cache_map[i] >= 0;
	if (plan_new(&plan, w->cache, w->n_experts, &w->params, &err) < 0) {
		diag("%s", err.text);
		abort();
	}
	for (i = 0; i < w->miss_slots; i++)
		w->content[w->n_slots + i] = STALE;
	for (i = 0; i < plan->n_copies; i++)
		w->content[plan->copies[i].slot] = plan->copies[i].expert;
	for (i = 0; i < w->n_experts; i++)
		w->content[w->n_slots + w->miss_slots + i] = STALE;
	for (i = 0; i < plan->n_reads; i++)
		w->content[plan->copies[plan->n_copies + i].slot] = plan->copies[plan->n_copies + i].expert;
	return plan;
}

/* -- what must hold of every plan --------------------------------------------------------------------------------- */

static const char *judge_copies(const struct world *w, const struct moe_plan_view *v)
{
	bool slot_taken[2 * EXPERTS_MAX] = {false}, copied[EXPERTS_MAX] = {false};
	uint32_t i;

	for (i = 0; i < v->n_copies; i++) {
		const struct moe_copy c = v->copy_map[i];

		if (c.expert < 0 || (uint32_t)c.expert >= w->n_experts || w->pairs[c.expert] == 0)
			return "a copy is of an expert that nobody asked for";
		if (w->was_cached[c.expert] || copied[c.expert])
			return "a copy is of an expert that is there already";
		if (c.slot < 0 || (uint32_t)c.slot >= w->n_slots + w->miss_slots || slot_taken[c.slot])
			return "a copy's slot is out of range or taken twice";
		if (v->mode == MOE_MODE_DECODE && (uint32_t)c.slot >= w->n_slots)
			return "decode filled a miss buffer";
		copied[c.expert] = slot_taken[c.slot] = true;
		if (v->expert_map[c.expert] != c.slot)
			return "the map does not lead to the copy";
	}
	return NULL;
}

static const char *judge_pairs(const struct world *w, const struct moe_plan_view *v)
{
	uint64_t hit = 0, miss_buffer = 0, pool = 0, cpu = 0, resident = 0;
	uint32_t i;

	for (i = 0; i < v->tokens * v->topk; i++) {
		const int32_t id = w->ids[i];
		const bool on_cpu = v->cpu_topk_ids[i] != -1, on_device = id >= 0 && v->expert_map[id] != -1;

		if (id < 0 ? on_cpu : on_cpu == on_device)
			return "a pair is on both paths or on none, or padding is computed";
		if (on_cpu && v->cpu_topk_ids[i] != id)
			return "the CPU computes another expert";
		if (on_device && w->content[v->expert_map[id]] != id)
			return "the device reads a slot that holds another expert";
		cpu += on_cpu;
		if (on_device && (uint32_t)v->expert_map[id] >= w->n_slots + w->miss_slots)
			pool++;
		else if (on_device)
			*((uint32_t)v->expert_map[id] < w->n_slots ? &hit : &miss_buffer) += 1;
		resident += id >= 0 && w->was_cached[id];
	}
	if (hit != v->pairs_hit || miss_buffer != v->pairs_miss_buffer || pool != v->pairs_pool ||
	    cpu != v->pairs_cpu || resident != v->pairs_resident)
		return "the counts of pairs are wrong";
	for (i = 0; i < w->n_experts; i++)
		if (w->pairs[i] == 0 && v->expert_map[i] != -1)
			return "the map names an expert that nobody asked for";
	return NULL;
}

static const char *judge_prefetch(const struct world *w, const struct moe_plan_view *v)
{
	uint64_t coldest_copied = UINT64_MAX, hottest_left = 0;
	uint32_t i, missing = 0;

	for (i = 0; i < w->n_experts; i++) {
		const uint64_t heat = heat_key(w->pairs[i], (int32_t)i);

		if (w->was_cached[i] && w->cache->cache_map[i] < 0)
			return "prefetch evicted an expert";
		if (w->pairs[i] == 0 || w->was_cached[i])
			continue;
		missing++;
		if (v->expert_map[i] >= (int32_t)(w->n_slots + w->miss_slots))
			continue;
		if (v->expert_map[i] >= 0)
			coldest_copied = MIN(coldest_copied, heat);
		else
			hottest_left = MAX(hottest_left, heat);
	}
	if (coldest_copied < hottest_left)
		return "a cold expert was copied before a hot one";
	if (v->n_copies > v->n_copy || v->n_copy > missing)
		return "n_copy is not kept";
	if (v->mode == MOE_MODE_FULL && w->miss_slots >= w->n_experts - w->n_slots && v->pairs_cpu)
		return "full left pairs to the CPU though there was room";
	return NULL;
}

static const char *judge_reads(const struct world *w, const struct moe_plan_view *v)
{
	const bool may = (uint64_t)v->tokens * v->topk < (uint64_t)w->n_experts * w->params.read_pairs;
	const bool always = w->params.zero_copy == MOE_ZERO_COPY_ALWAYS && !w->params.frozen;
	uint32_t i, n = 0;

	for (i = 0; i < w->n_experts; i++) {
		const bool read = v->expert_map[i] >= (int32_t)(w->n_slots + w->miss_slots);
		const bool few = may && w->pairs[i] <= w->params.read_pairs;

		n += read;
		if (read && w->cache->cache_map[i] >= 0)
			return "an expert is read in the pool that has a slot";
		if (read && (!few || w->params.zero_copy == MOE_ZERO_COPY_OFF))
			return "an expert is read in the pool that may not be";
		if (always && few && w->pairs[i] > 0 && !w->was_cached[i] && !read)
			return "an expert that is always read was not";
	}
	return n == v->n_reads ? NULL : "n_reads is wrong";
}

static const char *judge(struct world *w, const struct moe_plan *plan)
{
	struct moe_plan_view v;
	const char *wrong;
	uint32_t i;

	moe_plan_view(plan, &v);
	wrong = judge_copies(w, &v);
	if (!wrong)
		wrong = judge_pairs(w, &v);
	if (!wrong && v.mode != MOE_MODE_DECODE && !w->params.frozen)
		wrong = judge_prefetch(w, &v);
	if (!wrong && v.mode == MOE_MODE_DECODE && v.n_copies > w->params.update_expert_num)
		wrong = "more fills than update_expert_num";
	if (!wrong)
		wrong = judge_reads(w, &v);
	if (!wrong && w->params.frozen && v.n_copies + v.n_reads > 0)
		wrong = "a frozen plan copies";
	for (i = 0; i < w->n_experts && !wrong; i++)
		if (w->cache->cache_map[i] >= 0 && w->content[w->cache->cache_map[i]] != (int32_t)i)
			wrong = "cache_map names a slot that holds another expert";
	return wrong ? wrong : cache_check(w->cache);
}

/* -- random worlds ------------------------------------------------------------------------------------------------ */

static void random_route(struct world *w)
{
	const uint32_t tokens = 1 + below(below(4) ? 6 : 80), topk = 1 + below(MIN(w->n_experts, 64));
	const uint32_t hot = 1 + below(w->n_experts), padding = below(3) ? 1000 : 4;
	int32_t ids[80 * 64];
	uint32_t t, k, i, n = 0;

	for (t = 0; t < tokens; t++) {
		for (k = 0; k < topk; k++) {
			int32_t id = (int32_t)below(below(3) ? MAX(hot, topk) : w->n_experts);

			for (i = 0; i < k; i++) {
				if (ids[n - k + i] == id) {
					id = (id + 1) % (int32_t)w->n_experts;
					i = (uint32_t)-1; /* look again from the first */
				}
			}
			ids[n++] = id;
		}
		for (k = 0; k < topk; k++)
			if (below(padding) == 0)
				ids[n - topk + k] = -1;
	}
	world_route(w, tokens, topk, ids);
}

static void random_params(struct world *w)
{
	static const enum moe_mode modes[] = {MOE_MODE_DECODE, MOE_MODE_PREFETCH, MOE_MODE_FULL};

	w->params.mode = modes[below(3)];
	w->params.cache_topk = 1 + below(8);
	w->params.update_expert_num = below(3) ? 1 + below(4) : UINT32_MAX;
	w->params.rule = below(2) ? MOE_N_COPY_COST : MOE_N_COPY_STAIRS;
	w->params.n_copy = below(2) ? UINT32_MAX : below(w->n_experts + 2);
	w->params.frozen = below(10) == 0;
	w->costs.copy_ns_per_byte = below(1000) / 1000.0;
	w->costs.read_ns_per_byte = below(2) ? w->costs.copy_ns_per_byte : below(1000) / 1000.0;
	w->params.zero_copy = (enum moe_zero_copy)below(3);
}

static void test_random(const char *policy)
{
	const char *wrong = NULL;
	uint64_t copies = 0, cpu = 0, hit = 0, miss_buffer = 0, pool = 0;
	int round, step, steps = 0;
	struct world w;

	for (round = 0; round < 700 && !wrong; round++) {
		const uint32_t n_experts = round < 30 ? 2 + (uint32_t)round % 5 : 2 + below(EXPERTS_MAX - 1);
		const uint32_t n_slots = below(n_experts + 1);

		world_init(&w, n_experts, n_slots, below(3) ? n_experts - n_slots : below(n_experts + 1), policy);
		for (step = 0; step < 12 && !wrong; step++, steps++) {
			struct moe_plan *plan;

			random_route(&w);
			random_params(&w);
			plan = world_plan(&w);
			wrong = judge(&w, plan);
			if (wrong)
				diag("E=%u C=%u M=%u mode=%d tokens=%u topk=%u", n_experts, n_slots, w.miss_slots,
				     (int)w.params.mode, w.params.tokens, w.params.topk);
			copies += plan->n_copies;
			cpu += plan->pairs_cpu;
			hit += plan->pairs_hit;
			miss_buffer += plan->pairs_miss_buffer;
			pool += plan->pairs_pool;
			moe_plan_free(plan);
		}
		world_fini(&w);
	}
	ok(!wrong, "%s: %d random plans: each pair on exactly one path%s%s", policy, steps, wrong ? ": " : "",
	   wrong ? wrong : "");
	ok(copies > 1000 && cpu > 1000 && hit > 1000 && miss_buffer > 1000 && pool > 1000,
	   "and every path was taken (%llu copies, pairs: %llu hit, %llu miss buffer, %llu pool, %llu CPU)",
	   (unsigned long long)copies, (unsigned long long)hit, (unsigned long long)miss_buffer,
	   (unsigned long long)pool, (unsigned long long)cpu);
}

/* -- defects of the design that this one follows, one test each --------------------------------------------------- */

static void test_expert_with_id_n_copy(void)
{
	const int32_t ids[] = {3, 4, 5};
	const char *wrong = NULL;
	struct moe_plan *plan;
	struct world w;
	uint32_t n_copy;

	for (n_copy = 0; n_copy <= 8 && !wrong; n_copy++) {
		world_init(&w, 8, 0, 8, "lru");
		w.params.mode = MOE_MODE_PREFETCH;
		w.params.n_copy = n_copy;
		world_route(&w, 1, 3, ids);
		plan = world_plan(&w);
		wrong = judge(&w, plan);
		if (!wrong && plan->pairs_miss_buffer + plan->pairs_cpu != 3)
			wrong = "pairs are missing";
		moe_plan_free(plan);
		world_fini(&w);
	}
	ok(!wrong, "the expert whose id equals n_copy is computed, once");
}

static void test_no_double_compute_from_stale_buffer(void)
{
	const int32_t ids[] = {0, 1, 2, 3, 4, 5, 6, 7};
	struct moe_plan *plan;
	struct world w;
	uint32_t e, on_both = 0, on_device = 0;

	world_init(&w, 8, 0, 8, "lru");
	w.params.mode = MOE_MODE_PREFETCH;
	w.params.n_copy = 3;
	world_route(&w, 1, 8, ids);
	plan = world_plan(&w);
	for (e = 0; e < 8; e++) {
		on_both += plan->expert_map[e] >= 0 && plan->cpu_topk_ids[e] >= 0;
		on_device += plan->expert_map[e] >= 0;
	}
	ok(on_both == 0 && on_device == 3 && plan->pairs_cpu == 5,
	   "experts that were not copied are not read from the buffer's old contents and added twice");
	moe_plan_free(plan);
	world_fini(&w);
}

static void test_n_copy_counts_by_heat(void)
{
	/* Expert 7 is wanted by three tokens, 6 by two, 0 by one. */
	const int32_t ids[] = {7, 0, 7, 6, 7, 6};
	struct moe_plan *plan;
	struct world w;

	world_init(&w, 8, 0, 8, "lru");
	w.params.mode = MOE_MODE_PREFETCH;
	w.params.n_copy = 2;
	world_route(&w, 3, 2, ids);
	plan = world_plan(&w);
	ok(plan->n_copies == 2 && plan->copies[0].expert == 7 && plan->copies[1].expert == 6 &&
		   plan->expert_map[0] == -1,
	   "n_copy takes the hottest experts, whatever their ids");
	moe_plan_free(plan);
	world_fini(&w);
}

static void test_two_micro_batches_share_nothing(void)
{
	const int32_t first[] = {0, 1}, second[] = {2, 3};
	struct moe_plan *a, *b;
	struct world w;
	int32_t map_a[8];

	world_init(&w, 8, 2, 6, "lru");
	world_route(&w, 1, 2, first);
	a = world_plan(&w);
	memcpy(map_a, a->expert_map, sizeof map_a);
	world_route(&w, 1, 2, second);
	b = world_plan(&w);
	ok(memcmp(map_a, a->expert_map, sizeof map_a) == 0 && a->ids[0] == 0 && b->ids[0] == 2 &&
		   a->copies[0].expert == 0 && b->copies[0].expert == 2,
	   "a second micro-batch's plan leaves the first one's as it was");
	moe_plan_free(a);
	moe_plan_free(b);
	world_fini(&w);
}

static void test_few_experts(void)
{
	const int32_t ids[] = {1, 0};
	struct moe_plan *plan;
	struct world w;
	uint32_t round;
	const char *wrong = NULL;

	for (round = 0; round < 20 && !wrong; round++) {
		world_init(&w, 2, round % 3, 2 - round % 3, round & 1 ? "lru" : "original");
		w.params.mode = round & 2 ? MOE_MODE_FULL : MOE_MODE_DECODE;
		world_route(&w, 1, 2, ids);
		plan = world_plan(&w);
		wrong = judge(&w, plan);
		moe_plan_free(plan);
		world_fini(&w);
	}
	ok(!wrong, "two experts: nothing beyond the maps is read (the sanitizer run proves it)");
}

static void test_hit_counters_live(void)
{
	const int32_t ids[] = {4, 5};
	struct moe_plan_view v;
	struct moe_plan *plan;
	struct world w;

	world_init(&w, 8, 4, 4, "lru");
	world_route(&w, 1, 2, ids);
	moe_plan_free(world_plan(&w));
	plan = world_plan(&w);
	moe_plan_view(plan, &v);
	ok(v.pairs_hit == 2 && v.pairs_resident == 2 && v.pairs_cpu == 0 && v.n_copies == 0,
	   "the second step with the same experts counts its hits");
	moe_plan_free(plan);
	world_fini(&w);
}

/* -- rules -------------------------------------------------------------------------------------------------------- */

static void test_stride_is_topk(void)
{
	/* topk 3, K 1: only positions 0 and 3 are first choices, whatever the place in the flat list. */
	const int32_t ids[] = {5, 1, 2, 6, 1, 2};
	struct moe_plan *plan;
	struct world w;

	world_init(&w, 8, 4, 4, "original");
	w.params.cache_topk = 1;
	w.params.update_expert_num = 8;
	world_route(&w, 2, 3, ids);
	plan = world_plan(&w);
	ok(plan->n_copies == 2 && plan->copies[0].expert == 5 && plan->copies[1].expert == 6 && plan->pairs_cpu == 4,
	   "original: only a token's first cache_topk choices cause fills");
	moe_plan_free(plan);
	world_fini(&w);
}

static void test_full_warms_free_slots(void)
{
	const int32_t ids[] = {0, 1, 2, 3, 4, 5, 6, 7};
	struct moe_plan *plan;
	struct world w;

	world_init(&w, 8, 3, 5, "lru");
	w.params.mode = MOE_MODE_FULL;
	world_route(&w, 1, 8, ids);
	plan = world_plan(&w);
	ok(plan->pairs_cpu == 0 && plan->pairs_hit == 3 && plan->pairs_miss_buffer == 5 && w.cache->n_cached == 3,
	   "full on a cold cache: free slots first, then the miss buffer, nothing for the CPU");
	moe_plan_free(plan);
	world_fini(&w);
	world_init(&w, 8, 3, 2, "lru");
	w.params.mode = MOE_MODE_FULL;
	world_route(&w, 1, 8, ids);
	plan = world_plan(&w);
	ok(plan->pairs_cpu == 3 && plan->n_copies == 5 && !judge(&w, plan),
	   "too small a miss buffer: the rest is the CPU's");
	moe_plan_free(plan);
	world_fini(&w);
}

static void test_cost_model_warms_free_slots(void)
{
	const int32_t ids[] = {0, 1, 2, 3};
	struct moe_plan *plan;
	struct world w;
	uint32_t copies[3], i;

	world_init(&w, 8, 3, 5, "lru");
	w.params.mode = MOE_MODE_PREFETCH;
	w.costs.copy_ns_per_byte = 1e9; /* no copy pays within its step */
	world_route(&w, 1, 4, ids);
	for (i = 0; i < 3; i++) {
		plan = world_plan(&w);
		copies[i] = plan->n_copies;
		moe_plan_free(plan);
	}
	ok(copies[0] == 2 && copies[1] == 1 && copies[2] == 0,
	   "copies that do not pay are made into free cache slots only, update_expert_num a step");
	world_fini(&w);
}

static void test_frozen(void)
{
	const int32_t warm[] = {0, 1}, ids[] = {1, 7};
	struct moe_plan *plan;
	struct world w;
	int32_t sort[2];

	world_init(&w, 8, 2, 6, "lru");
	world_route(&w, 1, 2, warm);
	moe_plan_free(world_plan(&w));
	memcpy(sort, cache_sort(w.cache), sizeof sort);
	w.params.frozen = true;
	world_route(&w, 1, 2, ids);
	plan = world_plan(&w);
	ok(plan->n_copies == 0 && plan->pairs_hit == 1 && plan->pairs_cpu == 1 &&
		   memcmp(sort, cache_sort(w.cache), sizeof sort) == 0,
	   "a frozen plan copies nothing and leaves recency alone");
	moe_plan_free(plan);
	world_fini(&w);
}

static int refuse(struct world *w, uint32_t tokens, uint32_t topk, const int32_t *ids, struct moe_error *err)
{
	struct moe_plan *plan = NULL;
	int r;

	w->params.tokens = tokens;
	w->params.topk = topk;
	w->params.ids = ids;
	r = plan_new(&plan, w->cache, w->n_experts, &w->params, err);
	moe_plan_free(plan);
	return r;
}

static void test_refusals(void)
{
	const int32_t good[] = {0, 1}, high[] = {0, 8}, low[] = {0, -2}, twice[] = {3, 3}, padding[] = {-1, -1};
	struct moe_error err = {0};
	struct world w;

	world_init(&w, 8, 2, 6, "lru");
	world_route(&w, 1, 2, good);
	w.params.max_tokens = 4;
	ok(refuse(&w, 1, 2, high, &err) == -EINVAL && strstr(err.text, "ids[0][1]") && strstr(err.text, "8"),
	   "an id that is too high: %s", err.text);
	ok(refuse(&w, 1, 2, low, &err) == -EINVAL, "an id below -1: %s", err.text);
	ok(refuse(&w, 1, 2, twice, &err) == -EINVAL && strstr(err.text, "twice"), "an expert twice: %s", err.text);
	ok(refuse(&w, 2, 1, twice, &err) == 0, "twice in two tokens is no error");
	ok(refuse(&w, 0, 2, good, &err) == -EINVAL && refuse(&w, 5, 2, good, &err) == -EINVAL, "tokens: %s", err.text);
	ok(refuse(&w, 1, 0, good, &err) == -EINVAL && refuse(&w, 1, 65, good, &err) == -EINVAL, "topk: %s", err.text);
	ok(refuse(&w, 1, 2, NULL, &err) == -EINVAL, "no ids: %s", err.text);
	ok(refuse(&w, 1, 2, padding, &err) == 0, "padding alone is no error");
	w.params.max_tokens = MOE_TOKENS_MAX;
	ok(refuse(&w, MOE_TOKENS_MAX, 17, good, &err) == -EINVAL && strstr(err.text, "pairs"),
	   "more pairs than a request may have: %s", err.text);
	w.params.mode = MOE_MODE_AUTO;
	ok(refuse(&w, 1, 2, good, &err) == -EINVAL, "mode: %s", err.text);
	ok(!cache_check(w.cache) && w.cache->n_cached == 1, "what is refused leaves the cache alone");
	world_fini(&w);
}

int main(void)
{
	seed = tap_seed();
	test_random("lru");
	test_random("original");
	test_expert_with_id_n_copy();
	test_no_double_compute_from_stale_buffer();
	test_n_copy_counts_by_heat();
	test_two_micro_batches_share_nothing();
	test_few_experts();
	test_hit_counters_live();
	test_stride_is_topk();
	test_full_warms_free_slots();
	test_cost_model_warms_free_slots();
	test_frozen();
	test_refusals();
	return tap_done();
}
