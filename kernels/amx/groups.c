/* SPDX-License-Identifier: MIT */
/* groups - BF16, FP8 and INT8 of many tokens in tiles. */
#include "kernels/amx/groups.h"

TILE_INLINE void group_pack(size_t codes, size_t bytes, size_t tokens, const void *const *packed, uint8_t *group)
{
	const uint8_t *rows[TILE_ROWS];

	/* Those that are missing are the first one again. */
	for (size_t t = 0; t < TILE_ROWS; t++)
		rows[t] = packed[t < tokens ? t : 0];
	for (size_t t = 0; t < TILE_ROWS; t++)
		memcpy(group + t * sizeof(float), rows[t], codes ? sizeof(float) : 0);
	for (size_t at = 0; at < bytes; at += TILE_BYTES)
		tile_turn(rows, codes + at, group + KERNEL_HEAD + at * TILE_ROWS);
}

static void pack_bf16(size_t cols, size_t tokens, const void *const *packed, void *group)
{
	group_pack(0, cols * sizeof(uint16_t), tokens, packed, group);
}

/* The scales come first. */
static void pack_int8(size_t cols, size_t tokens, const void *const *packed, void *group)
{
	group_pack(KERNEL_HEAD, cols, tokens, packed, group);
}

#define GROUP_FUNCTIONS(name, kind, scaled, pack_tokens, tokens_least)                                                 \
	static __attribute__((noinline)) void name##_run(struct group_call *c)                                         \
	{                                                                                                              \
		group_run(kind, scaled, c);                                                                            \
	}                                                                                                              \
	static void name##_all(struct group_call c, size_t pitch)                                                      \
	{                                                                                                              \
		const size_t tokens = c.tokens;                                                                        \
		tiles_configure(TILE_ROWS, TILE_BYTES);                                                                \
		for (size_t t = 0; t < tokens && c.rows; t += GROUP_TOKENS) {                                          \
			c.tokens = MIN_OF(tokens - t, GROUP_TOKENS);                                                   \
			c.x_pitch = pitch;                                                                             \
			group_plan(kind, &c);                                                                          \
			name##_run(&c);                                                                                \
			c.x += GROUP_TOKENS / KERNEL_GROUP * pitch;                                                    \
			c.out += GROUP_TOKENS;                                                                         \
		}                                                                                                      \
		tiles_release();                                                                                       \
	}                                                                                                              \
	static void name##_matmul(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens,              \
				  const void *x, float *const *y)                                                      \
	{                                                                                                              \
		name##_all(                                                                                            \
			(struct group_call){.m = {w}, .rows = rows, .cols = cols, .tokens = tokens, .x = x, .out = y}, \
			kernel_group_bytes(GROUP_OPS(kind), cols));                                                    \
	}                                                                                                              \
	static void name##_gate_up(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows,      \
				   size_t cols, const struct kernel_act *act, size_t tokens, const void *x,            \
				   float *const *h)                                                                    \
	{                                                                                                              \
		name##_all((struct group_call){.m = {gate, up},                                                        \
					       .rows = rows,                                                           \
					       .cols = cols,                                                           \
					       .tokens = tokens,                                                       \
					       .act = act,                                                             \
					       .x = x,                                                                 \
					       .out = h},                                                              \
			   kernel_group_bytes(GROUP_OPS(kind), cols));                                                 \
	}                                                                                                              \
	const struct kernel_group_ops groups_##name##_amx = {                                                          \
		.least = tokens_least, .pack = pack_tokens, .gate_up = name##_gate_up, .matmul = name##_matmul};

#define GROUP_OPS(kind) ((kind) == STRIP_INT8 ? &ops_int8_amx : &ops_bf16_amx)

GROUP_FUNCTIONS(bf16, STRIP_BF16, 0, pack_bf16, 16)
GROUP_FUNCTIONS(fp8_block, STRIP_E4M3, 1, pack_bf16, 16)
GROUP_FUNCTIONS(fp8_row, STRIP_E4M3, 0, pack_bf16, 16)
GROUP_FUNCTIONS(int8, STRIP_INT8, 0, pack_int8, 16)
