/* SPDX-License-Identifier: MIT */
/* fp8-bf16 - E4M3 weights, as bfloat16, by the bfloat16 dot product. */
#include "kernels/avx512/e4m3.h"
#include "kernels/avx512/vec.h"
#include "kernels/vec/pack.h"
#include "kernels/vec/rows_run.h"

#include "kernels/avx512/lanes.h"

ROWS_INLINE vec row_weights(enum rows_kind kind, const char *w, size_t v)
{
	return kind == ROWS_BF16_DOT ? _mm512_loadu_ps(w) : _mm512_castsi512_ps(fp8_bf16(w, v));
}

ROWS_INLINE vec row_dot(enum rows_kind kind, vec sum, vec w, vec x)
{
	return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
}

static void decode(const void *codes, size_t cols, void *to)
{
	const char *w = codes;
	uint16_t *out = to;
	size_t c = 0;

	for (; cols - c >= 64; c += 64) {
		_mm512_storeu_si512(out + c, fp8_bf16(w + c, 0));
		_mm512_storeu_si512(out + c + 32, fp8_bf16(w + c, 1));
	}
	if (c < cols) {
		char tail[64] = {0};
		uint16_t last[64];

		memcpy(tail, w + c, cols - c);
		_mm512_storeu_si512(last, fp8_bf16(tail, 0));
		_mm512_storeu_si512(last + 32, fp8_bf16(tail, 1));
		memcpy(out + c, last, (cols - c) * sizeof(last[0]));
	}
}

ROWS_FEW(few, ROWS_FP8_DOT, true)
ROWS_MANY(many, ROWS_BF16_DOT, true)
ROWS_STREAMS_4(streams, ROWS_FP8_DOT, true)
LANES_NARROW(lanes, ROWS_FP8_DOT, 8, 2)

/* Members of a struct rows_kernel. */
#define FP8_DOT                                                                                                        \
	.w_bytes = 1, .x_bytes = 2, .few_x_bytes = 2, .few = few, .many = many, .tile_tokens = ROWS_MOST(many),        \
	.decode = decode

/* One token is read faster as one stream whose pages are asked for (docs/decisions/0099). */
static const struct rows_kernel kernel = {FP8_DOT,
					  .near = ROWS_NEAR,
					  .far = ROWS_FAR,
					  .streams = streams,
					  .side_over = 1,
					  .side_most = ROWS_BESIDE_TOKENS,
					  .side_near = ROWS_BESIDE_FP8,
					  .lanes = lanes,
					  .lanes_over = 16};
static const struct rows_kernel unasked = {FP8_DOT, .streams = streams, .side_near = ROWS_ONCE};

ROWS_OPS(ops_fp8_bf16_avx512, kernel, PACK_BF16, pack_bf16_row)
ROWS_OPS(ops_fp8_bf16_unasked_avx512, unasked, PACK_BF16, pack_bf16_row)
