/* SPDX-License-Identifier: MIT */
/* int8 - 8-bit integers without VNNI: unsigned |w| times x with w's sign; two products are below 2^15. */
#include "kernels/avx2/vec.h"
#include "kernels/vec/pack.h"
#include "kernels/vec/rows_run.h"

ROWS_INLINE vec row_weights(enum rows_kind kind, const char *w, size_t v)
{
	return vec_load((const float *)(w + v * VEC_BYTES));
}

ROWS_INLINE vec row_dot(enum rows_kind kind, vec sum, vec weights, vec activations)
{
	const __m256i w = _mm256_castps_si256(weights), x = _mm256_castps_si256(activations);
	const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
	const __m256i quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));

	/* Not the intrinsic: its changes between types make the compiler keep sums in memory. */
	__asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(quads));
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
					  .integer = true};

ROWS_OPS(ops_int8_avx2, kernel, PACK_I8_ROW, pack_row)
