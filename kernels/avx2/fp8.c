/* SPDX-License-Identifier: MIT */
/*
 * fp8 - E4M3 weights with FP32 activations.
 *
 * A code's bits where binary32 has its sign, exponent and fraction are worth 2^-KERNEL_UP of it, exact with denormals,
 * and activations are worth 2^KERNEL_UP of themselves (PACK_F32_UP). No code is widened: of four that are beside each
 * other each is shifted into place where it is, so that nine operations make 32 weights, in the order of kernel_fours,
 * which packed activations have too (docs/decisions/0097). Only NaNs are not what they should be, and they are looked
 * for 32 codes at a time: one makes its row's result NaN whatever column it stands for (0090).
 */
#include "kernels/avx2/vec.h"

/* Of the 32 codes at w, of which none is a NaN, the v-th of each four. */
static inline vec fp8_numbers(const char *w, size_t v)
{
	const __m256i codes = _mm256_loadu_si256((const __m256i *)w), bits = _mm256_set1_epi32((int)0x87f00000);
	/* The second and fourth, or the first and third, with their signs where 16 bits have theirs. */
	const __m256i two = _mm256_srai_epi16(v % 2 ? codes : _mm256_slli_epi16(codes, 8), 4);

	return _mm256_castsi256_ps(_mm256_and_si256(v < 2 ? _mm256_slli_epi32(two, 16) : two, bits));
}

/* The largest of each byte of `most` and of 32 codes at w without their signs, twice each: 254 is a NaN. */
static inline __m256i fp8_most(__m256i most, const char *w)
{
	const __m256i codes = _mm256_loadu_si256((const __m256i *)w);

	return _mm256_max_epu8(most, _mm256_add_epi8(codes, codes));
}

/* `v` with NaNs in the elements where one of the four bytes is. */
static inline vec fp8_with_nans(vec v, __m256i most)
{
	const __m256i nans = _mm256_cmpeq_epi8(most, _mm256_set1_epi8(-2));
	const __m256i none = _mm256_cmpeq_epi32(nans, _mm256_setzero_si256());

	return _mm256_or_ps(v, _mm256_castsi256_ps(_mm256_xor_si256(none, _mm256_set1_epi8(-1))));
}

/* The v-th 8 of the 64 weights at w, in the order of kernel_fours; a NaN may come with the first 8 of its 32. */
static inline vec vec_fp8(const char *w, size_t v)
{
	const char *codes = w + v / 4 * VEC_BYTES;
	const vec weights = fp8_numbers(codes, v % 4);

	return v % 4 ? weights : fp8_with_nans(weights, fp8_most(_mm256_setzero_si256(), codes));
}

#define VEC_FP8_FLOATS(w, v) vec_fp8(w, v)
#define VEC_FP8_FOURS

/* For streams, which look at a chain's NaNs at its end. */
#define VEC_FP8_NUMBERS(w, v) fp8_numbers(w, v)
#define VEC_FP8_NONE _mm256_castsi256_ps(_mm256_setzero_si256())
#define VEC_FP8_MOST(most, w) _mm256_castsi256_ps(fp8_most(_mm256_castps_si256(most), w))
#define VEC_FP8_NANS(v, most) fp8_with_nans(v, _mm256_castps_si256(most))

#include "kernels/vec/fp8.h"
#include "kernels/vec/pack.h"

#include "kernels/avx2/lanes.h"

LANES(group_lanes, ROWS_FP8, 12, 6)

static void decode(const void *codes, size_t cols, void *to)
{
	floats_decode(ROWS_FP8, codes, cols, to);
}

ROWS_STREAMS_4(streams, ROWS_FP8, true)

#define KERNEL                                                                                                         \
	FP8_KERNEL(decode), .up = true, .lanes = group_lanes, .lanes_over = 15, .streams = streams, .side_most = 7

static const struct rows_kernel kernel = {KERNEL, .side_over = ROWS_FEW_TOKENS}, unasked = {KERNEL};

ROWS_OPS(ops_fp8_avx2, kernel, PACK_F32_UP, pack_f32_up_row)
ROWS_OPS(ops_fp8_unasked_avx2, unasked, PACK_F32_UP, pack_f32_up_row)
