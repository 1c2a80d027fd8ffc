/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"
#include "kernels/ref/scalar.h"

static void gate_up(enum kernel_type type, const struct kernel_matrix *gate, const struct kernel_matrix *up,
		    size_t rows, size_t cols, enum kernel_activation act, size_t tokens, const float *const *x,
		    float *const *h)
{
	for (size_t t = 0; t < tokens; t++)
		for (size_t r = 0; r < rows; r++) {
			const double a = ref_dot(type, ref_row(gate, r), x[t], cols);
			const double b = ref_dot(type, ref_row(up, r), x[t], cols);

			h[t][r] = (float)(activation_value(act, a) * b);
		}
}

void gate_up_bf16_ref(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows, size_t cols,
		      enum kernel_activation act, size_t tokens, const float *const *x, float *const *h)
{
	gate_up(KERNEL_BF16, gate, up, rows, cols, act, tokens, x, h);
}

void gate_up_f16_ref(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows, size_t cols,
		     enum kernel_activation act, size_t tokens, const float *const *x, float *const *h)
{
	gate_up(KERNEL_F16, gate, up, rows, cols, act, tokens, x, h);
}
