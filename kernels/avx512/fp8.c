/* SPDX-License-Identifier: MIT */
/* fp8 - E4M3 weights with FP32 activations. */
#include "kernels/avx512/vec.h"

/* 16 weights by way of binary16, exact with its denormals: as that their bits are worth 2^-8 of it. NaN, all ones, is
 * the only one to carry into the uppermost bit of the exponent. */
static inline vec vec_fp8(const char *w)
{
	const __m256i codes = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)w));
	const __m256i magnitude = _mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(0x3f80));
	const __m256i carried = _mm256_add_epi16(magnitude, _mm256_set1_epi16(0x80));
	/* magnitude | carried & 0x4000 */
	const __m256i fixed = _mm256_ternarylogic_epi32(magnitude, carried, _mm256_set1_epi16(0x4000), 0xf8);
	const __m256i bits = _mm256_ternarylogic_epi32(fixed, _mm256_slli_epi16(codes, 8), _mm256_set1_epi16(-0x8000),
						       0xf8);

	return _mm512_mul_ps(_mm512_cvtph_ps(bits), _mm512_set1_ps(256.0f));
}

#define VEC_FP8_FLOATS(w, v) vec_fp8((w) + (v)*VEC_FLOATS)

#include "kernels/vec/fp8.h"

#include "kernels/avx512/lanes.h"

static void decode(const void *codes, size_t cols, void *to)
{
	floats_decode(ROWS_FP8, codes, cols, to);
}

LANES(group_lanes, ROWS_FP8, 6, 2)

static const struct rows_kernel kernel = {FP8_KERNEL(decode), .lanes = group_lanes, .lanes_over = 16};

ROWS_OPS(ops_fp8_avx512, kernel, PACK_F32, NULL)
