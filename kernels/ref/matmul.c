/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"
#include "kernels/ref/scalar.h"

static void matmul(enum kernel_type type, const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens,
		   const float *const *x, float *const *y)
{
	for (size_t t = 0; t < tokens; t++)
		for (size_t r = 0; r < rows; r++)
			y[t][r] = (float)ref_dot(type, ref_row(w, r), x[t], cols);
}

void matmul_bf16_ref(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens, const float *const *x,
		     float *const *y)
{
	matmul(KERNEL_BF16, w, rows, cols, tokens, x, y);
}

void matmul_f16_ref(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens, const float *const *x,
		    float *const *y)
{
	matmul(KERNEL_F16, w, rows, cols, tokens, x, y);
}
