/* SPDX-License-Identifier: MIT */
/*
 * levels - the tables and the operations of each instruction-set level, as dispatch.c and the levels' own files see
 * them.
 *
 * A level is a folder; struct kernel_ops are named ops_format_level, whatever variant of the level they need. A table
 * is one variant of a level: a set of CPU features and the best operations for each format that they allow.
 */
#ifndef KERNELS_LEVELS_H
#define KERNELS_LEVELS_H

#include "kernels/kernels.h"

extern const struct kernels kernels_ref;
extern const struct kernels kernels_avx2, kernels_avx2_unasked, kernels_avx2_vnni;
extern const struct kernels kernels_avx512, kernels_avx512_novbmi, kernels_avx512_vnni, kernels_avx512_bf16;
extern const struct kernels kernels_avx512_unasked;
extern const struct kernels kernels_amx;

extern const struct kernel_ops ops_ref;
extern const struct kernel_ops ops_bf16_avx2, ops_f16_avx2, ops_fp8_avx2;
extern const struct kernel_ops ops_bf16_unasked_avx2, ops_f16_unasked_avx2, ops_fp8_unasked_avx2, ops_int8_unasked_avx2;
extern const struct kernel_ops ops_int8_avx2, ops_int8_vnni_avx2;
extern const struct kernel_ops ops_bf16_avx512, ops_f16_avx512, ops_fp8_avx512;
extern const struct kernel_ops ops_bf16_dot_avx512, ops_fp8_bf16_avx512;
extern const struct kernel_ops ops_bf16_dot_unasked_avx512, ops_fp8_bf16_unasked_avx512;
extern const struct kernel_ops ops_fp8_vbmi_avx512;
extern const struct kernel_ops ops_f16_beside_avx512, ops_f16_unasked_avx512;
extern const struct kernel_ops ops_int8_avx512, ops_int8_vnni_avx512, ops_int8_streamed_avx512;
extern const struct kernel_ops ops_int8_unasked_avx512;
extern const struct kernel_ops ops_bf16_few_amx, ops_fp8_block_few_amx, ops_fp8_row_few_amx;
extern const struct kernel_ops ops_bf16_amx, ops_fp8_block_amx, ops_fp8_row_amx, ops_int8_amx;
extern const struct kernel_group_ops groups_bf16_amx, groups_fp8_block_amx, groups_fp8_row_amx, groups_int8_amx;
extern const struct kernel_group_ops groups_panel_amx, groups_panel_fine_amx;
extern const struct kernel_ops ops_panel_avx2, ops_panel_fine_avx2;
extern const struct kernel_ops ops_panel_avx2_unasked;
extern const struct kernel_ops ops_panel_avx2_vnni, ops_panel_fine_avx2_vnni;
extern const struct kernel_ops ops_panel_avx512, ops_panel_fine_avx512;
extern const struct kernel_ops ops_panel_avx512_novbmi, ops_panel_fine_avx512_novbmi;
extern const struct kernel_ops ops_panel_avx512_paged, ops_panel_fine_avx512_paged;
extern const struct kernel_ops ops_panel_avx512_streamed, ops_panel_fine_avx512_streamed;
extern const struct kernel_ops ops_panel_avx512_unasked;
extern const struct kernel_ops ops_pairs_4_avx512_unasked, ops_pairs_5_avx512, ops_pairs_e2m1_avx512;
extern const struct kernel_ops ops_panel_amx, ops_panel_fine_amx;

uint64_t peak_f32_avx2(uint64_t rounds);
uint64_t peak_int8_avx2(uint64_t rounds);
uint64_t peak_int8_avx2_vnni(uint64_t rounds);
uint64_t peak_f32_avx512(uint64_t rounds);
uint64_t peak_int8_avx512_vnni(uint64_t rounds);
uint64_t peak_bf16_avx512_bf16(uint64_t rounds);
uint64_t peak_bf16_amx(uint64_t rounds);
uint64_t peak_int8_amx(uint64_t rounds);

#define KERNELS_LEVEL(level)                                                                                           \
	void axpy_##level(size_t n, float a, const float *x, float *y);                                                \
	void bf16_to_f32_##level(size_t n, const uint16_t *from, float *to);                                           \
	void f32_to_bf16_##level(size_t n, const float *from, uint16_t *to);                                           \
	void copy_rows_##level(size_t rows, size_t width, size_t pitch, const void *from, void *to)

KERNELS_LEVEL(ref);
KERNELS_LEVEL(avx2);
KERNELS_LEVEL(avx512);

/* The formats in panels: "fine" has a scale for each 16 columns. */
#define KERNELS_PANELS(variant)                                                                                        \
	[MOE_FORMAT_INT4_G32_F16...                                                                                    \
		MOE_FORMAT_Q5_K] = &ops_panel_##variant,                                                               \
		[MOE_FORMAT_Q6_K] = &ops_panel_fine_##variant, [MOE_FORMAT_IQ4_XS] = &ops_panel_##variant

/* The members of a level's table that no format has its own of. */
#define KERNELS_COMMON(level)                                                                                          \
	.name = #level, .axpy = axpy_##level, .bf16_to_f32 = bf16_to_f32_##level, .f32_to_bf16 = f32_to_bf16_##level,  \
	.copy_rows = copy_rows_##level

#endif
