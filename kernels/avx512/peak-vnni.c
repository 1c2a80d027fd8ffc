/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"
#include "kernels/vec/peak.h"

PEAK_FUNCTION(peak_int8_avx512_vnni, __m512i, _mm512_setzero_si512(), "v", 128, _mm512_dpbusd_epi32(a, a, a))
