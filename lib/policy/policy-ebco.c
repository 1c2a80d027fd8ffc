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
#include "policy/policy-least.h"

#define NEW 0.125 /* the share of an event, in W */
#define COLUMNS 32
#define KEPT_EXACT 18
#define GAP_NOTHING 20000 /* events after which nothing is left */

/* COLUMNS are eight of them; at any address of a double. */
typedef double row_vector __attribute__((vector_size(32), aligned(8), may_alias));

struct ebco {
	bool soft, in_event, stale;
	uint64_t event, routes;
	uint32_t n_experts, n_active;
	double *w;       /* [n_experts][n_experts] */
	double *n;       /* [n_touched][n_touched] of the tokens that are being looked at, else 0 */
	uint32_t *place; /* [n_experts]: which of those that the tokens have touched, if `routed` is of now */
	uint64_t *routed;
	uint64_t *seen;  /* [n_experts]: the row is as of this event */
	int32_t *active; /* [n_experts]: requested by this event, or by the last one */
	double power[KEPT_EXACT + 1];
	double *sum;              /* [n_experts] */
	struct policy_least idle; /* who may leave */
};

static size_t ebco_bytes(uint32_t n_experts, uint32_t n_slots)
{
	const size_t n = n_experts;

	return sizeof(struct ebco) + (2 * n * n + 3 * n) * sizeof(double) + ALIGN_UP(2 * n * sizeof(int32_t), 8) +
	       policy_least_bytes(n_experts);
}

static void init(struct ebco *o, bool soft, uint32_t n_experts, uint32_t n_slots)
{
	const size_t n = n_experts;

	*o = (struct ebco){.soft = soft, .n_experts = n_experts, .w = (double *)(o + 1)};
	o->n = o->w + n * n;
	o->seen = (uint64_t *)(o->n + n * n);
	o->routed = o->seen + n;
	o->sum = (double *)(o->routed + n);
	o->active = (int32_t *)(o->sum + n);
	o->place = (uint32_t *)(o->active + n);
	policy_least_init(&o->idle, (uint8_t *)o->active + ALIGN_UP(2 * n * sizeof(int32_t), 8), n_experts);
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
		const double power = o->power[step];

		for (uint32_t i = 0; i < o->n_experts; i++)
			row[i] *= power;
		gap -= step;
	}
}

/* Those that the tokens touch stand side by side while they are counted. Returns how many. */
static uint32_t find_places(struct ebco *o, const struct policy_tokens *t)
{
	uint32_t n = 0;

	o->routes++;
	for (size_t i = 0; i < (size_t)t->tokens * t->topk; i++) {
		if (t->ids[i] < 0 || o->routed[t->ids[i]] == o->routes)
			continue;
		catch_up(o, t->ids[i]);
		o->routed[t->ids[i]] = o->routes;
		o->place[t->ids[i]] = n++;
	}
	return n;
}

static void add_token(struct ebco *o, const struct policy_tokens *t, size_t first, uint32_t touched)
{
	for (size_t i = first; i < first + t->topk; i++) {
		double *n = t->ids[i] < 0 ? NULL : o->n + (size_t)o->place[t->ids[i]] * touched;
		const double weight = o->soft ? policy_weight(t, i) : 1;

		for (size_t j = first; n && j < first + t->topk; j++)
			if (t->ids[j] >= 0)
				n[o->place[t->ids[j]]] += o->soft ? weight * policy_weight(t, j) : 1;
	}
}

/* What the tokens have counted goes into W once; of a row only what they have touched is not 0. */
static void take_token(struct ebco *o, const struct policy_tokens *t, size_t first, uint32_t touched)
{
	for (size_t i = first; i < first + t->topk; i++) {
		double *n = t->ids[i] < 0 ? NULL : o->n + (size_t)o->place[t->ids[i]] * touched;
		double *row = n ? o->w + (size_t)t->ids[i] * o->n_experts : NULL;

		for (size_t j = first; n && j < first + t->topk; j++) {
			if (t->ids[j] < 0)
				continue;
			row[t->ids[j]] += NEW * n[o->place[t->ids[j]]] / t->tokens;
			n[o->place[t->ids[j]]] = 0;
		}
	}
}

static void ebco_route(void *state, const struct policy_tokens *t)
{
	struct ebco *o = state;
	uint32_t touched;

	begin(o);
	touched = find_places(o, t);
	for (size_t i = 0; i < t->tokens; i++)
		add_token(o, t, i * t->topk, touched);
	for (size_t i = 0; i < t->tokens; i++)
		take_token(o, t, i * t->topk, touched);
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

/* Held, gone, or just come and held. */
static void ebco_hold(void *state, int32_t expert)
{
	struct ebco *o = state;

	policy_least_drop(&o->idle, expert);
}

/* The keys are made anew for whoever asks. */
static void ebco_release(void *state, int32_t expert)
{
	struct ebco *o = state;

	policy_least_set(&o->idle, expert, 0);
	o->stale = true;
}

/* Each sum is added up in ascending order of the requested ones; COLUMNS of them at a time. */
static void add_rows(const struct ebco *o, uint32_t column)
{
	row_vector sum[COLUMNS / 4] = {0};

	for (uint32_t a = 0; a < o->n_active; a++) {
		const row_vector *row = (const row_vector *)(o->w + (size_t)o->active[a] * o->n_experts + column);

		for (uint32_t i = 0; i < COLUMNS / 4; i++)
			sum[i] += row[i];
	}
	memcpy(o->sum + column, sum, sizeof sum);
}

static void refresh(struct ebco *o)
{
	uint32_t column = 0;

	for (; column + COLUMNS <= o->n_experts; column += COLUMNS)
		add_rows(o, column);
	for (; column < o->n_experts; column++) {
		o->sum[column] = 0;
		for (uint32_t a = 0; a < o->n_active; a++)
			o->sum[column] += o->w[(size_t)o->active[a] * o->n_experts + column];
	}
	policy_least_renew(&o->idle, o->sum);
	o->stale = false;
}

static int32_t ebco_coldest(void *state)
{
	struct ebco *o = state;

	if (o->stale)
		refresh(o);
	return policy_least_first(&o->idle);
}

static uint32_t ebco_sort(void *state, int32_t *ret)
{
	struct ebco *o = state;

	if (o->stale)
		refresh(o);
	return policy_least_sort(&o->idle, ret);
}

#define EBCO_OPS                                                                                                       \
	.by_heat = true, .by_pairs = true, .param = "alpha", .param_value = NEW, .bytes = ebco_bytes,                  \
	.route = ebco_route, .request = ebco_request, .hold = ebco_hold, .release = ebco_release,                      \
	.coldest = ebco_coldest, .evict = ebco_hold, .admit = ebco_hold, .settle = ebco_settle, .remove = ebco_hold,   \
	.sort = ebco_sort

const struct policy_ops policy_ebco_hard = {.name = "ebco-hard", .init = hard_init, EBCO_OPS};
const struct policy_ops policy_ebco_soft = {.name = "ebco-soft", .init = soft_init, EBCO_OPS};
