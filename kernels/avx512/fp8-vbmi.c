/* SPDX-License-Identifier: MIT */
/* fp8-vbmi - E4M3 weights, looked up, with FP32 activations. */
#include "kernels/avx512/e4m3.h"
#include "kernels/avx512/vec.h"

/* SPDX-License-Identifier: MIT */
/* fp8 - E4M3 weights with FP32 activations. */
#include "kernels/avx512/vec.h"

/* Columns 16 v on of the 64 at w. */
static inline __attribute__((always_inline)) vec vec_fp8(const char *w, size_t v)
{
	const __m512i two = fp8_bf16(w, v / 2);
	const __m256i one = v % 2 ? _mm512_extracti64x4_epi64(two, 1) : _mm512_castsi512_si256(two);

	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(one), 16));
}

#define VEC_FP8_FLOATS(w, v) vec_fp8(w, v)

#include "kernels/vec/fp8.h"

ROWS_OPS(ops_fp8_vbmi_avx512, kernel, PACK_F32, NULL)
