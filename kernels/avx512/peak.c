/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"
#include "kernels/vec/peak.h"

PEAK_FUNCTION(peak_f32_avx512, __m512, _mm512_setzero_ps(), "v", 32, _mm512_fmadd_ps(a, a, a))
