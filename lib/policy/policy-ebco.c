/* SPDX-License-Identifier: MIT */
/*
 * ebco - experts that go with those of this event stay: the least sum of W[e][a] over the requested a leaves, of equal
 * ones the lowest id.
 *
 * W <- 7/8 W + 1/8 n / B when an event begins. ebco-hard: n[i][j] counts the tokens that have both; ebco-soft: it sums
 * the products of the router's weights for the two, of which those of the top-k are known. B is the number of tokens.
 *
 * Nothing is decayed: W stands here times a unit that grows by 8/7 in each event, so that an event writes what its
 * tokens touch, no more. When the unit has grown too large it loses a power of two, and so does each row when it is
 * next looked at: that is exact. W is symmetric, and stands once.
 *
 * Beside it W stands whole in binary32, times another power of two: `near`. Its rows are added up for all experts at
 * once. A sum of binary64 is made for those only whom sums of binary32 cannot tell from the least. Sums of binary64
 * that ought to be equal are apart by their rounding, less than 2^-44 of them; SAME takes those for equal that are
 * nearer than that, and parts what differs in the last 200 events.
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

/* Near numbers are off by NEAR_PART of themselves, or by NEAR_NONE where they are 0: subnormal numbers are slow. */
#define NEAR_PART 0x1p-24
#define NEAR_NONE 0x1p-100f
#define NEAR_MAX 0x1p64 /* the unit's bound here; 2^63 of which are finite in binary32 as well */
#define NEAR_STEP 0x1p-64f
#define NEAR_STEPS_LEFT 4
#define LINE 64

typedef float near_vector __attribute__((vector_size(32), aligned(4), may_alias));
#define LANES (sizeof(near_vector) / sizeof(float))

struct ebco {
	bool soft, in_event, stale;
	uint32_t n_experts, n_active, width; /* width: of a row of near */
	uint64_t steps, near_steps;          /* that the unit has lost, and the near one */
	double unit, near_of;                /* near_of: a power of two, what near is of W */
	double *w;                           /* [n_experts][from the row's own number to n_experts], in units */
	float *near, *near_sum;              /* [n_experts][width], [width] */
	uint64_t *taken, *near_taken;        /* [n_experts]: how many of the steps the row has taken */
	int32_t *active;                     /* [n_experts]: requested by this event, or by the last one */
	int32_t *close;                      /* [n_experts]: scratch, who may be the least */
	double *sum;                         /* [n_experts]: of W where it is known, else of near */
	uint64_t known[POLICY_LEAST_MAX / 64];
	struct policy_least idle; /* who may leave, by sums of near */
};

static size_t ebco_bytes(uint32_t n_experts, uint32_t n_slots)
{
	const size_t n = n_experts, width = ALIGN_UP(n, LANES);

	return sizeof(struct ebco) + (n * (n + 1) / 2 + 3 * n) * sizeof(double) + policy_least_bytes(n_experts) + LINE +
	       (n + 1) * width * sizeof(float) + 2 * n * sizeof(int32_t);
}

static void init(struct ebco *o, bool soft, uint32_t n_experts, uint32_t n_slots)
{
	const size_t n = n_experts;

	*o = (struct ebco){.soft = soft, .n_experts = n_experts, .width = ALIGN_UP(n_experts, LANES)};
	o->unit = UNIT_MAX * UNIT_STEP;
	o->near_of = 1 / o->unit;
	o->w = (double *)(o + 1);
	o->taken = (uint64_t *)(o->w + n * (n + 1) / 2);
	o->near_taken = o->taken + n;
	o->sum = (double *)(o->near_taken + n);
	policy_least_init(&o->idle, o->sum + n, n_experts);
	o->near = (float *)ALIGN_UP((uintptr_t)(o->sum + n) + policy_least_bytes(n_experts), LINE);
	o->near_sum = o->near + n * o->width;
	o->active = (int32_t *)(o->near_sum + o->width);
	o->close = o->active + n;
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
		o->near_of /= UNIT_STEP;
		o->steps++;
	}
	if (o->unit * o->near_of >= NEAR_MAX) {
		o->near_of *= NEAR_STEP;
		o->near_steps++;
	}
}

/* Where column 0 of a row would be. */
static double *row_of(const struct ebco *o, uint32_t expert)
{
	return o->w + (size_t)expert * (2 * (size_t)o->n_experts - 1 - expert) / 2;
}

static void take_steps(struct ebco *o, uint32_t expert)
{
	double *row = row_of(o, expert);
	uint64_t behind = o->steps - o->taken[expert];

	o->taken[expert] = o->steps;
	if (behind >= STEPS_LEFT)
		memset(row + expert, 0, (o->n_experts - expert) * sizeof *row);
	else
		for (; behind > 0; behind--)
			for (uint32_t i = expert; i < o->n_experts; i++)
				row[i] *= UNIT_STEP;
}

static void take_near_steps(struct ebco *o, uint32_t expert)
{
	float *row = o->near + (size_t)expert * o->width;
	uint64_t behind = o->near_steps - o->near_taken[expert];

	o->near_taken[expert] = o->near_steps;
	if (behind >= NEAR_STEPS_LEFT) {
		memset(row, 0, o->width * sizeof *row);
		return;
	}
	for (; behind > 0; behind--)
		for (uint32_t i = 0; i < o->width; i++) {
			const float value = row[i] * NEAR_STEP;

			row[i] = value >= NEAR_NONE ? value : 0;
		}
}

/* Before its row is read or written. */
static inline void look_at(struct ebco *o, int32_t expert)
{
	if (o->taken[expert] != o->steps)
		take_steps(o, (uint32_t)expert);
	if (o->near_taken[expert] != o->near_steps)
		take_near_steps(o, (uint32_t)expert);
}

struct pairs { /* what a pair's place depends on, and nothing that is written */
	double *w;
	float *near;
	uint32_t n_experts, width;
	double near_of;
};

static inline void add_pair(const struct pairs *p, uint32_t a, uint32_t b, double share)
{
	const uint32_t low = a < b ? a : b, high = a < b ? b : a;
	double *to = p->w + (size_t)low * (2 * p->n_experts - 1 - low) / 2 + high;
	const double value = *to + share;
	const float near = (float)(value * p->near_of);

	*to = value;
	p->near[(size_t)a * p->width + b] = p->near[(size_t)b * p->width + a] = near >= NEAR_NONE ? near : 0;
}

static inline void add_token(struct ebco *o, const struct policy_tokens *t, size_t first, double share, bool soft)
{
	const struct pairs p = {o->w, o->near, o->n_experts, o->width, o->near_of};
	const int32_t *ids = t->ids + first;
	const uint32_t topk = t->topk;

	for (uint32_t i = 0; i < topk; i++) {
		const double weight = soft ? policy_weight(t, first + i) : 1, mine = share * weight;

		if (ids[i] < 0)
			continue;
		look_at(o, ids[i]);
		add_pair(&p, (uint32_t)ids[i], (uint32_t)ids[i], mine * weight);
		for (uint32_t j = 0; j < i; j++) {
			const double both = soft ? mine * policy_weight(t, first + j) : mine;

			if (ids[j] >= 0)
				add_pair(&p, (uint32_t)ids[i], (uint32_t)ids[j], ids[i] == ids[j] ? 2 * both : both);
		}
	}
}

static void ebco_route(void *state, const struct policy_tokens *t)
{
	struct ebco *o = state;

	begin(o);
	for (size_t i = 0; i < t->tokens; i++)
		if (o->soft)
			add_token(o, t, i * t->topk, NEW * o->unit / t->tokens, true);
		else
			add_token(o, t, i * t->topk, NEW * o->unit / t->tokens, false);
}

static void ebco_request(void *state, int32_t expert, uint32_t pairs)
{
	struct ebco *o = state;

	begin(o);
	look_at(o, expert);
	o->active[o->n_active++] = expert;
}

static void ebco_settle(void *state)
{
	struct ebco *o = state;

	o->in_event = false;
}

/* -- members ------------------------------------------------------------------------------------------------------ */

/* Held, or gone. */
static void ebco_hold(void *state, int32_t expert)
{
	struct ebco *o = state;

	policy_least_drop(&o->idle, expert);
}

/* Whoever comes has no key, as nobody has who is not there. */
static void ebco_admit(void *state, int32_t expert)
{
}

/* The keys are made anew for whoever asks. */
static void ebco_release(void *state, int32_t expert)
{
	struct ebco *o = state;

	policy_least_set(&o->idle, expert, 0);
	o->stale = true;
}

/* ROWS more of them, each read from its first column to its last, as processors fetch ahead. */
static void add_rows(const struct ebco *o, const float *const row[ROWS], bool first)
{
	for (uint32_t i = 0; i < o->width; i += LANES) {
		near_vector sum = first ? (near_vector){0} : *(const near_vector *)(o->near_sum + i);

		for (uint32_t r = 0; r < ROWS; r++)
			sum += *(const near_vector *)(row[r] + i);
		*(near_vector *)(o->near_sum + i) = sum;
	}
}

static void refresh(struct ebco *o)
{
	uint32_t a = 0;

	for (; a + ROWS <= o->n_active; a += ROWS) {
		const float *row[ROWS];

		for (uint32_t r = 0; r < ROWS; r++)
			row[r] = o->near + (size_t)o->active[a + r] * o->width;
		add_rows(o, row, a == 0);
	}
	if (a == 0)
		memset(o->near_sum, 0, o->width * sizeof *o->near_sum);
	for (; a < o->n_active; a++)
		for (uint32_t i = 0; i < o->width; i++)
			o->near_sum[i] += o->near[(size_t)o->active[a] * o->width + i];
	for (uint32_t i = 0; i < o->n_experts; i++)
		o->sum[i] = o->near_sum[i];
	memset(o->known, 0, ALIGN_UP(o->n_experts, 64) / 8);
	policy_least_renew(&o->idle, o->sum);
	o->stale = false;
}

/*
 * In ascending order of the requested ones. In W's own unit, times no near_of: whole sums are compared with each other
 * only, and those of what is 5,500 events old would be nothing in the unit of `near`, and equal.
 */
static double whole_sum(struct ebco *o, int32_t expert)
{
	const uint32_t e = (uint32_t)expert;
	const double *row = row_of(o, e);
	double sum = 0;

	if (o->known[e / 64] >> e % 64 & 1)
		return o->sum[e];
	look_at(o, expert);
	for (uint32_t i = 0; i < o->n_active; i++) {
		const uint32_t a = (uint32_t)o->active[i];

		sum += a < e ? row_of(o, a)[e] : row[a];
	}
	o->known[e / 64] |= UINT64_C(1) << e % 64;
	return o->sum[e] = sum;
}

/* Twice what both may be off by, which is the greater part of what this lets through. */
static double far_from(const struct ebco *o, double least)
{
	return least * (1 + 4 * (o->n_active + 2) * NEAR_PART) + 4 * o->n_active * NEAR_NONE;
}

static int32_t ebco_coldest(void *state)
{
	struct ebco *o = state;
	double least;
	uint32_t n;

	if (o->stale)
		refresh(o);
	least = policy_least_key(&o->idle);
	n = least < INFINITY ? policy_least_list(&o->idle, far_from(o, least), o->close) : 0;
	if (n < 2)
		return n ? o->close[0] : -1;
	least = INFINITY;
	for (uint32_t i = 0; i < n; i++) {
		const double sum = whole_sum(o, o->close[i]);

		least = sum < least ? sum : least;
	}
	for (n = 0; o->sum[o->close[n]] > least * SAME; n++)
		;
	return o->close[n];
}

static uint32_t ebco_sort(void *state, int32_t *ret)
{
	struct ebco *o = state;

	if (o->stale)
		refresh(o);
	for (uint32_t e = 0; e < o->n_experts; e++)
		if (policy_least_has(&o->idle, (int32_t)e))
			whole_sum(o, (int32_t)e);
	policy_least_renew(&o->idle, o->sum);
	return policy_least_sort_within(&o->idle, SAME, ret);
}

#define EBCO_OPS                                                                                                       \
	.by_heat = true, .by_pairs = true, .param = "alpha", .param_value = NEW, .bytes = ebco_bytes,                  \
	.route = ebco_route, .request = ebco_request, .hold = ebco_hold, .release = ebco_release,                      \
	.coldest = ebco_coldest, .evict = ebco_hold, .admit = ebco_admit, .settle = ebco_settle, .remove = ebco_hold,  \
	.sort = ebco_sort

const struct policy_ops policy_ebco_hard = {.name = "ebco-hard", .init = hard_init, EBCO_OPS};
const struct policy_ops policy_ebco_soft = {.name = "ebco-soft", .init = soft_init, EBCO_OPS};
