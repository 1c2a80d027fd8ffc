/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"
#include "kernels/ref/scalar.h"

double kernel_gated(const struct kernel_act *act, double g, double u)
{
	return gated_value(act, g, u);
}

static double dot(const struct kernel_matrix *m, size_t row, const float *x, size_t cols)
{
	double sum = 0.0;

	for (size_t c = 0; c < cols; c++)
		sum += kernel_weight(m, row, c) * x[c];
	return m->bias ? sum + m->bias[row] : sum;
}

static void gate_up(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows, size_t cols,
		    const struct kernel_act *act, size_t tokens, const void *const *x, float *const *h)
{
	for (size_t t = 0; t < tokens; t++)
		for (size_t r = 0; r < rows; r++)
			h[t][r] = (float)gated_value(act, dot(gate, r, x[t], cols), dot(up, r, x[t], cols));
}

static void matmul(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens, const void *const *x,
		   float *const *y)
{
	for (size_t t = 0; t < tokens; t++)
		for (size_t r = 0; r < rows; r++)
			y[t][r] = (float)dot(w, r, x[t], cols);
}

const struct kernel_ops ops_ref = {.pack = PACK_F32, .gate_up = gate_up, .matmul = matmul};
