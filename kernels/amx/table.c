/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"

/* FP16 stays with AVX-512: these tiles take no FP16, and as bfloat16 it would lose digits. */
const struct kernels kernels_amx = {
	.name = "amx",
	.variant = "amx",
	.of =
		{
			[MOE_FORMAT_BF16] = &ops_bf16_few_amx,
			[MOE_FORMAT_F16] = &ops_f16_avx512,
			[MOE_FORMAT_FP8_BLOCK] = &ops_fp8_block_few_amx,
			[MOE_FORMAT_FP8_ROW] = &ops_fp8_row_few_amx,
			[MOE_FORMAT_INT8] = &ops_int8_amx,
			KERNELS_PANELS(amx),
		},
	.axpy = axpy_avx512,
	.bf16_to_f32 = bf16_to_f32_avx512,
	.f32_to_bf16 = f32_to_bf16_avx512,
	.copy_rows = copy_rows_avx512,
	.peak_f32 = peak_f32_avx512,
	.peak_bf16 = peak_bf16_amx,
	.peak_int8 = peak_int8_amx,
};
