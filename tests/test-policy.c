/* SPDX-License-Identifier: MIT */
/*
 * Policies and the simulator on random traces: Belady's two forms against exhaustive search, and each fast structure
 * against its rule said plainly. test-policy-known has what is published and recorded.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "policy/policy.h"
#include "simulate/moetrc.h"
#include "simulate/simulate.h"
#include "tests/plain-policy.h"
#include "tests/sim-layers.h"
#include "tests/tap.h"

#define EXPERTS 64

static unsigned long long seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

/* -- names -------------------------------------------------------------------------------------------------------- */

static void test_names(void)
{
	char all[512] = "", frames[512] = "";
	bool found = true;

	for (size_t i = 0; policy_at(i); i++) {
		const struct policy_ops *p = policy_at(i);

		found &= policy_find(p->name) == p;
		snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", p->name);
		if (!p->slots_only)
			snprintf(frames + strlen(frames), sizeof frames - strlen(frames), "%s%s", i ? ", " : "",
				 p->name);
	}
	ok(found && !policy_find("mru") && policy_find(NULL) == &policy_ema, "policies are found by name");
	ok(strcmp(all, policy_names()) == 0, "the names are the table's: %s", all);
	ok(strcmp(frames, policy_frames_names()) == 0, "and those for frames: %s", frames);
}

/* -- random traces ------------------------------------------------------------------------------------------------ */

/* Few experts, so that ties and full caches are common. */
static void random_trace(struct sim_trace *t, uint32_t experts, uint32_t steps, uint32_t tokens_max)
{
	const uint32_t topk = 1 + below(MIN(experts, 4));
	size_t n = 0;

	*t = (struct sim_trace){.layers = 1, .experts = experts, .topk = topk, .steps = steps};
	t->tokens = calloc(steps, sizeof *t->tokens);
	t->first = calloc(steps, sizeof *t->first);
	t->ids = calloc((size_t)steps * tokens_max * topk, sizeof *t->ids);
	t->weights = calloc((size_t)steps * tokens_max * topk, sizeof *t->weights);
	for (uint32_t s = 0; s < steps; s++) {
		t->first[s] = n;
		t->tokens[s] = below(tokens_max + 1);
		for (uint32_t i = 0; i < t->tokens[s]; i++)
			for (uint32_t k = 0; k < topk; k++, n++) {
				bool again;

				t->weights[n] = (float)(1 + below(8)) / 8;
				do {
					t->ids[n] = (int32_t)below(experts);
					again = false;
					for (uint32_t j = 1; j <= k; j++)
						again |= t->ids[n - j] == t->ids[n];
				} while (again);
			}
	}
}

/* The fewest copies from here on, by trying everything. `have` is a set of experts. */
static uint32_t fewest(const uint32_t *events, uint32_t n, uint32_t have, uint32_t capacity, bool pinned)
{
	const uint32_t want = events[0], all = have | want;
	uint32_t best = UINT32_MAX;

	if (n == 0)
		return 0;
	for (uint32_t keep = all;; keep = (keep - 1) & all) {
		const uint32_t size = (uint32_t)__builtin_popcount(keep);
		/* Held: what is requested and was there stays, and so does what came while there was room. */
		const uint32_t room = (uint32_t)__builtin_popcount(want) < capacity ? (uint32_t)__builtin_popcount(want)
										    : capacity;
		const bool allowed = !pinned || (uint32_t)__builtin_popcount(keep & want) == room;

		if (size <= capacity && allowed)
			best = MIN(best, fewest(events + 1, n - 1, keep, capacity, pinned));
		if (keep == 0)
			break;
	}
	return best + (uint32_t)__builtin_popcount(want & ~have);
}

static void test_belady(void)
{
	bool good[2] = {true, true};

	for (uint32_t round = 0; round < 150; round++) {
		const uint32_t experts = 2 + below(4), capacity = below(experts);
		uint32_t events[8] = {0}, n = 0;
		struct sim_trace t;

		random_trace(&t, experts, 6, 2);
		for (uint32_t s = 0; s < t.steps; s++) {
			for (uint32_t i = 0; i < t.tokens[s] * t.topk; i++)
				events[n] |= 1u << t.ids[t.first[s] + i];
			n += t.tokens[s] > 0;
		}
		for (int pinned = 0; pinned < 2; pinned++) {
			struct sim_counts counts;

			run_all(&t, pinned ? "belady-pinned" : "belady", capacity, &counts);
			good[pinned] &= counts.copies == fewest(events, n, 0, capacity, pinned);
		}
		sim_trace_fini(&t);
	}
	ok(good[0], "belady has the fewest copies of all ways, tried one by one");
	ok(good[1], "belady-pinned has the fewest of all that hold what is requested");
}

/* What the router said of a step. */
static struct policy_tokens tokens_of(const struct sim_trace *t, uint32_t step)
{
	return (struct policy_tokens){t->tokens[step], t->topk, t->ids + t->first[step], t->weights + t->first[step]};
}

/* Victims in order; the fast one has to give the same, but for keys that rounding alone tells apart. */
struct compare {
	struct plain p;
	const struct sim_trace *t;
	bool have[EXPERTS], wanted[EXPERTS], good;
	uint32_t step, n, evictions;
};

static bool begin_event(struct compare *c)
{
	struct policy_tokens tokens;

	while (c->step < c->t->steps && c->t->tokens[c->step] == 0)
		c->step++;
	if (c->step == c->t->steps)
		return false;
	memset(c->wanted, 0, sizeof c->wanted);
	for (uint32_t i = 0; i < c->t->tokens[c->step] * c->t->topk; i++)
		c->wanted[c->t->ids[c->t->first[c->step] + i]] = true;
	tokens = tokens_of(c->t, c->step);
	plain_event(&c->p, &tokens, c->wanted);
	return true;
}

/* The missing ones that found a free slot have no line in the log. */
static void end_event(struct compare *c, uint32_t capacity)
{
	for (uint32_t e = 0; e < c->t->experts && c->n < capacity; e++) {
		c->n += c->wanted[e] && !c->have[e];
		c->have[e] |= c->wanted[e];
	}
	c->p.event++;
	c->step++;
}

static uint32_t capacity_of_run;

static void compare_victim(void *userdata, uint32_t event, int32_t victim, int32_t incoming)
{
	struct compare *c = userdata;
	double least = INFINITY, key;
	int32_t best = -1;

	while (c->p.event < event) {
		if (c->p.event != UINT32_MAX && c->step < c->t->steps)
			end_event(c, capacity_of_run);
		begin_event(c);
	}
	/* Free slots first: what the log does not have has come before. */
	for (int32_t e = 0; e < incoming && c->n < capacity_of_run; e++) {
		c->n += c->wanted[e] && !c->have[e];
		c->have[e] |= c->wanted[e];
	}
	for (uint32_t e = 0; e < c->t->experts; e++) {
		if (!c->have[e] || c->wanted[e])
			continue;
		key = plain_key(&c->p, e, c->wanted);
		if (key < least) {
			least = key;
			best = (int32_t)e;
		}
	}
	key = plain_key(&c->p, (uint32_t)victim, c->wanted);
	c->good &= victim == best || (best >= 0 && fabs(key - least) <= 1e-12 * fabs(least));
	c->have[victim] = false;
	c->have[incoming] = true;
	c->evictions++;
}

static void test_against_plain(const char *policy)
{
	uint32_t evictions = 0;
	bool good = true;

	for (uint32_t round = 0; round < 60; round++) {
		struct sim_params p = {.policy = policy, .evicted = compare_victim};
		struct compare c = {.p = {.rule = policy}, .good = true};
		struct sim_counts counts;
		bool final[EXPERTS];
		struct sim_trace t;

		random_trace(&t, 2 + below(EXPERTS - 2), 200, 1 + below(4));
		c.p.experts = t.experts;
		c.t = &t;
		p.capacity = capacity_of_run = 1 + below(t.experts);
		p.userdata = &c;
		begin_event(&c);
		good &= sim_layer(&t, 0, &p, &counts, final, NULL) == 0 && c.good;
		evictions += c.evictions;
		sim_trace_fini(&t);
	}
	ok(good && evictions > 1000, "%s: %u victims are those of the rule, said plainly", policy, evictions);
}

/* A thousand years of events: ema's and mrs' gain is scaled down, and nothing is told differently. */
static void test_long_run(const char *policy)
{
	struct sim_params p = {.policy = policy, .capacity = 4, .evicted = compare_victim};
	struct compare c = {.p = {.rule = policy, .experts = 8}, .good = true};
	struct sim_counts counts;
	bool final[EXPERTS];
	struct sim_trace t;

	random_trace(&t, 8, 20000, 1);
	c.t = &t;
	p.userdata = &c;
	capacity_of_run = p.capacity;
	begin_event(&c);
	c.good &= sim_layer(&t, 0, &p, &counts, final, NULL) == 0;
	ok(c.good && c.evictions > 1000, "%s: %u victims in %u steps, its numbers scaled down meanwhile", policy,
	   c.evictions, t.steps);
	sim_trace_fini(&t);
}

static void test_refused(void)
{
	uint32_t tokens = 0;
	size_t first = 0;
	struct sim_trace t = {.layers = 1, .experts = 4, .topk = 1, .steps = 1, .tokens = &tokens, .first = &first};
	struct sim_params p = {.policy = "mru", .capacity = 2};
	struct sim_counts counts;
	struct moe_error err;
	bool final[4];

	ok(sim_layer(&t, 0, &p, &counts, final, &err) == -EINVAL && strstr(err.text, "mru"), "%s", err.text);
	p = (struct sim_params){.mode = SIM_ATOMIC, .policy = "sieve", .capacity = 2};
	ok(sim_layer(&t, 0, &p, &counts, final, &err) == -EINVAL && strstr(err.text, "sieve"), "%s", err.text);
}

static void tell(const struct policy_ops *policy, void *state, const int32_t *ids, const float *weights)
{
	policy->route(state, &(struct policy_tokens){1, 2, ids, weights});
	policy->hold(state, ids, 2);
	policy->request(state, ids, NULL, 2);
	policy->release(state, ids, 2);
	policy->settle(state);
}

/* One client's weights that no router gives count nothing: the order is that of a twin that was told of zeros. */
static void test_wild_weights(const char *name)
{
	static const float wild[][2] = {{NAN, 0.5f},     {INFINITY, 0}, {-INFINITY, NAN},
					{-1e30f, 1e38f}, {0.5f, -NAN},  {1e9f, 0.25f}};
	static const float tame[][2] = {{0, 0.5f}, {0, 0}, {0, 0}, {0, 0}, {0.5f, 0}, {0, 0.25f}};
	const struct policy_ops *policy = policy_find(name);
	void *state[2] = {calloc(1, policy->bytes(6, 6)), calloc(1, policy->bytes(6, 6))};
	int32_t order[2][6];
	bool same = state[0] && state[1];

	for (int twin = 0; same && twin < 2; twin++) {
		policy->init(state[twin], 6, 6);
		for (int32_t e = 0; e < 6; e++) {
			policy->admit(state[twin], e);
			policy->release(state[twin], &e, 1);
		}
		policy->settle(state[twin]);
	}
	for (size_t i = 0; same && i < ARRAY_LEN(wild); i++) {
		tell(policy, state[0], (const int32_t[]){0, 1}, wild[i]);
		tell(policy, state[1], (const int32_t[]){0, 1}, tame[i]);
		for (int32_t e = 2; e < 6; e++)
			for (int twin = 0; twin < 2; twin++)
				tell(policy, state[twin], (const int32_t[]){e, e == 5 ? 1 : e + 1},
				     (const float[]){0.75f, 0.25f});
		same &= policy->sort(state[0], order[0]) == 6 && policy->sort(state[1], order[1]) == 6 &&
			memcmp(order[0], order[1], sizeof order[0]) == 0;
	}
	ok(same, "%s: weights that no router gives count nothing", name);
	free(state[0]);
	free(state[1]);
}

int main(void)
{
	static const char *const plain[] = {"lru", "lfu", "lfu-decay", "lfru", "ema", "mrs", "ebco-hard", "ebco-soft"};

	seed = tap_seed();
	test_names();
	test_belady();
	for (size_t i = 0; i < ARRAY_LEN(plain); i++)
		test_against_plain(plain[i]);
	test_long_run("ema");
	test_long_run("mrs");
	test_wild_weights("mrs");
	test_wild_weights("ebco-soft");
	test_wild_weights("ebco-hard");
	test_refused();
	return tap_done();
}
