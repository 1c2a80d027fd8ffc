/* SPDX-License-Identifier: MIT */
/* halves - weights of 16 bits, by FP32 fused multiply-add. */
#include "kernels/avx512/vec.h"
#include "kernels/vec/halves.h"

#include "kernels/avx512/lanes.h"

LANES(float_lanes, ROWS_F32, 6, 2)

ROWS_STREAMS_4(streams_bf16, ROWS_BF16, false)
ROWS_STREAMS_4(streams_f16, ROWS_F16, false)

/* Tokens over which lanes pay. */
#define HALVES_LANES .near = ROWS_NEAR, .side_near = ROWS_STREAMED, .lanes = float_lanes, .lanes_over = 16

static const struct rows_kernel kernel_bf16 = {HALVES_BF16, .streams = streams_bf16, HALVES_LANES};
static const struct rows_kernel kernel_f16 = {HALVES_F16, .streams = streams_f16, HALVES_LANES};
/* More tokens than ROWS_BESIDE_TOKENS: tiles would widen each weight first (docs/decisions/0100). One token of short
 * rows is one stream; of long ones four share its conversion (0109). */
static const struct rows_kernel kernel_f16_beside = {
	HALVES_F16,        .near = ROWS_NEAR, .far = ROWS_FAR,          .streams = streams_f16, .side_over = 1,
	.side_cols = 4096, .side_most = 12,   .side_near = ROWS_BESIDE, .lanes = float_lanes,   .lanes_over = 16};
static const struct rows_kernel kernel_f16_unasked = {HALVES_F16, .streams = streams_f16};

ROWS_OPS(ops_bf16_avx512, kernel_bf16, PACK_F32, NULL)
ROWS_OPS(ops_f16_avx512, kernel_f16, PACK_F16, pack_f16_row)
/* Of Zen 5. */
ROWS_OPS(ops_f16_beside_avx512, kernel_f16_beside, PACK_F16, pack_f16_row)
ROWS_OPS(ops_f16_unasked_avx512, kernel_f16_unasked, PACK_F16, pack_f16_row)
