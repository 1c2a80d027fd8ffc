/* SPDX-License-Identifier: MIT */
/*
 * panel_tile - dot products of the rows of one or two panels with a few tokens: the inner loop of all panel formats.
 *
 * Lanes are rows: a vector holds 4 columns of 16 (or 8) rows, the same 4 columns of a token's codes are broadcast, and
 * an integer dot product adds the four products to each row's sum. After a unit (at most 32 columns) the sum, exact in
 * binary32, is multiplied with weight scale * activation scale and added to a float total.
 *
 * A tile takes the codes as they lie in the record (few tokens: the limit is reading them) or as bytes that
 * panel_decode has made of them (many tokens).
 *
 * Law: a total is one chain over the units in order: total += dot * (scale * activation scale), then total += minimum *
 * (activation scale * sum of activation codes), each a fused multiply-add. So a result has the same bits in every tile,
 * and on every level that packs alike.
 */
#ifndef KERNELS_VEC_PANEL_TILE_H
#define KERNELS_VEC_PANEL_TILE_H

#include <stdbool.h>

#include "kernels/vec/panel_codes.h"
#include "kernels/vec/panel_pairs.h"

#ifndef PANEL_HALVES
#define PANEL_HALVES 0
#endif

#define PANEL_COLS 512 /* of a column block: 16 KiB of decoded bytes for two panels. A multiple of all scale blocks. */
#define PANEL_UNITS (PANEL_COLS / 16)
#define PANEL_FEW 4         /* tokens */
#define PANEL_FEW_COLS 8192 /* of a column block of few tokens: nearly always all */
#define PANEL_FEW_UNITS (PANEL_FEW_COLS / 16)
#define PANEL_PASSES 3   /* over a run's codes, for a few tokens each, before they are decoded for all */
#define PANEL_TOKENS 128 /* whose totals are kept over the column blocks */

/* Streams of panels side by side, so many that the sums of all stay in registers. */
#define PANEL_STREAMS(tokens) ((tokens) > 2 && PANEL_SIDE > 2 ? PANEL_SIDE / 2 : PANEL_SIDE)

/* How far ahead of their use codes are asked for, in bytes; and where the processor follows a stream itself
 * (docs/decisions/0021). */
#define PANEL_AHEAD 5120
#define PANEL_STREAMED 2048
/* The same of a line of each page, for a stream that is alone, where finding out where a page lies takes long
 * (docs/decisions/0075). */
#define PANEL_FAR 24576
#define PANEL_PAGE 4096

/* A column block of a panel, in the record; and for what is asked for ahead, the columns from here to the panel's end
 * and the bytes from there to the panel that comes after this one. */
struct panel_at {
	const uint8_t *codes, *scales;
	size_t left, jump_codes, jump_scales;
	size_t ahead; /* columns; 0: these, as they are read (not asking would be a branch that costs more) */
	size_t far;   /* the same of a line of each page of codes */
};

/* The same decoded: vectors 0 .. 7 of each 32 columns; for each unit the scales, and the minima or zero points. */
struct panel_bytes {
	_Alignas(64) uint8_t codes[PANEL_COLS * MOE_PANEL_ROWS];
	_Alignas(64) float scales[PANEL_UNITS][MOE_PANEL_ROWS];
	_Alignas(64) float more[PANEL_UNITS][MOE_PANEL_ROWS];
	_Alignas(64) int32_t shares[PANEL_UNITS][MOE_PANEL_ROWS]; /* where PANEL_PAIRS */
};

/* Packed activations at a column block: codes, scales and sums of tokens. */
struct panel_x {
	const void *const *rows;
	size_t codes, scales, sums, shares; /* bytes from where a row begins */
};

/* What units of a token contribute beside their codes: the activation scale, and what belongs to offsets (an integer),
 * zero points (the negative sum) or minima (a float). */
struct panel_extra {
	_Alignas(64) float scales[PANEL_UNITS];
	_Alignas(64) float more[PANEL_UNITS];
	_Alignas(64) int32_t shares[PANEL_UNITS]; /* where PANEL_PAIRS: with what belongs to offsets */
};

struct panel_few_extra {
	_Alignas(64) float scales[PANEL_FEW_UNITS];
	_Alignas(64) float more[PANEL_FEW_UNITS];
};

/* The same where a tile reads them: the first token's scale, and floats from there to the others. */
struct tile_extra {
	const float *scales;
	size_t more, shares, stride; /* shares: of many tokens; stride: from token to token */
};

typedef float panel_totals[PANEL_TOKENS][MOE_PANEL_ROWS];

/* Panels of a matrix that lie one after the other, at a column block; or some such streams that are read side by side.
 */
struct panel_few {
	struct panel_at at[PANEL_SIDE]; /* the first ones; their jumps are the last ones', the others have none */
	size_t pitch, scale_pitch, panels, cols; /* panels: of a stream */
	const struct panel_few_extra *extra;     /* [tokens] */
	const int8_t *codes[PANEL_FEW];          /* of the tokens */
	float (*totals)[MOE_PANEL_ROWS];         /* [panels][tokens] */
};

typedef void panel_few_function(const struct panel_few *few);
typedef void panel_many_function(const struct panel_bytes *bytes, size_t cols, const struct panel_x *x, size_t first,
				 panel_totals *totals);
typedef void panel_decode_function(const struct panel_at *at, size_t cols, struct panel_bytes *bytes);

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

/* What the sum of a unit begins with, apart from products of sums. */
PANEL_INLINE ivec tile_begin(uint32_t format, ivec zero, const float *more)
{
	if (moe_formats[format].zero == MOE_ZERO_U8)
		return ivec_mul16(zero, ivec_all(more));
	if (panel_has_minimum(format) || panel_offset(format) == 0)
		return ivec_set(0);
	return ivec_all(more);
}

/* Where 32 columns of a panel lie in the record, and what is asked for meanwhile. */
struct tile_place {
	const uint8_t *codes, *scales; /* the scale block's */
	uintptr_t ahead, scales_ahead;
};

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

/* Asks for the scales of the 32 columns at->ahead after column c, once for each line of them, and returns where their
 * codes lie. An address that is not mapped is ignored by the processor. */
PANEL_INLINE uintptr_t panel_ahead(uint32_t format, const struct panel_at *at, size_t c)
{
	const size_t ahead = c + at->ahead;
	const uintptr_t codes = (uintptr_t)at->codes + panel_code_bytes(format, ahead);
	const uintptr_t scales = (uintptr_t)at->scales + panel_scale_bytes(format, ahead) +
				 (ahead < at->left ? 0 : at->jump_scales);

	if (scales % 64 < panel_scale_bytes(format, MOE_BLOCK_COLS))
		_mm_prefetch((const char *)scales, _MM_HINT_T0);
	return codes + (ahead < at->left ? 0 : at->jump_codes);
}

/* Asks for the line where a page begins in these 32 columns: the processor finds out early where it lies. No other line
 * of the page may be the first one (docs/decisions/0101). */
PANEL_INLINE void panel_page(uint32_t format, uintptr_t codes)
{
	const uintptr_t to = -codes % PANEL_PAGE;

	if (to < panel_code_bytes(format, MOE_BLOCK_COLS))
		_mm_prefetch((const char *)(codes + to), _MM_HINT_T0);
}

/* Asks for the quarter of those codes that belongs to vectors v and v + 1: in step with reading, a burst of requests
 * holds up what is read. */
PANEL_INLINE void panel_ask(uint32_t format, uintptr_t ahead, int v)
{
	const int bits = (int)moe_formats[format].bits;

#pragma GCC unroll 2
	for (int line = v / 2 * bits / 4; line < (v / 2 + 1) * bits / 4; line++)
		_mm_prefetch((const char *)(ahead + (uintptr_t)line * 64), _MM_HINT_T0);
}

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

/* totals[s][t] += the products of decoded columns. */
PANEL_INLINE void tile_decoded(uint32_t format, size_t panels, size_t tokens, const struct panel_bytes *bytes,
			       size_t cols, const int8_t *const *codes, const struct tile_extra *extra,
			       vec totals[TILE_VECS][TILE_TOKENS])
{
	const size_t unit = panel_unit(format);

	for (size_t c = 0; c < cols; c += MOE_BLOCK_COLS) {
#pragma GCC unroll 2
		for (size_t in = 0; in < MOE_BLOCK_COLS; in += unit) {
			const struct tile_unit here = {.bytes = bytes, .c = c, .u = (c + in) / unit, .v = (int)in / 4};

			tile_unit(format, panels, tokens, &here, codes, extra, totals);
		}
	}
}

/* What is asked for until block `end` of 32 columns, where one of them is behind a jump: bytes from the codes read. */
struct tile_asks {
	size_t codes[PANEL_SIDE], page, end;
};

PANEL_INLINE void tile_asks(uint32_t format, size_t streams, const struct panel_at *at, size_t c, size_t cols,
			    struct tile_place *here, struct tile_asks *ret)
{
	const bool near = c + at->ahead < at->left, far = c + at->far < at->left;
	size_t end = cols;

	if (near && at->left - at->ahead < end)
		end = at->left - at->ahead;
	if (streams == 1 && far && at->left - at->far < end)
		end = at->left - at->far;
	ret->end = end / MOE_BLOCK_COLS;
	ret->page = panel_code_bytes(format, at->far) + (far ? 0 : at->jump_codes);
#pragma GCC unroll 4
	for (size_t i = 0; i < streams; i++) {
		ret->codes[i] = panel_code_bytes(format, at->ahead) + (near ? 0 : at[i].jump_codes);
		here[i].scales_ahead = (uintptr_t)at[i].scales + panel_scale_bytes(format, c + at->ahead) +
				       (near ? 0 : at[i].jump_scales);
	}
}

/* An address that is not mapped is ignored by the processor. */
PANEL_INLINE void tile_ask(uint32_t format, size_t streams, const struct tile_asks *asks, struct tile_place *here)
{
	if (streams == 1)
		panel_page(format, (uintptr_t)here->codes + asks->page);
#pragma GCC unroll 4
	for (size_t i = 0; i < streams; i++) {
		here[i].ahead = (uintptr_t)here[i].codes + asks->codes[i];
		_mm_prefetch((const char *)here[i].scales_ahead, _MM_HINT_T0);
		here[i].scales_ahead += panel_scale_bytes(format, MOE_BLOCK_COLS);
	}
}

/* totals[s][t] += the products of 32 columns of panels in the record, `in` of the scale block. */
PANEL_INLINE void tile_block(uint32_t format, size_t streams, size_t tokens, struct tile_place *here, size_t c,
			     size_t in, const int8_t *const *codes, struct tile_extra *extra,
			     vec totals[TILE_VECS][TILE_TOKENS])
{
	const size_t unit = panel_unit(format);

#pragma GCC unroll 2
	for (size_t i = 0; i < MOE_BLOCK_COLS; i += unit) {
		const struct tile_unit of = {.few = true, .at = here, .in = in, .c = c, .u = i / unit, .v = (int)i / 4};

		tile_unit(format, streams, tokens, &of, codes, extra, totals);
	}
	extra->scales += MOE_BLOCK_COLS / unit;
#pragma GCC unroll 4
	for (size_t i = 0; i < streams; i++)
		here[i].codes += panel_code_bytes(format, MOE_BLOCK_COLS);
}

/* The only registers that a loop counts up are these: of all sums of them the compiler would keep one each, more than
 * there are. */
PANEL_INLINE void tile_counted(size_t streams, struct tile_place *here, struct tile_extra *extra)
{
#pragma GCC unroll 4
	for (size_t i = 0; i < streams; i++)
		__asm__("" : "+r"(here[i].codes));
	__asm__("" : "+r"(extra->scales));
}

/* The same of some columns. */
PANEL_INLINE void tile_columns(uint32_t format, size_t streams, size_t tokens, const struct panel_at *at, size_t cols,
			       const int8_t *const *codes, struct tile_extra extra, vec totals[TILE_VECS][TILE_TOKENS])
{
	const size_t blocks = moe_formats[format].block / MOE_BLOCK_COLS; /* in a scale block */
	struct tile_place here[PANEL_SIDE];
	struct tile_asks asks;

#pragma GCC unroll 4
	for (size_t i = 0; i < streams; i++)
		here[i] = (struct tile_place){.codes = at[i].codes, .scales = at[i].scales};
	for (size_t b = 0; b < cols / MOE_BLOCK_COLS;) {
		tile_asks(format, streams, at, b * MOE_BLOCK_COLS, cols, here, &asks);
		while (b < asks.end) {
			const size_t first = b % blocks, left = asks.end - b;
			const size_t stop = left < blocks - first ? first + left : blocks;

			for (size_t n = first; n < stop; n++, b++) {
				tile_counted(streams, here, &extra);
				tile_ask(format, streams, &asks, here);
				tile_block(format, streams, tokens, here, b * MOE_BLOCK_COLS, n * MOE_BLOCK_COLS, codes,
					   &extra, totals);
			}
			for (size_t i = 0; i < streams && stop == blocks; i++)
				here[i].scales += moe_formats[format].block_bytes;
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
	tile_decoded(format, panels, tokens, bytes, cols, codes, &extras, totals);
#pragma GCC unroll 8
	for (size_t t = 0; t < tokens; t++)
#pragma GCC unroll 4
		for (size_t s = 0; s < vecs; s++)
			vec_store(kept[s / PANEL_VECS][first + t] + s % PANEL_VECS * VEC_FLOATS, totals[s][t]);
}

/* Panels as they lie in the record: `streams` streams of them. */
PANEL_INLINE void tile_few(uint32_t format, size_t streams, size_t tokens, const struct panel_few *few)
{
	const struct tile_extra extra = {(const float *)few->extra, PANEL_FEW_UNITS, 0,
					 sizeof(*few->extra) / sizeof(float)};
	struct panel_at at[PANEL_SIDE];
	const int8_t *codes[PANEL_FEW];

#pragma GCC unroll 8
	for (size_t t = 0; t < tokens; t++)
		codes[t] = few->codes[t];
#pragma GCC unroll 4
	for (size_t i = 0; i < streams; i++) {
		at[i] = few->at[i];
		at[i].jump_codes = at[i].jump_scales = 0;
	}
	for (size_t p = 0; p < few->panels; p++) {
		vec totals[TILE_VECS][TILE_TOKENS];

#pragma GCC unroll 4
		for (size_t i = 0; i < streams; i++) {
			if (p + 1 == few->panels) {
				at[i].jump_codes = few->at[i].jump_codes;
				at[i].jump_scales = few->at[i].jump_scales;
			}
#pragma GCC unroll 8
			for (size_t t = 0; t < tokens; t++)
#pragma GCC unroll 4
				for (size_t s = 0; s < PANEL_VECS; s++)
					totals[i * PANEL_VECS + s][t] = vec_load(
						few->totals[(i * few->panels + p) * tokens + t] + s * VEC_FLOATS);
		}
		tile_columns(format, streams, tokens, at, few->cols, codes, extra, totals);
#pragma GCC unroll 4
		for (size_t i = 0; i < streams; i++) {
#pragma GCC unroll 8
			for (size_t t = 0; t < tokens; t++)
#pragma GCC unroll 4
				for (size_t s = 0; s < PANEL_VECS; s++)
					vec_store(few->totals[(i * few->panels + p) * tokens + t] + s * VEC_FLOATS,
						  totals[i * PANEL_VECS + s][t]);
			at[i].codes += few->pitch;
			at[i].scales += few->scale_pitch;
		}
	}
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
			const uint8_t *block = at->scales + c / f->block * f->block_bytes;
			const size_t u = c / unit, lane = part * VEC_FLOATS, in = c % f->block;

			vec_store(bytes->scales[u] + lane, panel_scale(format, block, in, part));
			if (panel_has_minimum(format))
				vec_store(bytes->more[u] + lane, panel_minimum(format, block, in, part));
			if (f->zero == MOE_ZERO_U8)
				ivec_store(bytes->more[u] + lane, panel_zero(block, part));
		}
}

#endif
