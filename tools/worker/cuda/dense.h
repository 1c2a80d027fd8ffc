/* SPDX-License-Identifier: MIT */
/* dense - what several of the worker's kernels need: pointers from numbers, and sums in a fixed order. */
#ifndef WORKER_CUDA_DENSE_H
#define WORKER_CUDA_DENSE_H

#include "kernels/cuda/dialect.h"
#include "tools/worker/cuda/dense-kernels.h"

#define SOME 16 /* partial results of a block: DENSE_THREADS / SOME threads have one together */

FUNC float *floats_at(uint64_t address)
{
	return (float *)(uintptr_t)address;
}

/* One of SOME partial sums, by the threads below SOME: between two barriers. */
FUNC void sum_some(const float *part, float *some, unsigned tid)
{
	float sum = 0;

	if (tid >= SOME)
		return;
	for (unsigned i = 0; i < DENSE_THREADS / SOME; i++)
		sum += part[tid * (DENSE_THREADS / SOME) + i];
	some[tid] = sum;
}

FUNC float sum_all(const float *some)
{
	float sum = 0;

	for (unsigned i = 0; i < SOME; i++)
		sum += some[i];
	return sum;
}

/* The same for the greatest. NaNs are left out. */
FUNC void max_some(const float *part, float *some, unsigned tid)
{
	float most = -INFINITY;

	if (tid >= SOME)
		return;
	for (unsigned i = 0; i < DENSE_THREADS / SOME; i++) {
		const float x = part[tid * (DENSE_THREADS / SOME) + i];

		most = x > most ? x : most;
	}
	some[tid] = most;
}

FUNC float max_all(const float *some)
{
	float most = some[0];

	for (unsigned i = 1; i < SOME; i++)
		most = some[i] > most ? some[i] : most;
	return most;
}

FUNC float sigmoid_of(float x)
{
	return 1.0f / (1.0f + expf(-x));
}

/* One element of a matrix. */
FUNC float element(const struct dense_matrix *w, uint64_t row, uint32_t col)
{
	const uint64_t at = w->data + row * w->pitch;

	if (w->type == DENSE_BF16)
		return float_of_bf16(load_u16(at + 2 * (uint64_t)col));
	if (w->type == DENSE_F16)
		return float_of_f16(load_u16(at + 2 * (uint64_t)col));
	return load_float(at + 4 * (uint64_t)col);
}

#endif
