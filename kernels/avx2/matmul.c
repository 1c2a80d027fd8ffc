/* SPDX-License-Identifier: MIT */
#include "kernels/avx2/vec.h"
#include "kernels/vec/matmul.h"

MATMUL_TILE(bf16_1, KERNEL_BF16, 1)
MATMUL_TILE(bf16_2, KERNEL_BF16, 2)
MATMUL_TILE(bf16_4, KERNEL_BF16, 4)
MATMUL_TILE(f16_1, KERNEL_F16, 1)
MATMUL_TILE(f16_2, KERNEL_F16, 2)
MATMUL_TILE(f16_4, KERNEL_F16, 4)

void matmul_bf16_avx2(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens, const float *const *x,
		      float *const *y)
{
	static matmul_function *const tiles[] = {[1] = bf16_1, [2] = bf16_2, [4] = bf16_4};

	matmul_run(tiles, w, rows, cols, tokens, x, y);
}

void matmul_f16_avx2(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens, const float *const *x,
		     float *const *y)
{
	static matmul_function *const tiles[] = {[1] = f16_1, [2] = f16_2, [4] = f16_4};

	matmul_run(tiles, w, rows, cols, tokens, x, y);
}
