/* SPDX-License-Identifier: MIT */
/*
 * ebco - experts that go with those of this event stay: the least sum of W[e][a] over the requested a leaves, of equal
 * ones the lowest id.
 *
 * W <- 7/8 W + 1/8 n / B when an event begins. ebco-hard: n[i][j] counts the tokens that have both; ebco-soft: it sums
 * the products of the router's weights for the two, of which those of the top-k are known. B is the number of tokens.
 *
 * Nothing is decayed: W stands here times a unit that grows by 8/7 in each event, so that an event writes what its
 * tokens touch and reads the rows of those requested, no more. When the unit has grown too large it loses a power of
 * two, and so does each row when it is next looked at: that is exact. Sums of binary64 that ought to be equal are
 * apart by their rounding, less than 2^-44 of them; SAME takes those for equal that are nearer than that, and parts
 * what differs in the last 200 events.
 */
#include <string.h>

#include "base/util.h"
#include "policy/policy.h"
#include "policy/policy-least.h"

#define NEW 0.125 /* the share of an event, in W */
#define ROWS 8
#define SAME (1 + 0x1p-42)
#define UNIT_MAX 0x1p960 /* 2^63 of which are finite: more than the greatest weights of all pairs add up to */
#define UNIT_STEP 0x1p-480
#define STEPS_LEFT 5 /* after as many nothing is left */

/* At any address of a double. */
typedef double row_vector __attribute__((vector_size(32), aligned(8), may_alias));

struct ebco {
	bool soft, in_event, stale;
	uint32_t n_experts, n_active;
	uint64_t steps; /* that the unit has lost */
	double unit;
	double *w;                /* [n_experts][n_experts], in units */
	uint64_t *taken;          /* [n_experts]: how many of the steps the row has taken */
	int32_t *active;          /* [n_experts]: requested by this event, or by the last one */
	double *sum;              /* [n_experts] */
	struct policy_least idle; /* who may leave */
};

static size_t ebco_bytes(uint32_t n_experts, uint32_t n_slots)
{
	const size_t n = n_experts;

	return sizeof(struct ebco) + (n * n + 2 * n) * sizeof(double) + ALIGN_UP(n * sizeof(int32_t), 8) +
	       policy_least_bytes(n_experts);
}

static void init(struct ebco *o, bool soft, uint32_t n_experts, uint32_t n_slots)
{
	const size_t n = n_experts;

	*o = (struct ebco){.soft = soft, .n_experts = n_experts, .unit = UNIT_MAX * UNIT_STEP, .w = (double *)(o + 1)};
	o->taken = (uint64_t *)(o->w + n * n);
	o->sum = (double *)(o->taken + n);
	o->active = (int32_t *)(o->sum + n);
	policy_least_init(&o->idle, (uint8_t *)o->active + ALIGN_UP(n * sizeof(int32_t), 8), n_experts);
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
	o->n_active = 0;
	o->unit /= 1 - NEW;
	if (o->unit >= UNIT_MAX) {
		o->unit *= UNIT_STEP;
		o->steps++;
	}
}

static double *row_of(struct ebco *o, int32_t expert)
{
	double *row = o->w + (size_t)expert * o->n_experts;
	uint64_t behind = o->steps - o->taken[expert];

	if (behind == 0)
		return row;
	o->taken[expert] = o->steps;
	if (behind >= STEPS_LEFT)
		memset(row, 0, o->n_experts * sizeof *row);
	else
		for (; behind > 0; behind--)
			for (uint32_t i = 0; i < o->n_experts; i++)
				row[i] *= UNIT_STEP;
	return row;
}

static void add_token(struct ebco *o, const struct policy_tokens *t, size_t first, double share)
{
	for (size_t i = first; i < first + t->topk; i++) {
		double *row = t->ids[i] < 0 ? NULL : row_of(o, t->ids[i]);
		const double weight = o->soft ? share * policy_weight(t, i) : share;

		for (size_t j = first; row && j < first + t->topk; j++)
			if (t->ids[j] >= 0)
				row[t->ids[j]] += o->soft ? weight * policy_weight(t, j) : weight;
	}
}

static void ebco_route(void *state, const struct policy_tokens *t)
{
	struct ebco *o = state;

	begin(o);
	for (size_t i = 0; i < t->tokens; i++)
		add_token(o, t, i * t->topk, NEW * o->unit / t->tokens);
}

static void ebco_request(void *state, int32_t expert, uint32_t pairs)
{
	struct ebco *o = state;

	begin(o);
	row_of(o, expert);
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

/* Each sum is added up in ascending order of the requested ones: ROWS more of them, each read from its first column to
 * its last, as processors fetch ahead. */
static void add_rows(const struct ebco *o, const double *const row[ROWS])
{
	uint32_t i = 0;

	for (; i + 4 <= o->n_experts; i += 4) {
		row_vector sum = *(const row_vector *)(o->sum + i);

		for (uint32_t r = 0; r < ROWS; r++)
			sum += *(const row_vector *)(row[r] + i);
		*(row_vector *)(o->sum + i) = sum;
	}
	for (; i < o->n_experts; i++)
		for (uint32_t r = 0; r < ROWS; r++)
			o->sum[i] += row[r][i];
}

static void refresh(struct ebco *o)
{
	uint32_t a = 0;

	memset(o->sum, 0, o->n_experts * sizeof *o->sum);
	for (; a + ROWS <= o->n_active; a += ROWS) {
		const double *row[ROWS];

		for (uint32_t r = 0; r < ROWS; r++)
			row[r] = o->w + (size_t)o->active[a + r] * o->n_experts;
		add_rows(o, row);
	}
	for (; a < o->n_active; a++)
		for (uint32_t i = 0; i < o->n_experts; i++)
			o->sum[i] += o->w[(size_t)o->active[a] * o->n_experts + i];
	policy_least_renew(&o->idle, o->sum);
	o->stale = false;
}

static int32_t ebco_coldest(void *state)
{
	struct ebco *o = state;

	if (o->stale)
		refresh(o);
	return policy_least_within(&o->idle, SAME);
}

static uint32_t ebco_sort(void *state, int32_t *ret)
{
	struct ebco *o = state;

	if (o->stale)
		refresh(o);
	return policy_least_sort_within(&o->idle, SAME, ret);
}

#define EBCO_OPS                                                                                                       \
	.by_heat = true, .by_pairs = true, .param = "alpha", .param_value = NEW, .bytes = ebco_bytes,                  \
	.route = ebco_route, .request = ebco_request, .hold = ebco_hold, .release = ebco_release,                      \
	.coldest = ebco_coldest, .evict = ebco_hold, .admit = ebco_hold, .settle = ebco_settle, .remove = ebco_hold,   \
	.sort = ebco_sort

const struct policy_ops policy_ebco_hard = {.name = "ebco-hard", .init = hard_init, EBCO_OPS};
const struct policy_ops policy_ebco_soft = {.name = "ebco-soft", .init = soft_init, EBCO_OPS};
