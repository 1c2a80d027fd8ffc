/* SPDX-License-Identifier: MIT */
/*
 * levels - the functions and the table of each instruction-set level, as dispatch.c and the levels' own files see them.
 *
 * A level is a folder; an operation is a file in it; a function is named operation_type_level. A new level declares
 * itself here with one line and brings its folder.
 */
#ifndef KERNELS_LEVELS_H
#define KERNELS_LEVELS_H

#include "kernels/kernels.h"

#define KERNELS_LEVEL(level)                                                                                           \
	extern const struct kernels kernels_##level;                                                                   \
	void gate_up_bf16_##level(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows,       \
				  size_t cols, enum kernel_activation act, size_t tokens, const float *const *x,       \
				  float *const *h);                                                                    \
	void gate_up_f16_##level(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows,        \
				 size_t cols, enum kernel_activation act, size_t tokens, const float *const *x,        \
				 float *const *h);                                                                     \
	void matmul_bf16_##level(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens,               \
				 const float *const *x, float *const *y);                                              \
	void matmul_f16_##level(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens,                \
				const float *const *x, float *const *y);                                               \
	void axpy_##level(size_t n, float a, const float *x, float *y);                                                \
	void bf16_to_f32_##level(size_t n, const uint16_t *from, float *to);                                           \
	void f32_to_bf16_##level(size_t n, const float *from, uint16_t *to)

KERNELS_LEVEL(ref);
KERNELS_LEVEL(avx2);
KERNELS_LEVEL(avx512);

/* The initialiser of a level's table. */
#define KERNELS_TABLE(level)                                                                                           \
	{                                                                                                              \
		.name = #level, .gate_up = {[KERNEL_BF16] = gate_up_bf16_##level, [KERNEL_F16] = gate_up_f16_##level}, \
		.matmul = {[KERNEL_BF16] = matmul_bf16_##level, [KERNEL_F16] = matmul_f16_##level},                    \
		.axpy = axpy_##level, .bf16_to_f32 = bf16_to_f32_##level, .f32_to_bf16 = f32_to_bf16_##level           \
	}

#endif
