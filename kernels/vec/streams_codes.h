/* SPDX-License-Identifier: MIT */
/*
 * streams_codes - the codes that four streams have read of a chain: FP8 at a level that makes numbers of all of them
 * first and looks for NaNs where a chain ends, for which it defines VEC_FP8_NUMBERS (docs/decisions/0090). Elsewhere
 * nothing is kept of them.
 *
 * VEC_BYTES codes of a row make several vectors that share their first steps: so each row has all of them one after the
 * other, and activations are loaded for each.
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

ROWS_INLINE void streams_begin(enum rows_kind kind, struct streams_codes *codes)
{
#ifdef VEC_FP8_NUMBERS
#pragma GCC unroll 4
	for (size_t i = 0; i < ROWS_TILE; i++)
		codes->most[i] = VEC_FP8_NONE;
#endif
}

#ifdef VEC_FP8_NUMBERS
/* All vectors of a row, then all of the next: each shares its activations with no other, but registers suffice. */
ROWS_INLINE void streams_codes_each(size_t tokens, vec sums[ROWS_TILE][ROWS_TOKENS], const char *w, size_t apart,
				    const char *const *x, size_t at)
{
#pragma GCC unroll 4
	for (size_t r = 0; r < ROWS_TILE; r++)
#pragma GCC unroll 4
		for (size_t v = 0; v < VEC_BYTES / VEC_FLOATS; v++) {
			const vec weights = VEC_FP8_NUMBERS(w + r * apart, v);

#pragma GCC unroll 8
			for (size_t t = 0; t < tokens; t++)
				sums[r][t] = vec_fma(weights, vec_load((const float *)(x[t] + at + v * VEC_BYTES)),
						     sums[r][t]);
		}
}

/* The same vector of each row, which shares its activations with the others. */
ROWS_INLINE void streams_codes_all(size_t rows, size_t tokens, vec sums[ROWS_TILE][ROWS_TOKENS], const char *w,
				   size_t apart, const char *const *x, size_t at)
{
#pragma GCC unroll 4
	for (size_t v = 0; v < VEC_BYTES / VEC_FLOATS; v++)
#pragma GCC unroll 8
		for (size_t t = 0; t < tokens; t++) {
			const vec a = vec_loaded((const float *)(x[t] + at + v * VEC_BYTES));

#pragma GCC unroll 4
			for (size_t r = 0; r < rows; r++)
				sums[r][t] = vec_fma(VEC_FP8_NUMBERS(w + r * apart, v), a, sums[r][t]);
		}
}

ROWS_INLINE void streams_codes_step(size_t rows, size_t tokens, vec sums[ROWS_TILE][ROWS_TOKENS],
				    struct streams_codes *codes, const char *w, size_t apart, const char *const *x,
				    size_t at)
{
#pragma GCC unroll 2
	for (size_t i = 0; i < ROWS_STEP_BYTES; i += VEC_BYTES, w += VEC_BYTES, at += VEC_BYTES * sizeof(float)) {
		if (rows == ROWS_TILE)
			streams_codes_each(tokens, sums, w, apart, x, at);
		else
			streams_codes_all(rows, tokens, sums, w, apart, x, at);
#pragma GCC unroll 4
		for (size_t r = 0; r < rows; r++)
			codes->most[r] = VEC_FP8_MOST(codes->most[r], w + r * apart);
	}
}
#endif

ROWS_INLINE void streams_end(enum rows_kind kind, size_t rows, size_t tokens, const struct streams_codes *codes,
			     vec sums[ROWS_TILE][ROWS_TOKENS])
{
#ifdef VEC_FP8_NUMBERS
#pragma GCC unroll 4
	for (size_t i = 0; kind == ROWS_FP8 && i < rows; i++)
#pragma GCC unroll 8
		for (size_t t = 0; t < tokens; t++)
			sums[i][t] = VEC_FP8_NANS(sums[i][t], codes->most[i]);
#endif
}

#endif
