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
#include "policy/policy-heap.h"

#define DECAY_EVENTS 16
#define KEPT 0.95
#define GROWN_MAX 0x1p400

struct score {
	enum score_rule { RULE_LFU, RULE_DECAY, RULE_LFRU, RULE_EMA, RULE_MRS } rule;
	bool in_event, stale;
	uint32_t tokens; /* of this event, as route() has said; 0: it has not */
	uint64_t event;  /* its number */
	double gain;     /* of ema and mrs: what 1 is worth now */
	double *score;   /* [n_experts] */
	double *weight;  /* [n_experts] of mrs: of this event, 0 between them */
	uint64_t *last;  /* [n_experts] of lfru: the last event */
	uint32_t n_experts;
	struct policy_heap heap;
};

static size_t score_bytes(uint32_t n_experts, uint32_t n_slots)
{
	return sizeof(struct score) + n_experts * (3 * sizeof(double) + POLICY_HEAP_EXPERT_BYTES) +
	       n_slots * POLICY_HEAP_SLOT_BYTES;
}

static void init(struct score *s, enum score_rule rule, uint32_t n_experts, uint32_t n_slots)
{
	double *numbers = (double *)(s + 1);

	*s = (struct score){.rule = rule, .gain = 1, .n_experts = n_experts, .score = numbers};
	s->weight = numbers + n_experts;
	s->last = (uint64_t *)(numbers + 2 * (size_t)n_experts);
	policy_heap_init(&s->heap, s->last + n_experts, n_experts, n_slots);
	for (uint32_t i = 0; i < n_experts; i++) {
		s->score[i] = s->weight[i] = 0;
		s->last[i] = 0;
	}
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

/* -- events ------------------------------------------------------------------------------------------------------- */

/* When scores have become less: the heap's keys may not be more. */
static void renew_keys(struct score *s)
{
	for (uint32_t i = 0; i < s->heap.n; i++)
		s->heap.entry[i].key = s->score[s->heap.entry[i].expert];
	policy_heap_rebuild(&s->heap);
}

static void scale_all(struct score *s, double factor)
{
	for (uint32_t i = 0; i < s->n_experts; i++)
		s->score[i] *= factor;
	renew_keys(s);
}

static void halve_all(struct score *s)
{
	for (uint32_t i = 0; i < s->n_experts; i++)
		s->score[i] = (double)((uint64_t)s->score[i] / 2);
	renew_keys(s);
}

static void begin(struct score *s)
{
	if (s->in_event)
		return;
	s->in_event = s->stale = true;
	if (s->rule == RULE_DECAY && s->event > 0 && s->event % DECAY_EVENTS == 0)
		halve_all(s);
	if (s->rule < RULE_EMA)
		return;
	s->gain /= KEPT;
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
		s->score[expert] += s->gain * (1 - KEPT) * s->weight[expert] / s->tokens;
	else if (s->rule == RULE_MRS)
		s->score[expert] += s->gain * (1 - KEPT) * pairs;
	else
		s->score[expert] += 1;
	s->weight[expert] = 0;
	s->last[expert] = s->event;
}

static void score_settle(void *state)
{
	struct score *s = state;

	s->event += s->in_event;
	s->in_event = false;
	s->tokens = 0;
}

/* -- members ------------------------------------------------------------------------------------------------------ */

static void score_hold(void *state, int32_t expert)
{
	struct score *s = state;

	s->heap.held[expert] = true;
}

/* Whoever was put aside, or has just come, joins. lfru's order is made anew anyway. */
static void score_release(void *state, int32_t expert)
{
	struct score *s = state;

	s->heap.held[expert] = false;
	if (s->heap.place[expert] != POLICY_HEAP_OUT)
		return;
	if (s->rule != RULE_LFRU) {
		policy_heap_add(&s->heap, expert, s->score[expert]);
		return;
	}
	policy_heap_append(&s->heap, expert);
	s->stale = true;
}

static void lfru_refresh(struct score *s)
{
	/* Between two events the one that was is counted. */
	const uint64_t now = s->event - (!s->in_event && s->event);

	policy_heap_aside(&s->heap);
	for (uint32_t i = 0; i < s->heap.n; i++) {
		const int64_t expert = s->heap.entry[i].expert;

		s->heap.entry[i].key = s->score[expert] / (double)(now - s->last[expert] + 1);
	}
	policy_heap_rebuild(&s->heap);
	s->stale = false;
}

/* What the keys are by now, if the heap's are not. */
static const double *keys_of(struct score *s)
{
	if (s->rule != RULE_LFRU)
		return s->score;
	if (s->stale)
		lfru_refresh(s);
	return NULL;
}

static int32_t score_coldest(void *state)
{
	struct score *s = state;

	return policy_heap_coldest(&s->heap, keys_of(s));
}

static void score_drop(void *state, int32_t expert)
{
	struct score *s = state;

	policy_heap_drop(&s->heap, expert);
	s->heap.held[expert] = false;
}

static uint32_t score_sort(void *state, int32_t *ret)
{
	struct score *s = state;

	return policy_heap_sort(&s->heap, keys_of(s), ret);
}

#define SCORE_OPS                                                                                                      \
	.by_heat = true, .bytes = score_bytes, .request = score_request, .hold = score_hold, .release = score_release, \
	.coldest = score_coldest, .evict = score_drop, .admit = score_hold, .settle = score_settle,                    \
	.remove = score_drop, .sort = score_sort

const struct policy_ops policy_lfu = {.name = "lfu", .init = lfu_init, SCORE_OPS};
const struct policy_ops policy_lfu_decay = {
	.name = "lfu-decay", .param = "period", .param_value = DECAY_EVENTS, .init = decay_init, SCORE_OPS};
const struct policy_ops policy_lfru = {.name = "lfru", .init = lfru_init, SCORE_OPS};
const struct policy_ops policy_ema = {.name = "ema", .param = "kept", .param_value = KEPT, .init = ema_init, SCORE_OPS};
const struct policy_ops policy_mrs = {
	.name = "mrs", .param = "kept", .param_value = KEPT, .init = mrs_init, .route = mrs_route, SCORE_OPS};
