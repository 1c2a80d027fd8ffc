/* SPDX-License-Identifier: MIT */
/* fp8 - E4M3 weights with FP32 activations. */
#include "kernels/avx2/vec.h"

/* 8 weights by way of binary16, exact with its denormals: as that their bits are worth 2^-8 of it. NaN, all ones, is
 * the only one to carry into the uppermost bit of the exponent. */
static inline vec vec_fp8(const char *w)
{
	const __m128i codes = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)w));
	const __m128i magnitude = _mm_and_si128(_mm_slli_epi16(codes, 7), _mm_set1_epi16(0x3f80));
	const __m128i carried = _mm_add_epi16(magnitude, _mm_set1_epi16(0x80));
	const __m128i fixed = _mm_or_si128(magnitude, _mm_and_si128(carried, _mm_set1_epi16(0x4000)));
	const __m128i sign = _mm_and_si128(_mm_slli_epi16(codes, 8), _mm_set1_epi16(-0x8000));

	return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(fixed, sign)), _mm256_set1_ps(256.0f));
}

#define VEC_FP8_FLOATS(w, v) vec_fp8((w) + (v)*VEC_FLOATS)

#include "kernels/vec/fp8.h"

static void decode(const void *codes, size_t cols, void *to)
{
	floats_decode(ROWS_FP8, codes, cols, to);
}

static const struct rows_kernel kernel = {FP8_KERNEL(decode)};

ROWS_OPS(ops_fp8_avx2, kernel, PACK_F32, NULL)
