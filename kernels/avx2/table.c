/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"

const struct kernels kernels_avx2 = {
	KERNELS_COMMON(avx2),
	.variant = "avx2",
	.peak_f32 = peak_f32_avx2,
	.peak_bf16 = peak_f32_avx2,
	.peak_int8 = peak_int8_avx2,
	.of =
		{
			[MOE_FORMAT_BF16] = &ops_bf16_avx2,
			[MOE_FORMAT_F16] = &ops_f16_avx2,
			[MOE_FORMAT_FP8_BLOCK] = &ops_fp8_avx2,
			[MOE_FORMAT_FP8_ROW] = &ops_fp8_avx2,
			[MOE_FORMAT_INT8] = &ops_int8_avx2,
			KERNELS_PANELS(avx2),
		},
};
