/* SPDX-License-Identifier: MIT */
/*
 * panel - gate_up and matmul of all panel formats, written in the names of the level that includes this file.
 *
 * Few tokens: panel by panel, codes used as they pass, and many panels of gate before as many of up: one
 * long stream, then another. Many tokens: a pair of panels at a time, decoded a column block at a time and used for up
 * to PANEL_TOKENS tokens while they are in the first-level cache.
 */
#ifndef KERNELS_VEC_PANEL_H
#define KERNELS_VEC_PANEL_H

#include "kernels/levels.h"
#include "kernels/vec/activation.h"
#include "kernels/vec/panel_pack.h"
#include "kernels/vec/panel_tile.h"

/* The functions for a format. */
struct panel_kind {
	panel_few_function
		*few[PANEL_FEW + 1]; /* by tokens; of one panel: two are two streams, which are read slower */
	panel_decode_function *decode;
	panel_many_function *const (*many)[PANEL_TILE_TOKENS + 1]; /* by panels - 1 and tokens */
};

/* The matrices of a call, and at most PANEL_TOKENS of its tokens. */
struct panel_call {
	const struct panel_kind *kind;
	const struct kernel_matrix *m[2];
	size_t matrices, rows, cols, tokens;
	const struct kernel_act *act; /* of two matrices */
	const void *const *x;
	float *const *out;
};

/* Rows of one matrix that are read before the same rows of the other. */
struct panel_run {
	size_t first, end;
};

#define PANEL_PAIR_ROWS (2 * MOE_PANEL_ROWS)

/* Totals of a run's rows. Few tokens: [panels][tokens]; many: of a pair of panels, PANEL_TOKENS apart. */
typedef float panel_kept[2 * PANEL_TOKENS][MOE_PANEL_ROWS];

static inline size_t panel_min(size_t a, size_t b)
{
	return a < b ? a : b;
}

static inline struct panel_x panel_x(uint32_t format, const void *const *rows, size_t cols, size_t c)
{
	const size_t unit = panel_unit(format), at = c / unit * sizeof(float);

	return (struct panel_x){rows, c, KERNEL_I8_SCALES(cols) + at, KERNEL_I8_SUMS(cols, unit) + at};
}

/* The panel that is read after the one at `row`, `step` panels on: in the run, in the other matrix, what the
 * caller has next or the next run (which usually follows in memory even where the call's rows end). */
static struct kernel_matrix panel_after(const struct panel_call *call, const struct panel_run *run, size_t matrix,
					size_t row, size_t step)
{
	const size_t next = row + step * MOE_PANEL_ROWS;

	if (next < run->end)
		return kernel_rows(call->m[matrix], next);
	if (matrix + 1 < call->matrices)
		return kernel_rows(call->m[matrix + 1], run->first + next % (step * MOE_PANEL_ROWS));
	if (run->end == call->rows && call->m[0]->next)
		return *call->m[0]->next;
	return kernel_rows(call->m[0], next);
}

static struct panel_at panel_place(const struct panel_call *call, const struct panel_run *run, size_t matrix,
				   size_t row, size_t step)
{
	const struct kernel_matrix *m = call->m[matrix];
	const struct kernel_matrix here = kernel_rows(m, row), after = panel_after(call, run, matrix, row, step);

	return (struct panel_at){
		.codes = here.codes,
		.scales = here.scales,
		.left = call->cols,
		.jump_codes = (uintptr_t)after.codes - (uintptr_t)here.codes - m->pitch,
		.jump_scales = (uintptr_t)after.scales - (uintptr_t)here.scales - m->scale_pitch,
	};
}

/* The same from column c on. */
static inline void panels_at(const struct panel_at *from, size_t panels, uint32_t format, size_t c, struct panel_at *at)
{
	for (size_t p = 0; p < panels; p++) {
		at[p] = from[p];
		at[p].codes += moe_band_bytes(format, MOE_PLANE_CODES, c);
		at[p].scales += moe_band_bytes(format, MOE_PLANE_SCALES, c);
		at[p].left -= c;
	}
}

/* A run's panels of a matrix, all columns of a panel before the next one; where there are more columns than a block's,
 * one panel at a time. */
static void panels_few(const struct panel_call *call, const struct panel_run *run, size_t matrix,
		       float (*totals)[MOE_PANEL_ROWS])
{
	const uint32_t format = call->m[0]->format;
	const size_t all = (run->end - run->first + MOE_PANEL_ROWS - 1) / MOE_PANEL_ROWS;
	const size_t step = call->cols > PANEL_FEW_COLS ? 1 : all;
	struct panel_few_extra extra[PANEL_FEW];

	memset(totals, 0, all * call->tokens * sizeof(totals[0]));
	for (size_t p = 0; p < all; p += step) {
		const size_t row = run->first + p * MOE_PANEL_ROWS, last = row + (step - 1) * MOE_PANEL_ROWS;
		const struct panel_at first = panel_place(call, run, matrix, row, 1);
		const struct panel_at end = panel_place(call, run, matrix, last, 1);

		for (size_t c = 0; c < call->cols; c += PANEL_FEW_COLS) {
			const struct panel_x x = panel_x(format, call->x, call->cols, c);
			struct panel_few few = {
				.pitch = call->m[matrix]->pitch,
				.scale_pitch = call->m[matrix]->scale_pitch,
				.panels = step,
				.cols = panel_min(call->cols - c, PANEL_FEW_COLS),
				.extra = extra,
				.totals = totals + p * call->tokens,
			};

			panels_at(&first, 1, format, c, &few.at);
			few.at.jump_codes = end.jump_codes;
			few.at.jump_scales = end.jump_scales;
			for (size_t t = 0; t < call->tokens; t++) {
				const char *x_row = call->x[t];

				few.codes[t] = (const int8_t *)x_row + x.codes;
				if (p == 0 || step == 1)
					tile_extra(format, few.cols / panel_unit(format), x_row + x.scales,
						   x_row + x.sums, extra[t].scales, extra[t].more);
			}
			call->kind->few[call->tokens](&few);
		}
	}
}

/* Tiles of nearly equal width: a narrow one waits for its own sums. */
static void panel_tiles_run(const struct panel_kind *kind, size_t panels, const struct panel_bytes *bytes, size_t cols,
			    const struct panel_x *x, size_t tokens, panel_totals *totals)
{
	for (size_t t = 0; t < tokens;) {
		const size_t tiles = (tokens - t + PANEL_TILE_TOKENS - 1) / PANEL_TILE_TOKENS;
		const size_t n = tiles > 2 ? PANEL_TILE_TOKENS : (tokens - t + tiles - 1) / tiles;

		for (size_t p = 0; p < panels; p += PANEL_TILE_PANELS)
			kind->many[panel_min(panels - p, PANEL_TILE_PANELS) - 1][n](bytes + p, cols, x, t, totals + p);
		t += n;
	}
}

static __attribute__((noinline)) void panels_many(const struct panel_call *call, const struct panel_at *from,
						  size_t panels, panel_totals *totals)
{
	const uint32_t format = call->m[0]->format;
	struct panel_bytes bytes[2];

	for (size_t c = 0; c < call->cols; c += PANEL_COLS) {
		const size_t width = panel_min(call->cols - c, PANEL_COLS);
		const struct panel_x x = panel_x(format, call->x, call->cols, c);
		struct panel_at at[2];

		panels_at(from, panels, format, c, at);
		for (size_t p = 0; p < panels; p++)
			call->kind->decode(&at[p], width, &bytes[p]);
		panel_tiles_run(call->kind, panels, bytes, width, &x, call->tokens, totals);
	}
}

/* A run of one pair of panels, or the last one alone. */
static void panels_sums(const struct panel_call *call, const struct panel_run *run, size_t matrix,
			float (*totals)[MOE_PANEL_ROWS])
{
	const size_t panels = run->end - run->first > MOE_PANEL_ROWS ? 2 : 1;
	struct panel_at at[2];

	for (size_t p = 0; p < panels; p++) {
		at[p] = panel_place(call, run, matrix, run->first + p * MOE_PANEL_ROWS, panels);
		memset(totals[p * PANEL_TOKENS], 0, call->tokens * sizeof(totals[0]));
	}
	panels_many(call, at, panels, (panel_totals *)totals);
}

/* The totals of `rows` rows (at most a vector's) with their bias. */
static inline vec panel_biased(const float *totals, const float *bias, size_t rows)
{
	if (!bias)
		return vec_load(totals);
	return vec_add(vec_load(totals), rows < VEC_FLOATS ? vec_load_n(bias, rows) : vec_load(bias));
}

static inline void panel_put(float *to, vec v, size_t rows)
{
	if (rows < VEC_FLOATS)
		vec_store_n(to, v, rows);
	else
		vec_store(to, v);
}

static inline const float *panel_bias(const float *bias, size_t row)
{
	return bias ? bias + row : NULL;
}

/* A vector of token t's results from a panel's totals. */
static inline void panel_finish(const struct panel_call *call, size_t row, size_t left, const float *const totals[2],
				float *to)
{
	vec v = panel_biased(totals[0], panel_bias(call->m[0]->bias, row), left);

	if (call->matrices == 2)
		v = vec_gated(call->act, v, panel_biased(totals[1], panel_bias(call->m[1]->bias, row), left));
	panel_put(to + row, v, left);
}

static void panel_run(const struct panel_call *call, const struct panel_run *run)
{
	const bool few = call->tokens <= PANEL_FEW;
	const size_t step = few ? call->tokens : PANEL_TOKENS; /* totals from panel to panel */
	panel_kept totals[2];

	for (size_t i = 0; i < call->matrices; i++) {
		if (few)
			panels_few(call, run, i, totals[i]);
		else
			panels_sums(call, run, i, totals[i]);
	}
	for (size_t row = run->first; row < run->end; row += VEC_FLOATS) {
		const size_t in = row - run->first, lane = in % MOE_PANEL_ROWS;

		for (size_t t = 0; t < call->tokens; t++) {
			const size_t at = in / MOE_PANEL_ROWS * step + t;

			panel_finish(call, row, run->end - row,
				     (const float *const[]){&totals[0][at][lane], &totals[1][at][lane]}, call->out[t]);
		}
	}
}

static void panel_runs(const struct panel_call *call)
{
	const size_t pairs = call->tokens <= PANEL_FEW ? PANEL_TOKENS / call->tokens : 1;

	for (size_t row = 0; row < call->rows; row += pairs * PANEL_PAIR_ROWS) {
		const struct panel_run run = {row, row + panel_min(call->rows - row, pairs * PANEL_PAIR_ROWS)};

		panel_run(call, &run);
	}
}

/* -- tiles of a format -------------------------------------------------------------------------------------------- */

#define PANEL_FEW_TILE(name, format, tokens)                                                                           \
	static void name##_few_##tokens(const struct panel_few *few)                                                   \
	{                                                                                                              \
		tile_few(format, tokens, few);                                                                         \
	}

#define PANEL_MANY_TILE(name, format, panels, tokens)                                                                  \
	static void name##_many_##panels##_##tokens(const struct panel_bytes *bytes, size_t cols,                      \
						    const struct panel_x *x, size_t first, panel_totals *totals)       \
	{                                                                                                              \
		tile_many(format, panels, tokens, bytes, cols, x, first, totals);                                      \
	}

/* Few tokens, and the decoder, of a format. */
#define PANEL_FORMAT(name, format)                                                                                     \
	PANEL_FEW_TILE(name, format, 1)                                                                                \
	PANEL_FEW_TILE(name, format, 2)                                                                                \
	PANEL_FEW_TILE(name, format, 3)                                                                                \
	PANEL_FEW_TILE(name, format, 4)                                                                                \
	static void name##_decode(const struct panel_at *at, size_t cols, struct panel_bytes *bytes)                   \
	{                                                                                                              \
		panel_decode(format, at, cols, bytes);                                                                 \
	}

#define PANEL_KIND(name, many_tiles)                                                                                   \
	{                                                                                                              \
		.few = {NULL, name##_few_1, name##_few_2, name##_few_3, name##_few_4}, .decode = name##_decode,        \
		.many = many_tiles                                                                                     \
	}

#endif
