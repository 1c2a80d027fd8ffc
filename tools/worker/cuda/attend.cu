/* SPDX-License-Identifier: MIT */
/*
 * attend - a query against the keys and values of the positions that it sees.
 *
 * Positions come in tiles of one for each thread. What has been mixed so far is scaled down when a tile has a greater
 * score than all before it, so the scores are never held together.
 */
#include "tools/worker/cuda/dense.h"

#define ATTEND_LANES 8 /* threads that have a position's product together */

/* This lane's share of a position's product. */
FUNC float dot_share(const float *a, const float *b, uint32_t n, unsigned lane)
{
	float sum = 0;

	for (uint32_t i = lane; i < n; i += ATTEND_LANES)
		sum = fmaf(a[i], b[i], sum);
	return sum;
}

/* exp(a - b), 0 where nothing was before: then both may be -infinity. */
FUNC float lowered(float a, float b)
{
	return a == -INFINITY ? 0 : expf(a - b);
}

KERNEL(worker_attend, dense_attend, DENSE_THREADS)
{
	SHARED(float, part)[DENSE_THREADS][ATTEND_LANES];
	SHARED(float, score)[DENSE_THREADS];
	SHARED(float, some_max)[SOME];
	SHARED(float, some_sum)[SOME];
	SHARED(float, mixed)[DENSE_VALUE_MAX];
	PER_THREAD(float, greatest);
	PER_THREAD(float, before);
	PER_THREAD(float, sum);
	const uint32_t head = BLOCK_INDEX % p.heads, token = BLOCK_INDEX / p.heads;
	const uint32_t position = load_u32(p.position) + token, shared = head / p.group;
	const uint32_t from = p.window && position >= p.window ? position + 1 - p.window : 0;
	const float *query = floats_at(p.query) + token * p.query_pitch + (uint64_t)head * p.query_step;
	const float *turned = floats_at(p.turned) + token * p.turned_pitch + (uint64_t)head * p.turned_step;
	const float *keys = floats_at(p.keys) + (uint64_t)shared * p.key_step;
	const float *values = floats_at(p.values) + (uint64_t)shared * p.value_step;
	const float *extra = floats_at(p.extra);
	float *out = floats_at(p.out) + token * p.out_pitch + (uint64_t)head * p.out_step;

	EACH_THREAD(tid)
	{
		OWN(greatest) = -INFINITY;
		OWN(sum) = 0;
		for (uint32_t d = tid; d < p.value_dim; d += DENSE_THREADS)
			mixed[d] = 0;
	}
	for (uint32_t at = from; at <= position; at += DENSE_THREADS) {
		const uint32_t n = position + 1 - at < DENSE_THREADS ? position + 1 - at : DENSE_THREADS;

		EACH_THREAD(tid)
		{
			const unsigned lane = tid % ATTEND_LANES;

			for (uint32_t i = tid / ATTEND_LANES; i < n; i += DENSE_THREADS / ATTEND_LANES) {
				const uint64_t here = at + i;

				part[i][lane] = dot_share(query, keys + here * p.key_pitch, p.key_dim, lane);
				if (p.extra_dim)
					part[i][lane] += dot_share(turned, extra + here * p.extra_pitch, p.extra_dim,
								   lane);
			}
		}
		BARRIER();
		EACH_THREAD(tid)
		{
			float product = 0;

			if (tid < n)
				for (unsigned i = 0; i < ATTEND_LANES; i++)
					product += part[tid][i];
			score[tid] = tid < n ? p.scale * product : -INFINITY;
		}
		BARRIER();
		EACH_THREAD(tid)
		{
			max_some(score, some_max, tid);
		}
		BARRIER();
		EACH_THREAD(tid)
		{
			const float most = max_all(some_max);

			OWN(before) = OWN(greatest);
			OWN(greatest) = most > OWN(before) ? most : OWN(before);
			score[tid] = tid < n ? expf(score[tid] - OWN(greatest)) : 0;
		}
		BARRIER();
		EACH_THREAD(tid)
		{
			sum_some(score, some_sum, tid);
		}
		BARRIER();
		EACH_THREAD(tid)
		{
			const float less = lowered(OWN(before), OWN(greatest));

			OWN(sum) = OWN(sum) * less + sum_all(some_sum);
			for (uint32_t d = tid; d < p.value_dim; d += DENSE_THREADS) {
				float now = mixed[d] * less;

				for (uint32_t i = 0; i < n; i++)
					now = fmaf(score[i], values[(at + i) * p.value_pitch + d], now);
				mixed[d] = now;
			}
		}
	}
	EACH_THREAD(tid)
	{
		for (uint32_t d = tid; d < p.value_dim; d += DENSE_THREADS)
			out[d] = mixed[d] / OWN(sum);
	}
}
