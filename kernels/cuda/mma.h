/* SPDX-License-Identifier: MIT */
/*
 * mma - a tile of 16 rows times 8 tokens by one warp: the tensor cores' mma.sync (PTX ISA, "Matrix fragments"), which
 * sm_80 and everything later has.
 *
 * Rows of weights and of activations lie in shared memory, `pitch` words apart, the products' columns side by side. A
 * lane has four of the tile's results: e = 0 .. 3 is row lane / 4 + 8 * (e / 2), token 2 * (lane % 4) + e % 2. The host
 * computes these four from the fragments of all lanes, as the ISA says who holds what.
 */
#ifndef KERNELS_CUDA_MMA_H
#define KERNELS_CUDA_MMA_H

#include "kernels/cuda/dialect.h"

#define MMA_ROWS 16
#define MMA_TOKENS 8

FUNC unsigned mma_row(unsigned lane, unsigned e)
{
	return lane / 4 + e / 2 * 8;
}

FUNC unsigned mma_token(unsigned lane, unsigned e)
{
	return lane % 4 * 2 + e % 2;
}

/* Word i of a lane's fragment of 16 rows, of a k-step of 8 words; that of 8 rows is words 0 and 2. */
FUNC uint32_t mma_word(const uint32_t *rows, unsigned pitch, unsigned lane, unsigned i)
{
	return rows[(lane / 4 + i % 2 * 8) * pitch + lane % 4 + i / 2 * 4];
}

#ifdef __CUDACC__

FUNC void mma_s8_k32(int32_t *c, const uint32_t *a, const uint32_t *b, unsigned pitch, unsigned lane)
{
	asm volatile(
		"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
		: "r"(mma_word(a, pitch, lane, 0)), "r"(mma_word(a, pitch, lane, 1)), "r"(mma_word(a, pitch, lane, 2)),
		  "r"(mma_word(a, pitch, lane, 3)), "r"(mma_word(b, pitch, lane, 0)), "r"(mma_word(b, pitch, lane, 2)));
}

FUNC void mma_s8_k16(int32_t *c, const uint32_t *a, const uint32_t *b, unsigned pitch, unsigned lane)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
		     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
		     : "r"(mma_word(a, pitch, lane, 0)), "r"(mma_word(a, pitch, lane, 1)),
		       "r"(mma_word(b, pitch, lane, 0)));
}

FUNC void mma_half_k16(float *c, const uint32_t *a, const uint32_t *b, unsigned pitch, unsigned lane, int bf16)
{
	const uint32_t a0 = mma_word(a, pitch, lane, 0), a1 = mma_word(a, pitch, lane, 1);
	const uint32_t a2 = mma_word(a, pitch, lane, 2), a3 = mma_word(a, pitch, lane, 3);
	const uint32_t b0 = mma_word(b, pitch, lane, 0), b1 = mma_word(b, pitch, lane, 2);

	if (bf16)
		asm volatile(
			"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
			"{%0,%1,%2,%3};"
			: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
			: "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
	else
		asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
			     "{%0,%1,%2,%3};"
			     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
			     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

#else

/* Word w of a row of a k-step, from the fragment of the lane that holds it. */
FUNC uint32_t mma_held(const uint32_t *rows, unsigned pitch, unsigned row, unsigned w)
{
	return mma_word(rows, pitch, row % 8 * 4 + w % 4, row / 8 + w / 4 * 2);
}

FUNC void mma_s8(int32_t *c, const uint32_t *a, const uint32_t *b, unsigned pitch, unsigned lane, unsigned words)
{
	for (unsigned e = 0; e < 4; e++)
		for (unsigned w = 0; w < words; w++)
			c[e] = dot4(mma_held(a, pitch, mma_row(lane, e), w), mma_held(b, pitch, mma_token(lane, e), w),
				    c[e]);
}

FUNC void mma_s8_k32(int32_t *c, const uint32_t *a, const uint32_t *b, unsigned pitch, unsigned lane)
{
	mma_s8(c, a, b, pitch, lane, 8);
}

FUNC void mma_s8_k16(int32_t *c, const uint32_t *a, const uint32_t *b, unsigned pitch, unsigned lane)
{
	mma_s8(c, a, b, pitch, lane, 4);
}

FUNC float half_of(uint32_t word, unsigned i, int bf16)
{
	return bf16 ? float_of_bf16(word >> i * 16 & 0xffff) : float_of_f16(word >> i * 16 & 0xffff);
}

FUNC void mma_half_k16(float *c, const uint32_t *a, const uint32_t *b, unsigned pitch, unsigned lane, int bf16)
{
	for (unsigned e = 0; e < 4; e++)
		for (unsigned k = 0; k < 16; k++)
			c[e] = fmaf(half_of(mma_held(a, pitch, mma_row(lane, e), k / 2), k % 2, bf16),
				    half_of(mma_held(b, pitch, mma_token(lane, e), k / 2), k % 2, bf16), c[e]);
}

#endif
#endif
