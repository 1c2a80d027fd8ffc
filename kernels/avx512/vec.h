/* SPDX-License-Identifier: MIT */
/*
 * vec - AVX-512 F, BW, VL and DQ under the names that kernels/vec/ is written in: 16 floats a vector, 32 registers.
 */
#ifndef KERNELS_AVX512_VEC_H
#define KERNELS_AVX512_VEC_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define VEC_FLOATS 16
#define VEC_TOKENS_MAX 8 /* 2 rows x 8 tokens = 16 sums, 2 weights, 1 activation; or 4 rows x 4 tokens */

typedef __m512 vec;

static inline vec vec_zero(void)
{
	return _mm512_setzero_ps();
}

static inline vec vec_set(float a)
{
	return _mm512_set1_ps(a);
}

static inline vec vec_load(const float *p)
{
	return _mm512_loadu_ps(p);
}

/* As vec_load, but kept in a register: the compiler must not load it again for each use, loads are the scarcer
 * resource. */
static inline vec vec_loaded(const float *p)
{
	vec v = vec_load(p);

	__asm__("" : "+v"(v));
	return v;
}

static inline void vec_store(float *p, vec v)
{
	_mm512_storeu_ps(p, v);
}

/* The first n < VEC_FLOATS floats; memory behind them is not touched. */
static inline __mmask16 vec_first(size_t n)
{
	return (__mmask16)((1u << n) - 1);
}

static inline vec vec_load_n(const float *p, size_t n)
{
	return _mm512_maskz_loadu_ps(vec_first(n), p);
}

static inline void vec_store_n(float *p, vec v, size_t n)
{
	_mm512_mask_storeu_ps(p, vec_first(n), v);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
	return _mm512_fmadd_ps(a, b, c);
}

/* VEC_FLOATS bfloat16 values as floats, and back to nearest even with NaNs kept (made quiet). */
static inline vec vec_from_bf16(const uint16_t *p)
{
	const __m256i half = _mm256_loadu_si256((const __m256i *)p);

	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

static inline void vec_to_bf16(uint16_t *p, vec v)
{
	const __m512i bits = _mm512_castps_si512(v), high = _mm512_srli_epi32(bits, 16);
	const __m512i up = _mm512_add_epi32(_mm512_and_si512(high, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
	const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, up), 16);
	const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
	const __m512i out = _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40));

	_mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(out));
}

/* The elements with even and with odd index of the 2 * VEC_FLOATS floats a, b. */
static inline vec vec_even(vec a, vec b)
{
	const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);

	return _mm512_permutex2var_ps(a, even, b);
}

static inline vec vec_odd(vec a, vec b)
{
	const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);

	return _mm512_permutex2var_ps(a, odd, b);
}

/* The same of 2 * VEC_FLOATS bfloat16 weights: a bfloat16 is the upper half of its float, so one operation each. */
static inline vec vec_bf16_even(const uint16_t *p)
{
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}

static inline vec vec_bf16_odd(const uint16_t *p)
{
	const __m512i both = _mm512_loadu_si512(p);

	return _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000u)));
}

static inline vec vec_f16(const uint16_t *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* The sums over the elements of VEC_FLOATS vectors that lie `stride` vectors apart. */
static inline vec vec_sums(const vec *v, size_t stride)
{
	vec quads[4], halves[2];

	for (int i = 0; i < 4; i++, v += 4 * stride) {
		const vec a = v[0], b = v[stride], c = v[2 * stride], d = v[3 * stride];
		const vec ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
		const vec cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));

		quads[i] = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
	}
	for (int i = 0; i < 2; i++)
		halves[i] = _mm512_add_ps(_mm512_shuffle_f32x4(quads[2 * i], quads[2 * i + 1], 0x88),
					  _mm512_shuffle_f32x4(quads[2 * i], quads[2 * i + 1], 0xdd));
	return _mm512_add_ps(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88),
			     _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
}

/* -- for the activations ------------------------------------------------------------------------------------------ */

static inline vec vec_add(vec a, vec b)
{
	return _mm512_add_ps(a, b);
}

static inline vec vec_mul(vec a, vec b)
{
	return _mm512_mul_ps(a, b);
}

static inline vec vec_div(vec a, vec b)
{
	return _mm512_div_ps(a, b);
}

/* The larger one; a NaN in b is kept. */
static inline vec vec_max(vec a, vec b)
{
	return _mm512_max_ps(a, b);
}

static inline vec vec_negative_abs(vec a)
{
	return _mm512_or_ps(a, _mm512_set1_ps(-0.0f));
}

static inline vec vec_round(vec a)
{
	return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a < 0 ? negative : other; -0 counts as either. */
static inline vec vec_if_negative(vec a, vec negative, vec other)
{
	return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(a)), other, negative);
}

/* a * 2^n for whole n in -200 .. 100, rounded once where the result is denormal. */
static inline vec vec_scale(vec a, vec n)
{
	return _mm512_scalef_ps(a, n);
}

#endif
