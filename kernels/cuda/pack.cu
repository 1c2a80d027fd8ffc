/* SPDX-License-Identifier: MIT */
/* pack - rows of activations as kernels.h packs them, bit by bit as the CPU's kernels do. */
#include "kernels/cuda/weights.h"

#define PACK_THREADS 128
#define PACK_LINE(bytes) (((bytes) + 63) & ~63u)
#define PACK_HEAD 64
#define PACK_SMALLEST 1.17549435e-38f /* normal */

FUNC uint32_t magnitude_of(float x)
{
	return bits_of(x) & 0x7fffffff;
}

FUNC uint32_t most(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* One block of columns with a scale of its own. */
FUNC void pack_block(const float *x, uint32_t n, int8_t *codes, float *scale, int32_t *sum)
{
	uint32_t bits = 0, i;
	float largest, up, by;

	for (i = 0; i < n; i++)
		bits = most(bits, magnitude_of(x[i]));
	*sum = 0;
	if (bits == 0 || bits >= 0x7f800000) {
		for (i = 0; i < n; i++)
			codes[i] = 0;
		*scale = bits ? float_of(0x7fc00000) : 0;
		return;
	}
	largest = float_of(bits);
	up = largest < 0x1p-100f ? 0x1p+100f : 1; /* or 127 / largest would overflow */
	by = 127 / (largest * up);
	*scale = largest / 127;
	for (i = 0; i < n; i++) {
		const int32_t code = int_of(x[i] * up * by);

		codes[i] = (int8_t)code;
		*sum += code;
	}
}

FUNC void pack_blocks(const struct cuda_pack *p, const float *x, uint8_t *to, unsigned tid)
{
	const uint32_t blocks = (p->cols + p->block - 1) / p->block, room = PACK_LINE(blocks * 4) / 4;
	float *scales = (float *)(to + PACK_LINE(p->cols));
	int32_t *sums = (int32_t *)(to + PACK_LINE(p->cols) + room * 4);
	uint32_t i;

	for (i = tid; i < room; i += PACK_THREADS)
		if (i < blocks)
			pack_block(x + i * p->block, p->block, (int8_t *)to + i * p->block, &scales[i], &sums[i]);
		else
			scales[i] = 0, sums[i] = 0;
	for (i = p->cols + tid; i < PACK_LINE(p->cols); i += PACK_THREADS)
		to[i] = 0;
}

/* 2^n of -126 <= n <= 127 */
FUNC float power_of_two(int n)
{
	return float_of((uint32_t)(n + 127) << 23);
}

/* The power of two that brings the largest finite magnitude to 2^14 .. 2^15; its inverse is a normal number. */
FUNC int f16_exponent(uint32_t largest)
{
	const int exponent = (int)(largest >> 23) - 126; /* of a fraction 0.5 .. 1; denormals are beyond the limit */

	return 15 - exponent > 126 ? 126 : 15 - exponent;
}

KERNEL(moe_pack, cuda_pack, PACK_THREADS)
{
	SHARED(uint32_t, largest)[PACK_THREADS];
	SHARED(uint32_t, finite)[PACK_THREADS];
	SHARED(int32_t, sums)[PACK_THREADS];
	const uint32_t rows = p.counts ? ((const struct cuda_counts *)(uintptr_t)p.counts)->n_pairs : p.rows;
	const float *x = (const float *)(uintptr_t)p.x + (uint64_t)BLOCK_INDEX * p.cols;
	uint8_t *to = (uint8_t *)(uintptr_t)p.packed + BLOCK_INDEX * p.pitch;
	uint8_t *codes = to + (p.kind == AS_BF16 ? 0 : PACK_HEAD);
	unsigned n;

	if (BLOCK_INDEX >= rows)
		return;
	if (p.kind == AS_I8_BLOCK) {
		EACH_THREAD(tid)
		{
			pack_blocks(&p, x, to, tid);
		}
		return;
	}
	EACH_THREAD(tid)
	{
		largest[tid] = finite[tid] = 0;
		for (uint32_t c = tid; c < p.cols; c += PACK_THREADS) {
			const uint32_t bits = magnitude_of(x[c]);

			largest[tid] = most(largest[tid], bits);
			finite[tid] = bits < 0x7f800000 ? most(finite[tid], bits) : finite[tid];
		}
	}
	for (n = PACK_THREADS / 2; n > 0; n /= 2) {
		BARRIER();
		EACH_THREAD(tid)
		{
			if (tid < n) {
				largest[tid] = most(largest[tid], largest[tid + n]);
				finite[tid] = most(finite[tid], finite[tid + n]);
			}
		}
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		const uint32_t bits = largest[0];
		const int good = bits > 0 && bits < 0x7f800000;
		const float scale = !good ? 0 : fmaxf(float_of(bits) / 127, PACK_SMALLEST);
		const float inverse = good ? 1 / scale : 0;
		const int exponent = f16_exponent(finite[0]);
		const float up = power_of_two(exponent);
		const uint32_t room = p.kind == AS_I8_ROW ? PACK_LINE(p.cols) : PACK_LINE(p.cols * 2) / 2;
		uint32_t c;

		sums[tid] = 0;
		for (c = tid; c < room; c += PACK_THREADS) {
			const float a = c < p.cols ? x[c] : 0;

			if (p.kind == AS_BF16) {
				((uint16_t *)codes)[c] = (uint16_t)bf16_of(a);
			} else if (p.kind == AS_F16) {
				((uint16_t *)codes)[c] = (uint16_t)f16_of(a * up);
			} else {
				const int32_t code = good ? int_of(a * inverse) : 0;

				((int8_t *)codes)[c] = (int8_t)code;
				sums[tid] += code;
			}
		}
		if (tid < PACK_HEAD / 4 && p.kind != AS_BF16)
			((uint32_t *)to)[tid] = 0;
	}
	for (n = PACK_THREADS / 2; n > 0; n /= 2) {
		BARRIER();
		EACH_THREAD(tid)
		{
			if (tid < n)
				sums[tid] += sums[tid + n];
		}
	}
	/* The last of the sums is thread 0's own. */
	EACH_THREAD(tid)
	{
		const uint32_t bits = largest[0];

		if (tid == 0 && p.kind == AS_F16)
			*(float *)to = power_of_two(-f16_exponent(finite[0]));
		if (tid == 0 && p.kind == AS_I8_ROW) {
			*(float *)to = bits == 0            ? 0
				       : bits >= 0x7f800000 ? float_of(0x7fc00000)
							    : fmaxf(float_of(bits) / 127, PACK_SMALLEST);
			((int32_t *)to)[1] = sums[0];
		}
	}
}
