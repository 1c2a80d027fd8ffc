/* SPDX-License-Identifier: MIT */
/* group - which pairs are the device's, sorted by expert and cut into items: a counting sort by one block. */
#include "kernels/cuda/dialect.h"

#define GROUP_THREADS 1024

/* The slot of a pair's expert, or a negative number. */
FUNC int32_t pair_slot(const struct cuda_group *p, uint32_t pair, int32_t *ret_expert)
{
	const int32_t expert = ((const int32_t *)(uintptr_t)p->ids)[pair];

	*ret_expert = expert;
	if (expert < 0 || (uint32_t)expert >= p->n_experts)
		return -1;
	return ((const int32_t *)(uintptr_t)p->map)[expert];
}

/* How many items stand side by side for the same pairs of an expert in this slot. */
FUNC uint32_t shares_of(const struct cuda_group *p, int32_t slot)
{
	return p->n_shares && slot >= 0 && (uint32_t)slot >= p->n_slots ? p->n_shares : 1;
}

FUNC uint32_t items_of(const struct cuda_group *p, uint32_t expert, uint32_t pairs)
{
	return pairs ? (pairs + p->item_pairs - 1) / p->item_pairs *
			       shares_of(p, ((const int32_t *)(uintptr_t)p->map)[expert])
		     : 0;
}

/* Writes the items of one expert; from here on its count is where its next pair goes. */
FUNC void expert_items(const struct cuda_group *p, uint32_t expert, uint32_t *count, uint32_t first, uint32_t item)
{
	struct cuda_item *items = (struct cuda_item *)(uintptr_t)p->items + item;
	const uint64_t *records = (const uint64_t *)(uintptr_t)p->records;
	const int32_t slot = ((const int32_t *)(uintptr_t)p->map)[expert];
	const int in_pool = p->n_shares && (uint32_t)slot >= p->n_slots;
	const uint32_t n = *count;
	uint32_t at, share;

	for (at = 0; at < n; at += p->item_pairs)
		for (share = 0; share < shares_of(p, slot); share++, items++) {
			items->slot = in_pool ? records[(uint64_t)((uint32_t)slot - p->n_slots) * p->n_shares + share]
					      : p->slots + (uint64_t)slot * p->slot_bytes;
			items->first = first + at;
			items->count = (uint16_t)(n - at < p->item_pairs ? n - at : p->item_pairs);
			items->share = (uint16_t)(in_pool ? share + 1 : 0);
		}
	*count = first;
}

struct group_sums {
	uint32_t pairs[GROUP_THREADS], items[GROUP_THREADS];
};

struct group_sum {
	uint32_t pairs, items;
};

KERNEL(moe_group, cuda_group, GROUP_THREADS)
{
	SHARED(uint32_t, counts)[CUDA_EXPERTS_MAX];
	SHARED(struct group_sums, sums)[2]; /* of each thread's experts and some before; by turns */
	PER_THREAD(struct group_sum, own);
	const uint32_t each = (p.n_experts + GROUP_THREADS - 1) / GROUP_THREADS;
	const uint32_t used = p.n_experts < GROUP_THREADS ? p.n_experts : GROUP_THREADS; /* threads with experts */
	uint32_t n, from = 0;

	EACH_THREAD(tid)
	{
		for (uint32_t e = tid; e < p.n_experts; e += GROUP_THREADS)
			counts[e] = 0;
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		int32_t expert;

		for (uint32_t i = tid; i < p.pairs; i += GROUP_THREADS)
			if (pair_slot(&p, i, &expert) >= 0)
				count_up(&counts[expert], 1);
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		OWN(own).pairs = OWN(own).items = 0;
		for (uint32_t e = tid * each; e < (tid + 1) * each && e < p.n_experts; e++) {
			OWN(own).pairs += counts[e];
			OWN(own).items += items_of(&p, e, counts[e]);
		}
		sums[0].pairs[tid] = OWN(own).pairs;
		sums[0].items[tid] = OWN(own).items;
	}
	for (n = 1; n < used; n *= 2, from = !from) {
		BARRIER();
		EACH_THREAD(tid)
		{
			const struct group_sums *old = &sums[from];

			sums[!from].pairs[tid] = old->pairs[tid] + (tid >= n ? old->pairs[tid - n] : 0);
			sums[!from].items[tid] = old->items[tid] + (tid >= n ? old->items[tid - n] : 0);
		}
	}
	/* No barrier: each thread goes on with what it has written itself. */
	EACH_THREAD(tid)
	{
		struct cuda_counts *all = (struct cuda_counts *)(uintptr_t)p.counts;
		uint32_t first = sums[from].pairs[tid] - OWN(own).pairs;
		uint32_t item = sums[from].items[tid] - OWN(own).items;

		if (tid == used - 1) {
			all->n_pairs = sums[from].pairs[tid];
			all->n_items = sums[from].items[tid];
		}
		for (uint32_t e = tid * each; e < (tid + 1) * each && e < p.n_experts; e++) {
			const uint32_t n_pairs = counts[e];

			expert_items(&p, e, &counts[e], first, item);
			first += n_pairs;
			item += items_of(&p, e, n_pairs);
		}
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		uint32_t *order = (uint32_t *)(uintptr_t)p.order;
		int32_t expert;

		for (uint32_t i = tid; i < p.pairs; i += GROUP_THREADS)
			if (pair_slot(&p, i, &expert) >= 0)
				order[count_up(&counts[expert], 1)] = i;
	}
}
