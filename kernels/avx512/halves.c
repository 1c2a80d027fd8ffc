/* SPDX-License-Identifier: MIT */
/* halves - weights of 16 bits with FP32 activations. */
#include "kernels/avx512/vec.h"
#include "kernels/vec/halves.h"

ROWS_OPS(ops_bf16_avx512, kernel_bf16, PACK_F32, NULL)
ROWS_OPS(ops_f16_avx512, kernel_f16, PACK_F32, NULL)
