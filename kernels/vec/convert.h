/* SPDX-License-Identifier: MIT */
/*
 * convert - bfloat16 to binary32 and back, written in the vec_* names of the level that includes this file. What
 * does not fill a vector goes through a copy that does.
 */
#ifndef KERNELS_VEC_CONVERT_H
#define KERNELS_VEC_CONVERT_H

#include <string.h>

static inline void vec_bf16_to_f32(size_t n, const uint16_t *from, float *to)
{
	size_t i = 0;

	for (; n - i >= VEC_FLOATS; i += VEC_FLOATS)
		vec_store(to + i, vec_from_bf16(from + i));
	if (i < n) {
		uint16_t tail[VEC_FLOATS] = {0};

		memcpy(tail, from + i, (n - i) * sizeof(tail[0]));
		vec_store_n(to + i, vec_from_bf16(tail), n - i);
	}
}

static inline void vec_f32_to_bf16(size_t n, const float *from, uint16_t *to)
{
	size_t i = 0;

	for (; n - i >= VEC_FLOATS; i += VEC_FLOATS)
		vec_to_bf16(to + i, vec_load(from + i));
	if (i < n) {
		uint16_t tail[VEC_FLOATS];

		vec_to_bf16(tail, vec_load_n(from + i, n - i));
		memcpy(to + i, tail, (n - i) * sizeof(tail[0]));
	}
}

#endif
