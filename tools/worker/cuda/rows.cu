/* SPDX-License-Identifier: MIT */
/* rows - what is done to rows of floats: they are looked up, normalised, rotated, gated and added. */
#include "tools/worker/cuda/dense.h"

KERNEL(worker_embed, dense_embed, DENSE_THREADS)
{
	const int32_t id = ((const int32_t *)(uintptr_t)p.ids)[BLOCK_INDEX];
	float *x = floats_at(p.x) + (uint64_t)BLOCK_INDEX * p.matrix.cols;

	EACH_THREAD(tid)
	{
		for (uint32_t c = tid; c < p.matrix.cols; c += DENSE_THREADS)
			x[c] = element(&p.matrix, (uint32_t)id, c);
	}
}

KERNEL(worker_norm, dense_norm, DENSE_THREADS)
{
	SHARED(float, part)[DENSE_THREADS];
	SHARED(float, some)[SOME];
	const uint64_t moved = p.position ? load_u32(p.position) : 0;
	const float *x = floats_at(p.x) + BLOCK_INDEX * p.x_pitch, *weight = floats_at(p.weight);
	float *y = floats_at(p.y) + (BLOCK_INDEX + moved) * p.y_pitch;

	EACH_THREAD(tid)
	{
		float sum = 0;

		for (uint32_t c = tid; c < p.cols; c += DENSE_THREADS)
			sum = fmaf(x[c], x[c], sum);
		part[tid] = sum;
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		sum_some(part, some, tid);
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		const float scale = 1.0f / sqrtf(sum_all(some) / (float)p.cols + p.epsilon);

		for (uint32_t c = tid; c < p.cols; c += DENSE_THREADS)
			y[c] = x[c] * scale * weight[c];
	}
}

FUNC float clipped(float x, float most)
{
	if (most > 0) {
		x = x > -most ? x : -most;
		x = x < most ? x : most;
	}
	return x;
}

/* Unit u of a head: a pair to rotate, or behind those one of the elements around them. */
FUNC void rotate_unit(const struct dense_rotate *p, const float *x, float *y, uint32_t u, uint32_t position)
{
	const uint32_t half = p->rope / 2;
	uint32_t a, b;
	float first, second, cosine, sine;

	if (u >= half) {
		a = u - half;
		a += a < p->offset ? 0 : p->rope;
		y[a] = clipped(x[a], p->clip);
		return;
	}
	a = p->offset + (p->interleaved ? 2 * u : u);
	b = p->interleaved ? a + 1 : a + half;
	first = clipped(x[a], p->clip);
	second = clipped(x[b], p->clip);
	cosine = floats_at(p->cos)[(uint64_t)position * half + u];
	sine = floats_at(p->sin)[(uint64_t)position * half + u];
	y[a] = first * cosine - second * sine;
	y[b] = second * cosine + first * sine;
}

KERNEL(worker_rotate, dense_rotate, DENSE_THREADS)
{
	const uint32_t position = load_u32(p.position) + BLOCK_INDEX, units = p.dim - p.rope / 2;
	const float *x = floats_at(p.x) + BLOCK_INDEX * p.x_pitch;
	float *y = floats_at(p.y) + (p.moves ? position : BLOCK_INDEX) * p.y_pitch;

	EACH_THREAD(tid)
	{
		for (uint32_t i = tid; i < p.heads * units; i += DENSE_THREADS) {
			const uint64_t at = (uint64_t)(i / units) * p.dim;

			rotate_unit(&p, x + at, y + at, i % units, position);
		}
	}
}

/* As tools/worker/vector.h. */
FUNC float activated(uint32_t activation, float x)
{
	if (activation == DENSE_GELU)
		return 0.5f * x * (1.0f + erff(x * 0.70710678f));
	if (activation == DENSE_GELU_TANH)
		return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
	return x * sigmoid_of(x);
}

KERNEL(worker_gate, dense_gate, DENSE_THREADS)
{
	float *gate = floats_at(p.gate);
	const float *up = floats_at(p.up);

	EACH_THREAD(tid)
	{
		for (uint64_t i = (uint64_t)BLOCK_INDEX * DENSE_THREADS + tid; i < p.n;
		     i += (uint64_t)BLOCK_COUNT * DENSE_THREADS)
			gate[i] = activated(p.activation, gate[i]) * up[i];
	}
}

KERNEL(worker_join, dense_join, DENSE_THREADS)
{
	const uint64_t at = BLOCK_INDEX * p.cols;
	const float share = p.share ? sigmoid_of(floats_at(p.share)[BLOCK_INDEX]) : 1.0f;

	EACH_THREAD(tid)
	{
		for (uint64_t c = tid; c < p.cols; c += DENSE_THREADS)
			floats_at(p.x)[at + c] += share * floats_at(p.y)[at + c];
	}
}
