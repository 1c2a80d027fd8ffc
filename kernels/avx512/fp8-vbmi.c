/* SPDX-License-Identifier: MIT */
/* fp8-vbmi - E4M3 weights, looked up, with FP32 activations. */
#include "kernels/avx512/e4m3.h"
#include "kernels/avx512/vec.h"

/* Columns 16 v on of the 64 at w. */
static inline __attribute__((always_inline)) vec vec_fp8(const char *w, size_t v)
{
	const __m512i two = fp8_bf16(w, v / 2);
	const __m256i one = v % 2 ? _mm512_extracti64x4_epi64(two, 1) : _mm512_castsi512_si256(two);

	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(one), 16));
}

#define VEC_FP8_FLOATS(w, v) vec_fp8(w, v)

#include "kernels/vec/fp8.h"

#include "kernels/avx512/lanes.h"

/* 64 codes. The dwords are dealt out first so that unpacking within the four lanes, twice, leaves columns in order. */
static inline void decode_64(const char *codes, float *to)
{
	const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
	const __m512i dealt = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(codes));
	const __m512i low = e4m3_low(dealt), high = e4m3_high(dealt), zero = _mm512_setzero_si512();
	const __m512i first = _mm512_unpacklo_epi8(low, high), last = _mm512_unpackhi_epi8(low, high);

	_mm512_storeu_si512(to, _mm512_unpacklo_epi16(zero, first));
	_mm512_storeu_si512(to + 16, _mm512_unpackhi_epi16(zero, first));
	_mm512_storeu_si512(to + 32, _mm512_unpacklo_epi16(zero, last));
	_mm512_storeu_si512(to + 48, _mm512_unpackhi_epi16(zero, last));
}

static void decode(const void *codes, size_t cols, void *to)
{
	const char *w = codes;
	float *out = to;
	size_t c = 0;

	for (; cols - c >= 64; c += 64)
		decode_64(w + c, out + c);
	if (c < cols) {
		char tail[64] = {0};
		float last[64];

		memcpy(tail, w + c, cols - c);
		decode_64(tail, last);
		memcpy(out + c, last, (cols - c) * sizeof(last[0]));
	}
}

LANES(group_lanes, ROWS_FP8, 6, 2)

static const struct rows_kernel kernel = {FP8_KERNEL(decode), .lanes = group_lanes, .lanes_over = 16};

ROWS_OPS(ops_fp8_vbmi_avx512, kernel, PACK_F32, NULL)
