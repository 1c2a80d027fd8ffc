/* SPDX-License-Identifier: MIT */
/*
 * panel - AVX-512 VNNI under the names that kernels/vec/panel*.h is written in: a vector has 4 columns of 16 rows.
 */
#ifndef KERNELS_AVX512_PANEL_H
#define KERNELS_AVX512_PANEL_H

#include "kernels/avx512/vec.h"

#define PANEL_TILE_PANELS 2 /* 2 panels x 6 tokens: 12 integer and 12 float sums, 4 codes, 2 activations */
#define PANEL_SIDE 4 /* streams of few tokens, where they are side by side: 4 integer and 4 float sums, 8 codes */
#define PANEL_TILE_TOKENS 6
#define PANEL_WIDE_SIGNED 0 /* codes of 8 bits are unsigned operands like all others */

typedef __m512i ivec;

static inline ivec ivec_load(const void *p)
{
	return _mm512_loadu_si512(p);
}

/* In a register: the compiler must not load it again for each use. */
static inline ivec ivec_loaded(const void *p)
{
	ivec v = ivec_load(p);

	__asm__("" : "+v"(v));
	return v;
}

static inline void ivec_store(void *p, ivec v)
{
	_mm512_storeu_si512(p, v);
}

static inline ivec ivec_set(int32_t a)
{
	return _mm512_set1_epi32(a);
}

/* The four bytes at p, in all elements and in a register: the compiler must not load them again for each use. */
static inline ivec ivec_all(const void *p)
{
	ivec v = _mm512_set1_epi32(*(const int32_t *)p);

	__asm__("" : "+v"(v));
	return v;
}

static inline ivec ivec_xor(ivec a, ivec b)
{
	return _mm512_xor_si512(a, b);
}

/* The low and the high nibbles of bytes. */
static inline ivec ivec_low(ivec v)
{
	return _mm512_and_si512(v, _mm512_set1_epi8(15));
}

static inline ivec ivec_high(ivec v)
{
	return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15));
}

/* A table of 16 bytes. */
static inline ivec ivec_table(const void *bytes)
{
	return _mm512_broadcast_i32x4(_mm_loadu_si128(bytes));
}

/* The low and the high nibbles of bytes, looked up: VBMI's permutation takes six bits of an index, and the table is
 * there four times, so nothing has to be masked. A shuffle takes four bits, and gives 0 where the eighth is set. */
#ifdef __AVX512VBMI__
static inline ivec ivec_lookup_low(ivec table, ivec v)
{
	return _mm512_permutexvar_epi8(v, table);
}

static inline ivec ivec_lookup_high(ivec table, ivec v)
{
	return _mm512_permutexvar_epi8(_mm512_srli_epi16(v, 4), table);
}
#else
static inline ivec ivec_lookup_low(ivec table, ivec v)
{
	return _mm512_shuffle_epi8(table, ivec_low(v));
}

static inline ivec ivec_lookup_high(ivec table, ivec v)
{
	return _mm512_shuffle_epi8(table, ivec_high(v));
}
#endif

/* v | (more << left & mask) in each byte; no bit of the mask comes from a neighbour byte. */
static inline ivec ivec_upper(ivec v, ivec more, int left, int mask)
{
	more = left > 0 ? _mm512_slli_epi16(more, left) : left < 0 ? _mm512_srli_epi16(more, -left) : more;
	return _mm512_ternarylogic_epi32(v, more, _mm512_set1_epi8((char)mask), 0xf8);
}

static inline ivec ivec_add(ivec a, ivec b)
{
	return _mm512_add_epi32(a, b);
}

static inline ivec ivec_sub(ivec a, ivec b)
{
	return _mm512_sub_epi32(a, b);
}

/* In each byte. */
static inline ivec ivec_add8(ivec a, ivec b)
{
	return _mm512_add_epi8(a, b);
}

static inline ivec ivec_dot(ivec sums, ivec a, ivec x)
{
	return _mm512_dpbusd_epi32(sums, a, x);
}

/* sums + a0 . x0 + a1 . x1: in each element four products of an unsigned with a signed byte. */
static inline ivec ivec_dot2(ivec sums, ivec a0, ivec x0, ivec a1, ivec x1)
{
	return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sums, a0, x0), a1, x1);
}

/* Products of the lower 16 bits of the elements, where the upper 16 bits of a are zero. */
static inline ivec ivec_mul16(ivec a, ivec b)
{
	return _mm512_madd_epi16(a, b);
}

/* sums + those products. */
static inline ivec ivec_dot16(ivec sums, ivec a, ivec b)
{
	return _mm512_dpwssd_epi32(sums, a, b);
}

static inline ivec ivec_mul(ivec a, ivec b)
{
	return _mm512_mullo_epi32(a, b);
}

static inline vec ivec_float(ivec v)
{
	return _mm512_cvtepi32_ps(v);
}

/* -- scales ------------------------------------------------------------------------------------------------------- */

static inline ivec ivec_from_u8(const uint8_t *p)
{
	return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

static inline ivec ivec_from_s8(const uint8_t *p)
{
	return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}

/* 2^(byte - 127); 255 is NaN. The smallest is denormal. */
static inline vec vec_from_e8m0(const uint8_t *p)
{
	const ivec bytes = ivec_from_u8(p), half = _mm512_set1_epi32(0x00400000);
	const ivec bits = _mm512_max_epi32(_mm512_slli_epi32(bytes, 23), half);
	const __mmask16 nan = _mm512_cmpeq_epi32_mask(bytes, _mm512_set1_epi32(255));

	return _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, nan, bits, half));
}

/* -- packing ------------------------------------------------------------------------------------------------------ */

/* The bits of the largest |x| of n floats, a multiple of VEC_FLOATS; infinities and NaNs are above all others. */
static inline uint32_t panel_largest(size_t n, const float *x)
{
	ivec largest = _mm512_setzero_si512();

	for (size_t i = 0; i < n; i += VEC_FLOATS)
		largest = _mm512_max_epi32(largest, _mm512_and_si512(ivec_load(x + i), _mm512_set1_epi32(0x7fffffff)));
	return (uint32_t)_mm512_reduce_max_epi32(largest);
}

/* codes[i] = x[i] * up * scale, rounded to nearest even; returns their sum. */
static inline int32_t panel_quantise(size_t n, const float *x, float up, float scale, int8_t *codes)
{
	ivec sum = _mm512_setzero_si512();

	for (size_t i = 0; i < n; i += VEC_FLOATS) {
		const vec v = _mm512_mul_ps(_mm512_mul_ps(vec_load(x + i), vec_set(up)), vec_set(scale));
		const ivec whole = _mm512_cvtps_epi32(v);

		_mm_storeu_si128((__m128i *)(codes + i), _mm512_cvtepi32_epi8(whole));
		sum = _mm512_add_epi32(sum, whole);
	}
	return _mm512_reduce_add_epi32(sum);
}

/* Of 32 codes: -(most x0 - less x1 + x0 x1), as panel_pairs.h has it, x0 the first, third ... four of them, x1 the
 * others. Each multiplied with its partner and twice its factor, which gives twice the sum. */
static inline int32_t panel_share(int most, const int8_t *codes)
{
	const __m256i x = _mm256_loadu_si256((const __m256i *)codes), partners = _mm256_shuffle_epi32(x, 0xb1);
	const __m512i factors = _mm512_mask_blend_epi64(0xaa, _mm512_set1_epi16((int16_t)(2 * most)),
							_mm512_set1_epi16((int16_t)(2 * (most - 128))));
	const __m512i twice = _mm512_madd_epi16(_mm512_cvtepi8_epi16(x),
						_mm512_add_epi16(_mm512_cvtepi8_epi16(partners), factors));

	return -_mm512_reduce_add_epi32(twice) / 2;
}

#endif
