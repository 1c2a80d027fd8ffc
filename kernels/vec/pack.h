/* SPDX-License-Identifier: MIT */
/*
 * pack - rows of activations as kernels.h packs them: bfloat16, FP16 and 8-bit integers with one scale. Written in
 * the vec_* names of the level that includes this file.
 */
#ifndef KERNELS_VEC_PACK_H
#define KERNELS_VEC_PACK_H

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/vec/convert.h"

#define PACK_BLOCK 64  /* columns */
#define PACK_HALVES 32 /* columns of a line */

/* Filled up with zeros to the boundary. */
static inline void pack_bf16_row(size_t cols, uint32_t block, const float *x, void *packed)
{
	uint16_t *to = packed;

	vec_f32_to_bf16(cols, x, to);
	memset(to + cols, 0, KERNEL_LINE(cols * sizeof(*to)) - cols * sizeof(*to));
}

/* The largest magnitude; NaN where there is one. */
static inline float pack_largest(size_t cols, const float *x)
{
	vec largest = vec_zero();
	uint32_t each[VEC_FLOATS], bits = 0;
	float all;
	size_t c = 0;

	for (; cols - c >= VEC_FLOATS; c += VEC_FLOATS)
		largest = vec_max_abs(largest, vec_load(x + c));
	if (c < cols)
		largest = vec_max_abs(largest, vec_load_n(x + c, cols - c));
	memcpy(each, &largest, sizeof(each));
	for (size_t i = 0; i < VEC_FLOATS; i++)
		bits = each[i] > bits ? each[i] : bits;
	memcpy(&all, &bits, sizeof(all));
	return all;
}

/*
 * code = x / scale to the nearest even, scale = max|x| / 127: no code beyond 127. The scale of numbers too small for
 * that is the smallest normal one. 1 / scale has a relative error of 2^-24, so has the product: codes are off by 2^-16
 * more than half a step at most.
 */
static inline void pack_i8_row(size_t cols, uint32_t block, const float *x, void *packed)
{
	const float largest = pack_largest(cols, x);
	struct kernel_i8_row *row = packed;
	int8_t *codes = (int8_t *)packed + KERNEL_HEAD;
	float tail[PACK_BLOCK] = {0};
	vec inverse;
	size_t c = 0;

	memset(packed, 0, KERNEL_HEAD);
	if (!(largest > 0.0f && largest <= FLT_MAX)) {
		row->scale = largest == 0.0f ? 0.0f : NAN;
		memset(codes, 0, KERNEL_LINE(cols));
		return;
	}
	row->scale = fmaxf(largest / 127.0f, FLT_MIN);
	inverse = vec_set(1.0f / row->scale);
	for (; cols - c >= PACK_BLOCK; c += PACK_BLOCK)
		row->sum += vec_codes(codes + c, x + c, inverse);
	if (c < cols) {
		memcpy(tail, x + c, (cols - c) * sizeof(tail[0]));
		row->sum += vec_codes(codes + c, tail, inverse);
	}
}

/* The power of two that a row is multiplied with, at most 2^most: it brings the largest finite magnitude to 2^(to - 1)
 * .. 2^to. */
static inline int pack_exponent(size_t cols, const float *x, int to, int most)
{
	float largest = pack_largest(cols, x);
	int exponent;

	if (!(largest <= FLT_MAX))
		for (size_t c = largest = 0; c < cols; c++)
			largest = isfinite(x[c]) ? fmaxf(largest, fabsf(x[c])) : largest;
	frexpf(largest, &exponent);
	return largest == 0.0f || to - exponent > most ? most : to - exponent;
}

#ifdef VEC_FOURS
/* KERNEL_FOURS numbers times `up`, in the order of kernel_fours. */
static inline void pack_fours(const float *x, vec up, float *to)
{
	vec v[KERNEL_FOURS / VEC_FLOATS];

	vec_fours(x, v);
	for (size_t i = 0; i < KERNEL_FOURS / VEC_FLOATS; i++)
		vec_store(to + i * VEC_FLOATS, vec_mul(v[i], up));
}

static inline void pack_f32_up_row(size_t cols, uint32_t block, const float *x, void *packed)
{
	const int exponent = pack_exponent(cols, x, 127, KERNEL_UP);
	const vec up = vec_set(ldexpf(1.0f, exponent));
	float *floats = (float *)((char *)packed + KERNEL_HEAD);
	float tail[KERNEL_FOURS] = {0};
	struct kernel_float_row *row = packed;
	size_t c = 0;

	memset(packed, 0, KERNEL_HEAD);
	row->scale = ldexpf(1.0f, KERNEL_UP - exponent);
	for (; cols - c >= KERNEL_FOURS; c += KERNEL_FOURS)
		pack_fours(x + c, up, floats + c);
	memcpy(tail, x + c, (cols - c) * sizeof(tail[0]));
	if (c < cols)
		pack_fours(tail, up, floats + c);
}

#endif

static inline void pack_f16_row(size_t cols, uint32_t block, const float *x, void *packed)
{
	/* There FP16 keeps most of the smaller numbers; the inverse is a normal one. */
	const int exponent = pack_exponent(cols, x, 15, 126);
	const vec up = vec_set(ldexpf(1.0f, exponent));
	uint16_t *halves = (uint16_t *)((char *)packed + KERNEL_HEAD);
	float *floats = (float *)((char *)packed + KERNEL_F16_FLOATS(cols));
	struct kernel_float_row *row = packed;

	memset(packed, 0, KERNEL_HEAD);
	row->scale = ldexpf(1.0f, -exponent);
	for (size_t c = 0; c < cols; c += PACK_HALVES) {
		float part[PACK_HALVES] = {0};

		memcpy(part, x + c, (cols - c < PACK_HALVES ? cols - c : PACK_HALVES) * sizeof(part[0]));
		for (size_t i = 0; i < PACK_HALVES; i += VEC_FLOATS) {
			vec_to_f16(halves + c + i, vec_mul(vec_load(part + i), up));
			vec_store(part + i, vec_f16(halves + c + i));
		}
		memcpy(floats + c, part, (cols - c < PACK_HALVES ? cols - c : PACK_HALVES) * sizeof(part[0]));
	}
}

#endif
