/* SPDX-License-Identifier: MIT */
/*
 * vec - AVX2, FMA and F16C under the names that kernels/vec/ is written in: 8 floats a vector, 16 registers.
 */
#ifndef KERNELS_AVX2_VEC_H
#define KERNELS_AVX2_VEC_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define VEC_FLOATS 8
#define VEC_TOKENS_MAX 4 /* 2 rows x 4 tokens = 8 sums, 2 weights, 1 activation */

typedef __m256 vec;

static inline vec vec_zero(void)
{
	return _mm256_setzero_ps();
}

static inline vec vec_set(float a)
{
	return _mm256_set1_ps(a);
}

static inline vec vec_load(const float *p)
{
	return _mm256_loadu_ps(p);
}

/* As vec_load, but kept in a register: the compiler must not load it again for each use, loads are the scarcer
 * resource. */
static inline vec vec_loaded(const float *p)
{
	vec v = vec_load(p);

	__asm__("" : "+x"(v));
	return v;
}

static inline void vec_store(float *p, vec v)
{
	_mm256_storeu_ps(p, v);
}

/* The first n < VEC_FLOATS floats; memory behind them is not touched. */
static inline __m256i vec_first(size_t n)
{
	return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vec vec_load_n(const float *p, size_t n)
{
	return _mm256_maskload_ps(p, vec_first(n));
}

static inline void vec_store_n(float *p, vec v, size_t n)
{
	_mm256_maskstore_ps(p, vec_first(n), v);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
	return _mm256_fmadd_ps(a, b, c);
}

/* VEC_FLOATS bfloat16 values as floats, and back to nearest even with NaNs kept (made quiet). */
static inline vec vec_from_bf16(const uint16_t *p)
{
	const __m128i half = _mm_loadu_si128((const __m128i *)p);

	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

static inline void vec_to_bf16(uint16_t *p, vec v)
{
	const __m256i bits = _mm256_castps_si256(v), high = _mm256_srli_epi32(bits, 16);
	const __m256i up = _mm256_add_epi32(_mm256_and_si256(high, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
	const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
	const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
	const __m256i out = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
	const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(out, out), 0x08);

	_mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(packed));
}

/* The elements with even and with odd index of the 2 * VEC_FLOATS floats a, b. */
static inline vec vec_even(vec a, vec b)
{
	const __m256d mixed = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));

	return _mm256_castpd_ps(_mm256_permute4x64_pd(mixed, 0xd8));
}

static inline vec vec_odd(vec a, vec b)
{
	const __m256d mixed = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));

	return _mm256_castpd_ps(_mm256_permute4x64_pd(mixed, 0xd8));
}

/* The same of 2 * VEC_FLOATS bfloat16 weights: a bfloat16 is the upper half of its float, so one operation each. */
static inline vec vec_bf16_even(const uint16_t *p)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)p), 16));
}

static inline vec vec_bf16_odd(const uint16_t *p)
{
	const __m256i both = _mm256_loadu_si256((const __m256i *)p);

	return _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000u)));
}

static inline vec vec_f16(const uint16_t *p)
{
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* The sums over the elements of VEC_FLOATS vectors that lie `stride` vectors apart. */
static inline vec vec_sums(const vec *v, size_t stride)
{
	vec quads[2];

	for (int i = 0; i < 2; i++, v += 4 * stride) {
		const vec a = v[0], b = v[stride], c = v[2 * stride], d = v[3 * stride];
		const vec ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
		const vec cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));

		quads[i] = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
	}
	return _mm256_add_ps(_mm256_permute2f128_ps(quads[0], quads[1], 0x20),
			     _mm256_permute2f128_ps(quads[0], quads[1], 0x31));
}

/* -- for the activations ------------------------------------------------------------------------------------------ */

static inline vec vec_add(vec a, vec b)
{
	return _mm256_add_ps(a, b);
}

static inline vec vec_mul(vec a, vec b)
{
	return _mm256_mul_ps(a, b);
}

static inline vec vec_div(vec a, vec b)
{
	return _mm256_div_ps(a, b);
}

/* The larger one; a NaN in b is kept. */
static inline vec vec_max(vec a, vec b)
{
	return _mm256_max_ps(a, b);
}

static inline vec vec_negative_abs(vec a)
{
	return _mm256_or_ps(a, _mm256_set1_ps(-0.0f));
}

static inline vec vec_round(vec a)
{
	return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a < 0 ? negative : other; -0 counts as either. */
static inline vec vec_if_negative(vec a, vec negative, vec other)
{
	return _mm256_blendv_ps(other, negative, a);
}

/* a * 2^n for whole n in -200 .. 100, rounded once where the result is denormal. */
static inline vec vec_scale(vec a, vec n)
{
	const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
	const __m256i rest = _mm256_sub_epi32(whole, half), bias = _mm256_set1_epi32(127);
	const vec first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
	const vec second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));

	return _mm256_mul_ps(_mm256_mul_ps(a, first), second);
}

#endif
