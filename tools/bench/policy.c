/* SPDX-License-Identifier: MIT */
/*
 * policy - what a cache policy costs for one event: a step of one layer, all of its tokens.
 *
 * Alone in this process: the calls that the library's cache makes (policy.h), on events drawn beforehand, whose popular
 * experts change slowly. Beside it the least that any policy does: one number written for each expert that an event
 * asks for, as lru would have it without an order.
 */
#include "policy/policy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/util.h"
#include "bench.h"

#define EXPERTS 256
#define SLOTS 104
#define TOPK 8
#define EVENTS 512
#define SKEW 0.8 /* the exponent of Zipf's law */
#define DRIFT 16 /* events after which two experts change places in popularity */

struct event {
	uint32_t n;
	int32_t *ids; /* [tokens * topk], then the distinct ones, ascending */
	int32_t *distinct;
	uint32_t *pairs;
};

struct work {
	uint32_t experts, slots, tokens, topk;
	struct event events[EVENTS];
	float *weights;
	int32_t *memory;
	bool *cached;
	int32_t *held, *missing, *leaving; /* of an event: room for all experts, each */
	uint32_t *stamp;
	uint64_t requests, misses, fills; /* of a run */
};

static uint64_t draw(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1du;
}

static int32_t pick(const double *sums, const int32_t *order, uint32_t n, uint64_t *state)
{
	const double at = (double)(draw(state) >> 11) * 0x1p-53 * sums[n - 1];
	uint32_t low = 0, high = n - 1;

	while (low < high) {
		const uint32_t middle = (low + high) / 2;

		if (sums[middle] > at)
			high = middle;
		else
			low = middle + 1;
	}
	return order[low];
}

static void draw_event(struct work *w, struct event *e, const double *sums, const int32_t *order, uint64_t *state)
{
	for (uint32_t t = 0; t < w->tokens; t++)
		for (uint32_t k = 0; k < w->topk; k++) {
			int32_t *to = e->ids + (size_t)t * w->topk;
			bool again;

			do {
				to[k] = pick(sums, order, w->experts, state);
				again = false;
				for (uint32_t j = 0; j < k; j++)
					again |= to[j] == to[k];
			} while (again);
		}
	e->n = 0;
	for (uint32_t i = 0; i < w->experts; i++) {
		uint32_t pairs = 0;

		for (uint32_t k = 0; k < w->tokens * w->topk; k++)
			pairs += e->ids[k] == (int32_t)i;
		if (!pairs)
			continue;
		e->distinct[e->n] = (int32_t)i;
		e->pairs[e->n++] = pairs;
	}
}

/* Zipf's law over experts in an order that drifts. */
static int draw_events(struct work *w)
{
	const size_t pairs = (size_t)w->tokens * w->topk;
	_cleanup_free_ double *sums = calloc(w->experts, sizeof *sums);
	_cleanup_free_ int32_t *order = calloc(w->experts, sizeof *order);
	uint64_t state = 0x9e3779b97f4a7c15u;
	double sum = 0;

	w->memory = calloc(3 * pairs * EVENTS, sizeof *w->memory);
	w->weights = calloc(pairs, sizeof *w->weights);
	w->cached = calloc(w->experts, sizeof *w->cached);
	w->held = calloc(3 * (size_t)w->experts, sizeof *w->held);
	w->stamp = calloc(w->experts, sizeof *w->stamp);
	if (!sums || !order || !w->memory || !w->weights || !w->cached || !w->held || !w->stamp)
		return -1;
	w->missing = w->held + w->experts;
	w->leaving = w->missing + w->experts;
	for (uint32_t i = 0; i < w->experts; i++) {
		sums[i] = sum += pow(i + 1, -SKEW);
		order[i] = (int32_t)(i * 97u % w->experts); /* popular ones lie apart, where that is a permutation */
	}
	if (w->experts % 97 == 0)
		for (uint32_t i = 0; i < w->experts; i++)
			order[i] = (int32_t)i;
	for (size_t i = 0; i < pairs; i++)
		w->weights[i] = 1.0f / (float)w->topk;
	for (uint32_t i = 0; i < EVENTS; i++) {
		struct event *e = &w->events[i];

		e->ids = w->memory + 3 * pairs * i;
		e->distinct = e->ids + pairs;
		e->pairs = (uint32_t *)(e->distinct + pairs);
		draw_event(w, e, sums, order, &state);
		if (i % DRIFT == 0) {
			const uint32_t a = (uint32_t)(draw(&state) % w->experts),
				       b = (uint32_t)(draw(&state) % w->experts);
			const int32_t moved = order[a];

			order[a] = order[b];
			order[b] = moved;
		}
	}
	return 0;
}

static void drop_work(struct work *w)
{
	free(w->memory);
	free(w->weights);
	free(w->cached);
	free(w->held);
	free(w->stamp);
}

/* Who of an event is there, without a branch; as cache_update() does, which no processor could foresee either. */
static uint32_t list_cached(struct work *w, const struct event *e)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < e->n; i++) {
		w->held[n] = e->distinct[i];
		n += w->cached[e->distinct[i]];
	}
	return n;
}

/* Returns for how many somebody left. */
static uint32_t replace_rest(struct work *w, const struct policy_ops *p, void *state, uint32_t from, uint32_t missing)
{
	const uint32_t n = p->replace(state, w->missing + from, missing - from, w->leaving);

	for (uint32_t i = 0; i < n; i++)
		w->cached[w->leaving[i]] = false;
	return n;
}

/* The calls of cache_update(). */
static uint32_t run_event(struct work *w, const struct policy_ops *p, void *state, const struct event *e, uint32_t n)
{
	uint32_t cached = list_cached(w, e), missing = 0, filled;

	if (p->route)
		p->route(state, &(struct policy_tokens){w->tokens, w->topk, e->ids, w->weights});
	for (uint32_t i = 0; i < e->n; i++) {
		w->missing[missing] = e->distinct[i];
		missing += !w->cached[e->distinct[i]];
	}
	p->hold(state, w->held, cached);
	p->request(state, e->distinct, e->pairs, e->n);
	filled = MIN(missing, w->slots - n);
	for (uint32_t i = 0; i < filled; i++)
		p->admit(state, w->missing[i]);
	n += filled;
	if (filled < missing)
		filled += replace_rest(w, p, state, filled, missing);
	for (uint32_t i = 0; i < filled; i++)
		w->cached[w->missing[i]] = true;
	p->release(state, w->held, list_cached(w, e));
	p->settle(state);
	w->requests += e->n;
	w->misses += missing;
	w->fills += filled;
	return n;
}

/* The least: a number for each expert. */
static double time_floor(struct work *w)
{
	const uint64_t start = now_ns();

	for (uint32_t i = 0; i < EVENTS; i++) {
		const struct event *e = &w->events[i];

		for (uint32_t j = 0; j < e->n; j++)
			w->stamp[e->distinct[j]] = i;
		__asm__ volatile("" : : "r"(w->stamp) : "memory");
	}
	return (double)(now_ns() - start) / EVENTS;
}

static void print_result(const struct options *o, const struct work *w, const char *name, const struct summary *s,
			 const struct summary *least)
{
	const double width = (double)w->requests / EVENTS / o->samples;
	const double found = 1 - (double)w->misses / (double)w->requests;

	if (!o->json) {
		printf("%-10s %7.2f us an event (best %.2f): %6.1f ns an expert, %5.1f times the least; %.1f experts, "
		       "%.3f of them found\n",
		       name, s->p50 / 1e3, s->best / 1e3, s->p50 / width, s->p50 / least->p50, width, found);
		return;
	}
	printf("{\"bench\": \"policy\", \"policy\": \"%s\", \"experts\": %u, \"slots\": %u, \"tokens\": %u, \"topk\": "
	       "%u, \"event_ns\": {\"best\": %.1f, \"p50\": %.1f, \"p99\": %.1f}, \"least_ns\": %.1f, "
	       "\"requests\": %.2f, \"found\": %.4f}\n",
	       name, w->experts, w->slots, w->tokens, w->topk, s->best, s->p50, s->p99, least->p50, width, found);
}

static int bench_one(const struct options *o, struct work *w, const struct policy_ops *p)
{
	_cleanup_free_ void *state = calloc(1, p->bytes(w->experts, w->slots));
	_cleanup_free_ double *samples = calloc(2 * (size_t)o->samples, sizeof *samples);
	struct summary s, least;
	uint32_t n = 0;

	if (!state || !samples)
		return -1;
	p->init(state, w->experts, w->slots);
	memset(w->cached, 0, w->experts * sizeof *w->cached);
	for (uint32_t i = 0; i < EVENTS; i++)
		n = run_event(w, p, state, &w->events[i], n);
	w->requests = w->misses = w->fills = 0;
	for (uint32_t i = 0; i < o->samples; i++) {
		const uint64_t start = now_ns();

		for (uint32_t j = 0; j < EVENTS; j++)
			n = run_event(w, p, state, &w->events[j], n);
		samples[i] = (double)(now_ns() - start) / EVENTS;
		samples[o->samples + i] = time_floor(w);
	}
	s = summarise(samples, o->samples);
	least = summarise(samples + o->samples, o->samples);
	print_result(o, w, p->name, &s, &least);
	fflush(stdout);
	return 0;
}

int bench_policy(const struct options *o)
{
	struct work w = {.experts = o->experts ? o->experts : EXPERTS,
			 .slots = o->slots ? o->slots : SLOTS,
			 .tokens = o->tokens,
			 .topk = o->topk ? o->topk : TOPK};
	int r;

	if (w.experts > 4096 || w.slots > w.experts || w.topk > w.experts || w.tokens > 4096 || o->samples > 100000) {
		fprintf(stderr,
			"moe-bench: policy: %u experts, %u slots, top-%u, %u tokens, %u samples found; at most 4096 "
			"experts and tokens, as many slots and choices, and 100000 samples expected\n",
			w.experts, w.slots, w.topk, w.tokens, o->samples);
		return 2;
	}
	r = draw_events(&w);
	for (size_t i = 0; r == 0 && policy_at(i); i++)
		r = bench_one(o, &w, policy_at(i));
	drop_work(&w);
	if (r < 0)
		fprintf(stderr, "moe-bench: policy: no memory\n");
	return r < 0;
}
