/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"

/* VNNI without VBMI: Intel's Cascade Lake and Cooper Lake, so with what its second-level cache wants (table-vnni.c). */
const struct kernels kernels_avx512_novbmi = {
	KERNELS_COMMON(avx512),
	.variant = "avx512+vnni, no vbmi",
	.peak_f32 = peak_f32_avx512,
	.peak_bf16 = peak_f32_avx512,
	.peak_int8 = peak_int8_avx512_vnni,
	.of =
		{
			[MOE_FORMAT_BF16] = &ops_bf16_avx512,
			[MOE_FORMAT_F16] = &ops_f16_avx512,
			[MOE_FORMAT_FP8_BLOCK] = &ops_fp8_avx512,
			[MOE_FORMAT_FP8_ROW] = &ops_fp8_avx512,
			[MOE_FORMAT_INT8] = &ops_int8_streamed_avx512,
			KERNELS_PANELS(avx512_novbmi),
		},
};
