/* SPDX-License-Identifier: MIT */
/*
 * route - which experts a token goes to: tools/worker/router.c, step by step, so that both choose alike where their
 * scores are the same bits. What that file adds up is added up here in its order too, by one thread.
 */
#include "tools/worker/cuda/dense.h"

/* The better of two candidates: the greater score, of equal ones the lower number. -1: none. */
FUNC int is_better(float a, int32_t at, float b, int32_t other)
{
	return at >= 0 && (other < 0 || a > b || (a == b && at < other));
}

FUNC float group_worth(uint32_t rule, const float *choice, uint32_t n)
{
	float first = -INFINITY, second = -INFINITY;

	for (uint32_t i = 0; i < n; i++) {
		if (choice[i] > first) {
			second = first;
			first = choice[i];
		} else if (choice[i] > second) {
			second = choice[i];
		}
	}
	return rule == DENSE_GROUP_MAX ? first : first + second;
}

/* As keep_groups: of equal groups the last goes first; one whose worth is -infinity is not looked at. */
FUNC void drop_groups(const struct dense_route *p, float *worth, uint32_t *dropped)
{
	for (uint32_t g = 0; g < p->n_groups; g++)
		dropped[g] = 0;
	for (uint32_t left = p->n_groups; left > p->topk_groups; left--) {
		uint32_t worst = 0;
		float least = INFINITY;

		for (uint32_t g = 0; g < p->n_groups; g++) {
			if (worth[g] != -INFINITY && worth[g] <= least) {
				least = worth[g];
				worst = g;
			}
		}
		worth[worst] = -INFINITY;
		dropped[worst] = 1;
	}
}

/* In the order of vector_softmax. */
FUNC void add_all(float *scores, uint32_t n, float *total)
{
	float sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += scores[i];
	*total = sum;
}

FUNC void finish_shares(const struct dense_route *p, const int32_t *ids, float *shares)
{
	float sum = 0;

	for (uint32_t k = 0; k < p->topk; k++)
		sum += shares[k];
	for (uint32_t k = 0; k < p->topk; k++) {
		if (p->renormalise)
			shares[k] /= sum + p->epsilon;
		shares[k] *= p->scale;
	}
	if (ids[p->topk - 1] < 0 && load_u32(p->failed) == 0)
		*(uint32_t *)(uintptr_t)p->failed = p->layer + 1;
}

KERNEL(worker_route, dense_route, DENSE_THREADS)
{
	SHARED(float, scores)[DENSE_EXPERTS_MAX];
	SHARED(float, choice)[DENSE_EXPERTS_MAX];
	SHARED(float, part)[DENSE_THREADS];
	SHARED(int32_t, part_at)[DENSE_THREADS];
	SHARED(float, some)[SOME];
	SHARED(int32_t, some_at)[SOME];
	SHARED(float, worth)[DENSE_GROUPS_MAX];
	SHARED(uint32_t, dropped)[DENSE_GROUPS_MAX];
	SHARED(float, total)[1];
	const float *logits = floats_at(p.logits) + (uint64_t)BLOCK_INDEX * p.n_experts;
	int32_t *ids = (int32_t *)(uintptr_t)p.ids + (uint64_t)BLOCK_INDEX * p.pitch;
	float *shares = floats_at(p.shares) + (uint64_t)BLOCK_INDEX * p.pitch;

	EACH_THREAD(tid)
	{
		part[tid] = -INFINITY;
		for (uint32_t i = tid; i < p.n_experts; i += DENSE_THREADS)
			part[tid] = logits[i] > part[tid] ? logits[i] : part[tid];
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		max_some(part, some, tid);
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		const float most = max_all(some);

		for (uint32_t i = tid; i < p.n_experts; i += DENSE_THREADS)
			scores[i] = p.score == DENSE_SOFTMAX ? expf(logits[i] - most) : sigmoid_of(logits[i]);
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		if (tid == 0)
			add_all(scores, p.n_experts, total);
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		for (uint32_t i = tid; i < p.n_experts; i += DENSE_THREADS) {
			if (p.score == DENSE_SOFTMAX)
				scores[i] /= total[0];
			choice[i] = p.bias ? scores[i] + floats_at(p.bias)[i] : scores[i];
		}
	}
	BARRIER();
	if (p.group != DENSE_GROUP_NONE) {
		const uint32_t size = p.n_experts / p.n_groups;

		EACH_THREAD(tid)
		{
			if (tid < p.n_groups)
				worth[tid] = group_worth(p.group, choice + tid * size, size);
		}
		BARRIER();
		EACH_THREAD(tid)
		{
			if (tid == 0)
				drop_groups(&p, worth, dropped);
		}
		BARRIER();
		EACH_THREAD(tid)
		{
			for (uint32_t i = tid; i < p.n_experts; i += DENSE_THREADS)
				if (dropped[i / size])
					choice[i] = -INFINITY;
		}
	}
	for (uint32_t k = 0; k < p.topk; k++) {
		EACH_THREAD(tid)
		{
			float best = -INFINITY;
			int32_t at = -1;

			for (uint32_t i = tid; i < p.n_experts; i += DENSE_THREADS) {
				if (choice[i] > best) {
					best = choice[i];
					at = (int32_t)i;
				}
			}
			part[tid] = best;
			part_at[tid] = at;
		}
		BARRIER();
		EACH_THREAD(tid)
		{
			if (tid >= SOME)
				continue;
			some[tid] = -INFINITY;
			some_at[tid] = -1;
			for (unsigned i = tid * (DENSE_THREADS / SOME); i < (tid + 1) * (DENSE_THREADS / SOME); i++) {
				if (is_better(part[i], part_at[i], some[tid], some_at[tid])) {
					some[tid] = part[i];
					some_at[tid] = part_at[i];
				}
			}
		}
		BARRIER();
		EACH_THREAD(tid)
		{
			float best = -INFINITY;
			int32_t at = -1;

			if (tid != 0)
				continue;
			for (unsigned i = 0; i < SOME; i++) {
				if (is_better(some[i], some_at[i], best, at)) {
					best = some[i];
					at = some_at[i];
				}
			}
			ids[k] = at;
			shares[k] = at < 0 ? 0 : scores[at];
			if (at >= 0)
				choice[at] = -INFINITY;
		}
		BARRIER();
	}
	EACH_THREAD(tid)
	{
		if (tid == 0)
			finish_shares(&p, ids, shares);
	}
}
