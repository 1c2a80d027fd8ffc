/* SPDX-License-Identifier: MIT */
/*
 * policy - one decode step of one layer's cache by one block: what cache_update() does on the host, with the same answers.
 *
 * Where the host walks lists, this ranks: a cached expert has an age that no other has, and the n-th to leave is the one
 * with n - 1 colder ones. Ranking is O(n_experts^2) over 1024 threads; what is done one after the other is O(fills).
 */
#include "kernels/cuda/dialect.h"

#define POLICY_THREADS 1024
#define POLICY_NEVER UINT64_MAX
#define POLICY_TOUCHED 1
#define POLICY_CHOSEN 2
#define POLICY_ADMITTED 4

struct policy_state {
	struct cuda_policy_heads *heads;
	int32_t *cache_map, *miss_map, *miss_expert, *free_slots;
	uint64_t *age, *heat, *cold;
	int32_t *chosen, *victims; /* where heat was */
	struct cuda_fill *fills;
};

FUNC struct policy_state policy_state(const struct cuda_policy *p)
{
	struct policy_state s;

	s.heads = (struct cuda_policy_heads *)(uintptr_t)p->heads;
	s.cache_map = (int32_t *)(uintptr_t)p->cache_map;
	s.miss_map = (int32_t *)(uintptr_t)p->miss_map;
	s.miss_expert = (int32_t *)(uintptr_t)p->miss_expert;
	s.free_slots = (int32_t *)(uintptr_t)p->free_slots;
	s.age = (uint64_t *)(uintptr_t)p->age;
	s.heat = (uint64_t *)(uintptr_t)p->scratch;
	s.cold = s.heat + p->n_experts;
	s.chosen = (int32_t *)s.heat;
	s.victims = s.chosen + p->n_experts;
	s.fills = (struct cuda_fill *)(uintptr_t)p->fills;
	return s;
}

/* Of the touched and missing: more pairs are hotter, of the same the lower id. Others: 0. */
FUNC uint64_t heat_of(const struct policy_state *s, uint32_t e, uint32_t pairs, unsigned marks)
{
	return marks & POLICY_TOUCHED && s->cache_map[e] < 0 ? (uint64_t)pairs << 32 | (UINT32_MAX - e) : 0;
}

/* The place of a cached expert in the order of leaving; under the original rule touched ones are last, else never. */
FUNC uint64_t cold_of(const struct policy_state *s, uint32_t rule, uint32_t e, unsigned marks)
{
	if (s->cache_map[e] < 0)
		return POLICY_NEVER;
	if (marks & POLICY_TOUCHED)
		return rule == CUDA_POLICY_ORIGINAL ? s->age[e] | (uint64_t)1 << 63 : POLICY_NEVER;
	return s->age[e];
}

/* How many of n keys are above `key`, or stand before it and are not 0. */
FUNC uint32_t rank_of_heat(const uint64_t *keys, uint32_t n, uint32_t e, int by_heat)
{
	uint32_t rank = 0, i;

	for (i = 0; i < (by_heat ? n : e); i++)
		rank += by_heat ? keys[i] > keys[e] : keys[i] != 0;
	return rank;
}

FUNC uint32_t rank_of_cold(const uint64_t *keys, uint32_t n, uint64_t key)
{
	uint32_t rank = 0, i;

	for (i = 0; i < n; i++)
		rank += keys[i] < key;
	return rank;
}

/* Experts before e that have the mark. */
FUNC uint32_t marked_before(const uint8_t *marks, uint32_t e, unsigned mark)
{
	uint32_t n = 0, i;

	for (i = 0; i < e; i++)
		n += (marks[i] & mark) != 0;
	return n;
}

/* The expert leaves its slot and takes the next miss number. */
FUNC int32_t drop_expert(const struct policy_state *s, uint32_t n_experts, int32_t expert)
{
	const int32_t slot = s->cache_map[expert], number = (int32_t)(n_experts - s->heads->n_cached);

	s->heads->n_cached--;
	s->cache_map[expert] = -1;
	s->miss_map[expert] = number;
	s->miss_expert[number] = expert;
	return slot;
}

/* The expert takes a slot; whoever has the highest miss number inherits its number. */
FUNC void put_expert(const struct policy_state *s, uint32_t n_experts, int32_t expert, int32_t slot)
{
	const int32_t number = s->miss_map[expert], heir = s->miss_expert[n_experts - s->heads->n_cached - 1];

	s->miss_expert[number] = heir;
	s->miss_map[heir] = number;
	s->miss_map[expert] = -1;
	s->cache_map[expert] = slot;
	s->heads->n_cached++;
}

/* The chosen ones move in, in ascending id: free slots first, then those of who leaves. */
FUNC void move_in(const struct policy_state *s, uint32_t n_experts, uint32_t n_chosen, uint32_t n_victims,
		  uint8_t *marks)
{
	uint32_t i, gone = 0;

	for (i = 0; i < n_chosen; i++) {
		const int32_t expert = s->chosen[i];
		int32_t slot;

		if (s->heads->n_free)
			slot = s->free_slots[--s->heads->n_free];
		else if (gone < n_victims)
			slot = drop_expert(s, n_experts, s->victims[gone++]);
		else
			break;
		put_expert(s, n_experts, expert, slot);
		marks[expert] |= POLICY_ADMITTED;
		s->fills[i].expert = expert;
		s->fills[i].slot = slot;
	}
	s->heads->n_fills = i;
	s->heads->clock++;
}

/* The new age of an expert that was touched and is cached. LRU: all of one event have the same, so the id decides.
 * Original: those that were there keep their order, the admitted come behind them. */
FUNC uint64_t new_age(const struct policy_state *s, uint32_t rule, uint32_t n_experts, uint32_t e, const uint8_t *marks)
{
	uint32_t place = e, i;

	if (rule == CUDA_POLICY_ORIGINAL) {
		place = marks[e] & POLICY_ADMITTED ? marked_before(marks, e, POLICY_ADMITTED) : 0;
		for (i = 0; i < n_experts; i++)
			if (marks[i] & POLICY_TOUCHED && !(marks[i] & POLICY_ADMITTED) && s->cache_map[i] >= 0)
				place += marks[e] & POLICY_ADMITTED ? 1 : s->age[i] < s->age[e];
	}
	return s->heads->clock << 16 | place;
}

KERNEL(moe_policy, cuda_policy, POLICY_THREADS)
{
	SHARED(uint32_t, pairs)[CUDA_EXPERTS_MAX];
	SHARED(uint8_t, marks)[CUDA_EXPERTS_MAX];
	SHARED(uint32_t, n_chosen);
	SHARED(uint32_t, n_victims);
	const struct policy_state s = policy_state(&p);

	EACH_THREAD(tid)
	{
		for (uint32_t e = tid; e < p.n_experts; e += POLICY_THREADS)
			pairs[e] = marks[e] = 0;
		if (tid == 0)
			n_chosen = n_victims = 0;
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		for (uint32_t i = tid; i < p.tokens * p.topk; i += POLICY_THREADS) {
			const int32_t e = ((const int32_t *)(uintptr_t)p.ids)[i];

			if (e < 0 || (uint32_t)e >= p.n_experts)
				continue;
			count_up(&pairs[e], 1);
			if (p.rule != CUDA_POLICY_ORIGINAL || i % p.topk < p.cache_topk)
				marks[e] = POLICY_TOUCHED;
		}
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		for (uint32_t e = tid; e < p.n_experts; e += POLICY_THREADS) {
			s.heat[e] = heat_of(&s, e, pairs[e], marks[e]);
			s.cold[e] = cold_of(&s, p.rule, e, marks[e]);
		}
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		for (uint32_t e = tid; e < p.n_experts; e += POLICY_THREADS)
			if (s.heat[e] &&
			    rank_of_heat(s.heat, p.n_experts, e, p.rule != CUDA_POLICY_ORIGINAL) < p.max_fills)
				marks[e] |= POLICY_CHOSEN;
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		for (uint32_t e = tid; e < p.n_experts; e += POLICY_THREADS) {
			if (marks[e] & POLICY_CHOSEN) {
				s.chosen[marked_before(marks, e, POLICY_CHOSEN)] = (int32_t)e;
				count_up(&n_chosen, 1);
			}
			if (s.cold[e] != POLICY_NEVER) {
				s.victims[rank_of_cold(s.cold, p.n_experts, s.cold[e])] = (int32_t)e;
				count_up(&n_victims, 1);
			}
		}
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		if (tid == 0)
			move_in(&s, p.n_experts, n_chosen, n_victims, marks);
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		for (uint32_t e = tid; e < p.n_experts; e += POLICY_THREADS) {
			const int hot = marks[e] & POLICY_TOUCHED && s.cache_map[e] >= 0;

			s.cold[e] = hot ? new_age(&s, p.rule, p.n_experts, e, marks) : s.age[e];
		}
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		for (uint32_t e = tid; e < p.n_experts; e += POLICY_THREADS)
			s.age[e] = s.cold[e];
	}
}
