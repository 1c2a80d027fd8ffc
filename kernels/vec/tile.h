/* SPDX-License-Identifier: MIT */
/*
 * tile - dot products of a few weight rows with a few tokens at once: the inner loop of every level that has vectors.
 *
 * Templates over the vec_* names: a level's file includes its own vec.h first, then one operation from this folder.
 *
 * The activations of up to VEC_TOKENS_MAX tokens are packed into a panel that stays in the first-level cache: step
 * by step (2 * VEC_FLOATS columns), token by token. Within a step they lie in the order in which the weights come
 * out of their registers: BF16 weights are split into even and odd columns by one shift and one mask, half the cost
 * of unpacking them in order (and the BF16 dot-product instruction was measured at half the rate of FP32 FMA on an
 * Emerald Rapids); F16 weights are converted in order. A loaded weight vector is used for all tokens of the tile, an
 * activation for all its rows.
 *
 * Law: each sum is one chain of fused multiply-adds per vector element, over the steps in order, and one tree over
 * the elements, whatever the tile's shape and however columns are blocked. So a result depends on its own row and
 * token only, not on which others stand in the call: the same bits for a token alone and in a batch.
 */
#ifndef KERNELS_VEC_TILE_H
#define KERNELS_VEC_TILE_H

#include <stdbool.h>
#include <string.h>

#include "kernels/kernels.h"

#define TILE_STEP (2 * VEC_FLOATS) /* columns */
#define TILE_ROWS 4                /* in flight at most; four streams read memory fastest */
#define TILE_INLINE static inline __attribute__((always_inline))

/* A panel: 32 KiB, a first-level cache with room for the weights that pass by. */
#define PANEL_FLOATS 8192

/* Rows whose sums are kept as vectors between two column blocks, so that a panel is packed once for that many rows. A
 * multiple of TILE_ROWS and of VEC_FLOATS. */
#define CHUNK_ROWS 64

/* Columns of a block: what the panel holds for so many tokens. */
#define PANEL_COLS(tokens) (PANEL_FLOATS / (tokens) / TILE_STEP * TILE_STEP)

/* How far ahead of their use weights are asked for, in columns: 2 KiB, which read memory up to a fifth faster than
 * 1 KiB on a Zen 5. Without it, tiles of more than two tokens wait for memory and compute by turns. */
#define PREFETCH_COLS 1024

#define MIN_OF(a, b) ((a) < (b) ? (a) : (b))

static inline const uint16_t *matrix_row(const struct kernel_matrix *m, size_t r)
{
	return (const uint16_t *)((const char *)m->data + r * m->pitch);
}

TILE_INLINE void panel_step(enum kernel_type type, float *to, const float *x)
{
	const vec a = vec_load(x), b = vec_load(x + VEC_FLOATS);

	vec_store(to, type == KERNEL_BF16 ? vec_even(a, b) : a);
	vec_store(to + VEC_FLOATS, type == KERNEL_BF16 ? vec_odd(a, b) : b);
}

/* Packs columns first .. first + cols of all tokens; the last step is filled up with zeros. */
TILE_INLINE void panel_pack(enum kernel_type type, size_t tokens, float *panel, const float *const *x, size_t first,
			    size_t cols)
{
	const size_t whole = cols / TILE_STEP * TILE_STEP;

	for (size_t t = 0; t < tokens; t++) {
		const float *from = x[t] + first;
		float *to = panel + t * TILE_STEP;

		for (size_t c = 0; c < whole; c += TILE_STEP, to += tokens * TILE_STEP)
			panel_step(type, to, from + c);
		if (whole < cols) {
			float tail[TILE_STEP] = {0};

			memcpy(tail, from + whole, (cols - whole) * sizeof(tail[0]));
			panel_step(type, to, tail);
		}
	}
}

/* sums[i][t] += w_i . x_t for the step of columns that begins at w[i] + c. */
TILE_INLINE void tile_step(enum kernel_type type, size_t rows, size_t tokens, vec sums[TILE_ROWS][VEC_TOKENS_MAX],
			   const uint16_t *const *w, size_t c, const float *panel)
{
	for (size_t half = 0; half < 2; half++) {
		vec weights[TILE_ROWS];

#pragma GCC unroll 4
		for (size_t i = 0; i < rows; i++) {
			if (type == KERNEL_F16)
				weights[i] = vec_f16(w[i] + c + half * VEC_FLOATS);
			else
				weights[i] = half ? vec_bf16_odd(w[i] + c) : vec_bf16_even(w[i] + c);
		}
#pragma GCC unroll 8
		for (size_t t = 0; t < tokens; t++) {
			const vec x = vec_loaded(panel + t * TILE_STEP + half * VEC_FLOATS);

#pragma GCC unroll 4
			for (size_t i = 0; i < rows; i++)
				sums[i][t] = vec_fma(weights[i], x, sums[i][t]);
		}
	}
}

/* Steps of columns from .. to; w_ahead[i] + c is fetched into the cache (an address that is not mapped is ignored
 * by the processor). */
TILE_INLINE void tile_steps(enum kernel_type type, size_t rows, size_t tokens, vec sums[TILE_ROWS][VEC_TOKENS_MAX],
			    const uint16_t *const *w, size_t from, size_t to, const float *panel,
			    const uint16_t *const *w_ahead)
{
	for (size_t c = from; c < to; c += TILE_STEP) {
#pragma GCC unroll 4
		for (size_t i = 0; i < rows; i++)
			_mm_prefetch((const char *)((uintptr_t)w_ahead[i] + c * sizeof(uint16_t)), _MM_HINT_T0);
		tile_step(type, rows, tokens, sums, w, c, panel + c * tokens);
	}
}

/* The last cols - whole columns, through a copy that is filled up with zeros: nothing behind a row is read. */
TILE_INLINE void tile_tail(enum kernel_type type, size_t rows, size_t tokens, vec sums[TILE_ROWS][VEC_TOKENS_MAX],
			   const uint16_t *const *w, size_t whole, size_t cols, const float *panel)
{
	uint16_t copies[TILE_ROWS][TILE_STEP] = {0};
	const uint16_t *tails[TILE_ROWS];

	for (size_t i = 0; i < rows; i++) {
		memcpy(copies[i], w[i] + whole, (cols - whole) * sizeof(uint16_t));
		tails[i] = copies[i];
	}
	tile_step(type, rows, tokens, sums, tails, 0, panel + whole * tokens);
}

/*
 * kept[i][t] += w_i . x_t as vectors, over one column block. `next` is where the next tile's rows begin: their
 * first bytes are asked for while this tile ends.
 */
TILE_INLINE void tile_run(enum kernel_type type, size_t rows, size_t tokens, vec *kept, const uint16_t *const *w,
			  const uint16_t *const *next, size_t cols, const float *panel)
{
	const size_t whole = cols / TILE_STEP * TILE_STEP;
	const size_t turn = whole > PREFETCH_COLS ? whole - PREFETCH_COLS : 0;
	const uint16_t *ahead[TILE_ROWS], *behind[TILE_ROWS];
	vec sums[TILE_ROWS][VEC_TOKENS_MAX];

#pragma GCC unroll 4
	for (size_t i = 0; i < rows; i++) {
		ahead[i] = (const uint16_t *)((uintptr_t)w[i] + PREFETCH_COLS * sizeof(uint16_t));
		behind[i] = (const uint16_t *)((uintptr_t)next[i] - turn * sizeof(uint16_t));
#pragma GCC unroll 8
		for (size_t t = 0; t < tokens; t++)
			sums[i][t] = kept[i * tokens + t];
	}
	tile_steps(type, rows, tokens, sums, w, 0, turn, panel, ahead);
	tile_steps(type, rows, tokens, sums, w, turn, whole, panel, behind);
	if (whole < cols)
		tile_tail(type, rows, tokens, sums, w, whole, cols, panel);
#pragma GCC unroll 4
	for (size_t i = 0; i < rows; i++)
#pragma GCC unroll 8
		for (size_t t = 0; t < tokens; t++)
			kept[i * tokens + t] = sums[i][t];
}

/* Rows of a tile: as many as leave room in the registers for the sums. */
#define TILE_ROWS_FOR(tokens) ((tokens) < VEC_TOKENS_MAX ? TILE_ROWS : TILE_ROWS / 2)

/*
 * kept[r][t] += w_r . x_t for rows first .. first + rows, rows <= CHUNK_ROWS, and the columns that the panel holds.
 * Where rows do not fill the last tile, its last row stands in for the missing ones, whose sums nobody looks at: so
 * `kept` has room for a multiple of TILE_ROWS rows.
 */
TILE_INLINE void chunk_run(enum kernel_type type, size_t tokens, vec *kept, const struct kernel_matrix *m, size_t first,
			   size_t rows, size_t first_col, size_t cols, const float *panel)
{
	const size_t n = TILE_ROWS_FOR(tokens);

	for (size_t r = 0; r < rows; r += n) {
		const uint16_t *w[TILE_ROWS], *next[TILE_ROWS];

		for (size_t i = 0; i < n; i++) {
			w[i] = matrix_row(m, first + MIN_OF(r + i, rows - 1)) + first_col;
			next[i] = (const uint16_t *)((uintptr_t)w[i] + n * m->pitch);
		}
		tile_run(type, n, tokens, kept + r * tokens, w, next, cols, panel);
	}
}

/* Tokens of the next tile: the largest power of two that is there. */
static inline size_t tile_tokens(size_t left)
{
	size_t n = VEC_TOKENS_MAX;

	while (n > left)
		n /= 2;
	return n;
}

#endif
