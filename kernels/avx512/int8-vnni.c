/* SPDX-License-Identifier: MIT */
/* int8-vnni - 8-bit integers by the dot product of unsigned (weights + 128) and signed bytes. */
#include "kernels/avx512/vec.h"
#include "kernels/vec/rows.h"

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

#define INT8_TABLE ROWS_MANY
#define INT8_MANY ROWS_UINT8
#define INT8_OFFSET 128
#include "kernels/vec/int8.h"

#include "kernels/avx512/lanes.h"

LANES(integer_lanes, ROWS_UINT8, 12, 1)
LANES_NARROW(narrow_lanes, ROWS_UINT8, 12, 1)

ROWS_STREAMS_4(streams, ROWS_INT8, false)

static const struct rows_kernel kernel = {INT8_KERNEL(ROWS_NEAR, ROWS_FAR),
					  .streams = streams,
					  .side_over = ROWS_PASSES * ROWS_FEW_TOKENS,
					  .side_most = ROWS_BESIDE_TOKENS,
					  .side_near = ROWS_BESIDE,
					  .lanes = narrow_lanes,
					  .lanes_over = 16,
					  .roomy = true};
static const struct rows_kernel streamed = {INT8_KERNEL(ROWS_STREAMED, 0), .streams = streams,
					    .side_near = ROWS_STREAMED, .lanes = integer_lanes, .lanes_over = 12};
/* One token is read faster as one stream, which nothing is asked for either (docs/decisions/0110). */
static const struct rows_kernel unasked = {INT8_KERNEL(0, 0), .streams = streams, .side_over = 1,
					   .lanes = integer_lanes, .lanes_over = 12};

/* Of Zen 5, whose first-level cache bears the tiles of rows.h (docs/decisions/0009, 0074). */
ROWS_OPS(ops_int8_vnni_avx512, kernel, PACK_I8_ROW, pack_i8_row)
ROWS_OPS(ops_int8_streamed_avx512, streamed, PACK_I8_ROW, pack_i8_row)
ROWS_OPS(ops_int8_unasked_avx512, unasked, PACK_I8_ROW, pack_i8_row)
