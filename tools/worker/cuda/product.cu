/* SPDX-License-Identifier: MIT */
/*
 * product - matrices times rows of activations. 16 threads have a row of the matrix, 8 columns of it at a time, which
 * are one or two pieces of 16 bytes; the matrix is read once for DENSE_TOKENS rows of activations.
 */
#include "tools/worker/cuda/dense.h"

#define PRODUCT_LANES (DENSE_THREADS / DENSE_ROWS)
#define PIECE 8 /* columns */

struct product_sums {
	float of[DENSE_TOKENS];
};

/* n columns of a row as floats. */
FUNC void load_piece(float *ret, const struct dense_matrix *w, uint64_t row, uint32_t col, uint32_t n)
{
	const uint64_t at = w->data + row * w->pitch + (uint64_t)col * (w->type == DENSE_F32 ? 4 : 2);
	struct words4 a, b;
	uint32_t i;

	if (n < PIECE) {
		for (i = 0; i < n; i++)
			ret[i] = element(w, row, col + i);
		return;
	}
	a = load_words4(at);
	if (w->type == DENSE_F32) {
		b = load_words4(at + 16);
		UNROLL
		for (i = 0; i < PIECE; i++)
			ret[i] = float_of(i < 4 ? a.w[i % 4] : b.w[i % 4]);
	} else {
		UNROLL
		for (i = 0; i < PIECE; i++) {
			const uint32_t bits = a.w[i / 2] >> i % 2 * 16 & 0xffff;

			ret[i] = w->type == DENSE_BF16 ? float_of_bf16(bits) : float_of_f16(bits);
		}
	}
}

FUNC void add_piece(struct product_sums *sums, const float *w, uint32_t n, const float *x, uint64_t pitch,
		    uint32_t tokens)
{
	UNROLL
	for (uint32_t k = 0; k < DENSE_TOKENS; k++) {
		if (k < tokens) {
			UNROLL
			for (uint32_t i = 0; i < PIECE; i++)
				if (i < n)
					sums->of[k] = fmaf(w[i], x[k * pitch + i], sums->of[k]);
		}
	}
}

KERNEL(worker_product, dense_product, DENSE_THREADS)
{
	SHARED(float, part)[DENSE_TOKENS][DENSE_THREADS];
	const uint32_t tile = BLOCK_INDEX % p.tiles, group = BLOCK_INDEX / p.tiles % p.groups;
	const uint32_t batch = BLOCK_INDEX / p.tiles / p.groups, first = tile * DENSE_ROWS,
		       token = group * DENSE_TOKENS;
	const uint32_t tokens = p.tokens - token < DENSE_TOKENS ? p.tokens - token : DENSE_TOKENS;
	const uint32_t rows = p.w.rows - first < DENSE_ROWS ? p.w.rows - first : DENSE_ROWS;
	const float *x = floats_at(p.x) + batch * p.x_batch + token * p.x_pitch;
	float *y = floats_at(p.y) + batch * p.y_batch + token * p.y_pitch + first;
	struct dense_matrix w = p.w;

	w.data += batch * p.w_batch;
	EACH_THREAD(tid)
	{
		struct product_sums sums = {{0}};

		if (tid / PRODUCT_LANES < rows) {
			for (uint32_t c = tid % PRODUCT_LANES * PIECE; c < w.cols; c += PRODUCT_LANES * PIECE) {
				const uint32_t n = w.cols - c < PIECE ? w.cols - c : PIECE;
				float piece[PIECE];

				load_piece(piece, &w, first + tid / PRODUCT_LANES, c, n);
				add_piece(&sums, piece, n, x + c, p.x_pitch, tokens);
			}
		}
		UNROLL
		for (uint32_t k = 0; k < DENSE_TOKENS; k++)
			part[k][tid] = sums.of[k];
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		const uint32_t k = tid / DENSE_ROWS, row = tid % DENSE_ROWS;
		float sum;

		if (k >= tokens || row >= rows)
			continue;
		sum = p.bias ? floats_at(p.bias)[first + row] : 0;
		for (unsigned i = 0; i < PRODUCT_LANES; i++)
			sum += part[k][row * PRODUCT_LANES + i];
		y[k * p.y_pitch + row] = sum;
	}
}

KERNEL(worker_carry, dense_carry, DENSE_THREADS)
{
	const uint32_t tile = BLOCK_INDEX % p.tiles, token = BLOCK_INDEX / p.tiles % p.tokens;
	const uint32_t batch = BLOCK_INDEX / p.tiles / p.tokens;
	const float *x = floats_at(p.x) + batch * p.x_batch + token * p.x_pitch;
	float *y = floats_at(p.y) + batch * p.y_batch + token * p.y_pitch;
	struct dense_matrix w = p.w;

	w.data += batch * p.w_batch;
	EACH_THREAD(tid)
	{
		const uint32_t c = tile * DENSE_THREADS + tid;
		float sum = 0;

		if (c >= w.cols)
			continue;
		for (uint32_t r = 0; r < w.rows; r++)
			sum = fmaf(x[r], element(&w, r, c), sum);
		y[c] = sum;
	}
}
