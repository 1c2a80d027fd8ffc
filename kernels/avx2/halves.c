/* SPDX-License-Identifier: MIT */
/* halves - weights of 16 bits, by FP32 fused multiply-add. */
#include "kernels/avx2/vec.h"
#include "kernels/vec/halves.h"

#include "kernels/avx2/lanes.h"

LANES(float_lanes, ROWS_F32, 12, 6)

/* Tokens over which lanes pay, and up to which streams do. */
#define HALVES_TOKENS .near = ROWS_NEAR, .lanes = float_lanes, .lanes_over = 15, .side_most = 15

ROWS_STREAMS_4(streams_bf16, ROWS_BF16, false)
ROWS_STREAMS_4(streams_f16, ROWS_F16, false)

static const struct rows_kernel kernel_bf16 = {HALVES_BF16, HALVES_TOKENS, .streams = streams_bf16,
					       .side_over = ROWS_FEW_TOKENS};
static const struct rows_kernel kernel_f16 = {HALVES_F16, HALVES_TOKENS, .streams = streams_f16,
					      .side_over = ROWS_FEW_TOKENS};
static const struct rows_kernel unasked_bf16 = {HALVES_BF16, HALVES_TOKENS, .streams = streams_bf16};
static const struct rows_kernel unasked_f16 = {HALVES_F16, HALVES_TOKENS, .streams = streams_f16};

ROWS_OPS(ops_bf16_avx2, kernel_bf16, PACK_F32, NULL)
ROWS_OPS(ops_f16_avx2, kernel_f16, PACK_F16, pack_f16_row)
ROWS_OPS(ops_bf16_unasked_avx2, unasked_bf16, PACK_F32, NULL)
ROWS_OPS(ops_f16_unasked_avx2, unasked_f16, PACK_F16, pack_f16_row)
