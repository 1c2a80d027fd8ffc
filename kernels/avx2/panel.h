/* SPDX-License-Identifier: MIT */
/*
 * panel - AVX2, with and without AVX-VNNI, under the names that kernels/vec/panel*.h is written in: a vector has 4
 * columns of 8 rows.
 *
 * Without VNNI an 8-bit dot product is two multiply-adds, the first one to 16 bits with saturation. Products of codes
 * of up to 6 bits are added up in 16 bits as long as these have room (panel_room). Codes of 8 bits are taken signed,
 * the operands |a| <= 128 and x with a's sign, |x| <= 127: 2 * 128 * 127 < 2^15.
 */
#ifndef KERNELS_AVX2_PANEL_H
#define KERNELS_AVX2_PANEL_H

#include "kernels/avx2/vec.h"

/* 1 panel, that is 2 vectors, x 2 tokens: 4 integer and 4 float sums, 4 codes, 2 activations. */
#define PANEL_TILE_PANELS 1
#define PANEL_SIDE 2 /* streams of few tokens, where they are side by side */
#define PANEL_TILE_TOKENS 2
#define PANEL_TILE_ASKS 0
#ifdef __AVXVNNI__
#define PANEL_WIDE_SIGNED 0
#else
#define PANEL_WIDE_SIGNED 1
#endif

typedef __m256i ivec;

static inline ivec ivec_load(const void *p)
{
	return _mm256_loadu_si256(p);
}

/* In a register: the compiler must not load it again for each use. */
static inline ivec ivec_loaded(const void *p)
{
	ivec v = ivec_load(p);

	__asm__("" : "+x"(v));
	return v;
}

static inline void ivec_store(void *p, ivec v)
{
	_mm256_storeu_si256(p, v);
}

static inline ivec ivec_set(int32_t a)
{
	return _mm256_set1_epi32(a);
}

/* The four bytes at p, in all elements. */
static inline ivec ivec_all(const void *p)
{
	return _mm256_set1_epi32(*(const int32_t *)p);
}

static inline ivec ivec_xor(ivec a, ivec b)
{
	return _mm256_xor_si256(a, b);
}

/* The low and the high nibbles of bytes. */
static inline ivec ivec_low(ivec v)
{
	return _mm256_and_si256(v, _mm256_set1_epi8(15));
}

static inline ivec ivec_high(ivec v)
{
	return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
}

/* A table of 16 bytes. */
static inline ivec ivec_table(const void *bytes)
{
	return _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes));
}

/* The low and the high nibbles of bytes, looked up. */
static inline ivec ivec_lookup_low(ivec table, ivec v)
{
	return _mm256_shuffle_epi8(table, ivec_low(v));
}

static inline ivec ivec_lookup_high(ivec table, ivec v)
{
	return _mm256_shuffle_epi8(table, ivec_high(v));
}

/* v | (more << left & mask) in each byte; no bit of the mask comes from a neighbour byte. */
static inline ivec ivec_upper(ivec v, ivec more, int left, int mask)
{
	more = left > 0 ? _mm256_slli_epi16(more, left) : left < 0 ? _mm256_srli_epi16(more, -left) : more;
	return _mm256_or_si256(v, _mm256_and_si256(more, _mm256_set1_epi8((char)mask)));
}

#ifndef __AVXVNNI__
/* Pairs of vectors whose products are added up in 16 bits first, if these have room. Four are slower. */
#define PANEL_HALVES 2

/* halves + a0 . x0 + a1 . x1: in each half of an element two products of an unsigned with a signed byte of each. */
static inline ivec ivec_halves(ivec halves, ivec a0, ivec x0, ivec a1, ivec x1)
{
	return _mm256_add_epi16(halves, _mm256_add_epi16(_mm256_maddubs_epi16(a0, x0), _mm256_maddubs_epi16(a1, x1)));
}

/* sums + both halves of each element. */
static inline ivec ivec_add_halves(ivec sums, ivec halves)
{
	return _mm256_add_epi32(sums, _mm256_madd_epi16(halves, _mm256_set1_epi16(1)));
}

/* sums + a0 . x0 + a1 . x1, of signed bytes above -128, whose sign is that of x: |x| is made once for all of them. */
static inline ivec ivec_dot2_small(ivec sums, ivec a0, ivec x0, ivec a1, ivec x1)
{
	sums = ivec_add_halves(sums, _mm256_maddubs_epi16(_mm256_abs_epi8(x0), _mm256_sign_epi8(a0, x0)));
	return ivec_add_halves(sums, _mm256_maddubs_epi16(_mm256_abs_epi8(x1), _mm256_sign_epi8(a1, x1)));
}
#endif

/* sums + a0 . x0 + a1 . x1: in each element four products of a signed byte with an unsigned one, or where wide codes
 * are taken signed with one of those. */
static inline ivec ivec_dot2(ivec sums, ivec a0, ivec x0, ivec a1, ivec x1)
{
#ifdef __AVXVNNI__
	return _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(sums, a0, x0), a1, x1);
#else
	sums = ivec_add_halves(sums, _mm256_maddubs_epi16(_mm256_abs_epi8(a0), _mm256_sign_epi8(x0, a0)));
	return ivec_add_halves(sums, _mm256_maddubs_epi16(_mm256_abs_epi8(a1), _mm256_sign_epi8(x1, a1)));
#endif
}

/* Products of the lower 16 bits of the elements, where the upper 16 bits of a are zero. */
static inline ivec ivec_mul16(ivec a, ivec b)
{
	return _mm256_madd_epi16(a, b);
}

static inline ivec ivec_mul(ivec a, ivec b)
{
	return _mm256_mullo_epi32(a, b);
}

static inline vec ivec_float(ivec v)
{
	return _mm256_cvtepi32_ps(v);
}

/* -- scales ------------------------------------------------------------------------------------------------------- */

static inline ivec ivec_from_u8(const uint8_t *p)
{
	return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

static inline ivec ivec_from_s8(const uint8_t *p)
{
	return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

/* 2^(byte - 127); 255 is NaN. The smallest is denormal. */
static inline vec vec_from_e8m0(const uint8_t *p)
{
	const ivec bytes = ivec_from_u8(p), half = _mm256_set1_epi32(0x00400000);
	const ivec bits = _mm256_max_epi32(_mm256_slli_epi32(bytes, 23), half);
	const ivec nan = _mm256_cmpeq_epi32(bytes, _mm256_set1_epi32(255));

	return _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_and_si256(nan, half)));
}

/* -- packing ------------------------------------------------------------------------------------------------------ */

/* The bits of the largest |x| of n floats, a multiple of VEC_FLOATS; infinities and NaNs are above all others. */
static inline uint32_t panel_largest(size_t n, const float *x)
{
	ivec largest = _mm256_setzero_si256();
	uint32_t lanes[VEC_FLOATS], most = 0;

	for (size_t i = 0; i < n; i += VEC_FLOATS)
		largest = _mm256_max_epi32(largest, _mm256_and_si256(ivec_load(x + i), _mm256_set1_epi32(0x7fffffff)));
	ivec_store(lanes, largest);
	for (size_t i = 0; i < VEC_FLOATS; i++)
		most = lanes[i] > most ? lanes[i] : most;
	return most;
}

/* codes[i] = x[i] * up * scale, rounded to nearest even; returns their sum. */
static inline int32_t panel_quantise(size_t n, const float *x, float up, float scale, int8_t *codes)
{
	ivec sums = _mm256_setzero_si256();
	int32_t lanes[VEC_FLOATS], sum = 0;

	for (size_t i = 0; i < n; i += VEC_FLOATS) {
		const vec v = _mm256_mul_ps(_mm256_mul_ps(vec_load(x + i), vec_set(up)), vec_set(scale));
		const ivec whole = _mm256_cvtps_epi32(v);
		const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(whole),
						       _mm256_extracti128_si256(whole, 1));

		_mm_storel_epi64((__m128i *)(codes + i), _mm_packs_epi16(halves, halves));
		sums = _mm256_add_epi32(sums, whole);
	}
	ivec_store(lanes, sums);
	for (size_t i = 0; i < VEC_FLOATS; i++)
		sum += lanes[i];
	return sum;
}

#endif
