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
#define VEC_BYTES 64
#define ROWS_TOKENS 6         /* 4 rows x 6 tokens = 24 sums, 4 weights, 1 activation */
#define ROWS_RUN 128          /* rows that meet the same block of many tokens' activations one after the other */
#define ROWS_BLOCK_BYTES 2048 /* 16 rows and the activations of a tile are at home in a first-level cache of 48 KiB */

/* Tables of functions for up to that many tokens (kernels/vec/rows.h, rows_serial.h). */
#define ROWS_MANY(name, kind, grouped) ROWS_TABLE_6(name, kind, grouped)
#define ROWS_FEW_TOKENS 4
#define ROWS_STREAM_TOKENS 4
#define ROWS_FEW(name, kind, grouped) ROWS_SERIAL_4(name, kind, grouped)

typedef __m512 vec;

static inline vec vec_zero(void)
{
	return _mm512_setzero_ps();
}

static inline vec vec_set(float a)
{
	return _mm512_set1_ps(a);
}

/* a and b by turns. */
static inline vec vec_turns(float a, float b)
{
	return _mm512_castpd_ps(_mm512_broadcastsd_pd(_mm_castps_pd(_mm_unpacklo_ps(_mm_set_ss(a), _mm_set_ss(b)))));
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

static inline vec vec_f16(const uint16_t *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline void vec_to_f16(uint16_t *p, vec v)
{
	_mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

/* The first n floats, or all of them, and zeros. */
static inline vec vec_load_upto(const float *p, size_t n)
{
	return n >= VEC_FLOATS ? vec_load(p) : vec_load_n(p, n);
}

/* The first step of adding up elements: those two apart in each four. Sums of a and of b by turns. */
static inline vec vec_pair(vec a, vec b)
{
	return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}

/* The same of one vector, in less time, and what makes twice the same pair of it. */
static inline vec vec_single(vec a)
{
	return _mm512_add_ps(a, _mm512_permute_ps(a, 0x4e));
}

static inline vec vec_single_pair(vec a)
{
	return _mm512_unpacklo_ps(a, a);
}

/* The sums over the elements of four vectors, of which two by two are paired. */
static inline __m128 vec_quad(vec ab, vec cd)
{
	const vec quads = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
	const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(quads), _mm512_extractf32x8_ps(quads, 1));

	return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
}

/* The sums over the elements of four vectors of integers. */
static inline __m128i vec_quad_int(vec va, vec vb, vec vc, vec vd)
{
	const __m512i a = _mm512_castps_si512(va), b = _mm512_castps_si512(vb);
	const __m512i c = _mm512_castps_si512(vc), d = _mm512_castps_si512(vd);
	const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
	const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
	const __m512i quads = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
	const __m256i halves = _mm256_add_epi32(_mm512_castsi512_si256(quads), _mm512_extracti64x4_epi64(quads, 1));

	return _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

/* Sums of integers that vectors hold. */
static inline vec vec_add_int(vec a, vec b)
{
	return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}

/* The floats nearest to integers that a vector holds, with `add` (modulo 2^32) added. */
static inline vec vec_from_int(vec v, uint32_t add)
{
	return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_castps_si512(v), _mm512_set1_epi32((int)add)));
}

/* NaNs have the same bits wherever they come from. */
static inline vec vec_one_nan(vec v)
{
	return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), _mm512_set1_ps(__builtin_nanf("")));
}

/* The larger one of a, which has no signs, and |b|: as integers, so that a NaN is larger than all. */
static inline vec vec_max_abs(vec a, vec b)
{
	return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(_mm512_abs_ps(b))));
}

/* 64 codes: floats times `factor`, to the nearest even integer; returns their sum. */
static inline int32_t vec_codes(int8_t *to, const float *from, vec factor)
{
	__m512i sum = _mm512_setzero_si512();

	for (size_t i = 0; i < 64; i += VEC_FLOATS) {
		const __m512i codes = _mm512_cvtps_epi32(_mm512_mul_ps(vec_load(from + i), factor));

		_mm_storeu_si128((__m128i *)(to + i), _mm512_cvtepi32_epi8(codes));
		sum = _mm512_add_epi32(sum, codes);
	}
	return _mm512_reduce_add_epi32(sum);
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

static inline vec vec_negate(vec a)
{
	return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
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
