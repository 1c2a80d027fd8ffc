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
#define VEC_BYTES 32
#define ROWS_TOKENS 4         /* that have sums in registers, see below */
#define ROWS_RUN 64           /* rows that meet the same block of many tokens' activations one after the other */
#define ROWS_BLOCK_BYTES 2048 /* 16 rows are 32 KiB */

/* Tables of functions for up to that many tokens (kernels/vec/rows.h, rows_serial.h, rows_streams.h): in tiles 4 rows x
 * 3 tokens = 12 sums, 3 activations, 1 weight; in streams 2 rows x 4 tokens = 8 sums, 2 weights, an activation and what
 * decodes. */
#define ROWS_MANY(name, kind, grouped) ROWS_TABLE_3(name, kind, grouped)
#define ROWS_FEW_TOKENS 2
#define ROWS_FEW(name, kind, grouped) ROWS_SERIAL_2(name, kind, grouped)
#define ROWS_STREAM_TOKENS 4

typedef __m256 vec;

static inline vec vec_zero(void)
{
	return _mm256_setzero_ps();
}

static inline vec vec_set(float a)
{
	return _mm256_set1_ps(a);
}

/* a and b by turns. */
static inline vec vec_turns(float a, float b)
{
	return _mm256_castpd_ps(_mm256_broadcastsd_pd(_mm_castps_pd(_mm_unpacklo_ps(_mm_set_ss(a), _mm_set_ss(b)))));
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

#define VEC_FMA_THREE

/* sums[i] + w * x[i]. One piece: with 12 sums and 3 factors in 16 registers the compiler would keep sums in memory. */
static inline void vec_fma_three(vec sums[3], const float *w, const vec x[3])
{
	vec loaded;

	__asm__("vmovups %4, %3\n\t"
		"vfmadd231ps %3, %5, %0\n\t"
		"vfmadd231ps %3, %6, %1\n\t"
		"vfmadd231ps %3, %7, %2"
		: "+x"(sums[0]), "+x"(sums[1]), "+x"(sums[2]), "=&x"(loaded)
		: "m"(*(const __m256_u *)w), "x"(x[0]), "x"(x[1]), "x"(x[2]));
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

static inline vec vec_f16(const uint16_t *p)
{
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

static inline void vec_to_f16(uint16_t *p, vec v)
{
	_mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

/* The first n floats, or all of them, and zeros. */
static inline vec vec_load_upto(const float *p, size_t n)
{
	return n >= VEC_FLOATS ? vec_load(p) : vec_load_n(p, n);
}

/* The first step of adding up elements: those two apart in each four. Sums of a and of b by turns. */
static inline vec vec_pair(vec a, vec b)
{
	return _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
}

/* The same of one vector, in less time, and what makes twice the same pair of it. */
static inline vec vec_single(vec a)
{
	return _mm256_add_ps(a, _mm256_permute_ps(a, 0x4e));
}

static inline vec vec_single_pair(vec a)
{
	return _mm256_unpacklo_ps(a, a);
}

/* The sums over the elements of four vectors, of which two by two are paired. */
static inline __m128 vec_quad(vec ab, vec cd)
{
	const vec quads = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));

	return _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1));
}

/* The sums over the elements of four vectors of integers. */
static inline __m128i vec_quad_int(vec va, vec vb, vec vc, vec vd)
{
	const __m256i a = _mm256_castps_si256(va), b = _mm256_castps_si256(vb);
	const __m256i c = _mm256_castps_si256(vc), d = _mm256_castps_si256(vd);
	const __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
	const __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
	const __m256i quads = _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));

	return _mm_add_epi32(_mm256_castsi256_si128(quads), _mm256_extracti128_si256(quads, 1));
}

/* Sums of integers that vectors hold. */
static inline vec vec_add_int(vec a, vec b)
{
	return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}

/* The floats nearest to integers that a vector holds, with `add` (modulo 2^32) added. */
static inline vec vec_from_int(vec v, uint32_t add)
{
	return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_castps_si256(v), _mm256_set1_epi32((int)add)));
}

/* NaNs have the same bits wherever they come from. */
static inline vec vec_one_nan(vec v)
{
	return _mm256_blendv_ps(v, _mm256_set1_ps(__builtin_nanf("")), _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}

/* The larger one of a, which has no signs, and |b|: as integers, so that a NaN is larger than all. */
static inline vec vec_max_abs(vec a, vec b)
{
	const vec magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), b);

	return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(magnitude)));
}

/* 64 codes: floats times `factor`, to the nearest even integer; returns their sum. */
static inline int32_t vec_codes(int8_t *to, const float *from, vec factor)
{
	const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
	__m256i sum = _mm256_setzero_si256();
	__m128i half;

	for (size_t i = 0; i < 64; i += 32) {
		__m256i codes[4], bytes;

		for (size_t k = 0; k < 4; k++) {
			codes[k] = _mm256_cvtps_epi32(_mm256_mul_ps(vec_load(from + i + 8 * k), factor));
			sum = _mm256_add_epi32(sum, codes[k]);
		}
		bytes = _mm256_packs_epi16(_mm256_packs_epi32(codes[0], codes[1]),
					   _mm256_packs_epi32(codes[2], codes[3]));
		_mm256_storeu_si256((__m256i *)(to + i), _mm256_permutevar8x32_epi32(bytes, order));
	}
	half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
	half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
	return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

/* Four numbers of each of eight rows become four vectors of one number of each. */
static inline void vec_turn_fours(const float *const rows[8], vec ret[4])
{
	vec two[4];

	/* A row and the one four rows further on. */
	for (size_t r = 0; r < 4; r++)
		two[r] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows[r])), _mm_loadu_ps(rows[r + 4]),
					      1);

	const vec low = _mm256_unpacklo_ps(two[0], two[1]), high = _mm256_unpackhi_ps(two[0], two[1]);
	const vec low2 = _mm256_unpacklo_ps(two[2], two[3]), high2 = _mm256_unpackhi_ps(two[2], two[3]);

	ret[0] = _mm256_shuffle_ps(low, low2, 0x44);
	ret[1] = _mm256_shuffle_ps(low, low2, 0xee);
	ret[2] = _mm256_shuffle_ps(high, high2, 0x44);
	ret[3] = _mm256_shuffle_ps(high, high2, 0xee);
}

/* 32 floats in the order of kernel_fours. */
static inline void vec_fours(const float *x, vec ret[4])
{
	vec_turn_fours((const float *const[]){x, x + 4, x + 8, x + 12, x + 16, x + 20, x + 24, x + 28}, ret);
}

#define VEC_FOURS

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

static inline vec vec_negate(vec a)
{
	return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f));
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
