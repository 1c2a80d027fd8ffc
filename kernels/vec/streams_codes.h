/* SPDX-License-Identifier: MIT */
/*
 * streams_codes - the codes that four streams have read of a chain: FP8 at a level that makes numbers of all of them
 * first and looks for NaNs where a chain ends, for which it defines VEC_FP8_NUMBERS (docs/decisions/0090). Elsewhere
 * nothing is kept of them.
 */
#ifndef KERNELS_VEC_STREAMS_CODES_H
#define KERNELS_VEC_STREAMS_CODES_H

#include "kernels/vec/rows.h"

/* Of each row. */
struct streams_codes {
#ifdef VEC_FP8_NUMBERS
	vec most[ROWS_TILE];
#endif
};

ROWS_INLINE vec streams_weights(enum rows_kind kind, const char *w, size_t v)
{
#ifdef VEC_FP8_NUMBERS
	if (kind == ROWS_FP8)
		return VEC_FP8_NUMBERS(w, v);
#endif
	return row_weights(kind, w, v);
}

ROWS_INLINE void streams_begin(enum rows_kind kind, struct streams_codes *codes)
{
#ifdef VEC_FP8_NUMBERS
#pragma GCC unroll 4
	for (size_t i = 0; i < ROWS_TILE; i++)
		codes->most[i] = VEC_FP8_NONE;
#endif
}

ROWS_INLINE void streams_look(enum rows_kind kind, struct streams_codes *codes, const char *w, size_t apart)
{
#ifdef VEC_FP8_NUMBERS
#pragma GCC unroll 4
	for (size_t i = 0; kind == ROWS_FP8 && i < ROWS_TILE; i++)
		codes->most[i] = VEC_FP8_MOST(codes->most[i], w + i * apart);
#endif
}

ROWS_INLINE void streams_end(enum rows_kind kind, size_t tokens, const struct streams_codes *codes,
			     vec sums[ROWS_TILE][ROWS_TOKENS])
{
#ifdef VEC_FP8_NUMBERS
#pragma GCC unroll 4
	for (size_t i = 0; kind == ROWS_FP8 && i < ROWS_TILE; i++)
#pragma GCC unroll 8
		for (size_t t = 0; t < tokens; t++)
			sums[i][t] = VEC_FP8_NANS(sums[i][t], codes->most[i]);
#endif
}

#endif
