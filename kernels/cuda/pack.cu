/* SPDX-License-Identifier: MIT */
/* pack - rows of activations as kernels.h packs them, bit by bit as the CPU's kernels do. */
#include "kernels/cuda/weights.h"

#define PACK_THREADS 128
#define PACK_LINE(bytes) (((bytes) + 63) & ~63u)
#define PACK_HEAD 64
#define PACK_PIECE 8 /* columns of a thread, where blocks have scales of their own: they have 16 or 32 */
#define PACK_SMALLEST 1.17549435e-38f /* normal */

FUNC uint32_t magnitude_of(float x)
{
	return bits_of(x) & 0x7fffffff;
}

FUNC uint32_t most(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* Blocks of columns with scales of their own: a thread has PACK_PIECE columns, so that some threads side by side have a
 * block. */
struct pack_blocks {
	uint32_t largest[PACK_THREADS]; /* of the thread's columns: the magnitude's bits */
	int32_t sums[PACK_THREADS];
};

struct pack_piece {
	float x[PACK_PIECE];
};

FUNC void piece_largest(const struct cuda_pack *p, uint64_t x, uint32_t col, float *piece, uint32_t *ret)
{
	unsigned i;

	*ret = 0;
	UNROLL
	for (i = 0; i < PACK_PIECE; i += 4)
		load_floats4(piece + i, x + 4 * (uint64_t)(col + i), p->cols > col + i ? p->cols - col - i : 0);
	UNROLL
	for (i = 0; i < PACK_PIECE; i++)
		*ret = most(*ret, magnitude_of(piece[i]));
}

/* bits: of the largest magnitude of the whole block. Eight codes side by side. */
FUNC int32_t piece_codes(const float *piece, uint32_t bits, uint8_t *codes, float *ret_scale)
{
	uint32_t words[PACK_PIECE / 4] = {0}, i;
	const int good = bits > 0 && bits < 0x7f800000;
	const float largest = float_of(bits);
	const float up = largest < 0x1p-100f ? 0x1p+100f : 1; /* or 127 / largest would overflow */
	const float by = good ? 127 / (largest * up) : 0;
	int32_t sum = 0;

	*ret_scale = good ? largest / 127 : bits ? float_of(0x7fc00000) : 0;
	UNROLL
	for (i = 0; i < PACK_PIECE; i++) {
		const int32_t code = good ? int_of(piece[i] * up * by) : 0;

		words[i / 4] |= ((uint32_t)code & 0xff) << i % 4 * 8;
		sum += code;
	}
	for (i = 0; i < PACK_PIECE / 4; i++)
		((uint32_t *)codes)[i] = words[i];
	return sum;
}

/* Behind the blocks: zeros. */
FUNC void pack_rest(const struct cuda_pack *p, uint8_t *to, unsigned tid)
{
	const uint32_t blocks = (p->cols + p->block - 1) / p->block, room = PACK_LINE(blocks * 4) / 4;
	uint32_t *scales = (uint32_t *)(to + PACK_LINE(p->cols)), i;

	for (i = blocks + tid; i < room; i += PACK_THREADS)
		scales[i] = scales[room + i] = 0;
	for (i = p->cols + tid; i < PACK_LINE(p->cols); i += PACK_THREADS)
		to[i] = 0;
}

FUNC void pack_blocks(const struct cuda_pack *p, const float *x, uint8_t *to)
{
	SHARED(struct pack_blocks, s);
	PER_THREAD(struct pack_piece, piece);
	const unsigned each = p->block / PACK_PIECE; /* threads that have a block */
	const uint32_t room = PACK_LINE((p->cols + p->block - 1) / p->block * 4) / 4;
	float *scales = (float *)(to + PACK_LINE(p->cols));
	uint32_t first;

	for (first = 0; first < p->cols; first += PACK_THREADS * PACK_PIECE) {
		EACH_THREAD(tid)
		{
			piece_largest(p, (uint64_t)(uintptr_t)x, first + tid * PACK_PIECE, OWN(piece).x,
				      &s.largest[tid]);
		}
		BARRIER();
		EACH_THREAD(tid)
		{
			const uint32_t col = first + tid * PACK_PIECE;
			uint32_t bits = 0, i;
			float scale;

			for (i = 0; i < each; i++)
				bits = most(bits, s.largest[tid / each * each + i]);
			if (col >= p->cols)
				continue;
			s.sums[tid] = piece_codes(OWN(piece).x, bits, to + col, &scale);
			if (tid % each == 0)
				scales[col / p->block] = scale;
		}
		BARRIER();
		EACH_THREAD(tid)
		{
			const uint32_t col = first + tid * PACK_PIECE;
			int32_t sum = 0;

			if (tid % each || col >= p->cols)
				continue;
			for (uint32_t i = 0; i < each; i++)
				sum += s.sums[tid + i];
			((int32_t *)scales)[room + col / p->block] = sum;
		}
	}
	EACH_THREAD(tid)
	{
		pack_rest(p, to, tid);
	}
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
		pack_blocks(&p, x, to);
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
