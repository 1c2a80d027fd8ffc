/* SPDX-License-Identifier: MIT */
/* group - which pairs are the device's, sorted by expert and cut into items: a counting sort by one block. */
#include "kernels/cuda/dialect.h"

#define GROUP_THREADS 1024
#define GROUP_WARP 32

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

/* Each of n numbers becomes the sum of those before it; returns the total. */
FUNC uint32_t scan_some(uint32_t *at, unsigned n)
{
	uint32_t sum = 0;
	unsigned i;

	for (i = 0; i < n; i++) {
		const uint32_t here = at[i];

		at[i] = sum;
		sum += here;
	}
	return sum;
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

KERNEL(moe_group, cuda_group, GROUP_THREADS)
{
	SHARED(uint32_t, counts)[CUDA_EXPERTS_MAX];
	SHARED(uint32_t, pairs)[GROUP_THREADS]; /* of each thread's experts; then of those before */
	SHARED(uint32_t, items)[GROUP_THREADS];
	SHARED(uint32_t, tops)[2][GROUP_WARP];
	const uint32_t each = (p.n_experts + GROUP_THREADS - 1) / GROUP_THREADS;

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
		pairs[tid] = items[tid] = 0;
		for (uint32_t e = tid * each; e < (tid + 1) * each && e < p.n_experts; e++) {
			pairs[tid] += counts[e];
			items[tid] += items_of(&p, e, counts[e]);
		}
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		if (tid < GROUP_WARP) {
			tops[0][tid] = scan_some(&pairs[tid * GROUP_WARP], GROUP_WARP);
			tops[1][tid] = scan_some(&items[tid * GROUP_WARP], GROUP_WARP);
		}
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		struct cuda_counts *all = (struct cuda_counts *)(uintptr_t)p.counts;

		if (tid == 0) {
			all->n_pairs = scan_some(tops[0], GROUP_WARP);
			all->n_items = scan_some(tops[1], GROUP_WARP);
		}
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		uint32_t first = pairs[tid] + tops[0][tid / GROUP_WARP];
		uint32_t item = items[tid] + tops[1][tid / GROUP_WARP];

		for (uint32_t e = tid * each; e < (tid + 1) * each && e < p.n_experts; e++) {
			const uint32_t n = counts[e];

			expert_items(&p, e, &counts[e], first, item);
			first += n;
			item += items_of(&p, e, n);
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
