/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"

const struct kernels kernels_avx512_bf16 = {
	KERNELS_COMMON(avx512),
	.variant = "avx512+vnni+bf16",
	.peak_f32 = peak_f32_avx512,
	.peak_bf16 = peak_bf16_avx512_bf16,
	.peak_int8 = peak_int8_avx512_vnni,
	.of =
		{
			[MOE_FORMAT_BF16] = &ops_bf16_dot_avx512,
			[MOE_FORMAT_F16] = &ops_f16_beside_avx512,
			[MOE_FORMAT_FP8_BLOCK] = &ops_fp8_bf16_avx512,
			[MOE_FORMAT_FP8_ROW] = &ops_fp8_bf16_avx512,
			[MOE_FORMAT_INT8] = &ops_int8_vnni_avx512,
			KERNELS_PANELS(avx512_paged),
		},
};
