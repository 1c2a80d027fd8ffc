/* SPDX-License-Identifier: MIT */
/*
 * weights - codes and scales of panels (uapi/moe_format.h) as integer dot products take them, and activation functions.
 *
 * A word of a panel at a time: of one row 8 columns of a block of 32. A weight is scale * (value - zero) + minimum;
 * the value is a signed byte.
 */
#ifndef KERNELS_CUDA_WEIGHTS_H
#define KERNELS_CUDA_WEIGHTS_H

#include "kernels/cuda/dialect.h"
#include "uapi/moe_format.h"

/* As enum kernel_activation and enum kernel_pack, for nvcc, which shall not read kernels.h. */
enum { ACT_SILU, ACT_GELU, ACT_GELU_TANH, ACT_CLAMPED };
enum { AS_F32, AS_BF16, AS_F16, AS_I8_ROW, AS_I8_BLOCK };

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

/* 2^(byte - 127); 255 is NaN. The smallest is denormal. */
FUNC float float_of_e8m0(uint32_t byte)
{
	if (byte == 255)
		return float_of(0x7fc00000);
	return float_of(byte ? byte << 23 : 0x00400000);
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

/* Of two rows in one group, of which the first is even; `scales`: the 16 rows' scale block; group: in the block. */
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

		if (s->scale == MOE_SCALE_E8M0) /* half of it: values are doubled; the smallest ones stay exact */
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
