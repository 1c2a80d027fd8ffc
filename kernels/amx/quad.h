/* SPDX-License-Identifier: MIT */
/*
 * quad - the sums of 32 rows of weights and 32 tokens: four tiles, the unit that many tokens are computed in.
 *
 * Weights are the left operand, in two tiles of 16 rows; activations the right one, turned, of two groups of 16 tokens.
 */
#ifndef KERNELS_AMX_QUAD_H
#define KERNELS_AMX_QUAD_H

#include "kernels/amx/tiles.h"

/* Rows by tokens: of the first 16 rows with both groups, then of the others. */
typedef float group_quad[4][TILE_ROWS][TILE_ROWS];

/* sums += weights . activations */
#define QUAD_STEP(dot, w0, w1, x0, x1)                                                                                 \
	do {                                                                                                           \
		TILE_LOAD(4, w0, TILE_BYTES);                                                                          \
		TILE_PASS(6, x0, TILE_BYTES);                                                                          \
		dot(0, 4, 6);                                                                                          \
		TILE_PASS(7, x1, TILE_BYTES);                                                                          \
		dot(1, 4, 7);                                                                                          \
		TILE_LOAD(5, w1, TILE_BYTES);                                                                          \
		dot(2, 5, 6);                                                                                          \
		dot(3, 5, 7);                                                                                          \
	} while (0)

/* The same of one group. */
#define HALF_STEP(dot, w0, w1, x0)                                                                                     \
	do {                                                                                                           \
		TILE_LOAD(4, w0, TILE_BYTES);                                                                          \
		TILE_PASS(6, x0, TILE_BYTES);                                                                          \
		dot(0, 4, 6);                                                                                          \
		TILE_LOAD(5, w1, TILE_BYTES);                                                                          \
		dot(2, 5, 6);                                                                                          \
	} while (0)

static inline void quad_zero(void)
{
	TILE_ZERO(0);
	TILE_ZERO(1);
	TILE_ZERO(2);
	TILE_ZERO(3);
}

static inline void quad_load(const group_quad *q)
{
	TILE_LOAD(0, (*q)[0], TILE_BYTES);
	TILE_LOAD(1, (*q)[1], TILE_BYTES);
	TILE_LOAD(2, (*q)[2], TILE_BYTES);
	TILE_LOAD(3, (*q)[3], TILE_BYTES);
}

static inline void quad_store(group_quad *q)
{
	TILE_STORE(0, (*q)[0], TILE_BYTES);
	TILE_STORE(1, (*q)[1], TILE_BYTES);
	TILE_STORE(2, (*q)[2], TILE_BYTES);
	TILE_STORE(3, (*q)[3], TILE_BYTES);
}

/* What a tile of sums has become, rows by tokens, on its way to the tokens' own rows. */
struct tile_results {
	_Alignas(64) float rows[TILE_ROWS][TILE_ROWS], turned[TILE_ROWS][TILE_ROWS];
};

static inline void results_put(struct tile_results *results, size_t first, size_t n, size_t tokens, float *const *out)
{
	const uint8_t *rows[TILE_ROWS];

	for (size_t r = 0; r < TILE_ROWS; r++)
		rows[r] = (const uint8_t *)results->rows[r];
	tile_turn(rows, 0, (uint8_t *)results->turned);
	for (size_t t = 0; t < tokens; t++) {
		if (n < TILE_ROWS)
			vec_store_n(out[t] + first, vec_load(results->turned[t]), n);
		else
			vec_store(out[t] + first, vec_load(results->turned[t]));
	}
}

#endif
