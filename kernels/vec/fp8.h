/* SPDX-License-Identifier: MIT */
/*
 * fp8 - E4M3 weights as floats, with the scales of 128 x 128 blocks or of rows. Written in the vec_* names of the level
 * that includes this file, which has defined VEC_FP8_FLOATS(w, v): columns v * VEC_FLOATS on of the 64 at w.
 */
#ifndef KERNELS_VEC_FP8_H
#define KERNELS_VEC_FP8_H

#include "kernels/vec/floats.h"

ROWS_FEW(few, ROWS_FP8, true)
ROWS_MANY(many, ROWS_F32, true)

/* Members of a struct rows_kernel. */
#define FP8_KERNEL(decoder)                                                                                            \
	.w_bytes = 1, .x_bytes = 4, .few_x_bytes = 4, .few = few, .many = many, .tile_tokens = ROWS_MOST(many),        \
	.decode = decoder, .near = ROWS_NEAR

#endif
