/* SPDX-License-Identifier: MIT */
/*
 * group_call - a call of struct kernel_group_ops, and the order in which it takes its weights: 32 rows and a block
 * of columns at a time, by which all tokens pass.
 *
 * Law: each pair of strips meets its blocks of columns from the first to the last. Where the activations are larger
 * than a second-level cache takes, only some of the columns pass at a time, and the sums of many rows wait meanwhile.
 */
#ifndef KERNELS_AMX_GROUP_CALL_H
#define KERNELS_AMX_GROUP_CALL_H

#include "kernels/amx/quad.h"

#define GROUP_TOKENS 256
#define GROUP_QUADS 64                    /* whose sums are kept */
#define GROUP_X_BYTES ((size_t)512 << 10) /* activations of all tokens that pass together */

struct group_call {
	const struct kernel_matrix *m[2]; /* gate and up, or one */
	size_t rows, cols, tokens;        /* tokens <= GROUP_TOKENS in a run */
	const struct kernel_act *act;
	const uint8_t *x;
	size_t x_pitch; /* of groups */
	float *const *out;
	size_t groups, quads; /* of the tokens: the last quad may have one group only */
	size_t pair_rows;     /* that two strips are together: of gate and up, or neighbours */
	size_t blocks;        /* of columns */
	size_t pass_blocks;   /* that pass together */
	size_t pass_rows;     /* whose sums are kept meanwhile */
};

/* Two strips and a block; rows and blocks that pass together begin at `base` and `pass`. */
struct group_at {
	size_t base, pass, row, block;
};

/* The place after `at`; 0: there is none. */
static inline int group_next(const struct group_call *c, struct group_at *at)
{
	at->block++;
	if (at->block < MIN_OF(at->pass + c->pass_blocks, c->blocks))
		return 1;
	at->block = at->pass;
	at->row += c->pair_rows;
	if (at->row < MIN_OF(at->base + c->pass_rows, c->rows))
		return 1;
	at->row = at->base;
	at->pass += c->pass_blocks;
	at->block = at->pass;
	if (at->pass < c->blocks)
		return 1;
	at->block = at->pass = 0;
	at->base += c->pass_rows;
	at->row = at->base;
	return at->base < c->rows;
}

/* Strips of the pair: 2, or 1 where the rows end. */
static inline size_t group_strips(const struct group_call *c, const struct group_at *at)
{
	return c->m[1] || c->rows - at->row > TILE_ROWS ? 2 : 1;
}

/* The first of the pair's sums among those that are kept, one for each quad of tokens. */
static inline size_t group_sums(const struct group_call *c, const struct group_at *at)
{
	return (at->row - at->base) / c->pair_rows * c->quads;
}

static inline void group_plan(struct group_call *c, size_t block_cols)
{
	size_t passes;

	c->groups = (c->tokens + TILE_ROWS - 1) / TILE_ROWS;
	c->quads = (c->groups + 1) / 2;
	c->pair_rows = c->m[1] ? TILE_ROWS : 2 * TILE_ROWS;
	c->blocks = (c->cols + block_cols - 1) / block_cols;
	passes = ((c->x_pitch - KERNEL_HEAD) * c->groups + GROUP_X_BYTES - 1) / GROUP_X_BYTES;
	c->pass_blocks = passes > 1 ? (c->blocks + passes - 1) / passes : c->blocks;
	c->pass_rows = passes > 1 ? GROUP_QUADS / c->quads * c->pair_rows : c->pair_rows;
}

/* x: groups of `ops`; run: computes some of the tokens. */
static inline void group_all(struct group_call c, const struct kernel_ops *ops, size_t block_cols,
			     void (*run)(const struct group_call *c))
{
	const size_t tokens = c.tokens;

	tiles_configure(TILE_ROWS, TILE_BYTES);
	c.x_pitch = kernel_group_bytes(ops, c.cols);
	for (size_t t = 0; t < tokens && c.rows; t += GROUP_TOKENS) {
		c.tokens = MIN_OF(tokens - t, GROUP_TOKENS);
		group_plan(&c, block_cols);
		run(&c);
		c.x += GROUP_TOKENS / KERNEL_GROUP * c.x_pitch;
		c.out += GROUP_TOKENS;
	}
	tiles_release();
}

/* groups_name_amx, the struct kernel_group_ops of `ops`. */
#define GROUP_FUNCTIONS(name, ops, block_cols, pack_tokens, run)                                                       \
	static void name##_gate_up(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows,      \
				   size_t cols, const struct kernel_act *act, size_t tokens, const void *x,            \
				   float *const *h)                                                                    \
	{                                                                                                              \
		group_all((struct group_call){.m = {gate, up},                                                         \
					      .rows = rows,                                                            \
					      .cols = cols,                                                            \
					      .tokens = tokens,                                                        \
					      .act = act,                                                              \
					      .x = x,                                                                  \
					      .out = h},                                                               \
			  &(ops), block_cols, run);                                                                    \
	}                                                                                                              \
	static void name##_matmul(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens,              \
				  const void *x, float *const *y)                                                      \
	{                                                                                                              \
		group_all(                                                                                             \
			(struct group_call){.m = {w}, .rows = rows, .cols = cols, .tokens = tokens, .x = x, .out = y}, \
			&(ops), block_cols, run);                                                                      \
	}                                                                                                              \
	const struct kernel_group_ops groups_##name##_amx = {                                                          \
		.least = 16, .pack = pack_tokens, .gate_up = name##_gate_up, .matmul = name##_matmul};

#endif
