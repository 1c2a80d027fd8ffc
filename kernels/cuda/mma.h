/* SPDX-License-Identifier: MIT */
/*
 * mma - a tile of 16 rows times 8 tokens by one warp: the tensor cores' mma.sync (PTX ISA, "Matrix fragments"), which
 * sm_80 and everything later has.
 *
 * Rows of weights and of activations lie in shared memory as lines of 64 bytes, of which one product takes one half, or
 * of signed bytes a quarter. A lane has four of the tile's results: e = 0 .. 3 is row lane / 4 + 8 * (e / 2), token
 * 2 * (lane % 4) + e % 2. The host computes these four from the fragments of all lanes, as the ISA says who holds what,
 * and whose address it is read from.
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

/* Chunk c (16 bytes) of a line lies where eight lines' c-th chunks lie in different banks. */
#define MMA_LINE 16 /* words */
#define MMA_ALIGNED __attribute__((aligned(16)))

FUNC unsigned mma_chunk(unsigned line, unsigned chunk)
{
	return line * MMA_LINE + (chunk ^ line / 2 % 4) * 4;
}

/* A fragment is made of four matrices of 8 lines and one chunk; lane i names line i % 8 of matrix i / 8. */
FUNC unsigned mma_rows_at(unsigned lane, unsigned half)
{
	return mma_chunk(lane % 16, 2 * half + lane / 16);
}

FUNC unsigned mma_tokens_at(unsigned lane, unsigned half)
{
	return mma_chunk(lane / 16 * 8 + lane % 8, 2 * half + lane / 8 % 2);
}

/* One half of 16 lines: of 16 rows, or of two tiles' tokens. */
#ifdef __CUDACC__

struct mma_rows {
	uint32_t w[4];
};

struct mma_tokens {
	uint32_t w[4];
};

FUNC void mma_load(uint32_t *w, const uint32_t *from)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
		     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
		     : "r"((unsigned)__cvta_generic_to_shared(from))
		     : "memory");
}

FUNC void mma_rows_load(struct mma_rows *ret, const uint32_t *lines, unsigned half, unsigned lane)
{
	mma_load(ret->w, lines + mma_rows_at(lane, half));
}

FUNC void mma_tokens_load(struct mma_tokens *ret, const uint32_t *lines, unsigned half, unsigned lane)
{
	mma_load(ret->w, lines + mma_tokens_at(lane, half));
}

/* Of tile n of b: 16 columns of 16 bits. */
FUNC void mma_half(float *c, const struct mma_rows *a, const struct mma_tokens *b, unsigned n, unsigned lane, int bf16)
{
	(void)lane;
	if (bf16)
		asm volatile(
			"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
			"{%0,%1,%2,%3};"
			: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
			: "r"(a->w[0]), "r"(a->w[1]), "r"(a->w[2]), "r"(a->w[3]), "r"(b->w[2 * n]),
			  "r"(b->w[2 * n + 1]));
	else
		asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
			     "{%0,%1,%2,%3};"
			     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
			     : "r"(a->w[0]), "r"(a->w[1]), "r"(a->w[2]), "r"(a->w[3]), "r"(b->w[2 * n]),
			       "r"(b->w[2 * n + 1]));
}

/* 32 columns of signed bytes. */
FUNC void mma_s8(int32_t *c, const struct mma_rows *a, const struct mma_tokens *b, unsigned n, unsigned lane)
{
	(void)lane;
	asm volatile(
		"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
		: "r"(a->w[0]), "r"(a->w[1]), "r"(a->w[2]), "r"(a->w[3]), "r"(b->w[2 * n]), "r"(b->w[2 * n + 1]));
}

/* The first or the last 16 of them. */
FUNC void mma_s8_part(int32_t *c, const struct mma_rows *a, const struct mma_tokens *b, unsigned n, unsigned part,
		      unsigned lane)
{
	(void)lane;
	asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
		     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
		     : "r"(part ? a->w[2] : a->w[0]), "r"(part ? a->w[3] : a->w[1]),
		       "r"(part ? b->w[2 * n + 1] : b->w[2 * n]));
}

#else

struct mma_rows {
	const uint32_t *lines;
	unsigned half;
};

struct mma_tokens {
	const uint32_t *lines;
	unsigned half;
};

FUNC void mma_rows_load(struct mma_rows *ret, const uint32_t *lines, unsigned half, unsigned lane)
{
	(void)lane;
	ret->lines = lines;
	ret->half = half;
}

FUNC void mma_tokens_load(struct mma_tokens *ret, const uint32_t *lines, unsigned half, unsigned lane)
{
	(void)lane;
	ret->lines = lines;
	ret->half = half;
}

/* Word w of a row: register row / 8 + w / 4 * 2 of lane row % 8 * 4 + w % 4 holds it. */
FUNC uint32_t mma_rows_word(const struct mma_rows *a, unsigned row, unsigned w)
{
	return a->lines[mma_rows_at((row / 8 + w / 4 * 2) * 8 + row % 8, a->half) + w % 4];
}

/* The same of a token of tile n: register 2 * n + w / 4. */
FUNC uint32_t mma_tokens_word(const struct mma_tokens *b, unsigned n, unsigned token, unsigned w)
{
	return b->lines[mma_tokens_at((2 * n + w / 4) * 8 + token, b->half) + w % 4];
}

FUNC float half_of(uint32_t word, unsigned i, int bf16)
{
	return bf16 ? float_of_bf16(word >> i * 16 & 0xffff) : float_of_f16(word >> i * 16 & 0xffff);
}

FUNC void mma_half(float *c, const struct mma_rows *a, const struct mma_tokens *b, unsigned n, unsigned lane, int bf16)
{
	for (unsigned e = 0; e < 4; e++)
		for (unsigned w = 0; w < 8; w++) {
			const uint32_t row = mma_rows_word(a, mma_row(lane, e), w);
			const uint32_t token = mma_tokens_word(b, n, mma_token(lane, e), w);

			c[e] = fmaf(half_of(row, 0, bf16), half_of(token, 0, bf16), c[e]);
			c[e] = fmaf(half_of(row, 1, bf16), half_of(token, 1, bf16), c[e]);
		}
}

FUNC void mma_s8_words(int32_t *c, const struct mma_rows *a, const struct mma_tokens *b, unsigned n, unsigned first,
		       unsigned end, unsigned lane)
{
	for (unsigned e = 0; e < 4; e++)
		for (unsigned w = first; w < end; w++)
			c[e] = dot4(mma_rows_word(a, mma_row(lane, e), w), mma_tokens_word(b, n, mma_token(lane, e), w),
				    c[e]);
}

FUNC void mma_s8(int32_t *c, const struct mma_rows *a, const struct mma_tokens *b, unsigned n, unsigned lane)
{
	mma_s8_words(c, a, b, n, 0, 8, lane);
}

FUNC void mma_s8_part(int32_t *c, const struct mma_rows *a, const struct mma_tokens *b, unsigned n, unsigned part,
		      unsigned lane)
{
	mma_s8_words(c, a, b, n, 4 * part, 4 * part + 4, lane);
}

#endif
#endif
