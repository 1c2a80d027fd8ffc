/* SPDX-License-Identifier: MIT */
/* lanes - the shapes of kernels/vec/lanes.h at level avx2: up to 12 vectors of sums, 96 results. */
#ifndef KERNELS_AVX2_LANES_H
#define KERNELS_AVX2_LANES_H

#include "kernels/avx2/vec.h"

#define LANES_WIDTH 2
#define LANES_ROWS 12
#define LANES_LEVELS 3
#define LANES_RUN_STEP 48
#define LANES_RUN_ROWS 288

/* The four of a lane as vec_pair and vec_quad add them, then the other lane's. */
static const uint8_t lanes_order[] = {0, 2, 1, 3, 4, 6, 5, 7};

/* sums[i] + *w * x[i]. One piece, as vec_fma_three: the compiler would keep some of 12 sums in memory. */
static inline void lanes_two(enum rows_kind kind, vec sums[2], const float *w, const vec x[2])
{
	vec weight, product;

	if (kind == ROWS_INT16)
		__asm__("vbroadcastss %4, %2\n\t"
			"vpmaddwd %5, %2, %3\n\t"
			"vpmaddwd %6, %2, %2\n\t"
			"vpaddd %3, %0, %0\n\t"
			"vpaddd %2, %1, %1"
			: "+x"(sums[0]), "+x"(sums[1]), "=&x"(weight), "=&x"(product)
			: "m"(*w), "x"(x[0]), "x"(x[1]));
	else
		__asm__("vbroadcastss %3, %2\n\t"
			"vfmadd231ps %2, %4, %0\n\t"
			"vfmadd231ps %2, %5, %1"
			: "+x"(sums[0]), "+x"(sums[1]), "=&x"(weight)
			: "m"(*w), "x"(x[0]), "x"(x[1]));
}

#define LANES_TWO lanes_two

#include "kernels/vec/lanes_run.h"

ROWS_INLINE void vec_turn(const char *const *rows, size_t at, vec ret[VEC_FLOATS])
{
#pragma GCC unroll 2
	for (size_t half = 0; half < 2; half++) {
		const float *fours[VEC_FLOATS];

#pragma GCC unroll 8
		for (size_t r = 0; r < VEC_FLOATS; r++)
			fours[r] = (const float *)(rows[r] + at) + 4 * half;
		vec_turn_fours(fours, ret + 4 * half);
	}
}

/* rows_lanes_function `name`: tiles of two panels have `rows` rows, those of one alone `single`. */
#define LANES(name, kind, single, rows)                                                                                \
	LANES_FUNCTION(name, kind, 1, single, 1)                                                                       \
	LANES_FUNCTION(name, kind, 1, rows, 1)                                                                         \
	LANES_FUNCTION(name, kind, 2, rows, 1)                                                                         \
	static const struct lanes_shape name##_shapes[] = {{single, {name##_1_##single##_1}},                          \
							   {rows, {name##_1_##rows##_1, name##_2_##rows##_1}}};        \
	LANES_ROWS_FUNCTION(name, kind, name##_shapes)

#endif
