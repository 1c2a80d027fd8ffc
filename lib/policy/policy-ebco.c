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

#include "base/util.h"
#include "policy/policy.h"
#include "policy/policy-heap.h"

#define NEW 0.125 /* the share of an event, in W */
#define KEPT_EXACT 18
#define GAP_NOTHING 20000 /* events after which nothing is left */

struct ebco {
	bool soft, in_event, stale;
	uint64_t event;
	uint32_t n_experts, n_active;
	double *w, *n;   /* [n_experts][n_experts] */
	uint64_t *seen;  /* [n_experts]: the row is as of this event */
	int32_t *active; /* [n_experts]: requested by this event, or by the last one */
	double power[KEPT_EXACT + 1];
	struct policy_heap heap;
};

static size_t ebco_bytes(uint32_t n_experts, uint32_t n_slots)
{
	const size_t n = n_experts;

	return sizeof(struct ebco) + (2 * n * n + n) * sizeof(double) + ALIGN_UP(n * sizeof(int32_t), 8) +
	       n * POLICY_HEAP_EXPERT_BYTES + n_slots * POLICY_HEAP_SLOT_BYTES;
}

static void init(struct ebco *o, bool soft, uint32_t n_experts, uint32_t n_slots)
{
	const size_t n = n_experts;

	*o = (struct ebco){.soft = soft, .n_experts = n_experts, .w = (double *)(o + 1)};
	o->n = o->w + n * n;
	o->seen = (uint64_t *)(o->n + n * n);
	o->active = (int32_t *)(o->seen + n);
	policy_heap_init(&o->heap, (uint8_t *)o->active + ALIGN_UP(n * sizeof(int32_t), 8), n_experts, n_slots);
	o->power[0] = 1;
	for (int i = 1; i <= KEPT_EXACT; i++)
		o->power[i] = o->power[i - 1] * (1 - NEW);
}

static void hard_init(void *state, uint32_t n_experts, uint32_t n_slots)
{
	init(state, false, n_experts, n_slots);
}

static void soft_init(void *state, uint32_t n_experts, uint32_t n_slots)
{
	init(state, true, n_experts, n_slots);
}

/* -- events ------------------------------------------------------------------------------------------------------- */

static void begin(struct ebco *o)
{
	if (o->in_event)
		return;
	o->in_event = o->stale = true;
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

/* What the tokens have counted goes into W once; of a row only what they have touched is not 0. */
static void take_token(struct ebco *o, const struct policy_tokens *t, size_t first)
{
	for (size_t i = first; i < first + t->topk; i++) {
		const size_t row = t->ids[i] < 0 ? 0 : (size_t)t->ids[i] * o->n_experts;

		for (size_t j = first; t->ids[i] >= 0 && j < first + t->topk; j++) {
			if (t->ids[j] < 0)
				continue;
			o->w[row + (uint32_t)t->ids[j]] += NEW * o->n[row + (uint32_t)t->ids[j]] / t->tokens;
			o->n[row + (uint32_t)t->ids[j]] = 0;
		}
	}
}

static void ebco_route(void *state, const struct policy_tokens *t)
{
	struct ebco *o = state;

	begin(o);
	for (size_t i = 0; i < t->tokens; i++)
		add_token(o, t, i * t->topk);
	for (size_t i = 0; i < (size_t)t->tokens * t->topk; i++)
		if (t->ids[i] >= 0 && o->seen[t->ids[i]] != o->event)
			catch_up(o, t->ids[i]);
	for (size_t i = 0; i < t->tokens; i++)
		take_token(o, t, i * t->topk);
}

static void ebco_request(void *state, int32_t expert, uint32_t pairs)
{
	struct ebco *o = state;

	begin(o);
	catch_up(o, expert);
	o->active[o->n_active++] = expert;
}

static void ebco_settle(void *state)
{
	struct ebco *o = state;

	o->in_event = false;
}

/* -- members ------------------------------------------------------------------------------------------------------ */

static void ebco_hold(void *state, int32_t expert)
{
	struct ebco *o = state;

	o->heap.held[expert] = true;
}

/* Whoever was put aside, or has just come, joins; the order is made anew for whoever asks. */
static void ebco_release(void *state, int32_t expert)
{
	struct ebco *o = state;

	o->heap.held[expert] = false;
	if (o->heap.place[expert] != POLICY_HEAP_OUT)
		return;
	policy_heap_append(&o->heap, expert);
	o->stale = true;
}

/* Row after row: each sum is added up in ascending order of the requested ones. */
static void refresh(struct ebco *o)
{
	struct policy_heap *h = &o->heap;

	policy_heap_aside(h);
	for (uint32_t i = 0; i < h->n; i++)
		h->entry[i].key = 0;
	for (uint32_t a = 0; a < o->n_active; a++) {
		const double *row = o->w + (size_t)o->active[a] * o->n_experts;

		for (uint32_t i = 0; i < h->n; i++)
			h->entry[i].key += row[h->entry[i].expert];
	}
	policy_heap_rebuild(h);
	o->stale = false;
}

static int32_t ebco_coldest(void *state)
{
	struct ebco *o = state;

	if (o->stale)
		refresh(o);
	return policy_heap_coldest(&o->heap, NULL);
}

static void ebco_drop(void *state, int32_t expert)
{
	struct ebco *o = state;

	policy_heap_drop(&o->heap, expert);
	o->heap.held[expert] = false;
}

static uint32_t ebco_sort(void *state, int32_t *ret)
{
	struct ebco *o = state;

	if (o->stale)
		refresh(o);
	return policy_heap_sort(&o->heap, NULL, ret);
}

#define EBCO_OPS                                                                                                       \
	.by_heat = true, .by_pairs = true, .param = "alpha", .param_value = NEW, .bytes = ebco_bytes,                  \
	.route = ebco_route, .request = ebco_request, .hold = ebco_hold, .release = ebco_release,                      \
	.coldest = ebco_coldest, .evict = ebco_drop, .admit = ebco_hold, .settle = ebco_settle, .remove = ebco_drop,   \
	.sort = ebco_sort

const struct policy_ops policy_ebco_hard = {.name = "ebco-hard", .init = hard_init, EBCO_OPS};
const struct policy_ops policy_ebco_soft = {.name = "ebco-soft", .init = soft_init, EBCO_OPS};
