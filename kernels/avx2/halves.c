/* SPDX-License-Identifier: MIT */
/* halves - weights of 16 bits with FP32 activations. */
#include "kernels/avx2/vec.h"
#include "kernels/vec/floats.h"

static void decode_bf16(const void *codes, size_t cols, void *to)
{
	floats_decode(ROWS_BF16, codes, cols, to);
}

static void decode_f16(const void *codes, size_t cols, void *to)
{
	floats_decode(ROWS_F16, codes, cols, to);
}

ROWS_SERIAL_2(direct_bf16, ROWS_BF16, false)
ROWS_SERIAL_2(direct_f16, ROWS_F16, false)
ROWS_TABLE_2(many, ROWS_F32, false, 1)

static const struct rows_kernel kernel_bf16 = {
	.w_bytes = 2, .x_bytes = 4, .direct_tokens = 2, .direct = direct_bf16, .many = many, .decode = decode_bf16};
static const struct rows_kernel kernel_f16 = {
	.w_bytes = 2, .x_bytes = 4, .direct_tokens = 2, .direct = direct_f16, .many = many, .decode = decode_f16};

ROWS_OPS(ops_bf16_avx2, kernel_bf16, PACK_F32, NULL)
ROWS_OPS(ops_f16_avx2, kernel_f16, PACK_F32, NULL)
