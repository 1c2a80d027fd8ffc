/* SPDX-License-Identifier: MIT */
#include "kernels/avx512/vec.h"
#include "kernels/vec/matmul.h"

MATMUL_TILE(bf16_1, KERNEL_BF16, 1)
MATMUL_TILE(bf16_2, KERNEL_BF16, 2)
MATMUL_TILE(bf16_4, KERNEL_BF16, 4)
MATMUL_TILE(bf16_8, KERNEL_BF16, 8)
MATMUL_TILE(f16_1, KERNEL_F16, 1)
MATMUL_TILE(f16_2, KERNEL_F16, 2)
MATMUL_TILE(f16_4, KERNEL_F16, 4)
MATMUL_TILE(f16_8, KERNEL_F16, 8)

void matmul_bf16_avx512(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens, const float *const *x,
			float *const *y)
{
	static matmul_function *const tiles[] = {[1] = bf16_1, [2] = bf16_2, [4] = bf16_4, [8] = bf16_8};

	matmul_run(tiles, w, rows, cols, tokens, x, y);
}

void matmul_f16_avx512(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens, const float *const *x,
		       float *const *y)
{
	static matmul_function *const tiles[] = {[1] = f16_1, [2] = f16_2, [4] = f16_4, [8] = f16_8};

	matmul_run(tiles, w, rows, cols, tokens, x, y);
}
