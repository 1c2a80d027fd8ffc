/* SPDX-License-Identifier: MIT */
/*
 * matmul - y = w . x, written in the vec_* names of the level that includes this file.
 */
#ifndef KERNELS_VEC_MATMUL_H
#define KERNELS_VEC_MATMUL_H

#include "kernels/levels.h"
#include "kernels/vec/tile.h"

/* From sums kept as vectors to y[t][first .. first + rows]. */
TILE_INLINE void matmul_finish(size_t tokens, const vec *kept, size_t first, size_t rows, float *const *y)
{
	for (size_t t = 0; t < tokens; t++)
		for (size_t r = 0; r < rows; r += VEC_FLOATS) {
			const vec out = vec_sums(kept + r * tokens + t, tokens);

			if (rows - r >= VEC_FLOATS)
				vec_store(y[t] + first + r, out);
			else
				vec_store_n(y[t] + first + r, out, rows - r);
		}
}

TILE_INLINE void matmul_tile(enum kernel_type type, size_t tokens, const struct kernel_matrix *w, size_t rows,
			     size_t cols, const float *const *x, float *const *y)
{
	const size_t block = PANEL_COLS(tokens);
	_Alignas(64) float panel[PANEL_FLOATS];

	for (size_t first = 0; first < rows; first += CHUNK_ROWS) {
		const size_t n = MIN_OF(rows - first, CHUNK_ROWS);
		vec kept[CHUNK_ROWS * VEC_TOKENS_MAX];

		for (size_t i = 0; i < CHUNK_ROWS * tokens; i++)
			kept[i] = vec_zero();
		for (size_t c = 0; c < cols; c += block) {
			const size_t width = MIN_OF(cols - c, block);

			if (first == 0 || block < cols)
				panel_pack(type, tokens, panel, x, c, width);
			chunk_run(type, tokens, kept, w, first, n, c, width, panel);
		}
		matmul_finish(tokens, kept, first, n, y);
	}
}

typedef void matmul_function(const struct kernel_matrix *w, size_t rows, size_t cols, const float *const *x,
			     float *const *y);

/* One function per tile width: constants for the compiler, and the stack of one width only. */
#define MATMUL_TILE(name, type, tokens)                                                                                \
	static __attribute__((noinline)) void name(const struct kernel_matrix *w, size_t rows, size_t cols,            \
						   const float *const *x, float *const *y)                             \
	{                                                                                                              \
		matmul_tile(type, tokens, w, rows, cols, x, y);                                                        \
	}

static inline void matmul_run(matmul_function *const *tiles, const struct kernel_matrix *w, size_t rows, size_t cols,
			      size_t tokens, const float *const *x, float *const *y)
{
	for (size_t t = 0; t < tokens;) {
		const size_t n = tile_tokens(tokens - t);

		tiles[n](w, rows, cols, x + t, y + t);
		t += n;
	}
}

#endif
