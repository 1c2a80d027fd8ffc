/* SPDX-License-Identifier: MIT */
#include "simulate/simulate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "cache.h"

#define NEVER UINT32_MAX
#define SAME (1 + 0x1p-42) /* sums of binary64 that are nearer are one number, added up in another order */

/* One layer's run. Everything by expert is [experts]. */
struct run {
	const struct sim_trace *trace;
	const struct sim_params *params;
	struct sim_counts *counts;
	uint32_t layer, event;
	uint32_t *pairs; /* of this event */
	bool *touched;   /* the same: at one of a token's first choices */
	uint32_t *last, *events;
	bool *cached, *before, *seen;
	struct cache *cache;            /* of pinned */
	struct cache_request *requests; /* of this event, ascending */
	uint32_t n_requests;
	struct moe_copy *fills;
	uint32_t *next; /* belady's: [events + 1][experts] */
	double *w;      /* of ebco-hard in atomic mode: [experts][experts], and behind it the sums of this event's */
};

static const char *const modes[] = {"pinned", "atomic", "belady", "belady-pinned"};

int sim_mode_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(modes); i++)
		if (strcmp(name, modes[i]) == 0)
			return (int)i;
	return -1;
}

const char *sim_mode_name(enum sim_mode mode)
{
	return modes[mode];
}

const char *sim_mode_names(void)
{
	return "pinned, atomic, belady or belady-pinned";
}

void sim_add(struct sim_counts *to, const struct sim_counts *c)
{
	to->hits_unique += c->hits_unique;
	to->misses_unique += c->misses_unique;
	to->hits_pairs += c->hits_pairs;
	to->misses_pairs += c->misses_pairs;
	to->copies += c->copies;
	to->cold += c->cold;
	to->insertions += c->insertions;
	to->evictions += c->evictions;
	to->bypasses += c->bypasses;
}

static size_t at_step(const struct run *x, uint32_t step)
{
	return (size_t)step * x->trace->layers + x->layer;
}

/* More than there are experts hold no more. */
static uint32_t slots(const struct run *x)
{
	return MIN(x->params->capacity, x->trace->experts);
}

/* In atomic mode. */
static bool chooses(const struct run *x, const struct policy_ops *policy)
{
	return x->params->mode == SIM_ATOMIC && strcmp(x->params->policy, policy->name) == 0;
}

/* How many of a token's positions count; the rest is computed, and gets no slot. */
static uint32_t first_choices(const struct run *x)
{
	const uint32_t k = x->params->tuning.cache_topk;

	return k ? MIN(k, x->trace->topk) : x->trace->topk;
}

/* In the policy's rule. */
static double number_of(const struct run *x, const struct policy_ops *policy)
{
	return x->params->tuning.tuned ? x->params->tuning.value : policy->param_value;
}

static void read_event(struct run *x, uint32_t step)
{
	const size_t at = at_step(x, step);
	const int32_t *ids = x->trace->ids + x->trace->first[at];

	memset(x->pairs, 0, x->trace->experts * sizeof *x->pairs);
	memset(x->touched, 0, x->trace->experts * sizeof *x->touched);
	for (size_t i = 0; i < (size_t)x->trace->tokens[at] * x->trace->topk; i++) {
		if (ids[i] < 0)
			continue;
		x->pairs[ids[i]]++;
		x->touched[ids[i]] |= i % x->trace->topk < first_choices(x);
	}
	x->n_requests = 0;
	for (uint32_t e = 0; e < x->trace->experts; e++)
		if (x->pairs[e])
			x->requests[x->n_requests++] = (struct cache_request){(int32_t)e, x->pairs[e], x->touched[e],
									      false};
}

static void mark_missed(const struct run *x, uint32_t step)
{
	const size_t at = at_step(x, step), first = x->trace->first[at];

	for (size_t i = first; i < first + (size_t)x->trace->tokens[at] * x->trace->topk; i++)
		x->params->missed[i] = x->trace->ids[i] >= 0 && !x->cached[x->trace->ids[i]];
}

/* At the start of each 16th event, or period: those of atomic mode are counted here. */
static void halve_events(struct run *x)
{
	if (x->event == 0 || x->event % (uint32_t)number_of(x, &policy_lfu_decay) != 0)
		return;
	for (uint32_t e = 0; e < x->trace->experts; e++)
		x->events[e] /= 2;
}

static void count_event(struct run *x)
{
	for (uint32_t i = 0; i < x->n_requests; i++) {
		const int32_t e = x->requests[i].expert;

		*(x->cached[e] ? &x->counts->hits_unique : &x->counts->misses_unique) += 1;
		*(x->cached[e] ? &x->counts->hits_pairs : &x->counts->misses_pairs) += x->pairs[e];
		x->counts->copies += !x->cached[e];
		x->counts->cold += !x->seen[e];
		x->seen[e] = true;
		x->events[e]++;
		x->last[e] = x->event;
	}
	memcpy(x->before, x->cached, x->trace->experts * sizeof *x->before);
}

/* Residents after against residents before. */
static void count_change(struct run *x)
{
	for (uint32_t e = 0; e < x->trace->experts; e++) {
		x->counts->insertions += x->cached[e] && !x->before[e];
		x->counts->evictions += !x->cached[e] && x->before[e];
		x->counts->bypasses += x->pairs[e] && !x->cached[e] && !x->before[e];
	}
}

/* -- pinned ------------------------------------------------------------------------------------------------------- */

static void step_pinned(struct run *x, uint32_t step)
{
	const size_t at = at_step(x, step), first = x->trace->first[at];
	struct cache *c = x->cache;
	int32_t *slots = (int32_t *)(x->fills + x->trace->experts);
	uint32_t n;

	memcpy(slots, c->slot_expert, c->n_slots * sizeof *slots);
	cache_route(c, &(struct policy_tokens){x->trace->tokens[at], x->trace->topk, x->trace->ids + first,
					       x->trace->weights ? x->trace->weights + first : NULL});
	n = cache_update(c, x->requests, x->n_requests,
			 x->params->tuning.limited ? x->params->tuning.update_expert_num : UINT32_MAX, x->fills);
	for (uint32_t i = 0; i < n; i++) {
		const int32_t victim = slots[x->fills[i].slot];

		x->cached[x->fills[i].expert] = true;
		if (victim < 0)
			continue;
		x->cached[victim] = false;
		if (x->params->evicted)
			x->params->evicted(x->params->userdata, x->event, victim, x->fills[i].expert);
	}
}

/* static starts with the C of most counts; of equal ones the lower ids. */
static void calibrate(struct run *x)
{
	const uint64_t *counts = x->params->calibration + (size_t)x->layer * x->trace->experts;

	for (uint32_t slot = 0; slot < slots(x); slot++) {
		int32_t best = -1;

		for (uint32_t e = 0; e < x->trace->experts; e++)
			if (!x->cached[e] && (best < 0 || counts[e] > counts[best]))
				best = (int32_t)e;
		cache_insert(x->cache, best, (int32_t)slot);
		x->cached[best] = true;
	}
}

/* -- those that choose of R and U --------------------------------------------------------------------------------- */

/* W <- alpha n / B + (1 - alpha) W, n the tokens that have both; then the sums over the requested. */
static void add_together(struct run *x, uint32_t step)
{
	const size_t at = at_step(x, step), n = x->trace->experts, topk = x->trace->topk;
	const int32_t *ids = x->trace->ids + x->trace->first[at];
	const double alpha = number_of(x, &policy_ebco_hard), share = alpha / x->trace->tokens[at];
	double *sums = x->w + n * n;

	for (size_t i = 0; i < n * n; i++)
		x->w[i] *= 1 - alpha;
	for (size_t i = 0; i < x->trace->tokens[at] * topk; i++)
		for (size_t j = i - i % topk; ids[i] >= 0 && j < i - i % topk + topk; j++)
			if (ids[j] >= 0)
				x->w[(size_t)ids[i] * n + (size_t)ids[j]] += share;
	memset(sums, 0, n * sizeof *sums);
	for (uint32_t i = 0; i < x->n_requests; i++)
		for (size_t e = 0; e < n; e++)
			sums[e] += x->w[(size_t)x->requests[i].expert * n + e];
}

/* Greater is better. */
static bool less(const struct run *x, uint32_t a, uint32_t b)
{
	const char *policy = x->params->policy;

	if (x->params->mode != SIM_ATOMIC) {
		const uint32_t *next = x->next + ((size_t)x->event + 1) * x->trace->experts;

		return next[a] > next[b];
	}
	if (x->w)
		return x->w[(size_t)x->trace->experts * x->trace->experts + a] * SAME <
		       x->w[(size_t)x->trace->experts * x->trace->experts + b];
	if (strcmp(policy, "lru") == 0)
		return x->last[a] < x->last[b];
	if (strcmp(policy, "lfu-decay") == 0)
		return x->events[a] < x->events[b];
	if (strcmp(policy, "lfu") == 0)
		return x->events[a] < x->events[b] || (x->events[a] == x->events[b] && x->last[a] < x->last[b]);
	return (uint64_t)x->events[a] * (x->event - x->last[b] + 1) <
	       (uint64_t)x->events[b] * (x->event - x->last[a] + 1);
}

/* Ascending ids are looked at, so of equal ones the lowest goes. */
static void drop_worst(struct run *x, bool held)
{
	uint32_t worst = NEVER;

	for (uint32_t e = 0; e < x->trace->experts; e++)
		if (x->cached[e] && !(held && x->pairs[e]) && (worst == NEVER || less(x, e, worst)))
			worst = e;
	x->cached[worst] = false;
}

static void step_chosen(struct run *x)
{
	const bool pinned = x->params->mode == SIM_BELADY_PINNED;
	uint32_t n = 0, others = 0;

	for (uint32_t e = 0; e < x->trace->experts; e++) {
		x->cached[e] |= x->pairs[e] > 0;
		n += x->cached[e];
		others += x->cached[e] && !x->pairs[e];
	}
	for (; n > x->params->capacity; n--) {
		drop_worst(x, pinned && others > 0);
		others -= others > 0;
	}
}

/* -- the run ------------------------------------------------------------------------------------------------------ */

/* next[event][e]: the first event from that one on that asks for e. */
static int foresee(struct run *x, struct moe_error *err)
{
	const uint32_t experts = x->trace->experts;
	uint32_t events = 0;

	for (uint32_t s = 0; s < x->trace->steps; s++)
		events += x->trace->tokens[at_step(x, s)] > 0;
	x->next = malloc(((size_t)events + 1) * experts * sizeof *x->next);
	if (!x->next)
		return moe_error_set(err, -ENOMEM, "simulate: no memory to look %u events ahead", events);
	for (uint32_t e = 0; e < experts; e++)
		x->next[(size_t)events * experts + e] = NEVER;
	for (uint32_t s = x->trace->steps; s-- > 0;) {
		uint32_t *after = x->next + (size_t)events * experts, *here = after - experts;

		if (x->trace->tokens[at_step(x, s)] == 0)
			continue;
		events--;
		read_event(x, s);
		for (uint32_t e = 0; e < experts; e++)
			here[e] = x->pairs[e] ? events : after[e];
	}
	return 0;
}

bool sim_has_atomic(const char *policy)
{
	static const char *const names[] = {"lru", "lfu", "lfu-decay", "lfru", "ebco-hard"};

	for (size_t i = 0; policy && i < ARRAY_LEN(names); i++)
		if (strcmp(names[i], policy) == 0)
			return true;
	return false;
}

static int check(const struct sim_trace *t, const struct sim_params *p, struct moe_error *err)
{
	if (t->experts == 0 || t->experts > CACHE_EXPERTS_MAX)
		return moe_error_set(err, -EINVAL, "simulate: %u experts found, 1 to %d expected", t->experts,
				     CACHE_EXPERTS_MAX);
	if (p->mode == SIM_PINNED && (!p->policy || !policy_find(p->policy)))
		return moe_error_set(err, -EINVAL, "simulate: policy '%s' found, one of %s expected",
				     p->policy ? p->policy : "", policy_names());
	if (p->mode == SIM_PINNED && p->tuning.tuned && !policy_find(p->policy)->tune)
		return moe_error_set(err, -EINVAL, "simulate: %s has no number to be another one", p->policy);
	if (p->mode == SIM_ATOMIC && !sim_has_atomic(p->policy))
		return moe_error_set(err, -EINVAL, "simulate: atomic mode: policy '%s' found, one of %s expected",
				     p->policy ? p->policy : "", SIM_ATOMIC_NAMES);
	return 0;
}

static int allocate(struct run *x, struct moe_error *err)
{
	const size_t n = x->trace->experts;
	const bool pinned = x->params->mode == SIM_PINNED;
	int r = 0;

	x->pairs = calloc(3 * n, sizeof *x->pairs);
	x->before = calloc(3 * n, sizeof *x->before);
	x->requests = calloc(n, sizeof *x->requests);
	x->fills = calloc(n, sizeof *x->fills + sizeof(int32_t));
	if (chooses(x, &policy_ebco_hard))
		x->w = calloc(n * n + n, sizeof *x->w);
	if (!x->pairs || !x->before || !x->requests || !x->fills || (chooses(x, &policy_ebco_hard) && !x->w))
		return moe_error_set(err, -ENOMEM, "simulate: no memory for %zu experts", n);
	x->last = x->pairs + n;
	x->events = x->last + n;
	x->seen = x->before + n;
	x->touched = x->seen + n;
	if (pinned)
		r = cache_new(&x->cache, x->trace->experts, slots(x), policy_find(x->params->policy), err);
	if (r == 0 && pinned && x->params->tuning.tuned)
		x->cache->policy->tune(x->cache->state, x->params->tuning.value);
	if (r == 0 && pinned && x->params->calibration && strcmp(x->params->policy, "static") == 0)
		calibrate(x);
	if (r == 0 && x->params->mode >= SIM_BELADY)
		r = foresee(x, err);
	return r;
}

int sim_layer(const struct sim_trace *trace, uint32_t layer, const struct sim_params *params,
	      struct sim_counts *ret_counts, bool *ret_final, struct moe_error *err)
{
	struct run x = {.trace = trace, .params = params, .counts = ret_counts, .layer = layer, .cached = ret_final};
	int r = check(trace, params, err);

	if (r < 0)
		return r;
	memset(ret_counts, 0, sizeof *ret_counts);
	memset(ret_final, 0, trace->experts * sizeof *ret_final);
	r = allocate(&x, err);
	for (uint32_t s = 0; r == 0 && s < trace->steps; s++) {
		if (trace->tokens[at_step(&x, s)] == 0)
			continue;
		read_event(&x, s);
		if (params->missed)
			mark_missed(&x, s);
		if (chooses(&x, &policy_lfu_decay))
			halve_events(&x);
		count_event(&x);
		if (x.w)
			add_together(&x, s);
		if (params->mode == SIM_PINNED)
			step_pinned(&x, s);
		else
			step_chosen(&x);
		count_change(&x);
		x.event++;
	}
	cache_free(x.cache);
	free(x.pairs);
	free(x.before);
	free(x.requests);
	free(x.fills);
	free(x.next);
	free(x.w);
	return r;
}
