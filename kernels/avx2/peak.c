/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"
#include "kernels/vec/peak.h"

PEAK_FUNCTION(peak_f32_avx2, __m256, _mm256_setzero_ps(), "x", 16, _mm256_fmadd_ps(a, a, a))

/* A product of bytes in three instructions. */
PEAK_FUNCTION(peak_int8_avx2, __m256i, _mm256_setzero_si256(), "x", 64,
	      _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_maddubs_epi16(a, a), a)))
