/* SPDX-License-Identifier: MIT */
/* halves - weights of 16 bits, by FP32 fused multiply-add. */
#include "kernels/avx512/vec.h"
#include "kernels/vec/halves.h"

ROWS_OPS(ops_bf16_avx512, kernel_bf16, PACK_F32, NULL)
ROWS_OPS(ops_f16_avx512, kernel_f16, PACK_F16, pack_f16_row)
