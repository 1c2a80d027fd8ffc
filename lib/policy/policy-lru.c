/* SPDX-License-Identifier: MIT */
/*
 * lru - the expert whose last event is longest ago leaves; of several, the lowest id.
 *
 * Pinned: what the event requests is taken out of the order until settle(), so it is never a victim of its own step;
 * when nothing else is cached, the missing expert is not kept. All experts of one event have the same age, so they
 * rejoin the hot end in ascending id.
 */
#include <assert.h>

#include "policy/policy.h"
#include "policy/policy-list.h"

struct lru {
	struct policy_list list;
	uint32_t n_held, n_admitted;
	int32_t *held;     /* [n_slots] requested and cached, ascending */
	int32_t *admitted; /* [n_slots] filled by this event, ascending */
	int32_t numbers[]; /* prev, next, held, admitted */
};

static size_t lru_bytes(uint32_t n_experts, uint32_t n_slots)
{
	return sizeof(struct lru) + 2 * ((size_t)n_experts + n_slots) * sizeof(int32_t);
}

static void lru_init(void *state, uint32_t n_experts, uint32_t n_slots)
{
	struct lru *lru = state;

	policy_list_init(&lru->list, lru->numbers, lru->numbers + n_experts, n_experts);
	lru->held = lru->numbers + 2 * (size_t)n_experts;
	lru->admitted = lru->held + n_slots;
	lru->n_held = lru->n_admitted = 0;
}

static void lru_request(void *state, int32_t expert, uint32_t pairs, bool cached)
{
	struct lru *lru = state;

	if (!cached)
		return;
	policy_list_unlink(&lru->list, expert);
	lru->held[lru->n_held++] = expert;
}

static int32_t lru_victim(void *state)
{
	struct lru *lru = state;

	return policy_list_pop(&lru->list);
}

static void lru_admit(void *state, int32_t expert)
{
	struct lru *lru = state;

	assert(lru->n_admitted == 0 || lru->admitted[lru->n_admitted - 1] < expert);
	lru->admitted[lru->n_admitted++] = expert;
}

static void lru_settle(void *state)
{
	struct lru *lru = state;
	uint32_t h = 0, a = 0;

	while (h < lru->n_held || a < lru->n_admitted) {
		if (a == lru->n_admitted || (h < lru->n_held && lru->held[h] < lru->admitted[a]))
			policy_list_append(&lru->list, lru->held[h++]);
		else
			policy_list_append(&lru->list, lru->admitted[a++]);
	}
	lru->n_held = lru->n_admitted = 0;
}

static void lru_remove(void *state, int32_t expert)
{
	struct lru *lru = state;

	policy_list_unlink(&lru->list, expert);
}

static uint32_t lru_sort(const void *state, int32_t *ret)
{
	const struct lru *lru = state;

	return policy_list_copy(&lru->list, ret);
}

const struct policy_ops policy_lru = {
	.name = "lru",
	.by_heat = true,
	.bytes = lru_bytes,
	.init = lru_init,
	.request = lru_request,
	.victim = lru_victim,
	.admit = lru_admit,
	.settle = lru_settle,
	.remove = lru_remove,
	.sort = lru_sort,
};
