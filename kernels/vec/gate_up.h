/* SPDX-License-Identifier: MIT */
/*
 * gate_up - h = act(gate . x) * (up . x), written in the vec_* names of the level that includes this file.
 */
#ifndef KERNELS_VEC_GATE_UP_H
#define KERNELS_VEC_GATE_UP_H

#include "kernels/levels.h"
#include "kernels/vec/activation.h"
#include "kernels/vec/tile.h"

/* Gate and up share the kept sums. */
#define GATE_UP_ROWS (CHUNK_ROWS / 2)

/* From sums kept as vectors to h[t][first .. first + rows]. */
TILE_INLINE void gate_up_finish(size_t tokens, const vec *gate, const vec *up, enum kernel_activation act, size_t first,
				size_t rows, float *const *h)
{
	for (size_t t = 0; t < tokens; t++)
		for (size_t r = 0; r < rows; r += VEC_FLOATS) {
			const vec g = vec_sums(gate + r * tokens + t, tokens),
				  u = vec_sums(up + r * tokens + t, tokens);
			const vec out = vec_mul(vec_activation(act, g), u);

			if (rows - r >= VEC_FLOATS)
				vec_store(h[t] + first + r, out);
			else
				vec_store_n(h[t] + first + r, out, rows - r);
		}
}

TILE_INLINE void gate_up_tile(enum kernel_type type, size_t tokens, const struct kernel_matrix *gate,
			      const struct kernel_matrix *up, size_t rows, size_t cols, enum kernel_activation act,
			      const float *const *x, float *const *h)
{
	const size_t block = PANEL_COLS(tokens);
	_Alignas(64) float panel[PANEL_FLOATS];

	for (size_t first = 0; first < rows; first += GATE_UP_ROWS) {
		const size_t n = MIN_OF(rows - first, GATE_UP_ROWS);
		vec kept[2][GATE_UP_ROWS * VEC_TOKENS_MAX];

		for (size_t i = 0; i < GATE_UP_ROWS * tokens; i++)
			kept[0][i] = kept[1][i] = vec_zero();
		for (size_t c = 0; c < cols; c += block) {
			const size_t width = MIN_OF(cols - c, block);

			if (first == 0 || block < cols)
				panel_pack(type, tokens, panel, x, c, width);
			chunk_run(type, tokens, kept[0], gate, first, n, c, width, panel);
			chunk_run(type, tokens, kept[1], up, first, n, c, width, panel);
		}
		gate_up_finish(tokens, kept[0], kept[1], act, first, n, h);
	}
}

typedef void gate_up_function(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows,
			      size_t cols, enum kernel_activation act, const float *const *x, float *const *h);

/* One function per tile width: constants for the compiler, and the stack of one width only. */
#define GATE_UP_TILE(name, type, tokens)                                                                               \
	static __attribute__((noinline)) void name(const struct kernel_matrix *gate, const struct kernel_matrix *up,   \
						   size_t rows, size_t cols, enum kernel_activation act,               \
						   const float *const *x, float *const *h)                             \
	{                                                                                                              \
		gate_up_tile(type, tokens, gate, up, rows, cols, act, x, h);                                           \
	}

static inline void gate_up_run(gate_up_function *const *tiles, const struct kernel_matrix *gate,
			       const struct kernel_matrix *up, size_t rows, size_t cols, enum kernel_activation act,
			       size_t tokens, const float *const *x, float *const *h)
{
	for (size_t t = 0; t < tokens;) {
		const size_t n = tile_tokens(tokens - t);

		tiles[n](gate, up, rows, cols, act, x + t, h + t);
		t += n;
	}
}

#endif
