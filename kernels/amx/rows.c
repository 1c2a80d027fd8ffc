/* SPDX-License-Identifier: MIT */
/* rows - BF16, FP8 and INT8 in tiles. */
#include "kernels/amx/rows.h"
#include "kernels/vec/pack.h"

/* INT8 goes without tiles for so few tokens that they would be nearly empty, and for more products than fit into 32
 * bits. Sums are exact and scaled in the same way, so results have the same bits. */
#define FEW_TOKENS 5
#define INT8_COLS (1u << 17)

#define ROWS_FUNCTIONS(name, kind, scaled)                                                                             \
	static void name##_matmul(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens,              \
				  const void *const *x, float *const *y)                                               \
	{                                                                                                              \
		for (size_t t = 0; t < tokens; t += PASS_TOKENS) {                                                     \
			const size_t n = MIN_OF(tokens - t, PASS_TOKENS);                                              \
			tiles_configure(MIN_OF(n, TILE_ROWS), TILE_BYTES);                                             \
			rows_matmul(kind, scaled, w, rows, cols, n, x + t, y + t);                                     \
			tiles_release();                                                                               \
		}                                                                                                      \
	}                                                                                                              \
	static void name##_gate_up(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows,      \
				   size_t cols, const struct kernel_act *act, size_t tokens, const void *const *x,     \
				   float *const *h)                                                                    \
	{                                                                                                              \
		for (size_t t = 0; t < tokens; t += PASS_TOKENS) {                                                     \
			const size_t n = MIN_OF(tokens - t, PASS_TOKENS);                                              \
			tiles_configure(MIN_OF(n, TILE_ROWS), TILE_BYTES);                                             \
			rows_gate_up(kind, scaled, gate, up, rows, cols, act, n, x + t, h + t);                        \
			tiles_release();                                                                               \
		}                                                                                                      \
	}

ROWS_FUNCTIONS(bf16, STRIP_BF16, 0)
ROWS_FUNCTIONS(fp8_block, STRIP_E4M3, 1)
ROWS_FUNCTIONS(fp8_row, STRIP_E4M3, 0)
ROWS_FUNCTIONS(int8_tiles, STRIP_INT8, 0)

static void int8_matmul(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens, const void *const *x,
			float *const *y)
{
	if (tokens <= FEW_TOKENS || cols > INT8_COLS)
		ops_int8_streamed_avx512.matmul(w, rows, cols, tokens, x, y);
	else
		int8_tiles_matmul(w, rows, cols, tokens, x, y);
}

static void int8_gate_up(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows, size_t cols,
			 const struct kernel_act *act, size_t tokens, const void *const *x, float *const *h)
{
	if (tokens <= FEW_TOKENS || cols > INT8_COLS)
		ops_int8_streamed_avx512.gate_up(gate, up, rows, cols, act, tokens, x, h);
	else
		int8_tiles_gate_up(gate, up, rows, cols, act, tokens, x, h);
}

/* Without groups: these are few.c's. */
const struct kernel_ops ops_bf16_amx = {
	.pack = PACK_BF16, .pack_row = pack_bf16_row, .gate_up = bf16_gate_up, .matmul = bf16_matmul};
const struct kernel_ops ops_fp8_block_amx = {
	.pack = PACK_BF16, .pack_row = pack_bf16_row, .gate_up = fp8_block_gate_up, .matmul = fp8_block_matmul};
const struct kernel_ops ops_fp8_row_amx = {
	.pack = PACK_BF16, .pack_row = pack_bf16_row, .gate_up = fp8_row_gate_up, .matmul = fp8_row_matmul};
const struct kernel_ops ops_int8_amx = {.pack = PACK_I8_ROW,
					.pack_row = pack_i8_row,
					.gate_up = int8_gate_up,
					.matmul = int8_matmul,
					.groups = &groups_int8_amx};
