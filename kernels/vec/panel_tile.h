/* SPDX-License-Identifier: MIT */
/*
 * panel_tile - dot products of a unit of columns of some panels with some tokens: the inner loop of all panel formats.
 *
 * Lanes are rows: a vector holds 4 columns of 16 (or 8) rows, the same 4 columns of a token's codes are broadcast, and
 * an integer dot product adds the four products to each row's sum. After a unit (at most 32 columns) the sum, exact in
 * binary32, is multiplied with weight scale * activation scale and added to a float total.
 *
 * A tile takes the codes as they lie in the record (panel_few.h) or as bytes that have been made of them
 * (panel_many.h).
 *
 * Law: a total is one chain over the units in order: total += dot * (scale * activation scale), then total += minimum *
 * (activation scale * sum of activation codes), each a fused multiply-add. So a result has the same bits in every tile,
 * and on every level that packs alike.
 */
#ifndef KERNELS_VEC_PANEL_TILE_H
#define KERNELS_VEC_PANEL_TILE_H

#include "kernels/vec/panel_ahead.h"
#include "kernels/vec/panel_codes.h"
#include "kernels/vec/panel_pairs.h"

#ifndef PANEL_HALVES
#define PANEL_HALVES 0
#endif

#define PANEL_COLS 512 /* of a column block: 16 KiB of decoded bytes for two panels. A multiple of all scale blocks. */
#define PANEL_UNITS (PANEL_COLS / 16)
#define PANEL_FEW 4 /* tokens */

/* Columns of a panel decoded: vectors 0 .. 7 of each 32; for each unit the scales, and the minima or zero points. */
struct panel_bytes {
	_Alignas(64) uint8_t codes[PANEL_COLS * MOE_PANEL_ROWS];
	_Alignas(64) float scales[PANEL_UNITS][MOE_PANEL_ROWS];
	_Alignas(64) float more[PANEL_UNITS][MOE_PANEL_ROWS];
	_Alignas(64) int32_t shares[PANEL_UNITS][MOE_PANEL_ROWS]; /* where PANEL_PAIRS */
};

/* What units of tokens contribute beside their codes: the activation scale of the first, and floats from there to the
 * others and to what belongs to offsets (an integer), zero points (the negative sum) or minima (a float). */
struct tile_extra {
	const float *scales;
	size_t more, shares, stride; /* shares: of many tokens; stride: from token to token */
};

/* A vector of units. Loaded into registers first: the compiler would call memcpy to move what only passes. */
PANEL_INLINE void tile_extra_vec(uint32_t format, const char *scales, const char *sums, float *to_scales,
				 float *to_more)
{
	const struct moe_format_spec *f = &moe_formats[format];
	const int factor = f->zero == MOE_ZERO_U8 ? -1 : -panel_offset(format);
	const vec scale = vec_loaded((const float *)scales);

	vec_store(to_scales, scale);
	if (panel_has_minimum(format))
		vec_store(to_more, vec_mul(ivec_float(ivec_load(sums)), scale));
	else if (factor)
		ivec_store(to_more, ivec_mul(ivec_load(sums), ivec_set(factor)));
}

/* Whole vectors: rows of packed activations have room for them. */
PANEL_INLINE void tile_extra(uint32_t format, size_t units, const char *scales, const char *sums, float *to_scales,
			     float *to_more)
{
	for (size_t u = 0; u < units; u += VEC_FLOATS)
		tile_extra_vec(format, scales + u * sizeof(float), sums + u * sizeof(int32_t), to_scales + u,
			       to_more + u);
}

/* What the sum of a unit begins with, apart from products of sums. */
PANEL_INLINE ivec tile_begin(uint32_t format, ivec zero, const float *more)
{
	if (moe_formats[format].zero == MOE_ZERO_U8)
		return ivec_mul16(zero, ivec_all(more));
	if (panel_has_minimum(format) || panel_offset(format) == 0)
		return ivec_set(0);
	return ivec_all(more);
}

/* The vectors of a unit: where they come from. */
struct tile_unit {
	bool few;                        /* a constant to the compiler: from the record, otherwise decoded */
	const struct tile_place *at;     /* of the tile's panels, where few */
	size_t in;                       /* the 32 columns, from the scale block's, where few */
	size_t u;                        /* which it is, from where struct tile_extra begins */
	const struct panel_bytes *bytes; /* of the tile's panels, where not few */
	size_t c;                        /* its 32 columns, from the column block's */
	int v;                           /* first vector of them */
};

PANEL_INLINE void tile_codes(uint32_t format, const struct tile_unit *unit, int v, size_t s, ivec ret[2])
{
	const size_t part = s % PANEL_VECS;

	if (unit->few) {
		panel_pair(format, unit->at[s / PANEL_VECS].codes, v, part, ret);
	} else {
		const uint8_t *codes = unit->bytes[s / PANEL_VECS].codes + (unit->c / 4 + v) * 64 + part * VEC_BYTES;

		ret[0] = ivec_load(codes);
		ret[1] = ivec_load(codes + 64);
	}
}

PANEL_INLINE vec tile_scale(uint32_t format, const struct tile_unit *unit, size_t s)
{
	if (unit->few)
		return panel_scale(format, unit->at[s / PANEL_VECS].scales, unit->in + (size_t)unit->v * 4,
				   s % PANEL_VECS);
	return vec_load(unit->bytes[s / PANEL_VECS].scales[unit->u] + s % PANEL_VECS * VEC_FLOATS);
}

PANEL_INLINE vec tile_minimum(uint32_t format, const struct tile_unit *unit, size_t s)
{
	if (unit->few)
		return panel_minimum(format, unit->at[s / PANEL_VECS].scales, unit->in + (size_t)unit->v * 4,
				     s % PANEL_VECS);
	return vec_load(unit->bytes[s / PANEL_VECS].more[unit->u] + s % PANEL_VECS * VEC_FLOATS);
}

PANEL_INLINE ivec tile_zero(uint32_t format, const struct tile_unit *unit, size_t s)
{
	if (moe_formats[format].zero != MOE_ZERO_U8)
		return ivec_set(0);
	if (unit->few)
		return panel_zero(unit->at[s / PANEL_VECS].scales, s % PANEL_VECS);
	return ivec_load(unit->bytes[s / PANEL_VECS].more[unit->u] + s % PANEL_VECS * VEC_FLOATS);
}

#if PANEL_PAIRS
PANEL_INLINE ivec tile_share(const struct tile_unit *unit, size_t u, size_t s)
{
	return ivec_load(unit->bytes[s / PANEL_VECS].shares[u] + s % PANEL_VECS * VEC_FLOATS);
}
#endif

#define TILE_VECS ((PANEL_TILE_PANELS > PANEL_SIDE ? PANEL_TILE_PANELS : PANEL_SIDE) * PANEL_VECS)
#define TILE_TOKENS (PANEL_TILE_TOKENS > PANEL_FEW ? PANEL_TILE_TOKENS : PANEL_FEW)

/* What the sums of a unit begin with. */
PANEL_INLINE void tile_begins(uint32_t format, size_t vecs, size_t tokens, const struct tile_unit *unit,
			      const struct tile_extra *extra, ivec sums[TILE_VECS][TILE_TOKENS])
{
#pragma GCC unroll 4
	for (size_t s = 0; s < vecs; s++) {
		const ivec zero = tile_zero(format, unit, s);

#pragma GCC unroll 8
		for (size_t t = 0; t < tokens; t++) {
			const float *at = extra->scales + t * extra->stride + unit->u;

#if PANEL_PAIRS
			if (!unit->few) {
				const ivec share = tile_share(unit, unit->u, s);

				sums[s][t] = ivec_add(share, ivec_all(at + extra->shares));
				if (moe_formats[format].zero == MOE_ZERO_U8)
					sums[s][t] = ivec_dot16(sums[s][t], zero, ivec_all(at + extra->more));
				continue;
			}
#endif
			sums[s][t] = tile_begin(format, zero, at + extra->more);
		}
	}
}

/* sums[t] + the products of two vectors of columns, the i-th of a unit's `pairs`. Where the level adds them up in 16
 * bits first they are in `halves` until those have no room for more; of few tokens there are no registers for more. */
PANEL_INLINE ivec tile_dot(uint32_t format, const struct tile_unit *unit, ivec sums, const ivec a[2], ivec x0, ivec x1,
			   ivec *halves, int i, int pairs)
{
#if PANEL_PAIRS
	if (!unit->few)
		return pairs_dot(sums, a, x0, x1);
#endif
#if PANEL_HALVES
	const int room = panel_room(format, unit->few ? 1 : PANEL_HALVES);

	if (room) {
		*halves = ivec_halves(i % room ? *halves : ivec_set(0), a[0], x0, a[1], x1);
		return (i + 1) % room && i + 1 < pairs ? sums : ivec_add_halves(sums, *halves);
	}
	if (unit->few && panel_looked_up(format))
		return ivec_dot2_small(sums, a[0], x0, a[1], x1);
#endif
	return ivec_dot2(sums, a[0], x0, a[1], x1);
}

/* totals[s][t] += the unit's products. */
PANEL_INLINE void tile_unit(uint32_t format, size_t panels, size_t tokens, const struct tile_unit *unit,
			    const int8_t *const *x, const struct tile_extra *extra, vec totals[TILE_VECS][TILE_TOKENS])
{
	const size_t vecs = panels * PANEL_VECS;
	const int pairs = (int)panel_unit(format) / 8;
	ivec sums[TILE_VECS][TILE_TOKENS], halves[TILE_VECS][TILE_TOKENS];

	tile_begins(format, vecs, tokens, unit, extra, sums);
#pragma GCC unroll 4
	for (int i = 0; i < pairs; i++) {
		const int v = unit->v + 2 * i;
		const size_t c = unit->c + (size_t)v * 4;
		ivec a[TILE_VECS][2];

		if (unit->few)
			for (size_t p = 0; p < panels; p++)
				panel_ask(format, unit->at[p].ahead, v);
#pragma GCC unroll 4
		for (size_t s = 0; s < vecs; s++)
			tile_codes(format, unit, v, s, a[s]);
#pragma GCC unroll 8
		for (size_t t = 0; t < tokens; t++) {
			const ivec x0 = ivec_all(x[t] + c), x1 = ivec_all(x[t] + c + 4);

#pragma GCC unroll 4
			for (size_t s = 0; s < vecs; s++)
				sums[s][t] = tile_dot(format, unit, sums[s][t], a[s], x0, x1, &halves[s][t], i, pairs);
		}
	}
#pragma GCC unroll 4
	for (size_t s = 0; s < vecs; s++) {
		const vec scale = tile_scale(format, unit, s);

#pragma GCC unroll 8
		for (size_t t = 0; t < tokens; t++)
			totals[s][t] = vec_fma(ivec_float(sums[s][t]),
					       vec_mul(scale, vec_set(extra->scales[t * extra->stride + unit->u])),
					       totals[s][t]);
		if (panel_has_minimum(format)) {
			const vec minimum = tile_minimum(format, unit, s);

#pragma GCC unroll 8
			for (size_t t = 0; t < tokens; t++)
				totals[s][t] = vec_fma(
					minimum, vec_set(extra->scales[extra->more + t * extra->stride + unit->u]),
					totals[s][t]);
		}
	}
}

#endif
