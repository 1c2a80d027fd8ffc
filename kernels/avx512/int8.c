/* SPDX-License-Identifier: MIT */
/* int8 - 8-bit integers without VNNI: unsigned |w| times x with w's sign; two products are below 2^15. */
#include "kernels/avx512/vec.h"
#include "kernels/vec/rows.h"

ROWS_INLINE vec row_weights(enum rows_kind kind, const char *w, size_t v)
{
	return _mm512_loadu_ps(w);
}

ROWS_INLINE vec row_dot(enum rows_kind kind, vec sum, vec weights, vec activations)
{
	const __m512i w = _mm512_castps_si512(weights), x = _mm512_castps_si512(activations);
	const __m512i signs = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
	const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(w), signs);
	const __m512i quads = _mm512_madd_epi16(pairs, _mm512_set1_epi16(1));

	/* Not the intrinsic: its changes between types make the compiler keep sums in memory. */
	__asm__("vpaddd %1, %0, %0" : "+v"(sum) : "v"(quads));
	return sum;
}

#define INT8_TABLE ROWS_MANY
#define INT8_MANY ROWS_INT8
#define INT8_OFFSET 0
#include "kernels/vec/int8.h"

static const struct rows_kernel kernel = {INT8_KERNEL(ROWS_NEAR, ROWS_FAR)};

ROWS_OPS(ops_int8_avx512, kernel, PACK_I8_ROW, pack_i8_row)
