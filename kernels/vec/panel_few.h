/* SPDX-License-Identifier: MIT */
/*
 * panel_few - panels and a few tokens: codes are used as they lie in the record.
 *
 * Law: the limit is reading codes, so the loop over 32 columns compares nothing and counts up few registers
 * (docs/decisions/0101).
 */
#ifndef KERNELS_VEC_PANEL_FEW_H
#define KERNELS_VEC_PANEL_FEW_H

#include "kernels/vec/panel_ahead.h"
#include "kernels/vec/panel_tile.h"

/* Streams of panels side by side, so many that the sums of all stay in registers. */
#define PANEL_STREAMS(tokens) ((tokens) > 2 && PANEL_SIDE > 2 ? PANEL_SIDE / 2 : PANEL_SIDE)

#define PANEL_FEW_COLS 8192 /* of a column block: nearly always all */
#define PANEL_FEW_UNITS (PANEL_FEW_COLS / 16)

/* What units of a token contribute, as struct tile_extra says. */
struct panel_few_extra {
	_Alignas(64) float scales[PANEL_FEW_UNITS];
	_Alignas(64) float more[PANEL_FEW_UNITS];
};

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

/* The same of some columns, up to where what is asked for jumps at a time. */
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

#endif
