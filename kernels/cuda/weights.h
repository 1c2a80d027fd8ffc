/* SPDX-License-Identifier: MIT */
/*
 * weights - codes and scales of panels (uapi/moe_format.h) as integer dot products take them, and activation functions.
 *
 * Sixteen bytes of a panel at a time: four rows of a block of 32 columns, of each row 8 columns. Piece (j, q) has
 * columns 8j .. 8j + 7 of rows 4q .. 4q + 3; a weight is scale * (value - zero) + minimum, with value a signed byte.
 */
#ifndef KERNELS_CUDA_WEIGHTS_H
#define KERNELS_CUDA_WEIGHTS_H

#include "kernels/cuda/dialect.h"
#include "uapi/moe_format.h"

/* As enum kernel_activation and enum kernel_pack, for nvcc, which shall not read kernels.h. */
enum { ACT_SILU, ACT_GELU, ACT_GELU_TANH, ACT_CLAMPED };
enum { AS_F32, AS_BF16, AS_F16, AS_I8_ROW, AS_I8_BLOCK };

#define PIECE_ROWS 4

struct piece {
	uint32_t low[PIECE_ROWS], high[PIECE_ROWS]; /* columns 8j .. 8j + 3, 8j + 4 .. 8j + 7: signed bytes */
};

struct piece_scales {
	float scale[PIECE_ROWS], minimum[PIECE_ROWS];
	int32_t zero[PIECE_ROWS];
};

/* Each byte of codes (0 .. 15) replaced with that of a table of 16. */
FUNC uint32_t look_up(uint32_t codes, uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3)
{
	const uint32_t low = codes & 0x07070707, upper = (codes >> 3 & 0x01010101) * 0xff;
	const uint32_t how = bytes_of(low | low >> 4, 0, 0x4420);

	return (bytes_of(t0, t1, how) & ~upper) | (bytes_of(t2, t3, how) & upper);
}

/* Twice the value of E2M1, the value of IQ4_NL. */
FUNC uint32_t code_values(unsigned code, uint32_t codes)
{
	if (code == MOE_CODE_E2M1)
		return look_up(codes, 0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc);
	if (code == MOE_CODE_IQ4NL)
		return look_up(codes, 0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535);
	return codes;
}

/* Both halves of a word of codes, replaced with the bytes of a table of 16: nibbles name bytes of either half of the
 * table, and their signs which half it is. */
FUNC void look_up_word(uint32_t *low, uint32_t *high, uint32_t w, uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3)
{
	const uint32_t how = w & 0x77777777, up = w << 4;
	const uint32_t first = signs_of(up, w, 0x5140), second = signs_of(up, w, 0x7362);
	const uint32_t a = (bytes_of(t0, t1, how & 0xffff) & ~first) | (bytes_of(t2, t3, how & 0xffff) & first);
	const uint32_t b = (bytes_of(t0, t1, how >> 16) & ~second) | (bytes_of(t2, t3, how >> 16) & second);

	*low = bytes_of(a, b, 0x6420);
	*high = bytes_of(a, b, 0x7531);
}

/* Columns 8 j .. 8 j + 7 of a row, in the block's 64 bytes number j (of 8 bits 2 j), as signed bytes; more: where their
 * other bits are, in the 64 bytes number more_codes(). `bits` is known when the kernel is compiled. */
FUNC unsigned more_codes(unsigned bits, unsigned j)
{
	return bits == 8 ? 2 * j + 1 : bits == 6 ? 4 + j / 2 : bits == 5 ? 4 : 0;
}

FUNC void codes_of_word(uint32_t *low, uint32_t *high, uint32_t w, uint32_t more, unsigned bits, unsigned code,
			unsigned j)
{
	*low = bits == 8 ? w ^ 0x80808080 : w & 0x0f0f0f0f;
	*high = bits == 8 ? more ^ 0x80808080 : w >> 4 & 0x0f0f0f0f;
	if (bits == 5) {
		*low |= (more >> 2 * j & 0x01010101) << 4;
		*high |= (more >> (2 * j + 1) & 0x01010101) << 4;
	} else if (bits == 6) {
		*low |= (more >> j % 2 * 4 & 0x03030303) << 4;
		*high |= (more >> (j % 2 * 4 + 2) & 0x03030303) << 4;
	} else if (bits == 4 && code == MOE_CODE_E2M1) { /* twice the value */
		look_up_word(low, high, w, 0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc);
	} else if (bits == 4 && code == MOE_CODE_IQ4NL) {
		look_up_word(low, high, w, 0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535);
	}
}

/* Piece (j, q) of the block of 32 columns at `block`; `bits` is known when the kernel is compiled. */
FUNC void piece_load(struct piece *ret, uint64_t block, unsigned bits, unsigned code, unsigned j, unsigned q)
{
	struct words4 w, more;
	unsigned i;

	if (bits == 8) {
		w = load_words4(block + 128 * j + 16 * q);
		more = load_words4(block + 128 * j + 64 + 16 * q);
		UNROLL
		for (i = 0; i < PIECE_ROWS; i++) {
			ret->low[i] = w.w[i] ^ 0x80808080;
			ret->high[i] = more.w[i] ^ 0x80808080;
		}
		return;
	}
	w = load_words4(block + 64 * j + 16 * q);
	if (bits == 5)
		more = load_words4(block + 256 + 16 * q);
	if (bits == 6)
		more = load_words4(block + 256 + j / 2 * 64 + 16 * q);
	UNROLL
	for (i = 0; i < PIECE_ROWS; i++) {
		ret->low[i] = w.w[i] & 0x0f0f0f0f;
		ret->high[i] = w.w[i] >> 4 & 0x0f0f0f0f;
		if (bits == 5) {
			ret->low[i] |= (more.w[i] >> 2 * j & 0x01010101) << 4;
			ret->high[i] |= (more.w[i] >> (2 * j + 1) & 0x01010101) << 4;
		} else if (bits == 6) {
			ret->low[i] |= (more.w[i] >> j % 2 * 4 & 0x03030303) << 4;
			ret->high[i] |= (more.w[i] >> (j % 2 * 4 + 2) & 0x03030303) << 4;
		} else if (code != MOE_CODE_UINT) {
			ret->low[i] = code_values(code, ret->low[i]);
			ret->high[i] = code_values(code, ret->high[i]);
		}
	}
}

/* 2^(byte - 127); 255 is NaN. The smallest is denormal. */
FUNC float float_of_e8m0(uint32_t byte)
{
	if (byte == 255)
		return float_of(0x7fc00000);
	return float_of(byte ? byte << 23 : 0x00400000);
}

FUNC float row_scale(const struct cuda_spec *s, uint64_t scales, unsigned row)
{
	if (s->scale == MOE_SCALE_E8M0) /* half of it: values are doubled; the smallest ones stay exact */
		return float_of_e8m0(load_u8(scales + row)) * 0.5f;
	if (s->scale == MOE_SCALE_BF16)
		return float_of_bf16(load_u16(scales + 2 * row));
	return float_of_f16(load_u16(scales + 2 * row));
}

/* What the codes of one row in one group are worth. `scales`: the 16 rows' scale block; group: in the block. */
FUNC void row_scales(const struct cuda_spec *s, uint64_t scales, unsigned row, unsigned group, unsigned bits,
		     float *scale, float *minimum, int32_t *zero)
{
	const uint64_t fine = scales + (s->zero == MOE_ZERO_K ? 64 : 32) + group * 16 + row;
	const unsigned groups = 1u << (s->block_shift - s->group_shift);

	*scale = row_scale(s, scales, row);
	*minimum = 0;
	*zero = bits == 8 ? 0 : s->offset; /* 8 bits: the codes have been made signed */
	if (s->zero == MOE_ZERO_U8)
		*zero = (int32_t)load_u8(scales + 32 + row);
	else if (s->zero == MOE_ZERO_F16)
		*minimum = float_of_f16(load_u16(scales + 32 + 2 * row));
	else if (s->zero == MOE_ZERO_K)
		*minimum = -(float_of_f16(load_u16(scales + 32 + 2 * row)) * (float)load_u8(fine + groups * 16));
	if (s->scale == MOE_SCALE_F16_U8)
		*scale *= (float)load_u8(fine);
	else if (s->scale == MOE_SCALE_F16_S8)
		*scale *= (float)(int8_t)load_u8(fine);
}

/* What is to be known of two rows' scales in one group, as it lies in memory: two values of each kind. */
struct raw_scales {
	uint32_t scale, minimum; /* of 16 bits, or E8M0 */
	uint32_t fine, low;      /* bytes: of the group's scale, or its zero; of its minimum */
};

struct two_scales {
	float scale[2], minimum[2];
	int32_t zero[2];
};

FUNC int scale_by_group(const struct cuda_spec *s)
{
	return s->scale == MOE_SCALE_F16_U8 || s->scale == MOE_SCALE_F16_S8;
}

/* The same of two rows, of which the first is even: what they have lies side by side. */
FUNC void two_scales_fetch(struct raw_scales *ret, const struct cuda_spec *s, uint64_t scales, unsigned row,
			   unsigned group)
{
	const uint64_t fine = scales + (s->zero == MOE_ZERO_K ? 64 : 32) + group * 16 + row;
	const unsigned groups = 1u << (s->block_shift - s->group_shift);

	ret->scale = s->scale == MOE_SCALE_E8M0 ? load_u16(scales + row) : load_u32(scales + 2 * row);
	ret->minimum = s->zero >= MOE_ZERO_F16 ? load_u32(scales + 32 + 2 * row) : 0;
	ret->fine = scale_by_group(s) ? load_u16(fine) : s->zero == MOE_ZERO_U8 ? load_u16(scales + 32 + row) : 0;
	ret->low = s->zero == MOE_ZERO_K ? load_u16(fine + groups * 16) : 0;
}

FUNC void two_scales_of(struct two_scales *ret, const struct cuda_spec *s, const struct raw_scales *raw, unsigned bits)
{
	unsigned i;

	UNROLL
	for (i = 0; i < 2; i++) {
		const uint32_t half = raw->scale >> 16 * i & 0xffff, byte = raw->fine >> 8 * i & 0xff;
		const float minimum = float_of_f16(raw->minimum >> 16 * i & 0xffff);

		if (s->scale == MOE_SCALE_E8M0) /* half of it: as in row_scale() */
			ret->scale[i] = float_of_e8m0(raw->scale >> 8 * i & 0xff) * 0.5f;
		else
			ret->scale[i] = s->scale == MOE_SCALE_BF16 ? float_of_bf16(half) : float_of_f16(half);
		if (scale_by_group(s))
			ret->scale[i] *= (float)(s->scale == MOE_SCALE_F16_U8 ? (int32_t)byte : (int8_t)byte);
		ret->minimum[i] = s->zero == MOE_ZERO_K ? -(minimum * (float)(raw->low >> 8 * i & 0xff)) : minimum;
		ret->zero[i] = s->zero == MOE_ZERO_U8 ? (int32_t)byte : bits == 8 ? 0 : s->offset;
	}
}

/* The scale block of a column in a band's scales, and the group in it. */
FUNC uint64_t scale_block(const struct cuda_spec *s, uint64_t band, unsigned col, unsigned *ret_group)
{
	const unsigned block = col >> s->block_shift;

	*ret_group = (col - (block << s->block_shift)) >> s->group_shift;
	return band + (uint64_t)block * s->block_bytes;
}

/* a / (1 + e^-b) without overflow. */
FUNC float times_sigmoid(float a, float b)
{
	const float e = expf(-fabsf(b));

	return b < 0 ? a * e / (1 + e) : a / (1 + e);
}

/* act(g, u) as kernels.h bounds it. Comparisons are written so that NaNs stay. */
FUNC float gated(unsigned activation, float limit, float g, float u)
{
	switch (activation) {
	case ACT_GELU:
		return 0.5f * g * erfcf(-g * 0.70710678f) * u;
	case ACT_GELU_TANH:
		return 0.5f * g * (1 + tanhf(0.79788456f * (g + 0.044715f * g * g * g))) * u;
	case ACT_CLAMPED:
		g = g > limit ? limit : g;
		u = u > limit ? limit : u < -limit ? -limit : u;
		return times_sigmoid(g, 1.702f * g) * (u + 1);
	default:
		return times_sigmoid(g, g) * u;
	}
}

/* Both kernels of a variant (CUDA_VARIANTS): of gate and up with the activation, and of down. A multiprocessor is to
 * have room for blocks(family, bits) blocks of 256 threads. */
#define PRODUCT(name, family, bits, compute, blocks)                                                                   \
	KERNEL_BLOCKS(moe_##compute##_gate_up_##name, cuda_product, 256, blocks(family, bits))                         \
	{                                                                                                              \
		compute(&p, family, bits, 2);                                                                          \
	}                                                                                                              \
	KERNEL_BLOCKS(moe_##compute##_down_##name, cuda_product, 256, blocks(family, bits))                            \
	{                                                                                                              \
		compute(&p, family, bits, 1);                                                                          \
	}

#endif
