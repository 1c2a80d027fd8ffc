/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"

/* AMD's Zen 4: a fast product of bfloat16, and caches that follow streams by themselves. What is asked for ahead of
 * them holds them up (docs/decisions/0030), but where a core is busy with wide codes (0110). */
const struct kernels kernels_avx512_unasked = {
	KERNELS_COMMON(avx512),
	.variant = "avx512+vnni+bf16, unasked",
	.peak_f32 = peak_f32_avx512,
	.peak_bf16 = peak_bf16_avx512_bf16,
	.peak_int8 = peak_int8_avx512_vnni,
	.of =
		{
			[MOE_FORMAT_BF16] = &ops_bf16_dot_unasked_avx512,
			[MOE_FORMAT_F16] = &ops_f16_unasked_avx512,
			[MOE_FORMAT_FP8_BLOCK] = &ops_fp8_bf16_unasked_avx512,
			[MOE_FORMAT_FP8_ROW] = &ops_fp8_bf16_unasked_avx512,
			[MOE_FORMAT_INT8] = &ops_int8_unasked_avx512,
			/* Byte additions have pipes of their own: products of sums (docs/decisions/0081). */
			[MOE_FORMAT_INT4_G32_F16... MOE_FORMAT_INT4_G128_BF16_ZP] = &ops_pairs_4_avx512_unasked,
			[MOE_FORMAT_Q8_0] = &ops_panel_avx512_unasked,
			[MOE_FORMAT_Q4_0... MOE_FORMAT_Q4_K] = &ops_pairs_4_avx512_unasked,
			/* These codes keep the core busier: one stream, asked for ahead, is faster (0110). */
			[MOE_FORMAT_Q5_K] = &ops_pairs_5_avx512,
			[MOE_FORMAT_Q6_K] = &ops_panel_fine_avx512,
			[MOE_FORMAT_MXFP4] = &ops_pairs_e2m1_avx512,
			[MOE_FORMAT_IQ4_XS] = &ops_panel_avx512,
		},
};
