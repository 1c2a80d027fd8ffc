/* SPDX-License-Identifier: MIT */
/* e4m3 - FP8 weights looked up as bfloat16, which is exact; with VBMI's permutation of bytes. */
#ifndef KERNELS_AVX512_E4M3_H
#define KERNELS_AVX512_E4M3_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

/* The upper and the lower bytes of the bfloat16 values of the codes 0 .. 127. */
#define NORMAL_HIGH(code) ((((code) >> 3) + 120) >> 1)
#define NORMAL_LOW(code) (((((code) >> 3) & 1) << 7) | (((code)&7) << 4))
#define EIGHT(what, code)                                                                                              \
	what(code), what((code) + 1), what((code) + 2), what((code) + 3), what((code) + 4), what((code) + 5),          \
		what((code) + 6), what((code) + 7)
#define FROM_8_TO_119(what)                                                                                            \
	EIGHT(what, 8), EIGHT(what, 16), EIGHT(what, 24), EIGHT(what, 32), EIGHT(what, 40), EIGHT(what, 48),           \
		EIGHT(what, 56), EIGHT(what, 64), EIGHT(what, 72), EIGHT(what, 80), EIGHT(what, 88), EIGHT(what, 96),  \
		EIGHT(what, 104), EIGHT(what, 112)

/* Denormals are m 2^-9; the last code is NaN. */
static const _Alignas(64) uint8_t high_bytes[128] = {0,
						     0x3b,
						     0x3b,
						     0x3b,
						     0x3c,
						     0x3c,
						     0x3c,
						     0x3c,
						     FROM_8_TO_119(NORMAL_HIGH),
						     NORMAL_HIGH(120),
						     NORMAL_HIGH(121),
						     NORMAL_HIGH(122),
						     NORMAL_HIGH(123),
						     NORMAL_HIGH(124),
						     NORMAL_HIGH(125),
						     NORMAL_HIGH(126),
						     0x7f};
static const _Alignas(64) uint8_t low_bytes[128] = {0,
						    0x00,
						    0x80,
						    0xc0,
						    0x00,
						    0x20,
						    0x40,
						    0x60,
						    FROM_8_TO_119(NORMAL_LOW),
						    NORMAL_LOW(120),
						    NORMAL_LOW(121),
						    NORMAL_LOW(122),
						    NORMAL_LOW(123),
						    NORMAL_LOW(124),
						    NORMAL_LOW(125),
						    NORMAL_LOW(126),
						    0xc0};

/* The lower and the upper bytes of the bfloat16 values of codes. */
static inline __attribute__((always_inline)) __m512i e4m3_low(__m512i codes)
{
	return _mm512_permutex2var_epi8(_mm512_load_si512(low_bytes), codes, _mm512_load_si512(low_bytes + 64));
}

static inline __attribute__((always_inline)) __m512i e4m3_high(__m512i codes)
{
	const __m512i magnitude = _mm512_permutex2var_epi8(_mm512_load_si512(high_bytes), codes,
							   _mm512_load_si512(high_bytes + 64));

	return _mm512_ternarylogic_epi64(magnitude, codes, _mm512_set1_epi8(-128), 0xf8); /* magnitude | codes & 0x80 */
}

/* Columns 0 .. 31 (v = 0) or 32 .. 63 (v = 1) of the 64 at w. The codes are dealt out first so that unpacking within
 * the four lanes leaves the columns in order. */
static inline __attribute__((always_inline)) __m512i fp8_bf16(const char *w, size_t v)
{
	const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
	const __m512i codes = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(w));
	const __m512i low = e4m3_low(codes), high = e4m3_high(codes);

	return v ? _mm512_unpackhi_epi8(low, high) : _mm512_unpacklo_epi8(low, high);
}

#endif
