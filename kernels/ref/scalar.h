/* SPDX-License-Identifier: MIT */
/* scalar - one number at a time: what a stored weight is worth, and what the activations are. */
#ifndef KERNELS_REF_SCALAR_H
#define KERNELS_REF_SCALAR_H

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

static inline double bf16_value(uint16_t bits)
{
	const uint32_t wide = (uint32_t)bits << 16;
	float value;

	memcpy(&value, &wide, sizeof(value));
	return value;
}

/* IEEE 754 binary16: 1 sign bit, 5 exponent bits (bias 15), 10 fraction bits. */
static inline double f16_value(uint16_t bits)
{
	const int exponent = bits >> 10 & 31, fraction = bits & 1023;
	double value;

	if (exponent == 31)
		value = fraction ? NAN : INFINITY;
	else if (exponent == 0)
		value = ldexp(fraction, -24);
	else
		value = ldexp(1024 + fraction, exponent - 25);
	return bits >> 15 ? -value : value;
}

/* erfc and not 1 + erf: the left tail keeps its digits. */
static inline double activation_value(enum kernel_activation act, double a)
{
	switch (act) {
	case KERNEL_GELU:
		return 0.5 * a * erfc(-a * M_SQRT1_2);
	case KERNEL_GELU_TANH:
		return 0.5 * a * (1.0 + tanh(sqrt(2.0 / M_PI) * (a + 0.044715 * a * a * a)));
	case KERNEL_SILU:
	case KERNEL_SWIGLU_CLAMPED: /* gated_value */
		break;
	}
	return a / (1.0 + exp(-a));
}

/* As struct kernel_act says. Comparisons are written so that NaNs stay. */
static inline double gated_value(const struct kernel_act *act, double g, double u)
{
	const double limit = act->limit;

	if (act->kind != KERNEL_SWIGLU_CLAMPED)
		return activation_value(act->kind, g) * u;
	g = g > limit ? limit : g;
	u = u > limit ? limit : u < -limit ? -limit : u;
	return g / (1.0 + exp(-1.702 * g)) * (u + 1.0);
}

/* 1 sign bit, 4 exponent bits (bias 7), 3 fraction bits; no infinity. */
static inline double e4m3_value(uint8_t bits)
{
	const int exponent = bits >> 3 & 15, fraction = bits & 7;
	double value;

	if ((bits & 0x7f) == 0x7f)
		value = NAN;
	else if (exponent == 0)
		value = ldexp(fraction, -9);
	else
		value = ldexp(8 + fraction, exponent - 10);
	return bits >> 7 ? -value : value;
}

static inline double e8m0_value(uint8_t bits)
{
	return bits == 255 ? NAN : ldexp(1.0, bits - 127);
}

#endif
