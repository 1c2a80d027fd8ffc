/* SPDX-License-Identifier: MIT */
/*
 * original - the K/U rule of the offload design that this project re-founds.
 *
 * K = cache_topk, U = update_expert_num. An expert is touched when it stands at one of a token's first K positions. The
 * order is stably partitioned: untouched experts keep their order at the cold end, touched and cached ones keep theirs
 * at the hot end. Then the i-th coldest leaves for the i-th missing touched expert, by ascending id, for i < U; so a
 * fresh hit leaves when, and only when, fewer untouched experts are left than there are fills. The fills go to the
 * hottest end.
 *
 * Where the source has C experts cached from the start, this cache starts empty: an empty slot counts as colder than
 * any expert and is taken first.
 */
#include "policy/heat.h"
#include "policy/policy.h"
#include "policy/policy-list.h"
#include "policy/policy-loops.h"

#define EXPERT_BITS 16 /* a key is the stamp of the last append << 16 | the expert; n_experts <= 4096 */

struct original {
	struct policy_list list;
	uint64_t clock;   /* stamps appends: along the list stamps rise */
	uint64_t *stamps; /* [n_experts] */
	uint64_t *held;   /* [n_slots] keys of the touched and cached; sorted, hottest first, once `sorted` */
	int32_t *admitted;
	uint32_t n_held, n_admitted;
	bool sorted;
};

static size_t original_bytes(uint32_t n_experts, uint32_t n_slots)
{
	return sizeof(struct original) + ((size_t)n_experts + n_slots) * sizeof(uint64_t) +
	       (2 * (size_t)n_experts + n_slots) * sizeof(int32_t);
}

static void original_init(void *state, uint32_t n_experts, uint32_t n_slots)
{
	struct original *o = state;
	uint64_t *stamps = (uint64_t *)(o + 1);
	int32_t *numbers = (int32_t *)(stamps + n_experts + n_slots);

	*o = (struct original){.stamps = stamps, .held = stamps + n_experts};
	policy_list_init(&o->list, numbers, numbers + n_experts, n_experts);
	o->admitted = numbers + 2 * (size_t)n_experts;
}

static void original_request(void *state, int32_t expert, uint32_t pairs)
{
}

static void original_hold(void *state, int32_t expert)
{
	struct original *o = state;

	policy_list_unlink(&o->list, expert);
	o->held[o->n_held++] = o->stamps[expert] << EXPERT_BITS | (uint32_t)expert;
	o->sorted = false;
}

/* The coldest of the held ones, or -1. */
static int32_t coldest_held(struct original *o)
{
	if (o->n_held == 0)
		return -1;
	if (!o->sorted)
		heat_sort(o->held, o->n_held);
	o->sorted = true;
	return (int32_t)(o->held[o->n_held - 1] & ((1u << EXPERT_BITS) - 1));
}

static int32_t original_coldest(void *state)
{
	struct original *o = state;

	return o->list.cold != POLICY_LIST_END ? o->list.cold : coldest_held(o);
}

/* The coldest. */
static void original_evict(void *state, int32_t expert)
{
	struct original *o = state;

	if (o->list.cold != POLICY_LIST_END)
		policy_list_unlink(&o->list, expert);
	else
		o->n_held--;
}

static void original_admit(void *state, int32_t expert)
{
	struct original *o = state;

	o->admitted[o->n_admitted++] = expert;
}

static void original_append(struct original *o, int32_t expert)
{
	o->stamps[expert] = ++o->clock;
	policy_list_append(&o->list, expert);
}

static void original_settle(void *state)
{
	struct original *o = state;
	uint32_t i;
	int32_t expert;

	while ((expert = coldest_held(o)) >= 0) {
		o->n_held--;
		original_append(o, expert);
	}
	for (i = 0; i < o->n_admitted; i++)
		original_append(o, o->admitted[i]);
	o->n_admitted = 0;
}

/* All of them by settle(), which knows their order. */
static void original_release(void *state, int32_t expert)
{
}

static void original_remove(void *state, int32_t expert)
{
	struct original *o = state;

	policy_list_unlink(&o->list, expert);
}

static uint32_t original_sort(void *state, int32_t *ret)
{
	const struct original *o = state;

	return policy_list_copy(&o->list, ret);
}

POLICY_LOOPS(original, original_request, original_hold, original_release, original_coldest, original_evict,
	     original_admit)

const struct policy_ops policy_original = {
	.name = "original",
	.first_choices = true,
	.slots_only = true,
	.bytes = original_bytes,
	.init = original_init,
	POLICY_LOOPS_OPS(original),
	.coldest = original_coldest,
	.evict = original_evict,
	.admit = original_admit,
	.settle = original_settle,
	.remove = original_remove,
	.sort = original_sort,
};
