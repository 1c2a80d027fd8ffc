/* SPDX-License-Identifier: MIT */
/*
 * panel_decode - weights in panels as tiles of bfloat16, scales included: 16 rows of 32 columns, the left operand.
 *
 * Four bits: of a group of columns all 16 weights of each row are computed once, two rows' in a register, and then
 * looked up, 32 at a time. More bits: each weight by itself.
 *
 * Law: the columns of a step lie in the order in which a row's nibbles come when its 16 bytes are repeated four times,
 * shifted by 0, 4, 8 and 12 bits: the row that step_order() takes from columns in their own order.
 */
#ifndef KERNELS_AMX_PANEL_DECODE_H
#define KERNELS_AMX_PANEL_DECODE_H

#include "kernels/amx/tiles.h"
#include "kernels/avx512/panel.h"
#include "kernels/vec/panel_ahead.h"

#define STEP_COLS 32 /* of a tile */
#define DECODE_COLS 512

/* Nibble i of word w of a row's 16 bytes: byte 4j + b has columns 8j + b and 8j + 4 + b. */
#define ORDER(i, w) ((w) / 2 * 8 + (i) % 2 * 4 + (w) % 2 * 2 + (i) / 2)
#define ORDER_8(i)                                                                                                     \
	ORDER(i, 0), ORDER(i, 1), ORDER(i, 2), ORDER(i, 3), ORDER(i, 4), ORDER(i, 5), ORDER(i, 6), ORDER(i, 7)

/* The column that belongs to each of 32 places. */
static inline ivec step_order(void)
{
	static const uint16_t order[STEP_COLS]
		__attribute__((aligned(64))) = {ORDER_8(0), ORDER_8(1), ORDER_8(2), ORDER_8(3)};

	return ivec_load(order);
}

/* Two vectors as bfloat16, one behind the other: nearest, ties to even, denormals to zero. */
static inline ivec pair_bf16(vec low, vec high)
{
	return (ivec)_mm512_cvtne2ps_pbh(high, low);
}

/* -- scales ------------------------------------------------------------------------------------------------------- */

/* What makes weights of a unit's codes, by rows: a factor, and a minimum or zero point. */
struct unit_factors {
	_Alignas(64) float scale[MOE_PANEL_ROWS], more[MOE_PANEL_ROWS];
};

TILE_INLINE void unit_factors(uint32_t format, const uint8_t *scales, size_t c, struct unit_factors *ret)
{
	const struct moe_format_spec *f = &moe_formats[format];
	const uint8_t *block = panel_block(format, scales, c);

	vec_store(ret->scale, panel_scale(format, block, c % f->block, 0));
	if (panel_has_minimum(format))
		vec_store(ret->more, panel_minimum(format, block, c % f->block, 0));
	else if (f->zero == MOE_ZERO_U8)
		vec_store(ret->more, ivec_float(panel_zero(block, 0)));
	/* Each is loaded again, into all elements: the compiler would permute the vector, on the port that is busy. */
	__asm__("" : "+m"(*ret));
}

/* Codes of row r, without what was added to them, as weights. */
TILE_INLINE vec row_weights(uint32_t format, vec codes, const struct unit_factors *unit, size_t r)
{
	const vec scale = vec_set(unit->scale[r]);

	if (panel_has_minimum(format))
		return vec_fma(codes, scale, vec_set(unit->more[r]));
	if (moe_formats[format].zero == MOE_ZERO_U8)
		codes = _mm512_sub_ps(codes, vec_set(unit->more[r]));
	return vec_mul(codes, scale);
}

/* -- rows --------------------------------------------------------------------------------------------------------- */

/* 16 bytes of each row. */
typedef uint8_t panel_rows[MOE_PANEL_ROWS][16];

/* From four vectors with 4 bytes of 16 rows each. */
TILE_INLINE void rows_apart(const ivec v[4], panel_rows to)
{
	const ivec ab = _mm512_unpacklo_epi32(v[0], v[1]), cd = _mm512_unpacklo_epi32(v[2], v[3]);
	const ivec ef = _mm512_unpackhi_epi32(v[0], v[1]), gh = _mm512_unpackhi_epi32(v[2], v[3]);

	ivec_store(to, _mm512_unpacklo_epi64(ab, cd));
	ivec_store(to + 4, _mm512_unpackhi_epi64(ab, cd));
	ivec_store(to + 8, _mm512_unpacklo_epi64(ef, gh));
	ivec_store(to + 12, _mm512_unpackhi_epi64(ef, gh));
}

/* Where rows_apart() has put row r: 4 i + l has row 4 l + i. */
TILE_INLINE size_t row_place(size_t r)
{
	return r % 4 * 4 + r / 4;
}

/* -- four bits ---------------------------------------------------------------------------------------------------- */

/* The 16 weights of rows 2k and 2k + 1. */
typedef ivec weight_tables[MOE_PANEL_ROWS / 2];

/* What the codes 0 .. 15 are multiplied with scales as. */
TILE_INLINE vec nibble_values(uint32_t format)
{
	static const float e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
	static const float iq4nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
	static const float plain[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

	if (moe_formats[format].code == MOE_CODE_E2M1)
		return vec_load(e2m1);
	if (moe_formats[format].code == MOE_CODE_IQ4NL)
		return vec_load(iq4nl);
	return _mm512_sub_ps(vec_load(plain), vec_set((float)moe_formats[format].offset));
}

TILE_INLINE void tables_fill(uint32_t format, const struct unit_factors *unit, weight_tables tables)
{
	const vec values = nibble_values(format);

#pragma GCC unroll 8
	for (size_t k = 0; k < MOE_PANEL_ROWS / 2; k++)
		tables[k] = pair_bf16(row_weights(format, values, unit, 2 * k),
				      row_weights(format, values, unit, 2 * k + 1));
}

TILE_INLINE void step_nibbles(const panel_rows rows, const weight_tables tables, uint8_t *to)
{
	const ivec shifts = _mm512_set_epi64(0x000c000c000c000c, 0x000c000c000c000c, 0x0008000800080008,
					     0x0008000800080008, 0x0004000400040004, 0x0004000400040004, 0, 0);

#pragma GCC unroll 16
	for (size_t r = 0; r < MOE_PANEL_ROWS; r++) {
		const ivec nibbles = _mm512_srlv_epi16(
			_mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)rows[row_place(r)])), shifts);
		const ivec low = _mm512_set1_epi16(15), second = _mm512_set1_epi16(16);
		/* nibbles & 15 | second */
		const ivec at = r % 2 ? _mm512_ternarylogic_epi32(nibbles, low, second, 0xea)
				      : _mm512_and_si512(nibbles, low);

		ivec_store(to + r * TILE_BYTES, _mm512_permutexvar_epi16(at, tables[r / 2]));
	}
}

/* -- more bits ---------------------------------------------------------------------------------------------------- */

/* 16 columns with one unit's factors, and 16 with another's. */
TILE_INLINE void step_bytes(uint32_t format, const panel_rows rows[2], const struct unit_factors *first,
			    const struct unit_factors *second, uint8_t *to)
{
	const ivec order = step_order();

#pragma GCC unroll 16
	for (size_t r = 0; r < MOE_PANEL_ROWS; r++) {
		const vec low = row_weights(format, ivec_float(ivec_from_s8(rows[0][row_place(r)])), first, r);
		const vec high = row_weights(format, ivec_float(ivec_from_s8(rows[1][row_place(r)])), second, r);

		ivec_store(to + r * TILE_BYTES, _mm512_permutexvar_epi16(order, pair_bf16(low, high)));
	}
}

/* -- panels ------------------------------------------------------------------------------------------------------- */

/* The bytes of a step by rows: four bits as they lie, more without what was added to them. */
TILE_INLINE void step_apart(uint32_t format, const uint8_t *codes, panel_rows *to)
{
	const ivec offset = ivec_set((int32_t)((uint32_t)panel_offset(format) * 0x01010101u));
	ivec v[4];

	if (moe_formats[format].bits == 4) {
#pragma GCC unroll 4
		for (size_t i = 0; i < 4; i++)
			v[i] = ivec_load(codes + i * 64);
		rows_apart(v, *to);
		return;
	}
#pragma GCC unroll 2
	for (int half = 0; half < 2; half++, to++) {
		panel_pair(format, codes, half * 4, 0, v);
		panel_pair(format, codes, half * 4 + 2, 0, v + 2);
#pragma GCC unroll 4
		for (size_t i = 0; i < 4; i++)
			v[i] = _mm512_sub_epi8(v[i], offset);
		rows_apart(v, *to);
	}
}

/* The columns of a panel, at most DECODE_COLS, that begin at a scale block. Rows are put apart some time before they
 * are read: the processor holds up a narrow load behind a wide store. */
TILE_INLINE void panel_decode_tiles(uint32_t format, const struct panel_at *at, size_t cols, uint8_t (*to)[TILE_SIZE])
{
	const struct moe_format_spec *f = &moe_formats[format];
	const size_t group = f->group < STEP_COLS ? STEP_COLS : f->group, parts = f->bits == 4 ? 1 : 2;
	_Alignas(64) panel_rows rows[DECODE_COLS / STEP_COLS * 2];
	const panel_rows *next = rows;

	for (size_t i = 0; i < cols / STEP_COLS; i++)
		step_apart(format, at->codes + i * STEP_COLS * f->bits * MOE_PANEL_ROWS / 8, rows + i * parts);
	for (size_t c = 0; c < cols; c += group) {
		struct unit_factors unit[2];
		weight_tables tables;

		unit_factors(format, at->scales, c, &unit[0]);
		if (f->bits == 4)
			tables_fill(format, &unit[0], tables);
		else if (f->group < STEP_COLS)
			unit_factors(format, at->scales, c + f->group, &unit[1]);
		for (size_t s = 0; s < group; s += STEP_COLS, next += parts, to++) {
			if (f->bits == 4)
				step_nibbles(*next, tables, *to);
			else
				step_bytes(format, next, &unit[0], &unit[f->group < STEP_COLS], *to);
		}
	}
}

#endif
