/* SPDX-License-Identifier: MIT */
/* int8-vnni - 8-bit integers by the dot product of unsigned (weights + 128) and signed bytes. */
#include "kernels/avx2/vec.h"
#include "kernels/vec/pack.h"
#include "kernels/vec/rows_run.h"

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

static void decode(const void *codes, size_t cols, void *to)
{
	memcpy(to, codes, cols);
}

ROWS_SERIAL_2(direct, ROWS_INT8, false)
ROWS_TABLE_2(many, ROWS_INT8, false, 1)

static void pack_row(size_t cols, uint32_t block, const float *x, void *packed)
{
	pack_i8_row(cols, x, packed);
}

static const struct rows_kernel kernel = {.w_bytes = 1,
					  .x_bytes = 1,
					  .direct_tokens = 2,
					  .direct = direct,
					  .many = many,
					  .decode = decode,
					  .integer = true,
					  .offset = 128};

ROWS_OPS(ops_int8_vnni_avx2, kernel, PACK_I8_ROW, pack_row)
