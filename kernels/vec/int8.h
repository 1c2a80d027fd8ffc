/* SPDX-License-Identifier: MIT */
/*
 * int8 - 8-bit integers with a scale for each row. Written in the vec_* names of the level that includes this file,
 * which has defined row_weights, row_dot, INT8_TABLE, the table of tiles, INT8_MANY, the kind of decoded weights, and
 * INT8_OFFSET, what is added to weights on their way to row_dot: by row_weights where they are ROWS_INT8, beforehand
 * where ROWS_UINT8.
 *
 * A line of each page is asked for early, which the other formats were read slower with (docs/decisions/0018).
 */
#ifndef KERNELS_VEC_INT8_H
#define KERNELS_VEC_INT8_H

#include "kernels/vec/pack.h"
#include "kernels/vec/rows_run.h"

static void decode(const void *codes, size_t cols, void *to)
{
	const uint8_t flip = INT8_MANY == ROWS_UINT8 ? INT8_OFFSET : 0, *w = codes;
	uint8_t *out = to;

	for (size_t c = 0; c < cols; c++)
		out[c] = w[c] ^ flip;
}

ROWS_FEW(few, ROWS_INT8, false)
INT8_TABLE(many, INT8_MANY, false)
INT8_TABLE(in_place, ROWS_INT8, false)

/* Members of a struct rows_kernel. */
#define INT8_KERNEL(near_bytes, far_bytes)                                                                             \
	.w_bytes = 1, .x_bytes = 1, .few_x_bytes = 1, .few = few, .many = many, .in_place = in_place,                  \
	.tile_tokens = ROWS_MOST(many), .decode = decode, .near = near_bytes, .far = far_bytes, .integer = true,       \
	.offset = INT8_OFFSET

#endif
