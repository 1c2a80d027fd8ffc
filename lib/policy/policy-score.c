/* SPDX-License-Identifier: MIT */
/*
 * Policies that keep one number for each expert, cached or not; the least leaves, of equal ones the lowest id.
 *
 *   lfu        events that have requested it
 *   lfu-decay  the same, all halved (rounded down) at the start of each 16th event
 *   lfru       events that have requested it, divided by the events since the last one did, this one counted
 *   ema        S <- 0.95 S + 1 if it is requested
 *   mrs        S <- 0.95 S + 0.05 w, w the router's weight for it, as the mean of the event's tokens
 *
 * ema and mrs do not multiply all numbers in each event: what is added grows by 1 / 0.95 instead, and everything is
 * scaled down long before that could overflow. Only lfru's order changes while nothing is requested: its keys are made
 * anew for the first coldest() of an event. A quotient of two numbers below 2^25 is exact enough to tell any two of
 * them apart.
 */
#include "policy/policy.h"
#include "policy/policy-least.h"
#include "policy/policy-loops.h"

#define DECAY_EVENTS 16
#define KEPT 0.95
#define GROWN_MAX 0x1p400

struct score {
	enum score_rule { RULE_LFU, RULE_DECAY, RULE_LFRU, RULE_EMA, RULE_MRS } rule;
	bool in_event, stale;
	uint32_t period; /* of lfu-decay */
	uint32_t tokens; /* of this event, as route() has said; 0: it has not */
	uint64_t event;  /* its number */
	double kept;     /* of ema and mrs, by an event */
	double gain;     /* of ema and mrs: what 1 is worth now */
	double *score;   /* [n_experts] */
	double *weight;  /* [n_experts] of mrs: of this event, 0 between them */
	double *last;    /* [n_experts] of lfru: the last event */
	uint32_t n_experts;
	struct policy_least idle; /* who may leave */
};

static size_t score_bytes(uint32_t n_experts, uint32_t n_slots)
{
	return sizeof(struct score) + 3 * (size_t)n_experts * sizeof(double) + policy_least_bytes(n_experts);
}

static void init(struct score *s, enum score_rule rule, uint32_t n_experts, uint32_t n_slots)
{
	double *numbers = (double *)(s + 1);

	*s = (struct score){.rule = rule, .gain = 1, .n_experts = n_experts, .score = numbers};
	s->period = DECAY_EVENTS;
	s->kept = KEPT;
	s->weight = numbers + n_experts;
	s->last = numbers + 2 * (size_t)n_experts;
	policy_least_init(&s->idle, s->last + n_experts, n_experts);
	for (uint32_t i = 0; i < 3 * n_experts; i++)
		numbers[i] = 0;
}

static void lfu_init(void *state, uint32_t n_experts, uint32_t n_slots)
{
	init(state, RULE_LFU, n_experts, n_slots);
}

static void decay_init(void *state, uint32_t n_experts, uint32_t n_slots)
{
	init(state, RULE_DECAY, n_experts, n_slots);
}

static void lfru_init(void *state, uint32_t n_experts, uint32_t n_slots)
{
	init(state, RULE_LFRU, n_experts, n_slots);
}

static void ema_init(void *state, uint32_t n_experts, uint32_t n_slots)
{
	init(state, RULE_EMA, n_experts, n_slots);
}

static void mrs_init(void *state, uint32_t n_experts, uint32_t n_slots)
{
	init(state, RULE_MRS, n_experts, n_slots);
}

static void decay_tune(void *state, double events)
{
	((struct score *)state)->period = (uint32_t)events;
}

/* 0 makes the gain infinite: all that was is scaled to nothing. */
static void kept_tune(void *state, double kept)
{
	((struct score *)state)->kept = kept;
}

/* -- events ------------------------------------------------------------------------------------------------------- */

static void scale_all(struct score *s, double factor)
{
	for (uint32_t i = 0; i < s->n_experts; i++)
		s->score[i] *= factor;
	policy_least_renew(&s->idle, s->score);
}

static void halve_all(struct score *s)
{
	for (uint32_t i = 0; i < s->n_experts; i++)
		s->score[i] = (double)((uint64_t)s->score[i] / 2);
	policy_least_renew(&s->idle, s->score);
}

static void begin(struct score *s)
{
	if (s->in_event)
		return;
	s->in_event = s->stale = true;
	if (s->rule == RULE_DECAY && s->event > 0 && s->event % s->period == 0)
		halve_all(s);
	if (s->rule < RULE_EMA)
		return;
	s->gain /= s->kept;
	if (s->gain < GROWN_MAX)
		return;
	scale_all(s, 1 / s->gain);
	s->gain = 1;
}

static void mrs_route(void *state, const struct policy_tokens *t)
{
	struct score *s = state;

	s->tokens = t->tokens;
	for (size_t i = 0; i < (size_t)t->tokens * t->topk; i++)
		if (t->ids[i] >= 0)
			s->weight[t->ids[i]] += policy_weight(t, i);
}

static void score_request(void *state, int32_t expert, uint32_t pairs)
{
	struct score *s = state;

	begin(s);
	if (s->rule == RULE_EMA)
		s->score[expert] += s->gain;
	else if (s->rule == RULE_MRS && s->tokens)
		s->score[expert] += s->gain * (1 - s->kept) * s->weight[expert] / s->tokens;
	else if (s->rule == RULE_MRS)
		s->score[expert] += s->gain * (1 - s->kept) * pairs;
	else
		s->score[expert] += 1;
	s->weight[expert] = 0;
	s->last[expert] = (double)s->event;
	if (policy_least_has(&s->idle, expert))
		policy_least_set(&s->idle, expert, s->score[expert]);
}

static void score_settle(void *state)
{
	struct score *s = state;

	s->event += s->in_event;
	s->in_event = false;
	s->tokens = 0;
}

/* -- members ------------------------------------------------------------------------------------------------------ */

/* Held, or gone. */
static void score_hold(void *state, int32_t expert)
{
	struct score *s = state;

	policy_least_drop(&s->idle, expert);
}

/* Whoever comes has no key, as nobody has who is not there. */
static void score_admit(void *state, int32_t expert)
{
}

/* lfru's keys are made anew for whoever asks. */
static void score_release(void *state, int32_t expert)
{
	struct score *s = state;

	policy_least_set(&s->idle, expert, s->score[expert]);
	s->stale = true;
}

static void lfru_refresh(struct score *s)
{
	/* Between two events the one that was is counted. */
	const double now = (double)(s->event - (!s->in_event && s->event));
	const double *score = s->score, *last = s->last;
	double *restrict key = s->weight; /* mrs alone has weights */

	for (uint32_t i = 0; i < s->n_experts; i++)
		key[i] = score[i] / (now - last[i] + 1);
	policy_least_renew(&s->idle, key);
	s->stale = false;
}

static int32_t score_coldest(void *state)
{
	struct score *s = state;

	if (s->rule == RULE_LFRU && s->stale)
		lfru_refresh(s);
	return policy_least_first(&s->idle);
}

static uint32_t score_sort(void *state, int32_t *ret)
{
	struct score *s = state;

	if (s->rule == RULE_LFRU && s->stale)
		lfru_refresh(s);
	return policy_least_sort(&s->idle, ret);
}

POLICY_LOOPS(score, score_request, score_hold, score_release, score_coldest, score_hold, score_admit)

#define SCORE_OPS                                                                                                      \
	.by_heat = true, .bytes = score_bytes, POLICY_LOOPS_OPS(score), .coldest = score_coldest, .evict = score_hold, \
	.admit = score_admit, .settle = score_settle, .remove = score_hold, .sort = score_sort

const struct policy_ops policy_lfu = {.name = "lfu", .init = lfu_init, SCORE_OPS};
const struct policy_ops policy_lfu_decay = {.name = "lfu-decay",
					    .param = "period",
					    .param_value = DECAY_EVENTS,
					    .param_min = 1,
					    .param_max = INT32_MAX,
					    .param_whole = true,
					    .init = decay_init,
					    .tune = decay_tune,
					    SCORE_OPS};
const struct policy_ops policy_lfru = {.name = "lfru", .init = lfru_init, SCORE_OPS};
#define KEPT_OPS .param = "kept", .param_value = KEPT, .param_max = 1, .tune = kept_tune, SCORE_OPS

const struct policy_ops policy_ema = {.name = "ema", .init = ema_init, KEPT_OPS};
const struct policy_ops policy_mrs = {.name = "mrs", .init = mrs_init, .route = mrs_route, KEPT_OPS};
