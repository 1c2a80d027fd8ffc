/* SPDX-License-Identifier: MIT */
/*
 * halves - weights of 16 bits, widened to FP32. FP16's activations are FP16 too (PACK_F16); those of bfloat16 are FP32:
 * weights of its range leave no room for a factor. Written in the vec_* names of the level that includes this file.
 */
#ifndef KERNELS_VEC_HALVES_H
#define KERNELS_VEC_HALVES_H

#include "kernels/vec/floats.h"
#include "kernels/vec/pack.h"

static void decode_bf16(const void *codes, size_t cols, void *to)
{
	floats_decode(ROWS_BF16, codes, cols, to);
}

static void decode_f16(const void *codes, size_t cols, void *to)
{
	floats_decode(ROWS_F16, codes, cols, to);
}

ROWS_FEW(few_bf16, ROWS_BF16, false)
ROWS_FEW(few_f16, ROWS_F16, false)
ROWS_MANY(many, ROWS_F32, false)

/* Members of a struct rows_kernel. */
#define HALVES_BF16                                                                                                    \
	.w_bytes = 2, .x_bytes = 4, .few_x_bytes = 4, .few = few_bf16, .many = many, .tile_tokens = ROWS_MOST(many),   \
	.decode = decode_bf16
#define HALVES_F16                                                                                                     \
	.w_bytes = 2, .x_bytes = 4, .few_x_bytes = 2, .few = few_f16, .many = many, .tile_tokens = ROWS_MOST(many),    \
	.decode = decode_f16

#endif
