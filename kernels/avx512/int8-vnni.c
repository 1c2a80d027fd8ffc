/* SPDX-License-Identifier: MIT */
/* int8-vnni - 8-bit integers by the dot product of unsigned (weights + 128) and signed bytes. */
#include "kernels/avx512/vec.h"
#include "kernels/vec/pack.h"
#include "kernels/vec/rows_run.h"

ROWS_INLINE vec row_weights(enum rows_kind kind, const char *w, size_t v)
{
	const __m512i codes = _mm512_loadu_si512(w);

	return _mm512_castsi512_ps(kind == ROWS_UINT8 ? codes : _mm512_xor_si512(codes, _mm512_set1_epi8(-128)));
}

/* Not the intrinsic: its changes between types make the compiler keep sums in memory. */
ROWS_INLINE vec row_dot(enum rows_kind kind, vec sum, vec w, vec x)
{
	__asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
	return sum;
}

static void decode(const void *codes, size_t cols, void *to)
{
	const char *w = codes;
	char *out = to;
	size_t c = 0;

	for (; cols - c >= 64; c += 64)
		_mm512_storeu_ps(out + c, row_weights(ROWS_INT8, w + c, 0));
	for (; c < cols; c++)
		out[c] = (char)(w[c] ^ 0x80);
}

ROWS_SERIAL_4(direct, ROWS_INT8, false)
ROWS_TABLE_6(many, ROWS_UINT8, false, 1)

static void pack_row(size_t cols, uint32_t block, const float *x, void *packed)
{
	pack_i8_row(cols, x, packed);
}

static const struct rows_kernel kernel = {.w_bytes = 1,
					  .x_bytes = 1,
					  .direct_tokens = 4,
					  .direct = direct,
					  .many = many,
					  .decode = decode,
					  .integer = true,
					  .offset = 128};

ROWS_OPS(ops_int8_vnni_avx512, kernel, PACK_I8_ROW, pack_row)
