/* SPDX-License-Identifier: MIT */
/*
 * number - the number types of weights and of their scales, to and from float.
 *
 * Every conversion to a narrower type rounds to nearest, ties to even. Weights come from files and are finite; scales
 * are made here and saturate instead of becoming infinite.
 */
#ifndef MKMODEL_NUMBER_H
#define MKMODEL_NUMBER_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "model/model.h"

#define E4M3_MAX 448.0f
#define E2M1_MAX 6.0f
#define F16_MAX 65504.0f

static inline uint32_t number_bits(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof bits);
	return bits;
}

static inline float number_from_bits(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof x);
	return x;
}

/* Round to nearest even for |x| < 2^22, in a form that compilers turn into vectors. */
static inline float number_round(float x)
{
	return x + 12582912.0f - 12582912.0f;
}

/* Drops the lowest `n` bits, to nearest even. What is left may carry into the exponent, as it should. */
static inline uint32_t number_drop(uint32_t bits, uint32_t n)
{
	return (bits + (1u << (n - 1)) - 1 + (bits >> n & 1)) >> n;
}

static inline float number_from_bf16(uint16_t x)
{
	return number_from_bits((uint32_t)x << 16);
}

static inline uint16_t number_to_bf16(float x)
{
	uint32_t bits = number_bits(x);

	return isnan(x) ? 0x7fc0 : (uint16_t)number_drop(bits, 16);
}

/* The value of a small float: `exponent` and `fraction` bits, bias 2^(exponent - 1) - 1; no infinity, no NaN. */
static inline float number_from_small(uint32_t code, uint32_t exponent, uint32_t fraction)
{
	const int bias = (1 << (exponent - 1)) - 1;
	const uint32_t e = code >> fraction & ((1u << exponent) - 1), f = code & ((1u << fraction) - 1);
	const float x = e ? ldexpf((float)(f | 1u << fraction), (int)e - bias - (int)fraction)
			  : ldexpf((float)f, 1 - bias - (int)fraction);

	return code >> (exponent + fraction) & 1 ? -x : x;
}

/* And back: |x| must not be beyond the largest value by more than half a step. */
static inline uint32_t number_to_small(float x, uint32_t exponent, uint32_t fraction)
{
	const int bias = (1 << (exponent - 1)) - 1;
	const uint32_t bits = number_bits(x), sign = bits >> 31 << (exponent + fraction), size = bits & 0x7fffffff;

	if (size < (uint32_t)(127 + 1 - bias) << 23) /* below the smallest normal number: all steps are alike */
		return sign | (uint32_t)rintf(ldexpf(fabsf(x), bias - 1 + (int)fraction));
	return sign | (number_drop(size, 23 - fraction) - ((uint32_t)(127 - bias) << fraction));
}

static inline float number_from_f16(uint16_t x)
{
	if ((x >> 10 & 31) == 31)
		return x & 1023 ? NAN : x >> 15 ? -INFINITY : INFINITY;
	return number_from_small(x, 5, 10);
}

static inline uint16_t number_to_f16(float x)
{
	return (uint16_t)number_to_small(fminf(fmaxf(x, -F16_MAX), F16_MAX), 5, 10);
}

static inline float number_from_e4m3(uint8_t x)
{
	return (x & 0x7f) == 0x7f ? NAN : number_from_small(x, 4, 3);
}

static inline uint8_t number_to_e4m3(float x)
{
	return (uint8_t)number_to_small(fminf(fmaxf(x, -E4M3_MAX), E4M3_MAX), 4, 3);
}

static inline float number_from_e2m1(uint8_t x)
{
	return number_from_small(x, 2, 1);
}

/* Never -0. */
static inline uint8_t number_to_e2m1(float x)
{
	uint32_t code = number_to_small(fminf(fmaxf(x, -E2M1_MAX), E2M1_MAX), 2, 1);

	return code == 8 ? 0 : (uint8_t)code;
}

/* A positive scale in the type in which it will be stored: TENSOR_F32, TENSOR_F16 or TENSOR_BF16. */
static inline float number_as(enum tensor_type type, float x)
{
	if (type == TENSOR_F16)
		return number_from_f16(number_to_f16(x));
	return type == TENSOR_BF16 ? number_from_bf16(number_to_bf16(x)) : x;
}

/* Stores x as `type`; returns the bytes written. */
static inline uint32_t number_store(enum tensor_type type, float x, uint8_t *to)
{
	const uint16_t half = type == TENSOR_F16 ? number_to_f16(x) : number_to_bf16(x);

	if (type == TENSOR_F32) {
		memcpy(to, &x, 4);
		return 4;
	}
	memcpy(to, &half, 2);
	return 2;
}

#endif
