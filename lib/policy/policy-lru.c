/* SPDX-License-Identifier: MIT */
/*
 * lru - the expert whose last event is longest ago leaves; of several, the lowest id.
 *
 * What is held is out of the order; all experts of one event have the same age, and rejoin the hot end in ascending id,
 * as they are released.
 */
#include "policy/policy.h"
#include "policy/policy-list.h"
#include "policy/policy-loops.h"

struct lru {
	struct policy_list list;
	int32_t numbers[]; /* prev, next */
};

static size_t lru_bytes(uint32_t n_experts, uint32_t n_slots)
{
	return sizeof(struct lru) + 2 * (size_t)n_experts * sizeof(int32_t);
}

static void lru_init(void *state, uint32_t n_experts, uint32_t n_slots)
{
	struct lru *lru = state;

	policy_list_init(&lru->list, lru->numbers, lru->numbers + n_experts, n_experts);
}

static void lru_nothing(void *state, int32_t expert)
{
}

static void lru_request(void *state, int32_t expert, uint32_t pairs)
{
}

static void lru_settle(void *state)
{
}

static void lru_unlink(void *state, int32_t expert)
{
	struct lru *lru = state;

	policy_list_unlink(&lru->list, expert);
}

static void lru_append(void *state, int32_t expert)
{
	struct lru *lru = state;

	policy_list_append(&lru->list, expert);
}

static int32_t lru_coldest(void *state)
{
	const struct lru *lru = state;

	return lru->list.cold;
}

static uint32_t lru_sort(void *state, int32_t *ret)
{
	const struct lru *lru = state;

	return policy_list_copy(&lru->list, ret);
}

POLICY_LOOPS(lru, lru_request, lru_unlink, lru_append, lru_coldest, lru_unlink, lru_nothing)

const struct policy_ops policy_lru = {
	.name = "lru",
	.by_heat = true,
	.bytes = lru_bytes,
	.init = lru_init,
	POLICY_LOOPS_OPS(lru),
	.coldest = lru_coldest,
	.evict = lru_unlink,
	.admit = lru_nothing,
	.settle = lru_settle,
	.remove = lru_unlink,
	.sort = lru_sort,
};

/* static - who is there stays: nobody leaves for another. Filled from calibration, by hand, or by the first to come. */

static int32_t static_coldest(void *state)
{
	return -1;
}

POLICY_LOOPS(static, lru_request, lru_nothing, lru_nothing, static_coldest, lru_unlink, lru_append)

const struct policy_ops policy_static = {
	.name = "static",
	.by_heat = true,
	.slots_only = true,
	.bytes = lru_bytes,
	.init = lru_init,
	POLICY_LOOPS_OPS(static),
	.coldest = static_coldest,
	.evict = lru_unlink,
	.admit = lru_append,
	.settle = lru_settle,
	.remove = lru_unlink,
	.sort = lru_sort,
};
