/* SPDX-License-Identifier: MIT */
/*
 * rows - dot products of row-major weights: four rows with a few tokens at once, in the vec_* names of the level that
 * includes this file.
 *
 * Templates: the including file defines, for the kinds that it makes tiles of,
 *
 *   row_weights(kind, w, v)   from the 64 bytes of weights at w, those that meet the step's v-th vector of activations
 *   row_dot(kind, sum, w, x)  sum + w . x, element by element
 *
 * Law: columns are cut into blocks of ROWS_BLOCK_BYTES of activations. In a block each vector element is one chain of
 * sums over the columns in order, then one tree over the elements; the blocks' sums are added in order. FP8 has a chain
 * for each 128 columns: the tree's first step, then scale * sum is added by one fused multiply-add, which leaves a tile
 * half as many of them. Where columns are in another order (rows_fours), that is theirs. That is so whatever the tile's
 * shape, and whether weights are decoded in registers or
 * beforehand: a result depends on its own row and token only, the same bits for a token alone and in a batch.
 */
#ifndef KERNELS_VEC_ROWS_H
#define KERNELS_VEC_ROWS_H

#include <stdbool.h>
#include <string.h>

#include "kernels/kernels.h"

#define ROWS_INLINE static inline __attribute__((always_inline))
#define ROWS_TILE 4        /* rows side by side, which share the loads of activations */
#define ROWS_PAIRS 2       /* of them */
#define ROWS_CHUNK 16      /* rows whose sums of one token are a line of totals */
#define ROWS_STEP_BYTES 64 /* of a row's weights */
#define ROWS_NEAR 6144     /* bytes ahead of their use that a row's weights are asked for */
#define ROWS_STREAMED 2048 /* the same where the processor follows a stream itself (docs/decisions/0021) */
#define ROWS_ONCE 256      /* the same of lines that are to leave the first-level cache soon (docs/decisions/0030) */
#define ROWS_FAR 24576     /* the same of one line of each page, where that is worth it */
#define ROWS_BESIDE 1280   /* the same of four streams on Zen 5 (docs/decisions/0075, 0099) */
#define ROWS_BESIDE_FP8 3072
#define ROWS_BESIDE_TOKENS 8 /* up to which more than a few are read so there (docs/decisions/0100) */
#define ROWS_PAGE 4096
#define ROWS_STEP_FLOATS 64 /* activations of a step at most */
#define ROWS_GROUP 128      /* columns of a block scale */

enum rows_kind {
	ROWS_F32,
	ROWS_BF16,
	ROWS_F16,
	ROWS_FP8,
	ROWS_BF16_DOT,
	ROWS_FP8_DOT,
	ROWS_INT8,
	ROWS_UINT8,
	ROWS_INT16 /* bytes that lanes.h has widened */
};

/* Bytes of a column. */
ROWS_INLINE size_t rows_w_bytes(enum rows_kind kind)
{
	return kind == ROWS_F32 ? 4 : kind == ROWS_BF16 || kind == ROWS_F16 || kind == ROWS_BF16_DOT ? 2 : 1;
}

ROWS_INLINE size_t rows_x_bytes(enum rows_kind kind)
{
	const bool two = kind == ROWS_BF16_DOT || kind == ROWS_FP8_DOT || kind == ROWS_INT16;

	return kind == ROWS_INT8 || kind == ROWS_UINT8 ? 1 : two ? 2 : 4;
}

/* The same where few tokens are computed: FP16 weights meet FP16 activations (PACK_F16), which take half the room in
 * the first-level cache. */
ROWS_INLINE size_t rows_few_x_bytes(enum rows_kind kind)
{
	return kind == ROWS_F16 ? 2 : rows_x_bytes(kind);
}

/* Whether a kind's columns are in the order of kernel_fours, filled up with zeros to whole KERNEL_FOURS. */
ROWS_INLINE bool rows_fours(enum rows_kind kind)
{
#ifdef VEC_FP8_FOURS
	return kind == ROWS_FP8;
#else
	return false;
#endif
}

ROWS_INLINE size_t rows_filled(bool fours, size_t cols)
{
	return fours ? (cols + KERNEL_FOURS - 1) / KERNEL_FOURS * KERNEL_FOURS : cols;
}

/* Rows, four at a time, and a block of columns. */
struct rows_tile {
	const char *w;
	size_t pitch, cols, tiles;
	/* What each step asks for ahead, a row of weights for a tile; each tile for as many rows further on. */
	const char *ahead;
	size_t ahead_pitch, ahead_step;
	size_t ahead_second; /* and this much after it; 0 where one is enough */
	/* Or these activations, which come next, a token a tile; NULL: `ahead`. */
	const void *const *x_ahead;
	size_t x_ahead_tokens;
	const void *const *x;
	size_t x_at;        /* bytes before the block in a packed row */
	const char *scales; /* of the block's groups */
	float *totals;      /* of the first row and token; ROWS_CHUNK from token to token */
};

/* The including file's. */
ROWS_INLINE vec row_weights(enum rows_kind kind, const char *w, size_t v);
ROWS_INLINE vec row_dot(enum rows_kind kind, vec sum, vec w, vec x);

typedef void rows_tile_function(const struct rows_tile *tile);

#ifdef VEC_FMA_THREE
/* A vector of each row, none of which stays in a register for longer than its own products: so there is room for the
 * sums of three tokens. */
ROWS_INLINE void rows_step_three(vec sums[ROWS_TILE][ROWS_TOKENS], const char *w, size_t pitch, const char *const *x,
				 size_t at)
{
	vec activations[3];

#pragma GCC unroll 3
	for (size_t t = 0; t < 3; t++)
		activations[t] = vec_load((const float *)(x[t] + at));
#pragma GCC unroll 4
	for (size_t i = 0; i < ROWS_TILE; i++)
		vec_fma_three(sums[i], (const float *)(w + i * pitch), activations);
}
#endif

ROWS_INLINE void rows_step(enum rows_kind kind, size_t tokens, vec sums[ROWS_TILE][ROWS_TOKENS], const char *w,
			   size_t pitch, const char *const *x, size_t at)
{
	const size_t vecs = ROWS_STEP_BYTES / rows_w_bytes(kind) * rows_x_bytes(kind) / VEC_BYTES;

#pragma GCC unroll 8
	for (size_t v = 0; v < vecs; v++) {
		vec weights[ROWS_TILE];

#ifdef VEC_FMA_THREE
		if (kind == ROWS_F32 && tokens == 3) {
			rows_step_three(sums, w + v * VEC_BYTES, pitch, x, at + v * VEC_BYTES);
			continue;
		}
#endif
#pragma GCC unroll 4
		for (size_t i = 0; i < ROWS_TILE; i++)
			weights[i] = row_weights(kind, w + i * pitch, v);
#pragma GCC unroll 8
		for (size_t t = 0; t < tokens; t++) {
			const vec a = vec_loaded((const float *)(x[t] + at + v * VEC_BYTES));

#pragma GCC unroll 4
			for (size_t i = 0; i < ROWS_TILE; i++)
				sums[i][t] = row_dot(kind, sums[i][t], weights[i], a);
		}
	}
}

/* The last columns, fewer than a step, through copies that are filled up with zeros: nothing behind a row is read. */
ROWS_INLINE void rows_tail(enum rows_kind kind, size_t tokens, vec sums[ROWS_TILE][ROWS_TOKENS], const char *w,
			   size_t pitch, const char *const *x, size_t at, size_t cols)
{
	_Alignas(64) char weights[ROWS_TILE][ROWS_STEP_BYTES] = {0};
	_Alignas(64) char copies[ROWS_TOKENS][ROWS_STEP_FLOATS * sizeof(float)] = {0};
	const char *from[ROWS_TOKENS];

	for (size_t i = 0; i < ROWS_TILE; i++)
		memcpy(weights[i], w + i * pitch, cols * rows_w_bytes(kind));
	for (size_t t = 0; t < tokens; t++) {
		memcpy(copies[t], x[t] + at, cols * rows_x_bytes(kind));
		from[t] = copies[t];
	}
	rows_step(kind, tokens, sums, weights[0], sizeof(weights[0]), from, 0);
}

ROWS_INLINE void rows_clear(size_t tokens, vec sums[ROWS_TILE][ROWS_TOKENS])
{
#pragma GCC unroll 8
	for (size_t t = 0; t < tokens; t++)
#pragma GCC unroll 4
		for (size_t i = 0; i < ROWS_TILE; i++)
			sums[i][t] = vec_zero();
}

static inline void quad_add(float *to, __m128 v)
{
	_mm_storeu_ps(to, _mm_add_ps(_mm_loadu_ps(to), v));
}

static inline void quad_add_int(float *to, __m128i v)
{
	_mm_storeu_si128((__m128i *)to, _mm_add_epi32(_mm_loadu_si128((const __m128i *)to), v));
}

/* totals += the sums over the vectors' elements; of ROWS_INT8 integers. */
ROWS_INLINE void rows_reduce(enum rows_kind kind, size_t tokens, vec sums[ROWS_TILE][ROWS_TOKENS], float *totals)
{
#pragma GCC unroll 8
	for (size_t t = 0; t < tokens; t++, totals += ROWS_CHUNK) {
		if (rows_x_bytes(kind) == 1)
			quad_add_int(totals, vec_quad_int(sums[0][t], sums[1][t], sums[2][t], sums[3][t]));
		else
			quad_add(totals, vec_quad(vec_pair(sums[0][t], sums[1][t]), vec_pair(sums[2][t], sums[3][t])));
	}
}

static inline vec rows_scale(const char *scales, size_t group)
{
	float scale;

	memcpy(&scale, scales + group * sizeof(scale), sizeof(scale));
	return vec_set(scale);
}

/* scaled += scale * the sums of a group. */
ROWS_INLINE void rows_scale_group(size_t tokens, vec sums[ROWS_TILE][ROWS_TOKENS], vec scale,
				  vec scaled[ROWS_PAIRS][ROWS_TOKENS])
{
#pragma GCC unroll 8
	for (size_t t = 0; t < tokens; t++)
#pragma GCC unroll 2
		for (size_t i = 0; i < ROWS_PAIRS; i++)
			scaled[i][t] = vec_fma(scale, vec_pair(sums[2 * i][t], sums[2 * i + 1][t]), scaled[i][t]);
}

ROWS_INLINE void rows_clear_groups(size_t tokens, vec scaled[ROWS_PAIRS][ROWS_TOKENS])
{
#pragma GCC unroll 8
	for (size_t t = 0; t < tokens; t++)
		scaled[0][t] = scaled[1][t] = vec_zero();
}

ROWS_INLINE void rows_reduce_groups(size_t tokens, vec scaled[ROWS_PAIRS][ROWS_TOKENS], float *totals)
{
#pragma GCC unroll 8
	for (size_t t = 0; t < tokens; t++, totals += ROWS_CHUNK)
		quad_add(totals, vec_quad(scaled[0][t], scaled[1][t]));
}

ROWS_INLINE void rows_run_tile(enum rows_kind kind, bool grouped, size_t tokens, const struct rows_tile *tile,
			       const char *w, const char *ahead, const char *const *x, float *totals)
{
	const size_t step = ROWS_STEP_BYTES / rows_w_bytes(kind), x_step = step * rows_x_bytes(kind);
	const size_t pitch = tile->pitch;
	uintptr_t ask = (uintptr_t)ahead;
	size_t at = 0;
	vec sums[ROWS_TILE][ROWS_TOKENS], scaled[ROWS_PAIRS][ROWS_TOKENS];

	rows_clear(tokens, sums);
	rows_clear_groups(tokens, scaled);
	for (size_t c = 0, to; c < tile->cols; c = to) {
		to = grouped && tile->cols - c > ROWS_GROUP ? c + ROWS_GROUP : tile->cols;
		if (grouped)
			rows_clear(tokens, sums);
		for (size_t n = (to - c) / step; n; n--) {
			_mm_prefetch((const char *)ask, _MM_HINT_T0);
			_mm_prefetch((const char *)(ask + tile->ahead_second), _MM_HINT_T0);
			rows_step(kind, tokens, sums, w, pitch, x, at);
			ask += tile->ahead_step;
			w += ROWS_STEP_BYTES;
			at += x_step;
		}
		if ((to - c) % step)
			rows_tail(kind, tokens, sums, w, pitch, x, at, (to - c) % step);
		if (grouped)
			rows_scale_group(tokens, sums, rows_scale(tile->scales, c / ROWS_GROUP), scaled);
	}
	if (grouped)
		rows_reduce_groups(tokens, scaled, totals);
	else
		rows_reduce(kind, tokens, sums, totals);
}

/* Rows by rows in one function: while the sums of some are added up, the next ones are on their way. */
ROWS_INLINE void rows_run_tiles(enum rows_kind kind, bool grouped, size_t tokens, const struct rows_tile *tile)
{
	const char *x[ROWS_TOKENS];

#pragma GCC unroll 8
	for (size_t t = 0; t < tokens; t++)
		x[t] = (const char *)tile->x[t] + tile->x_at;
	for (size_t i = 0; i < tile->tiles; i++) {
		const char *ahead = (const char *)((uintptr_t)tile->ahead + i * ROWS_TILE * tile->ahead_pitch);

		if (tile->x_ahead) {
			const size_t most = tile->x_ahead_tokens - 1;

			ahead = (const char *)tile->x_ahead[i < most ? i : most] + tile->x_at;
		}
		rows_run_tile(kind, grouped, tokens, tile, tile->w + i * ROWS_TILE * tile->pitch, ahead, x,
			      tile->totals + i * ROWS_TILE);
	}
}

/* One function for each number of tokens: constants for the compiler. */
#define ROWS_FUNCTION(name, kind, grouped, tokens)                                                                     \
	static __attribute__((noinline)) void name##_##tokens(const struct rows_tile *tile)                            \
	{                                                                                                              \
		rows_run_tiles(kind, grouped, tokens, tile);                                                           \
	}

#define ROWS_FUNCTION_2(name, kind, grouped)                                                                           \
	ROWS_FUNCTION(name, kind, grouped, 1)                                                                          \
	ROWS_FUNCTION(name, kind, grouped, 2)

/* Tables of them: name[tokens], for up to so many tokens, ROWS_MOST(name). */
#define ROWS_MOST(name) (sizeof(name) / sizeof((name)[0]) - 1)
#define ROWS_TABLE_2(name, kind, grouped)                                                                              \
	ROWS_FUNCTION_2(name, kind, grouped)                                                                           \
	static rows_tile_function *const name[] = {NULL, name##_1, name##_2};
#define ROWS_TABLE_3(name, kind, grouped)                                                                              \
	ROWS_FUNCTION_2(name, kind, grouped)                                                                           \
	ROWS_FUNCTION(name, kind, grouped, 3)                                                                          \
	static rows_tile_function *const name[] = {NULL, name##_1, name##_2, name##_3};
#define ROWS_TABLE_6(name, kind, grouped)                                                                              \
	ROWS_FUNCTION_2(name, kind, grouped)                                                                           \
	ROWS_FUNCTION(name, kind, grouped, 3)                                                                          \
	ROWS_FUNCTION(name, kind, grouped, 4)                                                                          \
	ROWS_FUNCTION(name, kind, grouped, 5)                                                                          \
	ROWS_FUNCTION(name, kind, grouped, 6)                                                                          \
	static rows_tile_function *const name[] = {NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6};

#endif
