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
		break;
	}
	return a / (1.0 + exp(-a));
}

/* Row r of a matrix. */
static inline const uint16_t *ref_row(const struct kernel_matrix *m, size_t r)
{
	return (const uint16_t *)((const char *)m->data + r * m->pitch);
}

static inline double ref_dot(enum kernel_type type, const uint16_t *w, const float *x, size_t n)
{
	double sum = 0.0;

	for (size_t i = 0; i < n; i++)
		sum += (type == KERNEL_BF16 ? bf16_value(w[i]) : f16_value(w[i])) * x[i];
	return sum;
}

#endif
