/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"
#include "kernels/vec/peak.h"

PEAK_FUNCTION(peak_int8_avx2_vnni, __m256i, _mm256_setzero_si256(), "x", 64, _mm256_dpbusd_avx_epi32(a, a, a))
