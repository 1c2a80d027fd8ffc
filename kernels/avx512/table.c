/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"

const struct kernels kernels_avx512 = {
	KERNELS_COMMON(avx512),
	.variant = "avx512",
	.peak_f32 = peak_f32_avx512,
	.peak_bf16 = peak_f32_avx512,
	.peak_int8 = peak_int8_avx2,
	.of =
		{
			[MOE_FORMAT_BF16] = &ops_bf16_avx512,
			[MOE_FORMAT_F16] = &ops_f16_avx512,
			[MOE_FORMAT_FP8_BLOCK] = &ops_fp8_avx512,
			[MOE_FORMAT_FP8_ROW] = &ops_fp8_avx512,
			[MOE_FORMAT_INT8] = &ops_int8_avx512,
			KERNELS_PANELS(avx2), /* without VNNI 512 bits gain little */
		},
};
