/* SPDX-License-Identifier: MIT */
/* combine - the experts' answers become the tokens', in a fixed order. */
#include "kernels/cuda/dialect.h"

#define COMBINE_THREADS 256

FUNC int pair_here(const struct cuda_combine *p, uint32_t pair)
{
	const int32_t expert = ((const int32_t *)(uintptr_t)p->ids)[pair];

	return expert >= 0 && (uint32_t)expert < p->n_experts && ((const int32_t *)(uintptr_t)p->map)[expert] >= 0;
}

/* Some of a token's pairs: 0 where the expert is not here. */
struct combine_pairs {
	float weight[COMBINE_THREADS];
	int32_t here[COMBINE_THREADS];
};

/* n pairs from `first` on; four of them are on their way at a time. */
FUNC void combine_some(const struct combine_pairs *pairs, uint32_t n, uint64_t out, uint64_t pitch, uint32_t columns,
		       float *sum)
{
	float v[4][4] = {{0}};
	unsigned i, u, c;

	for (i = 0; i < n; i += 4) {
		UNROLL
		for (u = 0; u < 4; u++)
			if (i + u < n && pairs->here[i + u])
				load_floats4(v[u], out + (i + u) * pitch, columns);
		UNROLL
		for (u = 0; u < 4; u++)
			if (i + u < n && pairs->here[i + u])
				UNROLL
		for (c = 0; c < 4; c++)
			sum[c] = fmaf(pairs->weight[i + u], v[u][c], sum[c]);
	}
}

struct combine_sum {
	float of[4];
};

KERNEL(moe_combine, cuda_combine, COMBINE_THREADS)
{
	SHARED(struct combine_pairs, pairs);
	PER_THREAD(struct combine_sum, sum);
	const uint32_t tiles = cuda_combine_tiles(p.hidden), token = BLOCK_INDEX / tiles;
	const uint32_t begin = BLOCK_INDEX % tiles * CUDA_COMBINE_COLS;
	const float *weights = (const float *)(uintptr_t)p.weights;
	uint32_t first;

	for (first = 0; first < p.topk; first += COMBINE_THREADS) {
		if (first)
			BARRIER();
		EACH_THREAD(tid)
		{
			const uint32_t pair = token * p.topk + first + tid;

			if (first == 0)
				memset(&OWN(sum), 0, sizeof OWN(sum));
			if (first + tid >= p.topk)
				continue;
			pairs.here[tid] = pair_here(&p, pair);
			pairs.weight[tid] = weights[pair];
		}
		BARRIER();
		EACH_THREAD(tid)
		{
			const uint32_t col = begin + 4 * tid, pair = token * p.topk + first;
			const uint32_t n = p.topk - first < COMBINE_THREADS ? p.topk - first : COMBINE_THREADS;

			if (col < p.hidden)
				combine_some(&pairs, n, p.out + ((uint64_t)pair * p.hidden + col) * 4,
					     (uint64_t)p.hidden * 4, p.hidden - col, OWN(sum).of);
		}
	}
	EACH_THREAD(tid)
	{
		float *y = (float *)(uintptr_t)p.y + (uint64_t)token * p.hidden;
		unsigned c;

		UNROLL
		for (c = 0; c < 4; c++)
			if (begin + 4 * tid + c < p.hidden)
				y[begin + 4 * tid + c] = OWN(sum).of[c];
	}
}

KERNEL(moe_add, cuda_add, COMBINE_THREADS)
{
	float *y = (float *)(uintptr_t)p.y;
	const uint64_t quads = p.n / 4;

	EACH_THREAD(tid)
	{
		const uint64_t self = (uint64_t)BLOCK_INDEX * COMBINE_THREADS + tid;

		for (uint64_t i = self; i < quads; i += (uint64_t)BLOCK_COUNT * COMBINE_THREADS) {
			const struct words4 z = load_words4(p.z + 16 * i), was = load_shared_words4(p.y + 16 * i);

			UNROLL
			for (unsigned u = 0; u < 4; u++)
				y[4 * i + u] = float_of(was.w[u]) + float_of(z.w[u]);
		}
		if (self < p.n % 4)
			y[4 * quads + self] += ((const float *)(uintptr_t)p.z)[4 * quads + self];
	}
}
