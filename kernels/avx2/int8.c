/* SPDX-License-Identifier: MIT */
/* int8 - 8-bit integers without VNNI: unsigned |w| times x with w's sign; two products are below 2^15. */
#include "kernels/avx2/vec.h"
#include "kernels/vec/rows.h"

ROWS_INLINE vec row_weights(enum rows_kind kind, const char *w, size_t v)
{
	return vec_load((const float *)(w + v * VEC_BYTES));
}

/* sum + w . x in fours, or in pairs of what was widened, which takes no sign. */
ROWS_INLINE vec row_dot(enum rows_kind kind, vec sum, vec weights, vec activations)
{
	const __m256i w = _mm256_castps_si256(weights), x = _mm256_castps_si256(activations);
	__m256i dots;

	if (kind == ROWS_INT16)
		dots = _mm256_madd_epi16(w, x);
	else
		dots = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)),
					 _mm256_set1_epi16(1));
	/* Not the intrinsic: its changes between types make the compiler keep sums in memory. */
	__asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(dots));
	return sum;
}

#define INT8_TABLE ROWS_TABLE_2
#define INT8_MANY ROWS_INT8
#define INT8_OFFSET 0
#define STREAMS_ROW_BY_ROW
#include "kernels/vec/int8.h"

#include "kernels/avx2/lanes.h"

LANES(integer_lanes, ROWS_INT16, 12, 6)

ROWS_STREAMS_4(streams, ROWS_INT8, false)

#define KERNEL                                                                                                         \
	INT8_KERNEL(ROWS_NEAR, ROWS_FAR), .lanes = integer_lanes, .lanes_over = 23, .streams = streams,                \
					  .side_most = ROWS_STREAM_TOKENS

static const struct rows_kernel kernel = {KERNEL, .side_over = ROWS_FEW_TOKENS}, unasked = {KERNEL};

ROWS_OPS(ops_int8_avx2, kernel, PACK_I8_ROW, pack_i8_row)
ROWS_OPS(ops_int8_unasked_avx2, unasked, PACK_I8_ROW, pack_i8_row)
