/* SPDX-License-Identifier: MIT */
/* combine - the experts' answers become the tokens', in a fixed order. */
#include "kernels/cuda/dialect.h"

#define COMBINE_THREADS 256

FUNC int pair_here(const struct cuda_combine *p, uint32_t pair)
{
	const int32_t expert = ((const int32_t *)(uintptr_t)p->ids)[pair];

	return expert >= 0 && (uint32_t)expert < p->n_experts && ((const int32_t *)(uintptr_t)p->map)[expert] >= 0;
}

KERNEL(moe_combine, cuda_combine, COMBINE_THREADS)
{
	const float *weights = (const float *)(uintptr_t)p.weights;
	const float *out = (const float *)(uintptr_t)p.out;
	float *y = (float *)(uintptr_t)p.y + (uint64_t)BLOCK_INDEX * p.hidden;

	EACH_THREAD(tid)
	{
		for (uint32_t c = tid; c < p.hidden; c += COMBINE_THREADS) {
			float sum = 0;

			for (uint32_t k = 0; k < p.topk; k++) {
				const uint32_t pair = BLOCK_INDEX * p.topk + k;

				if (pair_here(&p, pair))
					sum = fmaf(weights[pair], out[(uint64_t)pair * p.hidden + c], sum);
			}
			y[c] = sum;
		}
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
