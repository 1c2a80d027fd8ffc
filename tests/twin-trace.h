/* SPDX-License-Identifier: MIT */
/*
 * twin-trace - random traces for twins of the simulator, what happens in them, and results to compare.
 *
 * Layers differ, steps are empty, a token may have fewer experts than others, and half of the traces have weights. An
 * event's numbers are tables of all experts; nothing is carried from one event to the next.
 */
#ifndef TESTS_TWIN_TRACE_H
#define TESTS_TWIN_TRACE_H

#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "simulate/simulate.h"
#include "tests/tap.h"

#ifndef EXPERTS
#define EXPERTS 20
#endif
#define LAYERS 3
#define STEPS 60
#define TOKENS 6
#define TOPK 6
#define EVICTIONS (STEPS * EXPERTS)

static unsigned long long seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

/* -- traces ------------------------------------------------------------------------------------------------------- */

static struct {
	uint32_t tokens[STEPS * LAYERS];
	size_t first[STEPS * LAYERS];
	int32_t ids[STEPS * LAYERS * TOKENS * TOPK];
	float weights[STEPS * LAYERS * TOKENS * TOPK];
} room;

/* A layer's taste: all experts alike, the low ones, or a few of the moment. */
static int32_t draw_expert(uint32_t kind, uint32_t experts, uint32_t step)
{
	if (kind == 1)
		return (int32_t)(below(experts) * below(experts) / experts);
	if (kind == 2)
		return (int32_t)((step / 5 * 3 + below(4)) % experts);
	return (int32_t)below(experts);
}

static void draw_token(const struct sim_trace *t, int32_t *to, uint32_t kind, uint32_t step)
{
	uint32_t n = 0;

	for (uint32_t k = 0; k < t->topk; k++)
		to[k] = -1;
	for (uint32_t k = 0; k < t->topk; k++) {
		const int32_t e = draw_expert(kind, t->experts, step);
		bool taken = false;

		for (uint32_t i = 0; i < n; i++)
			taken |= to[i] == e;
		if (!taken && (n == 0 || below(12)))
			to[n++] = e;
	}
	for (uint32_t k = 0; t->weights && k < t->topk; k++)
		t->weights[to - t->ids + k] = (float)(1 + below(1u << 22)) / (1u << 22);
}

static struct sim_trace draw_trace(void)
{
	struct sim_trace t = {.layers = 1 + below(LAYERS),
			      .experts = 1 + below(below(3) ? 8 : EXPERTS),
			      .steps = below(STEPS + 1),
			      .tokens = room.tokens,
			      .first = room.first,
			      .ids = room.ids,
			      .weights = below(2) ? room.weights : NULL};
	const uint32_t most = 1 + below(TOKENS), kinds = below(27);
	size_t at = 0;

	t.topk = 1 + below(MIN(t.experts, TOPK));
	for (uint32_t place = 0; place < t.steps * t.layers; place++) {
		const uint32_t kind = kinds / (place % t.layers == 0 ? 1 : place % t.layers == 1 ? 3 : 9) % 3;

		t.first[place] = at;
		t.tokens[place] = below(6) ? 1 + below(most) : 0;
		for (uint32_t i = 0; i < t.tokens[place]; i++, at += t.topk)
			draw_token(&t, t.ids + at, kind, place / t.layers);
	}
	return t;
}

/* -- events ------------------------------------------------------------------------------------------------------- */

/* A layer's events. */
struct events {
	uint32_t n, experts;
	uint32_t tokens[STEPS];
	uint32_t pairs[STEPS][EXPERTS];
	uint32_t both[STEPS][EXPERTS][EXPERTS];       /* tokens that have the two */
	long double weight[STEPS][EXPERTS];           /* the router's, added up */
	long double product[STEPS][EXPERTS][EXPERTS]; /* of the two's weights, added up */
};

/* Not known, all of a token's are the same. */
static long double weight_of(const struct sim_trace *t, size_t at)
{
	return t->weights ? (long double)t->weights[at] : 1.0L / t->topk;
}

static void add_token(struct events *v, const struct sim_trace *t, size_t first)
{
	for (size_t j = first; j < first + t->topk; j++) {
		const int32_t a = t->ids[j];

		if (a < 0)
			continue;
		v->pairs[v->n][a]++;
		v->weight[v->n][a] += weight_of(t, j);
		for (size_t k = first; k < first + t->topk; k++) {
			if (t->ids[k] < 0)
				continue;
			v->both[v->n][a][t->ids[k]]++;
			v->product[v->n][a][t->ids[k]] += weight_of(t, j) * weight_of(t, k);
		}
	}
}

static void find_events(struct events *ret, const struct sim_trace *t, uint32_t layer)
{
	memset(ret, 0, sizeof *ret);
	ret->experts = t->experts;
	for (uint32_t step = 0; step < t->steps; step++) {
		const uint32_t place = step * t->layers + layer;

		for (uint32_t i = 0; i < t->tokens[place]; i++)
			add_token(ret, t, t->first[place] + (size_t)i * t->topk);
		ret->tokens[ret->n] = t->tokens[place];
		ret->n += t->tokens[place] > 0;
	}
}

/* None, one, all, more than all, or any number of slots. */
static uint32_t draw_capacity(const struct sim_trace *t)
{
	const uint32_t kind = below(5);

	return kind == 0   ? below(MIN(t->experts, 2))
	       : kind == 1 ? t->experts + below(3)
	       : kind == 2 ? t->topk
			   : below(t->experts);
}

/* -- results ------------------------------------------------------------------------------------------------------ */

struct result {
	struct sim_counts counts;
	bool final[EXPERTS];
	uint32_t n, log[EVICTIONS][3];
};

static void add_eviction(struct result *r, uint32_t event, uint32_t victim, uint32_t incoming)
{
	r->log[r->n][0] = event;
	r->log[r->n][1] = victim;
	r->log[r->n++][2] = incoming;
}

/* What an event has done, whoever was there before it. */
static void count_event(struct result *r, const struct events *v, uint32_t now, const bool *before)
{
	struct sim_counts *c = &r->counts;

	for (uint32_t e = 0; e < v->experts; e++) {
		const uint32_t pairs = v->pairs[now][e];
		bool seen = false;

		for (uint32_t t = 0; t < now; t++)
			seen |= v->pairs[t][e] > 0;
		c->hits_unique += pairs && before[e];
		c->misses_unique += pairs && !before[e];
		c->hits_pairs += before[e] ? pairs : 0;
		c->misses_pairs += before[e] ? 0 : pairs;
		c->copies += pairs && !before[e];
		c->cold += pairs && !seen;
		c->insertions += !before[e] && r->final[e];
		c->evictions += before[e] && !r->final[e];
		c->bypasses += pairs && !before[e] && !r->final[e];
	}
}

static void log_eviction(void *userdata, uint32_t event, int32_t victim, int32_t incoming)
{
	add_eviction(userdata, event, (uint32_t)victim, (uint32_t)incoming);
}

static bool same(const struct result *a, const struct result *b, const struct events *v)
{
	bool good = memcmp(&a->counts, &b->counts, sizeof a->counts) == 0 && a->n == b->n &&
		    memcmp(a->final, b->final, v->experts) == 0;

	for (uint32_t i = 0; good && i < a->n; i++)
		good = memcmp(a->log[i], b->log[i], sizeof a->log[i]) == 0;
	return good && b->counts.insertions + b->counts.bypasses == b->counts.copies;
}

#endif
