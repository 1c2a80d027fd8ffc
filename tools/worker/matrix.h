/* SPDX-License-Identifier: MIT */
/*
 * matrix - a published weight matrix, as it lies in memory, and its products with FP32 rows.
 *
 * Elements are BF16, F16 or FP32, little-endian, at any byte alignment (FP32 needs its four); arithmetic is FP32. A
 * matrix owns nothing: its data belong to struct weights. A range of rows or columns is a matrix again.
 */
#ifndef WORKER_MATRIX_H
#define WORKER_MATRIX_H

#include <stddef.h>
#include <stdint.h>

enum matrix_type { MATRIX_F32, MATRIX_BF16, MATRIX_F16 };

struct matrix {
	const uint8_t *data; /* NULL: there is no such matrix in this model */
	enum matrix_type type;
	uint32_t rows, cols;
	uint64_t pitch; /* bytes from row to row */
};

static inline uint32_t matrix_type_bytes(enum matrix_type type)
{
	return type == MATRIX_F32 ? 4 : 2;
}

static inline struct matrix matrix_rows(struct matrix w, uint32_t first, uint32_t n)
{
	w.data += first * w.pitch;
	w.rows = n;
	return w;
}

static inline struct matrix matrix_cols(struct matrix w, uint32_t first, uint32_t n)
{
	w.data += (uint64_t)first * matrix_type_bytes(w.type);
	w.cols = n;
	return w;
}

/* One row, or `n` elements of it from column `first`, as FP32. */
void matrix_widen(float *to, const struct matrix *w, uint32_t row, uint32_t first, uint32_t n);

/* y[t][r] = bias[r] + w_r . x[t] for all tokens t and rows r; pitches in floats; bias may be NULL. */
void matrix_multiply(float *y, size_t y_pitch, const float *x, size_t x_pitch, size_t tokens, const struct matrix *w,
		     const float *bias);

/* y[t][c] = sum over rows r of x[t][r] * w[r][c]: the product with the transposed matrix. */
void matrix_multiply_transposed(float *y, size_t y_pitch, const float *x, size_t x_pitch, size_t tokens,
				const struct matrix *w);

#endif
