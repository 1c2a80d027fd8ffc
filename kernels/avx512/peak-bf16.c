/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"
#include "kernels/vec/peak.h"

PEAK_FUNCTION(peak_bf16_avx512_bf16, __m512, _mm512_setzero_ps(), "v", 64,
	      _mm512_dpbf16_ps(a, (__m512bh)a, (__m512bh)a))
