/* SPDX-License-Identifier: MIT */
/*
 * floats - weights widened to FP32 (exact), by FP32 fused multiply-add with activations as they are. Written in the
 * vec_* names of the level that includes this file, for rows_run.h.
 */
#ifndef KERNELS_VEC_FLOATS_H
#define KERNELS_VEC_FLOATS_H

#include "kernels/vec/rows_run.h"

/* The v-th VEC_FLOATS of the weights at w. The level's vec_fp8_floats(w, v) does so for FP8. */
ROWS_INLINE vec row_weights(enum rows_kind kind, const char *w, size_t v)
{
	switch (kind) {
	case ROWS_BF16:
		return vec_from_bf16((const uint16_t *)w + v * VEC_FLOATS);
	case ROWS_F16:
		return vec_f16((const uint16_t *)w + v * VEC_FLOATS);
#ifdef VEC_FP8_FLOATS
	case ROWS_FP8:
		return VEC_FP8_FLOATS(w, v);
#endif
	default:
		return vec_load((const float *)w + v * VEC_FLOATS);
	}
}

ROWS_INLINE vec row_dot(enum rows_kind kind, vec sum, vec w, vec x)
{
	return vec_fma(w, x, sum);
}

/* Step by step; the last columns through copies, zeros behind them where rows are filled up. */
ROWS_INLINE void floats_decode(enum rows_kind kind, const char *w, size_t cols, float *to)
{
	const size_t step = ROWS_STEP_BYTES / rows_w_bytes(kind);
	size_t c = 0;

	for (; cols - c >= step; c += step)
#pragma GCC unroll 8
		for (size_t v = 0; v < step / VEC_FLOATS; v++)
			vec_store(to + c + v * VEC_FLOATS, row_weights(kind, w + c * rows_w_bytes(kind), v));
	if (c < cols) {
		char tail[ROWS_STEP_BYTES] = {0};
		float last[ROWS_STEP_FLOATS];

		memcpy(tail, w + c * rows_w_bytes(kind), (cols - c) * rows_w_bytes(kind));
		for (size_t v = 0; v < step / VEC_FLOATS; v++)
			vec_store(last + v * VEC_FLOATS, row_weights(kind, tail, v));
		memcpy(to + c, last, rows_filled(rows_fours(kind), cols - c) * sizeof(last[0]));
	}
}

#endif
