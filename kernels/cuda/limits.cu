/* SPDX-License-Identifier: MIT */
/* limits - what a device can do at all: reading memory, and the tensor cores on shared memory alone (moe-bench). */
#include "kernels/cuda/dialect.h"
#include "kernels/cuda/mma.h"

#define LIMIT_THREADS 256
#define LIMIT_LOADS 8 /* of a thread, on their way at the same time */

KERNEL(moe_read, cuda_read, LIMIT_THREADS)
{
	const uint64_t words = p.bytes / 16, all = (uint64_t)BLOCK_COUNT * LIMIT_THREADS;

	EACH_THREAD(tid)
	{
		const uint64_t self = (uint64_t)BLOCK_INDEX * LIMIT_THREADS + tid;
		struct words4 w[LIMIT_LOADS];
		uint32_t sum = 0;
		uint64_t i = self;

		for (; i + (LIMIT_LOADS - 1) * all < words; i += LIMIT_LOADS * all) {
			UNROLL
			for (unsigned u = 0; u < LIMIT_LOADS; u++)
				w[u] = load_words4(p.from + 16 * (i + u * all));
			UNROLL
			for (unsigned u = 0; u < LIMIT_LOADS; u++)
				sum += w[u].w[0] + w[u].w[1] + w[u].w[2] + w[u].w[3];
		}
		for (; i < words; i += all) {
			w[0] = load_words4(p.from + 16 * i);
			sum += w[0].w[0] + w[0].w[1] + w[0].w[2] + w[0].w[3];
		}
		((uint32_t *)(uintptr_t)p.sums)[self] = sum;
	}
}

#define PEAK_TILES 8    /* of 8 tokens: as many sums as hide the time that one takes */
#define PEAK_ONE 0x3f80 /* 1.0 as bfloat16 */

struct peak_rows {
	MMA_ALIGNED uint32_t a[MMA_ROWS * MMA_LINE],
		b[PEAK_TILES * MMA_TOKENS * MMA_LINE]; /* of each line the first half */
};

/* Two numbers of a row, 1 or -1 each. */
FUNC uint32_t peak_word(unsigned which, unsigned row, unsigned word)
{
	const uint32_t low = PEAK_ONE | (uint32_t)cuda_peak_negative(which, row, 2 * word) << 15;

	return low | (PEAK_ONE | (uint32_t)cuda_peak_negative(which, row, 2 * word + 1) << 15) << 16;
}

KERNEL(moe_peak, cuda_peak, LIMIT_THREADS)
{
	SHARED(struct peak_rows, rows);

	EACH_THREAD(tid)
	{
		for (unsigned i = tid; i < MMA_ROWS * 8; i += LIMIT_THREADS)
			rows.a[mma_chunk(i / 8, i % 8 / 4) + i % 4] = peak_word(0, i / 8, i % 8);
		for (unsigned i = tid; i < PEAK_TILES * MMA_TOKENS * 8; i += LIMIT_THREADS)
			rows.b[mma_chunk(i / 8, i % 8 / 4) + i % 4] = peak_word(1, i / 8, i % 8);
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		float sums[PEAK_TILES][4], sum = 0;
		struct mma_rows a;
		struct mma_tokens b[PEAK_TILES / 2];

		memset(sums, 0, sizeof sums);
		mma_rows_load(&a, rows.a, 0, tid % 32);
		UNROLL
		for (unsigned n = 0; n < PEAK_TILES / 2; n++)
			mma_tokens_load(&b[n], rows.b + n * 2 * MMA_TOKENS * MMA_LINE, 0, tid % 32);
		for (uint32_t round = 0; round < p.rounds; round++) {
			UNROLL
			for (unsigned n = 0; n < PEAK_TILES; n++)
				mma_half(sums[n], &a, &b[n / 2], n % 2, tid % 32, 1);
		}
		UNROLL
		for (unsigned n = 0; n < PEAK_TILES; n++)
			UNROLL
		for (unsigned e = 0; e < 4; e++)
			sum += sums[n][e];
		((float *)(uintptr_t)p.sums)[(uint64_t)BLOCK_INDEX * LIMIT_THREADS + tid] = sum;
	}
}
