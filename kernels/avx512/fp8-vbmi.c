/* SPDX-License-Identifier: MIT */
/* fp8-vbmi - E4M3 weights, looked up, with FP32 activations. */
#include "kernels/avx512/e4m3.h"
#include "kernels/avx512/vec.h"

/* SPDX-License-Identifier: MIT */
/* fp8 - E4M3 weights with FP32 activations. */
#include "kernels/avx512/vec.h"

/* Columns 16 v on of the 64 at w. */
static inline __attribute__((always_inline)) vec vec_fp8(const char *w, size_t v)
{
	const __m512i two = fp8_bf16(w, v / 2);
	const __m256i one = v % 2 ? _mm512_extracti64x4_epi64(two, 1) : _mm512_castsi512_si256(two);

	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(one), 16));
}

#define VEC_FP8_FLOATS(w, v) vec_fp8(w, v)

#include "kernels/vec/floats.h"

static void decode(const void *codes, size_t cols, void *to)
{
	floats_decode(ROWS_FP8, codes, cols, to);
}

ROWS_SERIAL_4(direct_block, ROWS_FP8, true)
ROWS_TABLE_6(many_block, ROWS_F32, true, 1)
ROWS_SERIAL_4(direct_row, ROWS_FP8, false)
ROWS_TABLE_6(many_row, ROWS_F32, false, 1)

static const struct rows_kernel kernel_block = {.w_bytes = 1,
						.x_bytes = 4,
						.grouped = true,
						.direct_tokens = 4,
						.direct = direct_block,
						.many = many_block,
						.decode = decode};
static const struct rows_kernel kernel_row = {
	.w_bytes = 1, .x_bytes = 4, .direct_tokens = 4, .direct = direct_row, .many = many_row, .decode = decode};

ROWS_OPS(ops_fp8_block_vbmi_avx512, kernel_block, PACK_F32, NULL)
ROWS_OPS(ops_fp8_row_vbmi_avx512, kernel_row, PACK_F32, NULL)
