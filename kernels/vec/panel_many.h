/* SPDX-License-Identifier: MIT */
/*
 * panel_many - panels and many tokens: codes are decoded into bytes, and those used for tile after tile of tokens.
 *
 * Law: a column block is decoded once for up to PANEL_TOKENS tokens, and small enough to stay in the first-level cache
 * until they have passed.
 */
#ifndef KERNELS_VEC_PANEL_MANY_H
#define KERNELS_VEC_PANEL_MANY_H

#include "kernels/vec/panel_ahead.h"
#include "kernels/vec/panel_tile.h"

#ifndef PANEL_TILE_ASKS
#define PANEL_TILE_ASKS 2 /* lines that a tile asks for while it multiplies 32 columns; 0: none, if it is that small */
#endif

/* What is decoded next: where it is asked for first, and bytes from there to the next place. */
struct many_asks {
	const char *at;
	size_t step;
};

/* Packed activations at a column block: codes, scales and sums of tokens. And what a tile asks for beside them. */
struct panel_x {
	const void *const *rows;
	size_t codes, scales, sums, shares; /* bytes from where a row begins */
	struct many_asks asks;
};

/* What units of a token contribute, as struct tile_extra says. */
struct panel_extra {
	_Alignas(64) float scales[PANEL_UNITS];
	_Alignas(64) float more[PANEL_UNITS];
	_Alignas(64) int32_t shares[PANEL_UNITS]; /* where PANEL_PAIRS: with what belongs to offsets */
};

#define PANEL_TOKENS 128 /* whose totals are kept over the column blocks */

typedef float panel_totals[PANEL_TOKENS][MOE_PANEL_ROWS];

typedef void panel_many_function(const struct panel_bytes *bytes, size_t cols, const struct panel_x *x, size_t first,
				 panel_totals *totals);
typedef void panel_decode_function(const struct panel_at *at, size_t cols, struct panel_bytes *bytes);

#if PANEL_PAIRS
/* After tile_extra(). */
PANEL_INLINE void tile_shares(uint32_t format, size_t units, const char *packed, struct panel_extra *extra)
{
	const bool offset = moe_formats[format].zero != MOE_ZERO_U8 && !panel_has_minimum(format);

	for (size_t u = 0; u < units; u += VEC_FLOATS) {
		const ivec share = ivec_loaded(packed + u * sizeof(int32_t));

		ivec_store(extra->shares + u, offset ? ivec_add(share, ivec_load(extra->more + u)) : share);
	}
}
#endif

/* Units of a column block, in whole vectors: where that is one it is no loop, whose end would be guessed wrong. */
PANEL_INLINE size_t tile_units(uint32_t format, size_t cols)
{
	return PANEL_COLS / panel_unit(format) <= VEC_FLOATS ? VEC_FLOATS : cols / panel_unit(format);
}

/* totals[s][t] += the products of decoded columns. */
PANEL_INLINE void tile_decoded(uint32_t format, size_t panels, size_t tokens, const struct panel_bytes *bytes,
			       size_t cols, const int8_t *const *codes, const struct tile_extra *extra,
			       struct many_asks asks, vec totals[TILE_VECS][TILE_TOKENS])
{
	const size_t unit = panel_unit(format);

	for (size_t c = 0; c < cols; c += MOE_BLOCK_COLS) {
#pragma GCC unroll 2
		for (int i = 0; i < PANEL_TILE_ASKS; i++, asks.at += asks.step)
			_mm_prefetch(asks.at, _MM_HINT_T1);
#pragma GCC unroll 2
		for (size_t in = 0; in < MOE_BLOCK_COLS; in += unit) {
			const struct tile_unit here = {.bytes = bytes, .c = c, .u = (c + in) / unit, .v = (int)in / 4};

			tile_unit(format, panels, tokens, &here, codes, extra, totals);
		}
	}
}

/* Decoded panels and a tile of tokens, from the first-th on. */
PANEL_INLINE void tile_many(uint32_t format, size_t panels, size_t tokens, const struct panel_bytes *bytes, size_t cols,
			    const struct panel_x *x, size_t first, panel_totals *kept)
{
	const size_t vecs = panels * PANEL_VECS;
	vec totals[TILE_VECS][TILE_TOKENS];
	struct panel_extra extra[TILE_TOKENS];
	const struct tile_extra extras = {(const float *)extra, PANEL_UNITS, 2 * PANEL_UNITS,
					  sizeof(*extra) / sizeof(float)};
	const int8_t *codes[TILE_TOKENS];

#pragma GCC unroll 8
	for (size_t t = 0; t < tokens; t++) {
		const char *row = x->rows[first + t];

		codes[t] = (const int8_t *)row + x->codes;
		tile_extra(format, tile_units(format, cols), row + x->scales, row + x->sums, extra[t].scales,
			   extra[t].more);
#if PANEL_PAIRS
		tile_shares(format, tile_units(format, cols), row + x->shares, &extra[t]);
#endif
#pragma GCC unroll 4
		for (size_t s = 0; s < vecs; s++)
			totals[s][t] = vec_load(kept[s / PANEL_VECS][first + t] + s % PANEL_VECS * VEC_FLOATS);
	}
	tile_decoded(format, panels, tokens, bytes, cols, codes, &extras, x->asks, totals);
#pragma GCC unroll 8
	for (size_t t = 0; t < tokens; t++)
#pragma GCC unroll 4
		for (size_t s = 0; s < vecs; s++)
			vec_store(kept[s / PANEL_VECS][first + t] + s % PANEL_VECS * VEC_FLOATS, totals[s][t]);
}

PANEL_INLINE void panel_decode(uint32_t format, const struct panel_at *at, size_t cols, struct panel_bytes *bytes)
{
	const struct moe_format_spec *f = &moe_formats[format];
	const size_t unit = panel_unit(format);

	for (size_t c = 0; c < cols; c += MOE_BLOCK_COLS) {
		const uintptr_t ahead = panel_ahead(format, at, c);
#if PANEL_PAIRS
		ivec products[PANEL_VECS] = {0};
#endif

#pragma GCC unroll 8
		for (size_t i = 0; i < 4 * PANEL_VECS; i++) {
			const size_t part = i % PANEL_VECS, v = i / PANEL_VECS * 2;
			uint8_t *to = bytes->codes + (c / 4 + v) * 64 + part * VEC_BYTES;
			ivec pair[2];

			if (part == 0)
				panel_ask(format, ahead, (int)v);
			panel_decoded(format, at->codes + c * f->bits * MOE_PANEL_ROWS / 8, (int)v, part, pair);
			ivec_store(to, pair[0]);
			ivec_store(to + 64, pair[1]);
#if PANEL_PAIRS
			products[part] = ivec_dot(products[part], pair[0], pair[1]);
#endif
		}
#if PANEL_PAIRS
#pragma GCC unroll 2
		for (size_t part = 0; part < PANEL_VECS; part++)
			ivec_store(bytes->shares[c / unit] + part * VEC_FLOATS, ivec_sub(ivec_set(0), products[part]));
#endif
	}
	for (size_t c = 0; c < cols; c += unit)
#pragma GCC unroll 2
		for (size_t part = 0; part < PANEL_VECS; part++) {
			const uint8_t *block = panel_block(format, at->scales, c);
			const size_t u = c / unit, lane = part * VEC_FLOATS, in = c % f->block;

			vec_store(bytes->scales[u] + lane, panel_scale(format, block, in, part));
			if (panel_has_minimum(format))
				vec_store(bytes->more[u] + lane, panel_minimum(format, block, in, part));
			if (f->zero == MOE_ZERO_U8)
				ivec_store(bytes->more[u] + lane, panel_zero(block, part));
		}
}

#endif
