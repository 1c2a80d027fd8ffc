/* SPDX-License-Identifier: MIT */
/*
 * sieve - a queue in the order of arrival, a mark for what was requested since, and a hand that goes from the oldest to
 * the youngest and round again: it takes marks away, and stops at the first without one.
 *
 * Who stays keeps his place. The hand passes over what is held, and leaves it its mark.
 */
#include "policy/policy.h"
#include "policy/policy-list.h"
#include "policy/policy-loops.h"

struct sieve {
	struct policy_list list;
	uint32_t n;
	int32_t hand;        /* POLICY_LIST_END: at the oldest */
	bool *marked, *held; /* [n_experts] */
	int32_t numbers[];
};

static size_t sieve_bytes(uint32_t n_experts, uint32_t n_slots)
{
	return sizeof(struct sieve) + 2 * (size_t)n_experts * (sizeof(int32_t) + sizeof(bool));
}

static void sieve_init(void *state, uint32_t n_experts, uint32_t n_slots)
{
	struct sieve *s = state;

	policy_list_init(&s->list, s->numbers, s->numbers + n_experts, n_experts);
	s->n = 0;
	s->hand = POLICY_LIST_END;
	s->marked = (bool *)(s->numbers + 2 * (size_t)n_experts);
	s->held = s->marked + n_experts;
	for (uint32_t i = 0; i < 2 * n_experts; i++)
		s->marked[i] = false;
}

static void sieve_request(void *state, int32_t expert, uint32_t pairs)
{
	struct sieve *s = state;

	s->marked[expert] = s->list.prev[expert] != POLICY_LIST_OUT;
}

static void sieve_hold(void *state, int32_t expert)
{
	((struct sieve *)state)->held[expert] = true;
}

static void sieve_release(void *state, int32_t expert)
{
	((struct sieve *)state)->held[expert] = false;
}

static int32_t sieve_coldest(void *state)
{
	struct sieve *s = state;

	/* Once round takes all marks that may be taken, the second time one without a mark is found if there is any. */
	for (uint32_t i = 0; i < 2 * s->n; i++) {
		if (s->hand == POLICY_LIST_END)
			s->hand = s->list.cold;
		if (!s->held[s->hand] && !s->marked[s->hand])
			return s->hand;
		s->marked[s->hand] &= s->held[s->hand];
		s->hand = s->list.next[s->hand];
	}
	return -1;
}

static void sieve_admit(void *state, int32_t expert)
{
	struct sieve *s = state;

	policy_list_append(&s->list, expert);
	s->marked[expert] = false;
	s->held[expert] = true;
	s->n++;
}

static void sieve_remove(void *state, int32_t expert)
{
	struct sieve *s = state;

	if (s->hand == expert)
		s->hand = s->list.next[expert];
	policy_list_unlink(&s->list, expert);
	s->n--;
}

static void sieve_settle(void *state)
{
}

static uint32_t sieve_sort(void *state, int32_t *ret)
{
	return policy_list_copy(&((const struct sieve *)state)->list, ret);
}

POLICY_LOOPS(sieve, sieve_request, sieve_hold, sieve_release, sieve_coldest, sieve_remove, sieve_admit)

const struct policy_ops policy_sieve = {
	.name = "sieve",
	.by_heat = true,
	.bytes = sieve_bytes,
	.init = sieve_init,
	POLICY_LOOPS_OPS(sieve),
	.coldest = sieve_coldest,
	.evict = sieve_remove,
	.admit = sieve_admit,
	.settle = sieve_settle,
	.remove = sieve_remove,
	.sort = sieve_sort,
};
