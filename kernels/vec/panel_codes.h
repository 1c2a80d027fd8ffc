/* SPDX-License-Identifier: MIT */
/*
 * panel_codes - codes and scales of a panel (uapi/moe_format.h) as vectors: unsigned bytes for the integer dot product,
 * floats to multiply it with.
 *
 * The unsigned byte of a code is its value plus `panel_offset`; E2M1 is doubled and its scale halved, both exact. A
 * unit is the columns whose products are summed as integers: a group of the format, at most a block of 32 columns.
 */
#ifndef KERNELS_VEC_PANEL_CODES_H
#define KERNELS_VEC_PANEL_CODES_H

#include "kernels/kernels.h"

#define PANEL_INLINE static inline __attribute__((always_inline))
#define PANEL_VECS (MOE_PANEL_ROWS / VEC_FLOATS) /* vectors for the rows of a panel */

PANEL_INLINE size_t panel_unit(uint32_t format)
{
	return moe_formats[format].group < MOE_BLOCK_COLS ? moe_formats[format].group : MOE_BLOCK_COLS;
}

/* Whether bytes use all 8 bits. */
PANEL_INLINE int panel_wide(uint32_t format)
{
	return moe_formats[format].bits == 8 || moe_formats[format].code == MOE_CODE_IQ4NL;
}

/* Where the level takes wide codes signed, there is nothing to correct. */
PANEL_INLINE int panel_offset(uint32_t format)
{
	if (panel_wide(format))
		return PANEL_WIDE_SIGNED ? 0 : 128;
	return moe_formats[format].code == MOE_CODE_E2M1 ? 12 : moe_formats[format].offset;
}

/* Whether codes of four bits stand for bytes that are looked up. */
PANEL_INLINE int panel_looked_up(uint32_t format)
{
	return moe_formats[format].code == MOE_CODE_E2M1 || moe_formats[format].code == MOE_CODE_IQ4NL;
}

/* Pairs of vectors, `most` at most, whose products with activations of up to 127 have room in 16 bits with a sign; 0:
 * not even one. */
PANEL_INLINE int panel_room(uint32_t format, int most)
{
	const struct moe_format_spec *f = &moe_formats[format];
	const int code = f->code == MOE_CODE_E2M1 ? 24 : panel_wide(format) ? 255 : (1 << f->bits) - 1;
	const int room = INT16_MAX / (4 * 127 * code);

	return room < most ? room : most;
}

PANEL_INLINE ivec panel_table(uint32_t format)
{
	static const uint8_t e2m1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
	static const uint8_t iq4nl[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
	static const int8_t taken_signed[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
						1,    13,   25,  38,  53,  69,  89,  113};

	if (moe_formats[format].code == MOE_CODE_E2M1)
		return ivec_table(e2m1);
	return ivec_table(PANEL_WIDE_SIGNED ? (const void *)taken_signed : iq4nl);
}

/* The bits above the low four of vector v; `at` are its bytes in a plane of a block. */
PANEL_INLINE ivec panel_upper(uint32_t format, const uint8_t *block, int v, size_t at, ivec low)
{
	if (moe_formats[format].bits == 5)
		return ivec_upper(low, ivec_load(block + 256 + at), 4 - v, 0x10);
	if (moe_formats[format].bits == 6)
		return ivec_upper(low, ivec_load(block + 256 + v / 4 * 64 + at), 4 - v % 4 * 2, 0x30);
	return low;
}

/* Vectors v and v + 1 (v even) of a block of 32 columns, rows from part * VEC_FLOATS on. */
PANEL_INLINE void panel_pair(uint32_t format, const uint8_t *block, int v, size_t part, ivec ret[2])
{
	const size_t at = part * VEC_BYTES;

	if (moe_formats[format].bits == 8) {
		ret[0] = ivec_load(block + v * 64 + at);
		ret[1] = ivec_load(block + (v + 1) * 64 + at);
	} else {
		const ivec both = ivec_loaded(block + v / 2 * 64 + at);

		if (panel_looked_up(format)) {
			ret[0] = ivec_lookup_low(panel_table(format), both);
			ret[1] = ivec_lookup_high(panel_table(format), both);
		} else {
			ret[0] = panel_upper(format, block, v, at, ivec_low(both));
			ret[1] = panel_upper(format, block, v + 1, at, ivec_high(both));
		}
	}
	if (PANEL_WIDE_SIGNED && moe_formats[format].bits == 8) {
		ret[0] = ivec_xor(ret[0], ivec_set((int32_t)0x80808080u));
		ret[1] = ivec_xor(ret[1], ivec_set((int32_t)0x80808080u));
	}
}

/* Bytes of some columns, multiples of 32. */
PANEL_INLINE size_t panel_code_bytes(uint32_t format, size_t cols)
{
	return cols * moe_formats[format].bits * MOE_PANEL_ROWS / 8;
}

PANEL_INLINE size_t panel_scale_bytes(uint32_t format, size_t cols)
{
	return cols * moe_formats[format].block_bytes / moe_formats[format].block;
}

/* The scale block of column c. */
PANEL_INLINE const uint8_t *panel_block(uint32_t format, const uint8_t *scales, size_t c)
{
	return scales + c / moe_formats[format].block * moe_formats[format].block_bytes;
}

/* The fine scales of a scale block's group of column c, of rows from part * VEC_FLOATS on. */
PANEL_INLINE const uint8_t *panel_fine(uint32_t format, const uint8_t *block, size_t c, size_t part)
{
	const struct moe_format_spec *f = &moe_formats[format];

	return block + (f->zero == MOE_ZERO_K ? 64 : 32) + c / f->group * MOE_PANEL_ROWS + part * VEC_FLOATS;
}

/* What the integer dot product over the unit at column c of a scale block is multiplied with. */
PANEL_INLINE vec panel_scale(uint32_t format, const uint8_t *block, size_t c, size_t part)
{
	const uint16_t *halves = (const uint16_t *)block + part * VEC_FLOATS;

	switch (moe_formats[format].scale) {
	case MOE_SCALE_BF16:
		return vec_from_bf16(halves);
	case MOE_SCALE_E8M0:
		return vec_mul(vec_from_e8m0(block + part * VEC_FLOATS), vec_set(0.5f));
	case MOE_SCALE_F16_U8:
		return vec_mul(vec_f16(halves), ivec_float(ivec_from_u8(panel_fine(format, block, c, part))));
	case MOE_SCALE_F16_S8:
		return vec_mul(vec_f16(halves), ivec_float(ivec_from_s8(panel_fine(format, block, c, part))));
	default:
		return vec_f16(halves);
	}
}

PANEL_INLINE ivec panel_zero(const uint8_t *block, size_t part)
{
	return ivec_from_u8(block + 32 + part * VEC_FLOATS);
}

PANEL_INLINE int panel_has_minimum(uint32_t format)
{
	return moe_formats[format].zero == MOE_ZERO_F16 || moe_formats[format].zero == MOE_ZERO_K;
}

PANEL_INLINE vec panel_minimum(uint32_t format, const uint8_t *block, size_t c, size_t part)
{
	const struct moe_format_spec *f = &moe_formats[format];
	const vec m = vec_f16((const uint16_t *)(block + 32) + part * VEC_FLOATS);
	const size_t after = f->block / f->group * MOE_PANEL_ROWS;

	if (f->zero == MOE_ZERO_F16)
		return m;
	return vec_mul(vec_negate(m), ivec_float(ivec_from_u8(panel_fine(format, block, c, part) + after)));
}

#endif
