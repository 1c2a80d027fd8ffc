/* SPDX-License-Identifier: MIT */
/*
 * lanes_run - a call's rows for many tokens by the tiles of lanes.h, in the vec_* names of the level that includes this
 * file. Panels of a block of columns stay in the second-level cache while all rows of a run pass; some rows at a time
 * are decoded into a buffer that never leaves the first.
 *
 * The level defines LANES_RUN_STEP, rows that are whole tiles of each of its shapes, LANES_RUN_ROWS, those of a run of
 * ROWS_TOTALS tokens, and vec_turn(rows, at, ret), which turns a vector of each row, `at` bytes from where it begins,
 * into vectors of the same element of each.
 */
#ifndef KERNELS_VEC_LANES_RUN_H
#define KERNELS_VEC_LANES_RUN_H

#include "kernels/vec/lanes.h"

/* The level's. */
ROWS_INLINE void vec_turn(const char *const *rows, size_t at, vec ret[VEC_FLOATS]);

/* -- panels ------------------------------------------------------------------------------------------------------- */

/* The step-th vector of each token's block. */
ROWS_INLINE void lanes_turn_step(bool integers, const char *const *x, size_t at, size_t step, char *panel)
{
	const size_t chains = LANES_STEPS / LANES_CHAINS; /* of integers: steps for a chain */
	vec v[VEC_FLOATS];

	vec_turn(x, at, v);
#pragma GCC unroll 16
	for (size_t i = 0; i < VEC_FLOATS; i++) {
		const size_t whole = step / chains * LANES_CHAIN_BYTES + (step % chains * LANES_CHAINS + i) * VEC_BYTES;
		const size_t chain = lanes_order[i] * LANES_CHAIN_BYTES + step * VEC_BYTES;

		vec_store((float *)(panel + (integers ? whole : chain)), v[i]);
	}
}

/* `bytes` of up to VEC_FLOATS tokens' activations, x_at bytes from where they begin; zeros behind them to `whole`. */
static __attribute__((noinline)) void lanes_turn(bool integers, const void *const *x, size_t tokens, size_t x_at,
						 size_t bytes, size_t whole, char *panel)
{
	static const _Alignas(64) char zeros[ROWS_BLOCK_BYTES];
	_Alignas(64) char copies[VEC_FLOATS][VEC_BYTES] = {0};
	const char *rows[VEC_FLOATS];
	size_t at = 0;

	for (size_t t = 0; t < VEC_FLOATS; t++)
		rows[t] = t < tokens ? (const char *)x[t] + x_at : zeros;
	for (; at + VEC_BYTES <= bytes; at += VEC_BYTES)
		lanes_turn_step(integers, rows, at, at / VEC_BYTES, panel);
	for (size_t t = 0; t < VEC_FLOATS; t++) {
		memcpy(copies[t], rows[t] + at, bytes - at);
		rows[t] = copies[t];
	}
	for (; at < whole; at += VEC_BYTES) {
		lanes_turn_step(integers, rows, 0, at / VEC_BYTES, panel);
		memset(copies, 0, sizeof(copies));
	}
}

/* Signed bytes, as 16 bits each. */
static void lanes_widen(const char *from, size_t n, char *to)
{
	typedef int16_t number __attribute__((may_alias)); /* read as vectors and floats */
	const int8_t *bytes = (const int8_t *)from;
	number *wide = (number *)to;

	for (size_t i = 0; i < n; i++)
		wide[i] = bytes[i];
}

/* -- a run of rows ------------------------------------------------------------------------------------------------ */

/* By panels - 1. Tiles of fewer panels have more rows; the narrower of two tiles has the other one's rows. */
struct lanes_shape {
	size_t rows;
	lanes_function *of[LANES_WIDTH];
};

/* Some tokens of a call, whose panels stay in the second-level cache while all rows of a run pass. */
struct lanes_call {
	const struct rows_call *call;
	enum rows_kind kind;
	const struct lanes_shape *shape;
	size_t tokens, panels, tiles, pitch; /* pitch: of totals */
	const void *const *x;
	char *panel, *buffer;
	float *totals[2];
};

/* A column block; `filled` columns are in packed rows, `whole` with the zeros behind them. */
struct lanes_block {
	size_t c, cols, filled, whole;
};

static inline struct lanes_block lanes_block(const struct lanes_call *l, size_t c)
{
	const size_t cols = l->call->cols - c < l->call->block ? l->call->cols - c : l->call->block;
	const size_t floats = lanes_grouped(l->kind) ? ROWS_GROUP : VEC_FLOATS * lanes_columns(l->kind);
	const size_t step = lanes_integers(l->kind) ? lanes_columns(l->kind) : floats;

	return (struct lanes_block){c, cols, rows_filled(rows_fours(l->kind), cols), (cols + step - 1) / step * step};
}

/* The p-th panel of the block. */
ROWS_INLINE void lanes_panel(const struct lanes_call *l, const struct lanes_block *block, size_t p)
{
	const size_t at = rows_x_at(l->call, false, block->c), x_bytes = rows_x_bytes(l->kind);
	const size_t left = l->tokens - p * VEC_FLOATS, tokens = left < VEC_FLOATS ? left : VEC_FLOATS;
	const void *const *x = l->x + p * VEC_FLOATS;
	char *panel = l->panel + p * LANES_PANEL_BYTES;

	if (l->kind == ROWS_INT16) {
		_Alignas(64) char wide[VEC_FLOATS][ROWS_BUFFER_PITCH];
		const void *rows[VEC_FLOATS];

		for (size_t t = 0; t < tokens; t++) {
			lanes_widen((const char *)x[t] + at, block->cols, wide[t]);
			rows[t] = wide[t];
		}
		lanes_turn(true, rows, tokens, 0, block->cols * x_bytes, block->whole * x_bytes, panel);
	} else {
		lanes_turn(lanes_integers(l->kind), x, tokens, at, block->filled * x_bytes, block->whole * x_bytes,
			   panel);
	}
}

/* Rows first .. first + n of a matrix, decoded, and the scales of their groups; rows behind them are zeros. */
ROWS_INLINE void lanes_decode(const struct lanes_call *l, size_t matrix, size_t first, size_t n,
			      const struct lanes_block *block, float (*scales)[LANES_GROUPS])
{
	const size_t bytes = block->filled * rows_x_bytes(l->kind), whole = block->whole * rows_x_bytes(l->kind);
	const size_t groups = (block->cols + ROWS_GROUP - 1) / ROWS_GROUP;
	char *to = l->buffer;

	for (size_t r = 0; r < n; r++, to += ROWS_BUFFER_PITCH) {
		const char *from = rows_at(l->call, matrix, first + r, block->c);

		if (l->kind == ROWS_INT16)
			lanes_widen(from, block->cols, to);
		else
			l->call->k->decode(from, block->cols, to);
		memset(to + bytes, 0, whole - bytes);
		if (lanes_grouped(l->kind))
			memcpy(scales[r], rows_scales(l->call->m[matrix], first + r, block->c),
			       groups * sizeof(scales[r][0]));
	}
	for (size_t r = n; r < l->shape->rows; r++, to += ROWS_BUFFER_PITCH)
		memset(to, 0, whole);
}

/* All tokens by the rows in the buffer. Each tile asks for some of the rows at `next`: all at once would hold up
 * everything else that is read. */
ROWS_INLINE void lanes_tiles(const struct lanes_call *l, size_t matrix, size_t row, const struct lanes_block *block,
			     const float (*scales)[LANES_GROUPS], const char *next)
{
	const size_t ask = (l->shape->rows + l->tiles - 1) / l->tiles, pitch = l->call->m[matrix]->pitch;

	for (size_t j = 0, at = 0; j < l->tiles; j++) {
		const size_t n = l->panels / l->tiles + (j < l->panels % l->tiles);
		const struct lanes_tile tile = {
			.w = l->buffer,
			.x = l->panel + at * LANES_PANEL_BYTES,
			.steps = block->whole / lanes_columns(l->kind) / (lanes_integers(l->kind) ? 1 : VEC_FLOATS),
			.ahead = (const char *)((uintptr_t)next + j * ask * pitch),
			.ahead_rows = ask,
			.ahead_pitch = pitch,
			.ahead_step = l->call->block * l->call->k->w_bytes / LANES_CHAINS,
			.scales = scales,
			.totals = l->totals[matrix] + row * l->pitch + at * VEC_FLOATS,
			.pitch = l->pitch,
		};

		l->shape->of[n - 1](&tile);
		at += n;
	}
}

ROWS_INLINE void lanes_sums_of(const struct lanes_call *l, const struct rows_run *run)
{
	const struct rows_call *call = l->call;
	const size_t rows = l->shape->rows;
	float scales[LANES_ROWS][LANES_GROUPS] = {0};

	for (size_t c = 0; c < call->cols; c += call->block) {
		const struct lanes_block block = lanes_block(l, c);

		for (size_t p = 0; p < l->panels; p++)
			lanes_panel(l, &block, p);
		for (size_t i = 0; i < call->matrices; i++)
			for (size_t r = run->first; r < run->end; r += rows) {
				const size_t n = run->end - r < rows ? run->end - r : rows;

				lanes_decode(l, i, r, n, &block, scales);
				lanes_tiles(l, i, r - run->first, &block, (const float(*)[LANES_GROUPS])scales,
					    rows_next(call, run, i, r, n, c));
			}
	}
}

/* Totals of VEC_FLOATS rows of a run and as many tokens, to a line of each token. */
ROWS_INLINE void lanes_totals(const struct lanes_call *l, size_t matrix, size_t row, size_t token, float *to)
{
	const char *rows[VEC_FLOATS];
	vec v[VEC_FLOATS];

	for (size_t i = 0; i < VEC_FLOATS; i++)
		rows[i] = (const char *)(l->totals[matrix] + (row + i) * l->pitch + token);
	vec_turn(rows, 0, v);
	for (size_t i = 0; i < VEC_FLOATS; i++)
		vec_store(to + i * ROWS_CHUNK, v[i]);
}

/* The totals of a run, with a lane for each token, as results. */
static void lanes_finish(const struct lanes_call *l, const struct rows_run *run, const struct kernel_act *act,
			 float *const *out)
{
	for (size_t r = run->first; r < run->end; r += ROWS_CHUNK)
		for (size_t t = 0; t < l->tokens; t += VEC_FLOATS) {
			_Alignas(64) float totals[2][VEC_FLOATS * ROWS_CHUNK];

			for (size_t i = 0; i < l->call->matrices; i++)
				for (size_t j = 0; j < ROWS_CHUNK; j += VEC_FLOATS)
					lanes_totals(l, i, r - run->first + j, t, totals[i] + j);
			rows_finish(l->call, act, r, rows_chunk(run->end, r),
				    l->tokens - t < VEC_FLOATS ? l->tokens - t : VEC_FLOATS, l->x + t,
				    (const float *const[]){totals[0], totals[1]}, out + t);
		}
}

/* A call's rows for up to ROWS_TOTALS tokens, by tiles of up to `width` panels. */
ROWS_INLINE void lanes_rows(enum rows_kind kind, size_t width, const struct lanes_shape *shapes,
			    const struct rows_call *call, const struct kernel_act *act, size_t tokens,
			    const void *const *x, float *const *out)
{
	_Alignas(64) char panel[LANES_PANELS * LANES_PANEL_BYTES], buffer[LANES_ROWS * ROWS_BUFFER_PITCH];
	_Alignas(64) float totals[2 * LANES_RUN_ROWS * ROWS_TOTALS];
	const size_t panels = (tokens + VEC_FLOATS - 1) / VEC_FLOATS, pitch = panels * VEC_FLOATS;
	const size_t tiles = (panels + width - 1) / width;
	const size_t floats = sizeof(totals) / sizeof(totals[0]) / call->matrices;
	const size_t most = floats / pitch / LANES_RUN_STEP * LANES_RUN_STEP;
	struct rows_call widened = *call;
	const struct lanes_call l = {
		.call = &widened,
		.kind = kind,
		.shape = &shapes[(panels + tiles - 1) / tiles - 1],
		.tokens = tokens,
		.panels = panels,
		.tiles = tiles,
		.pitch = pitch,
		.x = x,
		.panel = panel,
		.buffer = buffer,
		.totals = {totals, totals + floats * (call->matrices - 1)},
	};

	/* Blocks are as many bytes of activations, widened or not. */
	widened.block = call->block * call->k->x_bytes / rows_x_bytes(kind);
	for (size_t r = 0; r < call->rows; r += most) {
		const struct rows_run run = {r, call->rows - r < most ? call->rows : r + most};

		for (size_t i = 0; i < call->matrices; i++)
			memset(l.totals[i], 0,
			       (run.end - r + LANES_RUN_STEP - 1) / LANES_RUN_STEP * LANES_RUN_STEP * pitch *
				       sizeof(totals[0]));
		lanes_sums_of(&l, &run);
		lanes_finish(&l, &run, act, out);
	}
}

#define LANES_FUNCTION(name, kind, panels, rows, chains)                                                               \
	_Static_assert((rows) <= LANES_ROWS && (panels) <= LANES_WIDTH, "the tile is too large");                      \
	static __attribute__((noinline)) void name##_##panels##_##rows##_##chains(const struct lanes_tile *tile)       \
	{                                                                                                              \
		lanes_run(kind, panels, rows, chains, tile);                                                           \
	}

/* rows_lanes_function `name` by a table of shapes. */
#define LANES_ROWS_FUNCTION(name, kind, shapes)                                                                        \
	static void name(const struct rows_call *call, const struct kernel_act *act, size_t tokens,                    \
			 const void *const *x, float *const *out)                                                      \
	{                                                                                                              \
		lanes_rows(kind, sizeof(shapes) / sizeof((shapes)[0]), shapes, call, act, tokens, x, out);             \
	}

#endif
