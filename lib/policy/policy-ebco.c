/* SPDX-License-Identifier: MIT */
/*
 * ebco - experts that go with those of this event stay: the least sum of W[e][a] over the requested a leaves, of equal
 * ones the lowest id.
 *
 * W <- 7/8 W + 1/8 n / B when an event begins. ebco-hard: n[i][j] counts the tokens that have both; ebco-soft: it sums
 * the products of the router's weights for the two, of which those of the top-k are known. B is the number of tokens.
 *
 * Where a token names an expert twice its pairs count by place, as its weights do. An event's share may be another.
 *
 * Nothing is decayed: W stands here times a unit that grows by 8/7 in each event, so that an event writes what its
 * tokens touch, no more. When the unit has grown too large it loses a power of two, and so does each row when it is
 * next looked at: that is exact. W is symmetric, and half of it is kept.
 *
 * Beside it all of W stands in binary32, times a power of two: `near`. Its rows are added up for all experts at once,
 * and whoever may leave is sorted by these sums when the first victim of an event is asked for, 64 experts by
 * themselves; a victim is the least of the heads. A sum of binary64 is made for those only whom sums of binary32 cannot
 * tell from the least. Sums of binary64 that ought to be equal are apart by their rounding, less than 2^-44 of them;
 * SAME takes those for equal that are nearer than that, and parts what differs in the last 200 events.
 *
 * What an event costs is the lines of both that it touches, which no first cache holds: hence the half.
 */
#include <math.h>
#include <string.h>

#include "base/util.h"
#include "policy/policy-loops.h"
#include "policy/policy.h"

#define NEW 0.125
#define SAME (1 + 0x1p-42)
#define UNIT_MAX 0x1p960 /* 2^63 of which are finite: more than the greatest weights of all pairs add up to */
#define UNIT_STEP 0x1p-64
#define STEPS_LEFT 33 /* after as many nothing is left */

/* Near numbers are off by NEAR_PART of themselves, or by NEAR_NONE where that is more. Such small ones are 0 after a
 * step: sums of subnormal numbers are slow. */
#define NEAR_OF 0x1p-896 /* of what W is: the unit is 2^64 at most, and 2^63 of that are finite in binary32 as well */
#define NEAR_PART 0x1p-24
#define NEAR_NONE 0x1p-100f
#define NEAR_STEPS_LEFT 4

#define EXPERTS_MAX 4096
#define WORD 64           /* experts that are sorted together */
#define PLACES (WORD + 8) /* theirs, and at least one of NOBODY */
#define NOBODY INT32_MAX  /* behind all others */
#define NEVER UINT64_MAX  /* no token had it: its row is 0 */
#define CHOSEN 64         /* of a token, at once */

typedef float near_vector __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t key_vector __attribute__((vector_size(32), aligned(4), may_alias));
#define LANES (sizeof(near_vector) / sizeof(float))

struct ebco {
	bool soft, in_event, stale;
	uint32_t n_experts, n_active, n_words, width; /* width: of a row of near */
	uint64_t steps;                               /* that the unit has lost */
	double share;                                 /* of an event, in W */
	double unit;                                  /* what 1 in W is here */
	double *w;                                    /* row i: [i + 1], in units */
	float *near;                                  /* [n_experts][width] */
	double *sum;                                  /* [n_experts]: of W, where it is known */
	uint64_t *taken;                              /* [n_experts]: how many of the steps the row has taken; NEVER */
	int32_t *active;                              /* [n_experts]: requested by this event, or by the last one */
	int32_t *close;                               /* [n_experts]: scratch, who may be the least */
	uint64_t known[EXPERTS_MAX / WORD];
	uint64_t idle[EXPERTS_MAX / WORD];  /* who may leave */
	uint32_t first[EXPERTS_MAX / WORD]; /* where the least of a word stands in `order` */
	int32_t *order;                     /* [n_words][PLACES]: keys of whoever is idle */
};

static size_t ebco_bytes(uint32_t n_experts, uint32_t n_slots)
{
	const size_t n = n_experts, width = ALIGN_UP(n, WORD);

	return sizeof(struct ebco) + CACHE_LINE + n * width * sizeof(float) +
	       (n * (n + 1) / 2 + 2 * n) * sizeof(double) + (2 * n + width / WORD * PLACES) * sizeof(int32_t);
}

static void init(struct ebco *o, bool soft, uint32_t n_experts, uint32_t n_slots)
{
	const size_t n = n_experts;

	*o = (struct ebco){.soft = soft, .n_experts = n_experts, .stale = true};
	o->share = NEW;
	o->width = ALIGN_UP(n_experts, WORD);
	o->n_words = o->width / WORD;
	o->unit = UNIT_MAX * UNIT_STEP;
	o->near = (float *)ALIGN_UP((uintptr_t)(o + 1), CACHE_LINE);
	o->w = (double *)(o->near + n * o->width);
	o->sum = o->w + n * (n + 1) / 2;
	o->taken = (uint64_t *)(o->sum + n);
	o->active = (int32_t *)(o->taken + n);
	o->close = o->active + n;
	o->order = o->close + n;
	memset(o->taken, 0xff, n * sizeof *o->taken);
}

static void hard_init(void *state, uint32_t n_experts, uint32_t n_slots)
{
	init(state, false, n_experts, n_slots);
}

static void soft_init(void *state, uint32_t n_experts, uint32_t n_slots)
{
	init(state, true, n_experts, n_slots);
}

static void ebco_tune(void *state, double share)
{
	((struct ebco *)state)->share = share;
}

/* -- events ------------------------------------------------------------------------------------------------------- */

static __attribute__((noinline)) void begin_event(struct ebco *o)
{
	o->in_event = o->stale = true;
	o->n_active = 0;
	if (o->share == 1) { /* nothing of what was is left, and the unit stays */
		o->steps += STEPS_LEFT;
		return;
	}
	o->unit /= 1 - o->share;
	if (o->unit >= UNIT_MAX) {
		o->unit *= UNIT_STEP;
		o->steps++;
	}
}

static inline void begin(struct ebco *o)
{
	if (!o->in_event)
		begin_event(o);
}

static double *row_of(const struct ebco *o, uint32_t expert)
{
	return o->w + expert * (expert + 1) / 2;
}

static double *pair_of(const struct ebco *o, int32_t one, int32_t other)
{
	const uint32_t a = (uint32_t)one, b = (uint32_t)other, high = MAX(a, b);

	return row_of(o, high) + (a + b - high); /* a + b: without a branch, which nobody could foresee */
}

static float *near_of(const struct ebco *o, int32_t expert)
{
	return o->near + (size_t)expert * o->width;
}

static void take_near_steps(const struct ebco *o, int32_t expert, uint64_t behind)
{
	float *row = near_of(o, expert);

	if (behind >= NEAR_STEPS_LEFT) {
		memset(row, 0, o->width * sizeof *row);
		return;
	}
	for (; behind > 0; behind--)
		for (uint32_t i = 0; i < o->width; i++) {
			const float value = row[i] * (float)UNIT_STEP;

			row[i] = value >= NEAR_NONE ? value : 0;
		}
}

/* Seldom, and out of the way: who calls it would have to save registers for its vectors. */
static __attribute__((noinline)) void take_steps(struct ebco *o, int32_t expert)
{
	double *row = row_of(o, (uint32_t)expert);
	uint64_t behind = o->steps - o->taken[expert];

	if (o->taken[expert] == NEVER)
		behind = STEPS_LEFT;
	o->taken[expert] = o->steps;
	take_near_steps(o, expert, behind);
	if (behind >= STEPS_LEFT)
		memset(row, 0, ((size_t)expert + 1) * sizeof *row);
	else
		for (; behind > 0; behind--)
			for (int32_t i = 0; i <= expert; i++)
				row[i] *= UNIT_STEP;
}

/* Before its row is read or written. */
static inline void look_at(struct ebco *o, int32_t expert)
{
	if (o->taken[expert] != o->steps)
		take_steps(o, expert);
}

struct chosen { /* a token's experts */
	uint32_t n;
	int32_t id[CHOSEN];
	double weight[CHOSEN];
	float *near[CHOSEN];
};

static void list_chosen(struct ebco *o, const struct policy_tokens *t, size_t at, uint32_t n, struct chosen *ret)
{
	const bool known = o->soft && t->weights;
	const double alike = o->soft ? 1.0 / t->topk : 1;

	ret->n = 0;
	for (size_t i = at; i < at + n; i++) {
		const int32_t expert = t->ids[i];

		if (expert < 0)
			continue;
		look_at(o, expert);
		ret->id[ret->n] = expert;
		ret->weight[ret->n] = known ? policy_weight(t, i) : alike;
		ret->near[ret->n++] = near_of(o, expert);
	}
}

/* The i-th of c and the j-th of d. */
static inline void add_pair(const struct ebco *o, const struct chosen *c, uint32_t i, const struct chosen *d,
			    uint32_t j, double share)
{
	double *pair = pair_of(o, c->id[i], d->id[j]);

	*pair += share;
	c->near[i][d->id[j]] = d->near[j][c->id[i]] = (float)(*pair * NEAR_OF);
}

static void add_pairs(const struct ebco *o, const struct chosen *c, const struct chosen *d, double share)
{
	for (uint32_t i = 0; i < c->n; i++) {
		const double mine = share * c->weight[i];

		for (uint32_t j = 0; j < (c == d ? i : d->n); j++)
			add_pair(o, c, i, d, j, mine * d->weight[j] * (c->id[i] == d->id[j] ? 2 : 1));
		if (c == d)
			add_pair(o, c, i, c, i, mine * c->weight[i]);
	}
}

/* CHOSEN at once: more than any router's top-k. */
static void add_token(struct ebco *o, const struct policy_tokens *t, size_t first, double share)
{
	struct chosen c, d;

	for (uint32_t i = 0; i < t->topk; i += CHOSEN) {
		list_chosen(o, t, first + i, MIN(t->topk - i, CHOSEN), &c);
		add_pairs(o, &c, &c, share);
		for (uint32_t j = 0; j < i; j += CHOSEN) {
			list_chosen(o, t, first + j, CHOSEN, &d);
			add_pairs(o, &c, &d, share);
		}
	}
}

static void ebco_route(void *state, const struct policy_tokens *t)
{
	struct ebco *o = state;
	double share;

	begin(o);
	share = o->share * o->unit / t->tokens;
	for (size_t i = 0; i < t->tokens; i++)
		add_token(o, t, i * t->topk, share);
}

static void ebco_request(void *state, int32_t expert, uint32_t pairs)
{
	struct ebco *o = state;

	begin(o);
	if (o->taken[expert] == NEVER)
		return;
	look_at(o, expert);
	o->active[o->n_active++] = expert;
}

static void ebco_settle(void *state)
{
	struct ebco *o = state;

	o->in_event = false;
}

/* -- the order ---------------------------------------------------------------------------------------------------- */

/* 64 columns of the rows of those that are requested. */
static void add_up(const struct ebco *o, uint32_t word, near_vector ret[WORD / LANES])
{
	near_vector sum[WORD / LANES] = {0};

	for (uint32_t a = 0; a < o->n_active; a++) {
		const near_vector *row = (const near_vector *)(near_of(o, o->active[a]) + (size_t)word * WORD);

#pragma GCC unroll 8
		for (uint32_t i = 0; i < WORD / LANES; i++)
			sum[i] += row[i];
	}
#pragma GCC unroll 8
	for (uint32_t i = 0; i < WORD / LANES; i++)
		ret[i] = sum[i];
}

/* A sum's bits, whose order is that of numbers, but for the last six: these are the expert's place in the word. */
static int32_t key_of(float sum, uint32_t at)
{
	int32_t bits;

	memcpy(&bits, &sum, sizeof bits);
	return (bits & ~(WORD - 1)) | (int32_t)at;
}

/* Each one's place is how many are before it. */
static void sort_word(struct ebco *o, uint32_t word, const float sum[WORD])
{
	int32_t key[PLACES], *order = o->order + (size_t)word * PLACES;
	uint32_t n = 0;

	for (uint64_t left = o->idle[word]; left; left &= left - 1) {
		const uint32_t at = (uint32_t)__builtin_ctzll(left);

		key[n++] = key_of(sum[at], at);
	}
	for (uint32_t i = 0; i < LANES; i++)
		key[n + i] = NOBODY;
	for (uint32_t i = 0; i < n; i += LANES) {
		const key_vector mine = *(const key_vector *)(key + i);
		key_vector before = {0};

		for (uint32_t j = 0; j < n; j++)
			before -= mine > key[j];
		for (uint32_t j = 0; j < LANES; j++)
			order[before[j]] = mine[j];
	}
	order[n] = NOBODY;
	o->first[word] = word * PLACES;
}

static __attribute__((noinline)) void refresh(struct ebco *o)
{
	for (uint32_t i = 0; i < o->n_words; i++) {
		near_vector sum[WORD / LANES];

		if (o->idle[i])
			add_up(o, i, sum);
		sort_word(o, i, (const float *)sum);
		o->known[i] = 0;
	}
	o->stale = false;
}

static bool is_idle(const struct ebco *o, int32_t expert)
{
	return o->idle[expert / WORD] >> expert % WORD & 1;
}

/* Held, or gone: out of the order as well, where it stands first if it was the least. */
static void ebco_hold(void *state, int32_t expert)
{
	struct ebco *o = state;
	const uint32_t word = (uint32_t)expert / WORD;
	uint32_t at;

	if (!is_idle(o, expert))
		return;
	o->idle[word] &= ~(UINT64_C(1) << expert % WORD);
	if (o->stale)
		return;
	for (at = o->first[word]; o->order[at] % WORD != expert % WORD; at++)
		;
	for (; at > o->first[word]; at--)
		o->order[at] = o->order[at - 1];
	o->first[word]++;
}

/* Whoever comes has no key, as nobody has who is not there. */
static void ebco_admit(void *state, int32_t expert)
{
}

/* The order is made anew for whoever asks. */
static void ebco_release(void *state, int32_t expert)
{
	struct ebco *o = state;

	o->idle[expert / WORD] |= UINT64_C(1) << expert % WORD;
	o->stale = true;
}

/*
 * In ascending order of the requested ones. In W's own unit, not times NEAR_OF: whole sums are compared with each other
 * only, and those of what is 5,500 events old would be nothing in the unit of `near`, and equal.
 */
static double whole_sum(struct ebco *o, int32_t expert)
{
	double sum = 0;

	if (o->known[expert / WORD] >> expert % WORD & 1)
		return o->sum[expert];
	if (o->taken[expert] != NEVER) {
		look_at(o, expert);
		for (uint32_t i = 0; i < o->n_active; i++)
			sum += *pair_of(o, expert, o->active[i]);
	}
	o->known[expert / WORD] |= UINT64_C(1) << expert % WORD;
	return o->sum[expert] = sum;
}

/* The last key that may be less than this one in truth: twice what both may be off by. */
static int32_t far_from(const struct ebco *o, int32_t key)
{
	const int32_t most = key | (WORD - 1);
	float sum;

	memcpy(&sum, &most, sizeof sum);
	sum = (float)(sum * (1 + 4 * (o->n_active + 2) * NEAR_PART) + 4 * o->n_active * NEAR_NONE);
	return key_of(sum, WORD - 1);
}

/* Of those whose keys are not beyond `last`. */
static __attribute__((noinline)) int32_t least_of(struct ebco *o, int32_t last)
{
	double least = INFINITY;
	int32_t ret = INT32_MAX;
	uint32_t n = 0;

	for (uint32_t i = 0; i < o->n_words; i++)
		for (uint32_t at = o->first[i]; o->order[at] <= last; at++)
			o->close[n++] = (int32_t)(i * WORD) + o->order[at] % WORD;
	for (uint32_t i = 0; i < n; i++)
		least = MIN(least, whole_sum(o, o->close[i]));
	for (uint32_t i = 0; i < n; i++)
		if (o->sum[o->close[i]] <= least * SAME)
			ret = MIN(ret, o->close[i]);
	return ret;
}

static int32_t lowest_idle(const struct ebco *o)
{
	for (uint32_t i = 0; i < o->n_words; i++)
		if (o->idle[i])
			return (int32_t)(i * WORD) + __builtin_ctzll(o->idle[i]);
	return -1;
}

static int32_t ebco_coldest(void *state)
{
	struct ebco *o = state;
	int32_t least = NOBODY, next = NOBODY, last;
	uint32_t word = 0;

	if (o->n_active == 0) /* all sums are 0 */
		return lowest_idle(o);
	if (o->stale)
		refresh(o);
	for (uint32_t i = 0; i < o->n_words; i++) {
		const int32_t *first = o->order + o->first[i];
		const bool less = first[0] < least;

		next = less ? MIN(least, first[1]) : MIN(next, first[0]);
		least = less ? first[0] : least;
		word = less ? i : word;
	}
	if (least == NOBODY)
		return -1;
	last = far_from(o, least);
	return next > last ? (int32_t)(word * WORD) + least % WORD : least_of(o, last);
}

static uint32_t ebco_sort(void *state, int32_t *ret)
{
	struct ebco *o = state;
	uint64_t idle[EXPERTS_MAX / WORD];
	uint32_t n = 0;

	memcpy(idle, o->idle, sizeof idle);
	for (int32_t expert; (expert = ebco_coldest(o)) >= 0; ebco_hold(o, expert))
		ret[n++] = expert;
	memcpy(o->idle, idle, sizeof idle);
	o->stale = true;
	return n;
}

POLICY_LOOPS(ebco, ebco_request, ebco_hold, ebco_release, ebco_coldest, ebco_hold, ebco_admit)

#define EBCO_OPS                                                                                                       \
	.by_heat = true, .by_pairs = true, .param = "alpha", .param_value = NEW, .param_max = 1, .bytes = ebco_bytes,  \
	.tune = ebco_tune, .route = ebco_route, POLICY_LOOPS_OPS(ebco), .coldest = ebco_coldest, .evict = ebco_hold,   \
	.admit = ebco_admit, .settle = ebco_settle, .remove = ebco_hold, .sort = ebco_sort

const struct policy_ops policy_ebco_hard = {.name = "ebco-hard", .init = hard_init, EBCO_OPS};
const struct policy_ops policy_ebco_soft = {.name = "ebco-soft", .init = soft_init, EBCO_OPS};
