/* SPDX-License-Identifier: MIT */
#include "simulate/cost.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "policy/heat.h"

#define CHUNKS_MAX 8

static const char *const names[] = {"serial", "overlapped", "split", "both", "chunked-2", "chunked-4", "chunked-8"};

/* One event's experts, or those of a micro-batch of it. */
struct part {
	uint64_t hits, hit_pairs, pairs;
	uint32_t missing;
	uint64_t *keys; /* of the missing ones, hottest first */
};

struct model {
	const struct sim_trace *trace;
	const bool *missed;
	const struct cost_rates *rates;
	double copy;
	uint32_t *pairs; /* [experts], of this part */
	bool *copied;    /* [experts], by an earlier part of the event */
	uint64_t *keys;  /* [experts] */
};

const char *cost_design_name(enum cost_design design)
{
	return names[design];
}

enum cost_design cost_best(const struct cost *cost)
{
	enum cost_design best = COST_SERIAL;

	for (enum cost_design i = COST_SERIAL; i < COST_DESIGNS; i++)
		if (cost->design[i] < cost->design[best])
			best = i;
	return best;
}

static double line(const struct ncopy_line *l, uint64_t experts, uint64_t pairs)
{
	return l->per_expert * (double)experts + l->per_pair * (double)pairs;
}

/* The part-th of n parts of an event's tokens; the parts of one event are asked for in order. */
static struct part read_part(struct model *m, size_t place, uint32_t part, uint32_t n)
{
	const struct sim_trace *t = m->trace;
	const size_t tokens = t->tokens[place];
	const size_t from = tokens * part / n * t->topk, to = tokens * (part + 1) / n * t->topk;
	const int32_t *ids = t->ids + t->first[place];
	const bool *missed = m->missed + t->first[place];
	struct part ret = {.keys = m->keys};

	if (part == 0)
		memset(m->copied, 0, t->experts * sizeof *m->copied);
	memset(m->pairs, 0, t->experts * sizeof *m->pairs);
	for (size_t i = from; i < to; i++)
		if (ids[i] >= 0)
			m->pairs[ids[i]]++;
	for (size_t i = from; i < to; i++) {
		const uint32_t pairs = ids[i] >= 0 ? m->pairs[ids[i]] : 0;

		if (!pairs)
			continue;
		ret.pairs += pairs;
		if (missed[i] && !m->copied[ids[i]]) {
			m->keys[ret.missing++] = heat_key(pairs, ids[i]);
			m->copied[ids[i]] = true;
		} else {
			ret.hits++;
			ret.hit_pairs += pairs;
		}
		m->pairs[ids[i]] = 0;
	}
	heat_sort(m->keys, ret.missing);
	return ret;
}

/* The hits and the n hottest of the missing ones, each computed when its copy is there. */
static double overlapped(const struct model *m, const struct part *p, uint32_t n)
{
	double t = line(&m->rates->ncopy.device, p->hits, p->hit_pairs);

	for (uint32_t i = 0; i < n; i++)
		t = MAX(t, (i + 1) * m->copy) + line(&m->rates->ncopy.device, 1, heat_pairs(p->keys[i]));
	return t;
}

static double on_cpu(const struct model *m, const struct part *p, uint32_t n)
{
	uint64_t pairs = 0;

	for (uint32_t i = n; i < p->missing; i++)
		pairs += heat_pairs(p->keys[i]);
	return line(&m->rates->ncopy.cpu, p->missing - n, pairs);
}

static double split(const struct model *m, const struct part *p)
{
	const uint32_t n = ncopy_choose(&m->rates->ncopy, p->keys, p->missing, p->missing, m->rates->bytes, p->hits,
					p->hit_pairs);
	uint64_t pairs = p->hit_pairs;

	for (uint32_t i = 0; i < n; i++)
		pairs += heat_pairs(p->keys[i]);
	return MAX(n * m->copy + line(&m->rates->ncopy.device, p->hits + n, pairs), on_cpu(m, p, n));
}

static double both(const struct model *m, const struct part *p)
{
	double best = overlapped(m, p, p->missing);

	for (uint32_t n = 0; n < p->missing; n++) {
		const double device = overlapped(m, p, n), cpu = on_cpu(m, p, n);

		best = MIN(best, MAX(device, cpu));
	}
	return best;
}

static void add_event(struct model *m, size_t place, struct cost *to)
{
	const struct part p = read_part(m, place, 0, 1);
	const double wait = p.missing * m->copy, layer = m->rates->layer_ns;
	const double compute = layer + line(&m->rates->ncopy.device, p.hits + p.missing, p.pairs);

	to->wait += wait;
	to->compute += compute;
	to->ideal += MAX(wait, compute);
	to->design[COST_SERIAL] += wait + compute;
	to->design[COST_OVERLAPPED] += layer + overlapped(m, &p, p.missing);
	to->design[COST_SPLIT] += layer + split(m, &p);
	to->design[COST_BOTH] += layer + both(m, &p);
}

/* One step. A micro-batch without tokens at a layer is not there. */
static double chunked(struct model *m, uint32_t step, uint32_t chunks)
{
	double there[CHUNKS_MAX] = {0}, device_ns[CHUNKS_MAX] = {0}, device = 0, link = 0;

	for (uint32_t layer = 0; layer <= m->trace->layers; layer++) {
		const bool last = layer == m->trace->layers;
		const size_t place = (size_t)step * m->trace->layers + layer;

		for (uint32_t j = 0; j < chunks; j++) {
			struct part p = {0};

			device = MAX(device, there[j]) + device_ns[j];
			there[j] = device_ns[j] = 0;
			if (!last)
				p = read_part(m, place, j, chunks);
			if (p.pairs == 0)
				continue;
			device += m->rates->layer_ns;
			link = MAX(link, device) + p.missing * m->copy;
			/* What needs no copy of its own may still wait for one that an earlier part has begun. */
			there[j] = link;
			device_ns[j] = line(&m->rates->ncopy.device, p.hits + p.missing, p.pairs);
		}
	}
	return device;
}

int cost_run(const struct sim_trace *trace, const bool *missed, const struct cost_rates *rates, struct cost *ret,
	     struct moe_error *err)
{
	struct model m = {.trace = trace,
			  .missed = missed,
			  .rates = rates,
			  .copy = rates->ncopy.copy_ns_per_byte * (double)rates->bytes};
	double *const numbers = &ret->wait;
	int r = 0;

	m.pairs = calloc(trace->experts, sizeof *m.pairs);
	m.copied = calloc(trace->experts, sizeof *m.copied);
	m.keys = calloc(trace->experts, sizeof *m.keys);
	*ret = (struct cost){0};
	if (!m.pairs || !m.copied || !m.keys)
		r = moe_error_set(err, -ENOMEM, "cost: no memory for %u experts", trace->experts);
	for (uint32_t step = 0; r == 0 && step < trace->steps; step++) {
		for (uint32_t layer = 0; layer < trace->layers; layer++)
			if (trace->tokens[(size_t)step * trace->layers + layer])
				add_event(&m, (size_t)step * trace->layers + layer, ret);
		for (int i = COST_CHUNKED_2; i < COST_DESIGNS; i++)
			ret->design[i] += chunked(&m, step, 2u << (i - COST_CHUNKED_2));
	}
	for (size_t i = 0; trace->steps && i < sizeof *ret / sizeof *numbers; i++)
		numbers[i] /= trace->steps;
	free(m.pairs);
	free(m.copied);
	free(m.keys);
	return r;
}
