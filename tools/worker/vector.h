/* SPDX-License-Identifier: MIT */
/*
 * vector - what the dense part does to single rows of FP32: dot products, norms, softmax, activations.
 *
 * Sums are formed in a fixed order, so that equal inputs give equal bits in every process. No alignment is required.
 */
#ifndef WORKER_VECTOR_H
#define WORKER_VECTOR_H

#include <math.h>
#include <stddef.h>

#include "uapi/moe_manifest.h"

/* Eight lanes; the alignment of one float, so that any row may be read. */
typedef float vector8 __attribute__((vector_size(32), aligned(4), may_alias));

static inline float vector8_sum(vector8 v)
{
	return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]));
}

static inline float vector_dot(const float *a, const float *b, size_t n)
{
	vector8 even = {0}, odd = {0};
	float rest = 0;
	size_t i = 0;

	for (; i + 16 <= n; i += 16) {
		even += *(const vector8 *)(a + i) * *(const vector8 *)(b + i);
		odd += *(const vector8 *)(a + i + 8) * *(const vector8 *)(b + i + 8);
	}
	for (; i < n; i++)
		rest += a[i] * b[i];
	return vector8_sum(even + odd) + rest;
}

/* y += a * x */
static inline void vector_axpy(float *restrict y, float a, const float *restrict x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		y[i] += a * x[i];
}

/* y = x / sqrt(mean(x^2) + eps) * weight; y may be x. */
static inline void vector_rms_norm(float *y, const float *x, const float *weight, size_t n, float eps)
{
	const float scale = 1.0f / sqrtf(vector_dot(x, x, n) / (float)n + eps);

	for (size_t i = 0; i < n; i++)
		y[i] = x[i] * scale * weight[i];
}

/* In place; n >= 1. */
static inline void vector_softmax(float *x, size_t n)
{
	float max = x[0], sum = 0;

	for (size_t i = 1; i < n; i++)
		max = x[i] > max ? x[i] : max;
	for (size_t i = 0; i < n; i++) {
		x[i] = expf(x[i] - max);
		sum += x[i];
	}
	for (size_t i = 0; i < n; i++)
		x[i] /= sum;
}

static inline float sigmoid(float x)
{
	return 1.0f / (1.0f + expf(-x));
}

static inline float activate(enum moe_activation activation, float x)
{
	switch (activation) {
	case MOE_ACTIVATION_GELU:
		return 0.5f * x * (1.0f + erff(x * 0.70710678f));
	case MOE_ACTIVATION_GELU_TANH:
		return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
	case MOE_ACTIVATION_SWIGLU_CLAMPED: /* arch_read has refused it */
	case MOE_ACTIVATION_SILU:
		break;
	}
	return x * sigmoid(x);
}

/* gate = act(gate) * up */
static inline void vector_gate(float *gate, const float *up, size_t n, enum moe_activation activation)
{
	for (size_t i = 0; i < n; i++)
		gate[i] = activate(activation, gate[i]) * up[i];
}

#endif
