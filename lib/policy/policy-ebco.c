/* SPDX-License-Identifier: MIT */
/*
 * ebco - experts that go with those of this event stay: the least sum of W[e][a] over the requested a leaves, of equal
 * ones the lowest id.
 *
 * W <- 7/8 W + 1/8 n / B when an event begins. ebco-hard: n[i][j] counts the tokens that have both; ebco-soft: it sums
 * the products of the router's weights for the two, of which those of the top-k are known. B is the number of tokens.
 *
 * Only the rows of requested experts are looked at, so the others are brought up to date when they are next. A power of
 * 7/8 up to the 18th is exact in binary64, which is what equal sums are compared by.
 */
#include <string.h>

#include "policy/policy.h"
#include "policy/policy-heap.h"

#define NEW 0.125 /* the share of an event, in W */
#define KEPT_EXACT 18
#define GAP_NOTHING 20000 /* events after which nothing is left */

struct ebco {
	bool soft, in_event;
	bool stale;  /* the heap has the order of the event before */
	bool summed; /* keys are as of this event */
	uint64_t event;
	uint32_t n_experts, n_active;
	double *w, *n;   /* [n_experts][n_experts] */
	double *key;     /* [n_experts] */
	uint64_t *seen;  /* [n_experts]: the row is as of this event */
	int32_t *active; /* [n_experts]: requested by this event, or by the last one */
	double power[KEPT_EXACT + 1];
	struct policy_heap heap;
};

static size_t ebco_bytes(uint32_t n_experts, uint32_t n_slots)
{
	const size_t n = n_experts;

	return sizeof(struct ebco) + (2 * n * n + 2 * n) * sizeof(double) + (2 * n + n_slots) * sizeof(int32_t);
}

static void init(struct ebco *o, bool soft, uint32_t n_experts)
{
	const size_t n = n_experts;

	*o = (struct ebco){.soft = soft, .n_experts = n_experts, .w = (double *)(o + 1)};
	o->n = o->w + n * n;
	o->key = o->n + n * n;
	o->seen = (uint64_t *)(o->key + n);
	o->heap.place = (uint32_t *)(o->seen + n);
	o->active = (int32_t *)(o->heap.place + n);
	o->heap.expert = o->active + n;
	o->heap.key = o->key;
	o->power[0] = 1;
	for (int i = 1; i <= KEPT_EXACT; i++)
		o->power[i] = o->power[i - 1] * (1 - NEW);
	memset(o->heap.place, 0xff, n * sizeof *o->heap.place);
}

static void hard_init(void *state, uint32_t n_experts, uint32_t n_slots)
{
	init(state, false, n_experts);
}

static void soft_init(void *state, uint32_t n_experts, uint32_t n_slots)
{
	init(state, true, n_experts);
}

/* -- events ------------------------------------------------------------------------------------------------------- */

static void begin(struct ebco *o)
{
	if (o->in_event)
		return;
	o->in_event = o->stale = true;
	o->summed = false;
	o->event++;
	o->n_active = 0;
}

static void catch_up(struct ebco *o, int32_t expert)
{
	double *row = o->w + (size_t)expert * o->n_experts;
	uint64_t gap = o->event - o->seen[expert];

	o->seen[expert] = o->event;
	if (gap > GAP_NOTHING) {
		memset(row, 0, o->n_experts * sizeof *row);
		return;
	}
	while (gap > 0) {
		const uint64_t step = gap < KEPT_EXACT ? gap : KEPT_EXACT;

		for (uint32_t i = 0; i < o->n_experts; i++)
			row[i] *= o->power[step];
		gap -= step;
	}
}

static void add_token(struct ebco *o, const struct policy_tokens *t, size_t first)
{
	for (size_t i = first; i < first + t->topk; i++)
		for (size_t j = first; j < first + t->topk; j++)
			if (t->ids[i] >= 0 && t->ids[j] >= 0)
				o->n[(size_t)t->ids[i] * o->n_experts + (uint32_t)t->ids[j]] +=
					o->soft ? policy_weight(t, i) * policy_weight(t, j) : 1;
}

static void ebco_route(void *state, const struct policy_tokens *t)
{
	struct ebco *o = state;

	begin(o);
	for (size_t i = 0; i < t->tokens; i++)
		add_token(o, t, i * t->topk);
	for (size_t i = 0; i < (size_t)t->tokens * t->topk; i++) {
		const int32_t expert = t->ids[i];
		double *w, *n;

		if (expert < 0 || o->seen[expert] == o->event)
			continue;
		catch_up(o, expert);
		w = o->w + (size_t)expert * o->n_experts;
		n = o->n + (size_t)expert * o->n_experts;
		for (uint32_t e = 0; e < o->n_experts; e++)
			w[e] += NEW * n[e] / t->tokens;
		memset(n, 0, o->n_experts * sizeof *n);
	}
}

static void ebco_request(void *state, int32_t expert, uint32_t pairs)
{
	struct ebco *o = state;

	begin(o);
	catch_up(o, expert);
	o->active[o->n_active++] = expert;
	o->summed = false;
}

static void ebco_settle(void *state)
{
	struct ebco *o = state;

	o->in_event = false;
}

/* -- members ------------------------------------------------------------------------------------------------------ */

/* Row by row, as they lie in memory: a column of a large table is a cache miss for each of its numbers. */
static void make_keys(struct ebco *o)
{
	if (o->summed)
		return;
	memset(o->key, 0, o->n_experts * sizeof *o->key);
	for (uint32_t i = 0; i < o->n_active; i++) {
		const double *row = o->w + (size_t)o->active[i] * o->n_experts;

		for (uint32_t e = 0; e < o->n_experts; e++)
			o->key[e] += row[e];
	}
	o->summed = true;
}

static void ebco_hold(void *state, int32_t expert)
{
	struct ebco *o = state;

	policy_heap_drop(&o->heap, expert);
}

static void ebco_release(void *state, int32_t expert)
{
	struct ebco *o = state;

	make_keys(o);
	policy_heap_add(&o->heap, expert);
}

static int32_t ebco_coldest(void *state)
{
	struct ebco *o = state;

	if (o->stale) {
		make_keys(o);
		policy_heap_rebuild(&o->heap);
		o->stale = false;
	}
	return policy_heap_first(&o->heap);
}

static void ebco_admit(void *state, int32_t expert)
{
}

static uint32_t ebco_sort(void *state, int32_t *ret)
{
	const struct ebco *o = state;

	ebco_coldest(state); /* keys as of now */
	return policy_heap_sorted(&o->heap, ret);
}

#define EBCO_OPS                                                                                                       \
	.by_heat = true, .by_pairs = true, .param = "alpha", .param_value = NEW, .bytes = ebco_bytes,                  \
	.route = ebco_route, .request = ebco_request, .hold = ebco_hold, .release = ebco_release,                      \
	.coldest = ebco_coldest, .evict = ebco_hold, .admit = ebco_admit, .settle = ebco_settle, .remove = ebco_hold,  \
	.sort = ebco_sort

const struct policy_ops policy_ebco_hard = {.name = "ebco-hard", .init = hard_init, EBCO_OPS};
const struct policy_ops policy_ebco_soft = {.name = "ebco-soft", .init = soft_init, EBCO_OPS};
