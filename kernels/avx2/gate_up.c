/* SPDX-License-Identifier: MIT */
#include "kernels/avx2/vec.h"
#include "kernels/vec/gate_up.h"

GATE_UP_TILE(bf16_1, KERNEL_BF16, 1)
GATE_UP_TILE(bf16_2, KERNEL_BF16, 2)
GATE_UP_TILE(bf16_4, KERNEL_BF16, 4)
GATE_UP_TILE(f16_1, KERNEL_F16, 1)
GATE_UP_TILE(f16_2, KERNEL_F16, 2)
GATE_UP_TILE(f16_4, KERNEL_F16, 4)

void gate_up_bf16_avx2(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows, size_t cols,
		       enum kernel_activation act, size_t tokens, const float *const *x, float *const *h)
{
	static gate_up_function *const tiles[] = {[1] = bf16_1, [2] = bf16_2, [4] = bf16_4};

	gate_up_run(tiles, gate, up, rows, cols, act, tokens, x, h);
}

void gate_up_f16_avx2(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows, size_t cols,
		      enum kernel_activation act, size_t tokens, const float *const *x, float *const *h)
{
	static gate_up_function *const tiles[] = {[1] = f16_1, [2] = f16_2, [4] = f16_4};

	gate_up_run(tiles, gate, up, rows, cols, act, tokens, x, h);
}
