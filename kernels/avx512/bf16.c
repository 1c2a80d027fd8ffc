/* SPDX-License-Identifier: MIT */
/* bf16 - bfloat16 weights and activations, by the bfloat16 dot product. */
#include "kernels/avx512/vec.h"
#include "kernels/vec/pack.h"
#include "kernels/vec/rows_run.h"

#include "kernels/avx512/lanes.h"

ROWS_INLINE vec row_weights(enum rows_kind kind, const char *w, size_t v)
{
	return _mm512_loadu_ps(w);
}

ROWS_INLINE vec row_dot(enum rows_kind kind, vec sum, vec w, vec x)
{
	return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
}

/* Rows whose distance is a multiple of 4 KiB would push each other out of the first-level cache. */
static void decode(const void *codes, size_t cols, void *to)
{
	memcpy(to, codes, cols * sizeof(uint16_t));
}

ROWS_FEW(few, ROWS_BF16_DOT, false)
ROWS_MANY(many, ROWS_BF16_DOT, false)
ROWS_STREAMS_4(streams, ROWS_BF16_DOT, false)
LANES_NARROW(lanes, ROWS_BF16_DOT, 6, 2)

/* Members of a struct rows_kernel. */
#define DOT                                                                                                            \
	.w_bytes = 2, .x_bytes = 2, .few_x_bytes = 2, .few = few, .many = many, .in_place = many,                      \
	.tile_tokens = ROWS_MOST(many), .decode = decode

static const struct rows_kernel kernel = {DOT,
					  .near = ROWS_NEAR,
					  .far = ROWS_FAR,
					  .streams = streams,
					  .side_over = ROWS_PASSES * ROWS_FEW_TOKENS,
					  .side_most = ROWS_BESIDE_TOKENS,
					  .side_near = ROWS_BESIDE,
					  .lanes = lanes,
					  .lanes_over = 16,
					  .roomy = true};
static const struct rows_kernel unasked = {DOT, .streams = streams};

ROWS_OPS(ops_bf16_dot_avx512, kernel, PACK_BF16, pack_bf16_row)
ROWS_OPS(ops_bf16_dot_unasked_avx512, unasked, PACK_BF16, pack_bf16_row)
