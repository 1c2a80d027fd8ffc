/* SPDX-License-Identifier: MIT */
#include "tools/worker/matrix.h"

#include <immintrin.h>
#include <string.h>

#include "base/util.h"
#include "tools/worker/vector.h"

/* A block of weights is widened once and used for all tokens: 4 rows of 1024 floats stay in the first-level cache. */
#define BLOCK_ROWS 4
#define BLOCK_COLS 1024

static void widen_bf16(float *to, const uint8_t *from, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t half;
		uint32_t bits;

		memcpy(&half, from + 2 * i, sizeof(half));
		bits = (uint32_t)half << 16;
		memcpy(to + i, &bits, sizeof(bits));
	}
}

static void widen_f16(float *to, const uint8_t *from, size_t n)
{
	size_t i = 0;

	for (; i + 8 <= n; i += 8)
		_mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + 2 * i))));
	for (; i < n; i++) {
		uint16_t half;

		memcpy(&half, from + 2 * i, sizeof(half));
		to[i] = _cvtsh_ss(half);
	}
}

void matrix_widen(float *to, const struct matrix *w, uint32_t row, uint32_t first, uint32_t n)
{
	const uint8_t *from = w->data + row * w->pitch + (uint64_t)first * matrix_type_bytes(w->type);

	switch (w->type) {
	case MATRIX_F32:
		memcpy(to, from, n * sizeof(float));
		break;
	case MATRIX_BF16:
		widen_bf16(to, from, n);
		break;
	case MATRIX_F16:
		widen_f16(to, from, n);
		break;
	}
}

/* sum[t][r] of two tokens and four rows over n columns: eight accumulators that fit the sixteen vector registers. */
static void tile_dot(float sum[2][BLOCK_ROWS], const float *x0, const float *x1, const float *const w[BLOCK_ROWS],
		     size_t n)
{
	vector8 a[2][BLOCK_ROWS] = {0};
	size_t i = 0;

	for (; i + 8 <= n; i += 8) {
		const vector8 v0 = *(const vector8 *)(x0 + i), v1 = *(const vector8 *)(x1 + i);

#pragma GCC unroll 4
		for (int r = 0; r < BLOCK_ROWS; r++) {
			const vector8 u = *(const vector8 *)(w[r] + i);

			a[0][r] += v0 * u;
			a[1][r] += v1 * u;
		}
	}
	for (int r = 0; r < BLOCK_ROWS; r++) {
		sum[0][r] = vector8_sum(a[0][r]);
		sum[1][r] = vector8_sum(a[1][r]);
		for (size_t j = i; j < n; j++) {
			sum[0][r] += x0[j] * w[r][j];
			sum[1][r] += x1[j] * w[r][j];
		}
	}
}

/* Adds one block's share (rows [row, row + n_rows), columns [col, col + n)) to all tokens' results. */
static void block_multiply(float *y, size_t y_pitch, const float *x, size_t x_pitch, size_t tokens,
			   const struct matrix *w, uint32_t row, uint32_t n_rows, uint32_t col, uint32_t n)
{
	float wide[BLOCK_ROWS][BLOCK_COLS], sum[2][BLOCK_ROWS];
	const float *rows[BLOCK_ROWS];

	for (uint32_t r = 0; r < BLOCK_ROWS; r++) {
		const uint32_t from = row + MIN(r, n_rows - 1); /* beyond the last row: computed again and dropped */

		if (w->type == MATRIX_F32) {
			rows[r] = (const float *)(const void *)(w->data + from * w->pitch) + col;
		} else {
			matrix_widen(wide[r], w, from, col, n);
			rows[r] = wide[r];
		}
	}
	for (size_t t = 0; t < tokens; t += 2) {
		const float *x0 = x + t * x_pitch + col;
		const size_t pair = MIN(tokens - t, 2u);

		tile_dot(sum, x0, pair == 2 ? x0 + x_pitch : x0, rows, n);
		for (size_t i = 0; i < pair; i++)
			for (uint32_t r = 0; r < n_rows; r++)
				y[(t + i) * y_pitch + row + r] += sum[i][r];
	}
}

void matrix_multiply(float *y, size_t y_pitch, const float *x, size_t x_pitch, size_t tokens, const struct matrix *w,
		     const float *bias)
{
	for (size_t t = 0; t < tokens; t++) {
		if (bias)
			memcpy(y + t * y_pitch, bias, w->rows * sizeof(float));
		else
			memset(y + t * y_pitch, 0, w->rows * sizeof(float));
	}
	for (uint32_t row = 0; row < w->rows; row += BLOCK_ROWS)
		for (uint32_t col = 0; col < w->cols; col += BLOCK_COLS)
			block_multiply(y, y_pitch, x, x_pitch, tokens, w, row, MIN(w->rows - row, BLOCK_ROWS), col,
				       MIN(w->cols - col, BLOCK_COLS));
}

void matrix_multiply_transposed(float *y, size_t y_pitch, const float *x, size_t x_pitch, size_t tokens,
				const struct matrix *w)
{
	float wide[BLOCK_COLS];

	for (size_t t = 0; t < tokens; t++)
		memset(y + t * y_pitch, 0, w->cols * sizeof(float));
	for (uint32_t row = 0; row < w->rows; row++) {
		for (uint32_t col = 0; col < w->cols; col += BLOCK_COLS) {
			const uint32_t n = MIN(w->cols - col, BLOCK_COLS);

			matrix_widen(wide, w, row, col, n);
			for (size_t t = 0; t < tokens; t++)
				vector_axpy(y + t * y_pitch + col, x[t * x_pitch + row], wide, n);
		}
	}
}
