/* SPDX-License-Identifier: MIT */
/* lanes - the shapes of kernels/vec/lanes.h at level avx512: 24 vectors of sums, 384 results. */
#ifndef KERNELS_AVX512_LANES_H
#define KERNELS_AVX512_LANES_H

#include "kernels/avx512/vec.h"

#define LANES_WIDTH 4
#define LANES_ROWS 12
#define LANES_LEVELS 4
#define LANES_RUN_STEP 48
#define LANES_RUN_ROWS 576

/* The four of a lane as vec_pair and vec_quad add them, then lanes two apart. */
static const uint8_t lanes_order[] = {0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15};

#include "kernels/vec/lanes_run.h"

/* 16 bytes of 16 rows become 4 columns in each of four vectors; here rows r .. r + 7, r + 4 in the upper halves. */
ROWS_INLINE void turn_quads(const __m512i rows[4], __m512i ret[4])
{
	const __m512i low = _mm512_unpacklo_epi32(rows[0], rows[1]), high = _mm512_unpackhi_epi32(rows[0], rows[1]);
	const __m512i low2 = _mm512_unpacklo_epi32(rows[2], rows[3]), high2 = _mm512_unpackhi_epi32(rows[2], rows[3]);

	ret[0] = _mm512_unpacklo_epi64(low, low2);
	ret[1] = _mm512_unpackhi_epi64(low, low2);
	ret[2] = _mm512_unpacklo_epi64(high, high2);
	ret[3] = _mm512_unpackhi_epi64(high, high2);
}

/* 32 bytes of two rows, the second in the upper half. */
ROWS_INLINE __m512i turn_two_rows(const char *row, const char *second)
{
	const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)row));

	return _mm512_inserti64x4(low, _mm256_loadu_si256((const __m256i *)second), 1);
}

/* 64 bytes of 16 rows, `at` bytes from where they begin, become 16 vectors of 4 bytes of each row. Rows are often a
 * multiple of 4 KiB apart: both halves of a line are read before others take its place. */
ROWS_INLINE void vec_turn(const char *const *rows, size_t at, vec ret[VEC_FLOATS])
{
	__m512i two[2][2][4], quads[2][2][4]; /* halves of lines, halves of rows */

#pragma GCC unroll 2
	for (size_t upper = 0; upper < 2; upper++)
#pragma GCC unroll 4
		for (size_t r = 0; r < 4; r++) {
			const char *row = rows[upper * 8 + r] + at, *second = rows[upper * 8 + r + 4] + at;

			two[0][upper][r] = turn_two_rows(row, second);
			two[1][upper][r] = turn_two_rows(row + 32, second + 32);
		}
#pragma GCC unroll 2
	for (size_t half = 0; half < 2; half++) {
		turn_quads(two[half][0], quads[half][0]);
		turn_quads(two[half][1], quads[half][1]);
#pragma GCC unroll 4
		for (size_t i = 0; i < 4; i++) {
			const __m512i a = quads[half][0][i], b = quads[half][1][i];

			ret[half * 8 + i] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(a, b, 0x88));
			ret[half * 8 + 4 + i] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(a, b, 0xdd));
		}
	}
}

/* rows_lanes_function `name`; two panels alone are best with `rows` rows and `chains` chains at a time. */
#define LANES(name, kind, rows, chains)                                                                                \
	LANES_FUNCTION(name, kind, 1, 12, 1)                                                                           \
	LANES_FUNCTION(name, kind, 2, rows, chains)                                                                    \
	LANES_FUNCTION(name, kind, 2, 8, 1)                                                                            \
	LANES_FUNCTION(name, kind, 3, 8, 1)                                                                            \
	LANES_FUNCTION(name, kind, 3, 6, 1)                                                                            \
	LANES_FUNCTION(name, kind, 4, 6, 1)                                                                            \
	static const struct lanes_shape name##_shapes[] = {{12, {name##_1_12_1}},                                      \
							   {rows, {NULL, name##_2_##rows##_##chains}},                 \
							   {8, {NULL, name##_2_8_1, name##_3_8_1}},                    \
							   {6, {NULL, NULL, name##_3_6_1, name##_4_6_1}}};             \
	LANES_ROWS_FUNCTION(name, kind, name##_shapes)

/* The same of tiles of at most two panels, `rows` rows and `chains` chains at a time: they read half as much of the
 * panels for each product as tiles of four, and the rows leave half of a first-level cache of 48 KiB free. */
#define LANES_NARROW(name, kind, rows, chains)                                                                         \
	LANES_FUNCTION(name, kind, 1, rows, chains)                                                                    \
	LANES_FUNCTION(name, kind, 2, rows, chains)                                                                    \
	static const struct lanes_shape name##_shapes[] = {                                                            \
		{rows, {name##_1_##rows##_##chains}},                                                                  \
		{rows, {name##_1_##rows##_##chains, name##_2_##rows##_##chains}}};                                     \
	LANES_ROWS_FUNCTION(name, kind, name##_shapes)

#endif
