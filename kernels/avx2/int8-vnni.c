/* SPDX-License-Identifier: MIT */
/* int8-vnni - 8-bit integers by the dot product of unsigned (weights + 128) and signed bytes. */
#include "kernels/avx2/vec.h"
#include "kernels/vec/rows.h"

ROWS_INLINE vec row_weights(enum rows_kind kind, const char *w, size_t v)
{
	const __m256i codes = _mm256_loadu_si256((const __m256i *)(w + v * VEC_BYTES));

	return _mm256_castsi256_ps(_mm256_xor_si256(codes, _mm256_set1_epi8(-128)));
}

/* Not the intrinsic: its changes between types make the compiler keep sums in memory. */
ROWS_INLINE vec row_dot(enum rows_kind kind, vec sum, vec w, vec x)
{
	__asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(w), "x"(x));
	return sum;
}

#define INT8_TABLE ROWS_TABLE_2
#define INT8_MANY ROWS_INT8
#define INT8_OFFSET 128
#include "kernels/vec/int8.h"

static const struct rows_kernel kernel = {INT8_KERNEL(ROWS_NEAR, ROWS_FAR)};

ROWS_OPS(ops_int8_vnni_avx2, kernel, PACK_I8_ROW, pack_i8_row)
