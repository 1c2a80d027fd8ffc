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

#define GROUP_KIND(name, kind, scaled, pack_tokens, ops)                                                               \
	static __attribute__((noinline)) void name##_run(const struct group_call *c)                                   \
	{                                                                                                              \
		group_run(kind, scaled, c);                                                                            \
	}                                                                                                              \
	GROUP_FUNCTIONS(name, ops, GROUP_COLS(kind), pack_tokens, name##_run)

GROUP_KIND(bf16, STRIP_BF16, 0, pack_bf16, ops_bf16_amx)
GROUP_KIND(fp8_block, STRIP_E4M3, 1, pack_bf16, ops_bf16_amx)
GROUP_KIND(fp8_row, STRIP_E4M3, 0, pack_bf16, ops_bf16_amx)
GROUP_KIND(int8, STRIP_INT8, 0, pack_int8, ops_int8_amx)
