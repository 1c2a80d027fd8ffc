/* SPDX-License-Identifier: MIT */
/* fp8 - E4M3 weights with FP32 activations. */
#include "kernels/avx2/vec.h"

/* Ones in each element where one of the 4 codes at w + 4 * element, 32 in all, is a NaN. */
static inline __m256i fp8_nans(const char *w)
{
	const __m256i codes = _mm256_or_si256(_mm256_loadu_si256((const __m256i *)w), _mm256_set1_epi8(-128));
	const __m256i nans = _mm256_cmpeq_epi8(codes, _mm256_set1_epi8(-1));
	const __m256i none = _mm256_cmpeq_epi32(nans, _mm256_setzero_si256());

	return _mm256_xor_si256(none, _mm256_set1_epi8(-1));
}

/* The v-th 8 of the 64 weights at w: as binary32 their bits are worth 2^-120 of it, exact with its denormals. Only NaNs
 * are not, and they are looked for 32 codes at a time: one makes its row's result NaN whatever column it stands for, so
 * it may come with the first 8 of the 32. */
static inline vec vec_fp8(const char *w, size_t v)
{
	const __m256i codes = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(w + v * VEC_FLOATS)));
	const __m256i bits = _mm256_and_si256(_mm256_slli_epi32(codes, 20), _mm256_set1_epi32((int)0x87f00000));
	const vec weights = _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f));

	if (v % 4)
		return weights;
	return _mm256_or_ps(weights, _mm256_castsi256_ps(fp8_nans(w + v * VEC_FLOATS)));
}

#define VEC_FP8_FLOATS(w, v) vec_fp8(w, v)

#include "kernels/vec/fp8.h"

static void decode(const void *codes, size_t cols, void *to)
{
	floats_decode(ROWS_FP8, codes, cols, to);
}

ROWS_STREAMS_2(streams, ROWS_FP8, true)

static const struct rows_kernel kernel = {FP8_KERNEL(decode)};
static const struct rows_kernel unasked = {FP8_KERNEL(decode), .streams = streams};

ROWS_OPS(ops_fp8_avx2, kernel, PACK_F32, NULL)
ROWS_OPS(ops_fp8_unasked_avx2, unasked, PACK_F32, NULL)
