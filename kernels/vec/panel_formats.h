/* SPDX-License-Identifier: MIT */
/*
 * panel_formats - the tiles of each panel format, and the operations that choose among them; once for each level.
 */
#ifndef KERNELS_VEC_PANEL_FORMATS_H
#define KERNELS_VEC_PANEL_FORMATS_H

#include "kernels/vec/panel.h"

/* Decoded bytes differ in units, offset and what is added only. */
PANEL_MANY(many_offset_8, MOE_FORMAT_Q4_0)
PANEL_MANY(many_offset_12, MOE_FORMAT_MXFP4)
PANEL_MANY(many_zeros, MOE_FORMAT_INT4_G32_F16_ZP)
PANEL_MANY(many_minima, MOE_FORMAT_Q5_K)

PANEL_FORMAT(int4_g32_f16, MOE_FORMAT_INT4_G32_F16)
PANEL_FORMAT(int4_g64_f16, MOE_FORMAT_INT4_G64_F16)
PANEL_FORMAT(int4_g128_f16, MOE_FORMAT_INT4_G128_F16)
PANEL_FORMAT(int4_g32_bf16, MOE_FORMAT_INT4_G32_BF16)
PANEL_FORMAT(int4_g64_bf16, MOE_FORMAT_INT4_G64_BF16)
PANEL_FORMAT(int4_g128_bf16, MOE_FORMAT_INT4_G128_BF16)
PANEL_FORMAT(int4_g32_f16_zp, MOE_FORMAT_INT4_G32_F16_ZP)
PANEL_FORMAT(int4_g64_f16_zp, MOE_FORMAT_INT4_G64_F16_ZP)
PANEL_FORMAT(int4_g128_f16_zp, MOE_FORMAT_INT4_G128_F16_ZP)
PANEL_FORMAT(int4_g32_bf16_zp, MOE_FORMAT_INT4_G32_BF16_ZP)
PANEL_FORMAT(int4_g64_bf16_zp, MOE_FORMAT_INT4_G64_BF16_ZP)
PANEL_FORMAT(int4_g128_bf16_zp, MOE_FORMAT_INT4_G128_BF16_ZP)
PANEL_FORMAT(mxfp4, MOE_FORMAT_MXFP4)
PANEL_FORMAT(q4_1, MOE_FORMAT_Q4_1)
PANEL_FORMAT(q4_k, MOE_FORMAT_Q4_K)
PANEL_FORMAT(q5_k, MOE_FORMAT_Q5_K)

#if !PANEL_PAIRS /* Bytes of 8 bits and units of 16 columns have no room for sums. */
PANEL_MANY(many_wide, MOE_FORMAT_Q8_0)
PANEL_MANY(many_fine, MOE_FORMAT_Q6_K)

PANEL_FORMAT(q8_0, MOE_FORMAT_Q8_0)
PANEL_FORMAT(q6_k, MOE_FORMAT_Q6_K)
PANEL_FORMAT(iq4_xs, MOE_FORMAT_IQ4_XS)
#endif

static const struct panel_kind panel_kinds[MOE_FORMAT_COUNT] = {
	[MOE_FORMAT_INT4_G32_F16] = PANEL_KIND(int4_g32_f16, many_offset_8),
	[MOE_FORMAT_INT4_G64_F16] = PANEL_KIND(int4_g64_f16, many_offset_8),
	[MOE_FORMAT_INT4_G128_F16] = PANEL_KIND(int4_g128_f16, many_offset_8),
	[MOE_FORMAT_INT4_G32_BF16] = PANEL_KIND(int4_g32_bf16, many_offset_8),
	[MOE_FORMAT_INT4_G64_BF16] = PANEL_KIND(int4_g64_bf16, many_offset_8),
	[MOE_FORMAT_INT4_G128_BF16] = PANEL_KIND(int4_g128_bf16, many_offset_8),
	[MOE_FORMAT_INT4_G32_F16_ZP] = PANEL_KIND(int4_g32_f16_zp, many_zeros),
	[MOE_FORMAT_INT4_G64_F16_ZP] = PANEL_KIND(int4_g64_f16_zp, many_zeros),
	[MOE_FORMAT_INT4_G128_F16_ZP] = PANEL_KIND(int4_g128_f16_zp, many_zeros),
	[MOE_FORMAT_INT4_G32_BF16_ZP] = PANEL_KIND(int4_g32_bf16_zp, many_zeros),
	[MOE_FORMAT_INT4_G64_BF16_ZP] = PANEL_KIND(int4_g64_bf16_zp, many_zeros),
	[MOE_FORMAT_INT4_G128_BF16_ZP] = PANEL_KIND(int4_g128_bf16_zp, many_zeros),
	[MOE_FORMAT_MXFP4] = PANEL_KIND(mxfp4, many_offset_12),
	[MOE_FORMAT_Q4_0] = PANEL_KIND(int4_g32_f16, many_offset_8), /* the same bits */
	[MOE_FORMAT_Q4_1] = PANEL_KIND(q4_1, many_minima),
	[MOE_FORMAT_Q4_K] = PANEL_KIND(q4_k, many_minima),
	[MOE_FORMAT_Q5_K] = PANEL_KIND(q5_k, many_minima),
#if !PANEL_PAIRS
	[MOE_FORMAT_Q8_0] = PANEL_KIND(q8_0, many_wide),
	[MOE_FORMAT_Q6_K] = PANEL_KIND(q6_k, many_fine),
	[MOE_FORMAT_IQ4_XS] = PANEL_KIND(iq4_xs, many_wide),
#endif
};

/* Some tokens after the others. */
static void panel_tokens(struct panel_call call, size_t tokens, const void *const *x, float *const *out)
{
	call.kind = &panel_kinds[call.m[0]->format];
	for (size_t t = 0; t < tokens; t += PANEL_TOKENS) {
		call.tokens = panel_min(tokens - t, PANEL_TOKENS);
		call.x = x + t;
		call.out = out + t;
		panel_runs(&call);
	}
}

/* name_matmul and name_gate_up, and struct kernel_ops of them; codes are asked for `bytes` before their use, a line of
 * each page `page` before, in one stream or some side by side. */
#define PANEL_FUNCTIONS(name, bytes, page, side)                                                                       \
	static void name##_matmul(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens,              \
				  const void *const *x, float *const *y)                                               \
	{                                                                                                              \
		panel_tokens((struct panel_call){.m = {w},                                                             \
						 .matrices = 1,                                                        \
						 .rows = rows,                                                         \
						 .cols = cols,                                                         \
						 .ahead = bytes,                                                       \
						 .far = page,                                                          \
						 .streams = side},                                                     \
			     tokens, x, y);                                                                            \
	}                                                                                                              \
	static void name##_gate_up(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows,      \
				   size_t cols, const struct kernel_act *act, size_t tokens, const void *const *x,     \
				   float *const *h)                                                                    \
	{                                                                                                              \
		panel_tokens((struct panel_call){.m = {gate, up},                                                      \
						 .matrices = 2,                                                        \
						 .rows = rows,                                                         \
						 .cols = cols,                                                         \
						 .ahead = bytes,                                                       \
						 .far = page,                                                          \
						 .streams = side,                                                      \
						 .act = act},                                                          \
			     tokens, x, h);                                                                            \
	}

#if PANEL_PAIRS
#define PANEL_PAIRS_OPS(ops, name, largest)                                                                            \
	static void ops##_pack(size_t cols, uint32_t block, const float *x, void *packed)                              \
	{                                                                                                              \
		panel_pack(cols, block, largest, x, packed);                                                           \
		pairs_pack(cols, block, largest, packed);                                                              \
	}                                                                                                              \
	const struct kernel_ops ops = {.pack = PACK_I8_PAIRS,                                                          \
				       .block = MOE_BLOCK_COLS,                                                        \
				       .most = largest,                                                                \
				       .pack_row = ops##_pack,                                                         \
				       .gate_up = name##_gate_up,                                                      \
				       .matmul = name##_matmul};
#else
static void panel_pack_row(size_t cols, uint32_t block, const float *x, void *packed)
{
	panel_pack(cols, block, 127, x, packed);
}

#define PANEL_OPS(name, columns)                                                                                       \
	{                                                                                                              \
		.pack = PACK_I8_BLOCK, .block = columns, .pack_row = panel_pack_row, .gate_up = name##_gate_up,        \
		.matmul = name##_matmul                                                                                \
	}
#endif

#endif
