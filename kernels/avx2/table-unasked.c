/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"

/* AMD's Zen 3: caches that follow streams by themselves, four rows or two panels side by side. What is asked for ahead
 * of them holds them up (docs/decisions/0063). */
const struct kernels kernels_avx2_unasked = {
	KERNELS_COMMON(avx2),
	.variant = "avx2, unasked",
	.peak_f32 = peak_f32_avx2,
	.peak_bf16 = peak_f32_avx2,
	.peak_int8 = peak_int8_avx2,
	.of =
		{
			[MOE_FORMAT_BF16] = &ops_bf16_unasked_avx2,
			[MOE_FORMAT_F16] = &ops_f16_unasked_avx2,
			[MOE_FORMAT_FP8_BLOCK] = &ops_fp8_unasked_avx2,
			[MOE_FORMAT_FP8_ROW] = &ops_fp8_unasked_avx2,
			[MOE_FORMAT_INT8] = &ops_int8_unasked_avx2,
			[MOE_FORMAT_INT4_G32_F16... MOE_FORMAT_INT4_G128_BF16_ZP] = &ops_panel_avx2_unasked,
			[MOE_FORMAT_Q8_0... MOE_FORMAT_Q4_1] = &ops_panel_avx2_unasked,
			/* Codes that keep the core busier: one stream, asked for ahead, is faster. */
			[MOE_FORMAT_MXFP4] = &ops_panel_avx2,
			[MOE_FORMAT_Q4_K... MOE_FORMAT_Q5_K] = &ops_panel_avx2,
			[MOE_FORMAT_Q6_K] = &ops_panel_fine_avx2,
			[MOE_FORMAT_IQ4_XS] = &ops_panel_avx2,
		},
};
