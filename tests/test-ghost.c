/* SPDX-License-Identifier: MIT */
/* Ghost caches against the simulator, and the bound against its Belady; what a sample of layers says of all. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "ghost/ghost.h"
#include "simulate/simulate.h"
#include "tests/recorded.h"
#include "tests/tap.h"

static unsigned long long seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

/* One layer; a step may have no ids at all. */
static void random_trace(struct sim_trace *t, uint32_t experts, uint32_t steps)
{
	const uint32_t topk = 1 + below(MIN(experts, 4));
	size_t n = 0;

	*t = (struct sim_trace){.layers = 1, .experts = experts, .topk = topk, .steps = steps};
	t->tokens = calloc(steps, sizeof *t->tokens);
	t->first = calloc(steps, sizeof *t->first);
	t->ids = calloc((size_t)steps * 3 * topk, sizeof *t->ids);
	t->weights = calloc((size_t)steps * 3 * topk, sizeof *t->weights);
	require(t->tokens && t->first && t->ids && t->weights, "memory for a trace");
	for (uint32_t s = 0; s < steps; s++) {
		t->tokens[s] = 1 + below(3);
		t->first[s] = n;
		for (uint32_t token = 0; token < t->tokens[s]; token++)
			for (uint32_t k = 0, start = below(below(2) ? experts : (experts + 3) / 4); k < topk;
			     k++, n++) {
				t->ids[n] = (int32_t)((start + k) % experts);
				t->weights[n] = (float)(topk - k) / (float)(topk * topk);
			}
	}
}

static struct policy_tokens tokens_of(const struct sim_trace *t, uint32_t layer, uint32_t step)
{
	const size_t at = (size_t)step * t->layers + layer, first = t->first[at];

	return (struct policy_tokens){t->tokens[at], t->topk, t->ids + first, t->weights ? t->weights + first : NULL};
}

static struct ghost_counts run_ghost(const struct sim_trace *t, uint32_t layer, const struct ghost_cache *caches,
				     uint32_t n, uint32_t bound_slots)
{
	struct ghost_counts counts = {0};
	struct ghost *g;

	if (ghost_new(&g, t->experts, caches, n, bound_slots, NULL) < 0)
		abort();
	for (uint32_t s = 0; s < t->steps; s++) {
		const struct policy_tokens tokens = tokens_of(t, layer, s);

		ghost_step(g, &tokens, &counts);
	}
	ghost_free(g);
	return counts;
}

static struct sim_counts run_sim(const struct sim_trace *t, uint32_t layer, enum sim_mode mode, const char *policy,
				 uint32_t capacity)
{
	struct sim_counts counts;
	bool final[4096];

	if (sim_layer(t, layer, &(struct sim_params){.mode = mode, .policy = policy, .capacity = capacity}, &counts,
		      final, NULL) < 0)
		abort();
	return counts;
}

/* -- caches ------------------------------------------------------------------------------------------------------- */

static const char *const names[] = {"lru", "lfu", "lfu-decay", "lfru",  "ema",
				    "mrs", "arc", "s3-fifo",   "sieve", "ebco-hard"};

static bool caches_agree(void)
{
	struct ghost_cache caches[GHOST_CACHES_MAX];
	const uint32_t n = below(GHOST_CACHES_MAX + 1);
	struct ghost_counts counts;
	struct sim_trace t;
	bool good = true;

	random_trace(&t, 1 + below(30), 1 + below(400));
	for (uint32_t i = 0; i < n; i++)
		caches[i] = (struct ghost_cache){policy_find(names[below(ARRAY_LEN(names))]), below(t.experts + 1)};
	counts = run_ghost(&t, 0, caches, n, below(t.experts + 1));
	for (uint32_t i = 0; i < n; i++) {
		const struct sim_counts c = run_sim(&t, 0, SIM_PINNED, caches[i].policy->name, caches[i].slots);

		good &= counts.hits[i] == c.hits_unique && counts.hits_pairs[i] == c.hits_pairs &&
			counts.asked == c.hits_unique + c.misses_unique &&
			counts.asked_pairs == c.hits_pairs + c.misses_pairs;
	}
	sim_trace_fini(&t);
	return good;
}

/* -- the bound ---------------------------------------------------------------------------------------------------- */

/* Belady's misses in steps [from, from + GHOST_WINDOW) when any experts may be there at first: all are asked for by a
 * step before, each of which is a miss. */
static uint64_t plain_bound(const struct sim_trace *t, uint32_t layer, uint32_t from, uint32_t slots, uint64_t *asked)
{
	const uint32_t steps = GHOST_WINDOW + 1;
	struct sim_trace w = {.layers = 1, .experts = t->experts, .topk = t->topk, .steps = steps};
	struct sim_counts counts;
	size_t n = DIV_UP(t->experts, t->topk) * t->topk;

	w.tokens = calloc(steps, sizeof *w.tokens);
	w.first = calloc(steps, sizeof *w.first);
	w.ids = malloc((n + (size_t)GHOST_WINDOW * 64 * t->topk) * sizeof *w.ids);
	if (!w.tokens || !w.first || !w.ids)
		abort();
	w.tokens[0] = DIV_UP(t->experts, t->topk);
	for (uint32_t i = 0; i < n; i++)
		w.ids[i] = i < t->experts ? (int32_t)i : -1;
	for (uint32_t s = 0; s < GHOST_WINDOW; s++) {
		const struct policy_tokens tokens = tokens_of(t, layer, from + s);

		w.tokens[s + 1] = tokens.tokens;
		w.first[s + 1] = n;
		memcpy(w.ids + n, tokens.ids, (size_t)tokens.tokens * tokens.topk * sizeof *w.ids);
		n += (size_t)tokens.tokens * tokens.topk;
	}
	counts = run_sim(&w, 0, SIM_BELADY, NULL, slots);
	*asked += counts.hits_unique + counts.misses_unique - t->experts;
	sim_trace_fini(&w);
	return counts.misses_unique - t->experts;
}

static bool same_bound(const struct ghost_bound *b, uint64_t asked, uint64_t misses, uint64_t own)
{
	return b->asked == asked && b->asked - b->hits == misses && b->own == own && own <= b->hits;
}

/* The last whole window is not looked at before another one passes. What a cache of as many slots finds of the same
 * steps is never more, though it may be more than the bound where it is counted over all steps, and the first are cold.
 */
static bool bound_agrees(void)
{
	uint64_t asked = 0, misses = 0, last[2] = {0};
	struct ghost_counts counts, before[2];
	struct ghost_cache own;
	struct sim_trace t;
	uint32_t slots;
	bool good;

	random_trace(&t, 1 + below(80), 4 * GHOST_WINDOW);
	slots = below(t.experts + 1);
	own = (struct ghost_cache){policy_find(names[below(ARRAY_LEN(names))]), slots};
	counts = run_ghost(&t, 0, &own, 1, slots);
	for (uint32_t i = 0; i < 2; i++) {
		t.steps = (2 + i) * GHOST_WINDOW;
		before[i] = run_ghost(&t, 0, &own, 1, slots);
	}
	for (uint32_t i = 0; i < 3; i++) {
		last[0] = asked;
		last[1] = misses;
		misses += plain_bound(&t, 0, i * GHOST_WINDOW, slots, &asked);
	}
	good = same_bound(&counts.bound, asked, misses, before[1].hits[0]) &&
	       same_bound(&counts.recent, asked - last[0], misses - last[1], before[1].hits[0] - before[0].hits[0]);
	sim_trace_fini(&t);
	return good;
}

static void test_random(void)
{
	bool caches = true, bounds = true;

	for (uint32_t i = 0; i < 200 && caches; i++)
		caches = caches_agree();
	ok(caches, "caches beside each other find what the simulator finds");
	for (uint32_t i = 0; i < 60 && bounds; i++)
		bounds = bound_agrees();
	ok(bounds, "the bound is Belady's of each window, and no cache of as many slots finds more there");
}

static void test_refused(void)
{
	const struct ghost_cache wrong = {policy_find("lru"), 5};
	struct moe_error err = {0};
	struct ghost *g;

	ok(ghost_new(&g, 4, &wrong, 1, 2, &err) == -EINVAL && ghost_new(&g, 4, NULL, 0, 5, &err) == -EINVAL &&
		   ghost_new(&g, 0, NULL, 0, 0, &err) == -EINVAL && ghost_new(&g, 4, NULL, 8, 0, &err) == -EINVAL,
	   "wrong numbers are refused: %s", err.text);
	ghost_free(NULL);
}

/* -- recorded routing --------------------------------------------------------------------------------------------- */

/* What `n` layers, evenly spread, say of all. */
static void sample(const struct sim_trace *t, const struct ghost_counts *of, uint32_t n, double *ret)
{
	uint64_t hits[GHOST_CACHES_MAX + 1] = {0}, asked[GHOST_CACHES_MAX + 1] = {0};

	for (uint32_t i = 0; i < n; i++) {
		const struct ghost_counts *c = &of[(2 * i + 1) * t->layers / (2 * n)];

		for (uint32_t k = 0; k < GHOST_CACHES_MAX; k++) {
			hits[k] += c->hits[k];
			asked[k] += c->asked;
		}
		hits[GHOST_CACHES_MAX] += c->bound.hits;
		asked[GHOST_CACHES_MAX] += c->bound.asked;
	}
	for (uint32_t k = 0; k <= GHOST_CACHES_MAX; k++)
		ret[k] = (double)hits[k] / (double)asked[k];
}

/* How far the bound is from Belady's choice for the whole trace, and what a sample of sequences would say. */
static void print_others(const struct sim_trace *t, const char *name, const struct ghost_cache *caches,
			 const double *all)
{
	struct sim_counts total = {0};
	struct sim_trace half = *t;
	uint64_t hits = 0, asked = 0;

	half.tokens = malloc((size_t)t->steps * t->layers * sizeof *half.tokens);
	if (!half.tokens)
		abort();
	for (size_t i = 0; i < (size_t)t->steps * t->layers; i++)
		half.tokens[i] = MIN(t->tokens[i], 4);
	for (uint32_t l = 0; l < t->layers; l++) {
		const struct sim_counts belady = run_sim(t, l, SIM_BELADY, NULL, 8);
		const struct ghost_counts c = run_ghost(&half, l, caches, 2, 0);

		sim_add(&total, &belady);
		hits += c.hits[1];
		asked += c.asked;
	}
	diag("%s: belady for all of it, 8 slots: %.4f; lru 16 of at most 4 sequences %.4f, of all %.4f", name,
	     (double)total.hits_unique / (double)(total.hits_unique + total.misses_unique),
	     (double)hits / (double)asked, all[1]);
	free(half.tokens);
}

static void test_sample(const struct sim_trace *t, const char *name, double allowed)
{
	static const uint32_t sizes[] = {2, 3, 4, 6, 8, 12};
	const struct ghost_cache caches[] = {{policy_find("lru"), 8},      {policy_find("lru"), 16},
					     {policy_find("lru"), 24},     {policy_find("ema"), 8},
					     {policy_find("ema"), 16},     {policy_find("ema"), 24},
					     {policy_find("lfu-decay"), 8}};
	struct ghost_counts of[64];
	double all[GHOST_CACHES_MAX + 1], some[GHOST_CACHES_MAX + 1], worst[ARRAY_LEN(sizes)];

	for (uint32_t l = 0; l < t->layers; l++)
		of[l] = run_ghost(t, l, caches, ARRAY_LEN(caches), 8);
	sample(t, of, t->layers, all);
	diag("%s: lru 8 %.4f 16 %.4f 24 %.4f, ema 8 %.4f 16 %.4f 24 %.4f, bound 8 %.4f", name, all[0], all[1], all[2],
	     all[3], all[4], all[5], all[GHOST_CACHES_MAX]);
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		worst[i] = 0;
		sample(t, of, sizes[i], some);
		for (uint32_t k = 0; k <= GHOST_CACHES_MAX; k++)
			worst[i] = fmax(worst[i], fabs(some[k] - all[k]));
		diag("%s: %u of %u layers: off by %.4f at most; ema over lru, 8 slots: %.4f, of all %.4f", name,
		     sizes[i], t->layers, worst[i], some[3] - some[0], all[3] - all[0]);
	}
	ok(worst[3] <= allowed, "%s: six of %u layers are off by %.4f at most", name, t->layers, worst[3]);
	ok(all[GHOST_CACHES_MAX] > fmax(all[3], all[0]), "the bound of 8 slots is above lru and ema of as many");
	print_others(t, name, caches, all);
}

static void test_recorded(void)
{
	struct sim_trace t;

	if (!recorded_load(&t, "gptoss20b-dev.moetrc", false)) {
		tap_skip("recorded routing: no gptoss20b-dev.moetrc in $MOE_TRACES or ../shared/traces");
		return;
	}
	test_sample(&t, "gpt-oss-20b, one sequence after the other", .03);
	sim_trace_fini(&t);
	if (!recorded_load(&t, "gptoss20b-dev.moetrc", true))
		abort();
	test_sample(&t, "in lockstep", .03);
	sim_trace_fini(&t);
}

int main(void)
{
	seed = tap_seed();
	test_random();
	test_refused();
	test_recorded();
	return tap_done();
}
