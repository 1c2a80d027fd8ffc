/* SPDX-License-Identifier: MIT */
/*
 * e4m3 - a line of FP8 weights as bfloat16, which is exact: eleven operations, where VBMI's tables of 128 bytes
 * (kernels/avx512/e4m3.h) take the only port that permutes for six of theirs.
 *
 * Both bytes of a normal number's bfloat16 are linear over its bits, but for a constant: the lower is e0 m2 m1 m0 0 0 0
 * 0, the upper, half of the exponent and 60, is s e3 !e3 !e3 !e3 !e3 e2 e1. That is one operation of GFNI each. The
 * others, denormals (m 2^-9) and NaN, are looked up.
 */
#ifndef KERNELS_AMX_E4M3_H
#define KERNELS_AMX_E4M3_H

#include <immintrin.h>
#include <stdint.h>

static const _Alignas(64) uint8_t e4m3_high[64] = {0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, [63] = 0x7f};
static const _Alignas(64) uint8_t e4m3_low[64] = {0, 0x00, 0x80, 0xc0, 0x00, 0x20, 0x40, 0x60, [63] = 0xc0};

/* 64 codes to 128 bytes. */
static inline __attribute__((always_inline)) void e4m3_line(const void *from, void *to)
{
	/* Unpacking works within lanes: the codes are dealt out before. */
	const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
	const __m512i codes = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(from));
	/* Twice the magnitude and 2: NaN is 0, denormals are at most 16. */
	const __m512i twice = _mm512_add_epi8(_mm512_add_epi8(codes, codes), _mm512_set1_epi8(2));
	const __mmask64 others = _mm512_cmple_epu8_mask(twice, _mm512_set1_epi8(16));
	__m512i low = _mm512_gf2p8affine_epi64_epi8(codes, _mm512_set1_epi64(0x0000000001020408), 0);
	__m512i high = _mm512_gf2p8affine_epi64_epi8(codes, _mm512_set1_epi64(0x1020404040404000), 0x3c);

	low = _mm512_mask_permutexvar_epi8(low, others, codes, _mm512_load_si512(e4m3_low));
	high = _mm512_mask_permutexvar_epi8(high, others, codes, _mm512_load_si512(e4m3_high));
	high = _mm512_ternarylogic_epi64(high, codes, _mm512_set1_epi8(-128), 0xf8); /* | codes & 0x80 */
	_mm512_store_si512(to, _mm512_unpacklo_epi8(low, high));
	_mm512_store_si512((uint8_t *)to + 64, _mm512_unpackhi_epi8(low, high));
}

#endif
