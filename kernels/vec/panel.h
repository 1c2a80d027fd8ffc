/* SPDX-License-Identifier: MIT */
/*
 * panel - gate_up and matmul of all panel formats, written in the names of the level that includes this file.
 *
 * Few tokens: panel by panel, codes used as they pass, and many panels of gate before as many of up: one
 * long stream, then another; or PANEL_SIDE streams of each side by side, where the processor follows them itself. A few
 * more: the same for some tokens after the others, run by run. Many tokens: a column block at a time, whose activations
 * stay in the second-level cache while the panels of a run pass in pairs: decoded, and used for up to PANEL_TOKENS
 * tokens while they are in the first.
 */
#ifndef KERNELS_VEC_PANEL_H
#define KERNELS_VEC_PANEL_H

#include "kernels/levels.h"
#include "kernels/vec/activation.h"
#include "kernels/vec/panel_few.h"
#include "kernels/vec/panel_many.h"
#include "kernels/vec/panel_pack.h"

/* The functions for a format. */
struct panel_kind {
	panel_few_function
		*few[PANEL_FEW + 1]; /* by tokens; of one panel: neighbours are two streams in the same pages,
						   which are read slower */
	panel_few_function *streams[PANEL_FEW + 1]; /* of panels far apart; NULL: the level has none */
	panel_decode_function *decode;
	panel_many_function *const (*many)[PANEL_TILE_TOKENS + 1]; /* by panels - 1 and tokens */
};

/* The matrices of a call, and at most PANEL_TOKENS of its tokens. */
struct panel_call {
	const struct panel_kind *kind;
	const struct kernel_matrix *m[2];
	size_t matrices, rows, cols, tokens;
	size_t ahead;                 /* bytes that codes are asked for before their use */
	size_t far;                   /* the same of a line of each page, where a stream is alone */
	bool streams;                 /* some side by side */
	const struct kernel_act *act; /* of two matrices */
	const void *const *x;
	float *const *out;
};

/* Rows of one matrix that are read before the same rows of the other. */
struct panel_run {
	size_t first, end;
};

#define PANEL_PAIR_ROWS (2 * MOE_PANEL_ROWS)

#ifndef PANEL_PASSES
#define PANEL_PASSES 3 /* over a run's codes, for a few tokens each, before they are decoded for all */
#endif
#define PANEL_NEAR 64       /* columns that are asked for before they are decoded: from the second-level cache */
#define PANEL_RUN_PANELS 16 /* panels of a run of more than a few tokens */
#define PANEL_SPAN_BYTES ((size_t)640 << 10) /* of their activations */

/* Totals of a run's rows. Few tokens: [panels][tokens]; many: of PANEL_RUN_PANELS panels, PANEL_TOKENS apart. */
typedef float panel_kept[PANEL_RUN_PANELS * PANEL_TOKENS][MOE_PANEL_ROWS];

static inline size_t panel_min(size_t a, size_t b)
{
	return a < b ? a : b;
}

static inline struct panel_x panel_x(uint32_t format, const void *const *rows, size_t cols, size_t c)
{
	const size_t unit = panel_unit(format), at = c / unit * sizeof(float);

	return (struct panel_x){.rows = rows,
				.codes = c,
				.scales = KERNEL_I8_SCALES(cols) + at,
				.sums = KERNEL_I8_SUMS(cols, unit) + at,
				.shares = KERNEL_I8_SHARES(cols, unit) + at};
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

/* Whole blocks of columns whose codes are so many bytes. */
static inline size_t panel_cols(uint32_t format, size_t bytes)
{
	return bytes * 8 / (moe_formats[format].bits * MOE_PANEL_ROWS) / MOE_BLOCK_COLS * MOE_BLOCK_COLS;
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
		.ahead = panel_cols(m->format, call->ahead),
		.far = panel_cols(m->format, call->far),
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

/* What is read after the stream that begins at `row`: the same one of the other matrix, of what the caller has next,
 * which is cut alike, most likely, or of the next run. */
static struct kernel_matrix stream_after(const struct panel_call *call, const struct panel_run *run, size_t matrix,
					 size_t row)
{
	const size_t in = row - run->first;

	if (matrix + 1 < call->matrices)
		return kernel_rows(call->m[matrix + 1], row);
	if (run->end == call->rows && call->m[0]->next)
		return kernel_rows(call->m[0]->next, in);
	return kernel_rows(call->m[0], run->end + in);
}

/* The first panel of the stream of so many; its jumps are the last one's. */
static struct panel_at stream_place(const struct panel_call *call, const struct panel_run *run, size_t matrix,
				    size_t row, size_t panels)
{
	const struct kernel_matrix *m = call->m[matrix];
	const struct kernel_matrix after = stream_after(call, run, matrix, row);
	const struct kernel_matrix last = kernel_rows(m, row + (panels - 1) * MOE_PANEL_ROWS);
	struct panel_at at = panel_place(call, run, matrix, row, 1);

	at.jump_codes = (uintptr_t)after.codes - (uintptr_t)last.codes - m->pitch;
	at.jump_scales = (uintptr_t)after.scales - (uintptr_t)last.scales - m->scale_pitch;
	return at;
}

static void few_extra(const struct panel_call *call, struct panel_few *few, struct panel_few_extra *extra, size_t c)
{
	const uint32_t format = call->m[0]->format;
	const struct panel_x x = panel_x(format, call->x, call->cols, c);

	few->extra = extra;
	for (size_t t = 0; t < call->tokens; t++) {
		const char *row = call->x[t];

		few->codes[t] = (const int8_t *)row + x.codes;
		tile_extra(format, few->cols / panel_unit(format), row + x.scales, row + x.sums, extra[t].scales,
			   extra[t].more);
	}
}

/* `streams` streams of `panels` panels each, from the one at `row` on. There are no more columns than a block's. */
static void panels_streams(const struct panel_call *call, const struct panel_run *run, size_t matrix, size_t row,
			   size_t streams, size_t panels, float (*totals)[MOE_PANEL_ROWS])
{
	struct panel_few_extra extra[PANEL_FEW];
	struct panel_few few = {
		.pitch = call->m[matrix]->pitch,
		.scale_pitch = call->m[matrix]->scale_pitch,
		.panels = panels,
		.cols = call->cols,
		.totals = totals,
	};

	few_extra(call, &few, extra, 0);
	for (size_t i = 0; i < streams; i++)
		few.at[i] = stream_place(call, run, matrix, row + i * panels * MOE_PANEL_ROWS, panels);
	(streams > 1 ? call->kind->streams : call->kind->few)[call->tokens](&few);
}

/* A panel with more columns than a block's. */
static void panel_blocks(const struct panel_call *call, const struct panel_run *run, size_t matrix, size_t row,
			 float (*totals)[MOE_PANEL_ROWS])
{
	const struct panel_at at = panel_place(call, run, matrix, row, 1);
	struct panel_few_extra extra[PANEL_FEW];

	for (size_t c = 0; c < call->cols; c += PANEL_FEW_COLS) {
		struct panel_few few = {
			.panels = 1, .cols = panel_min(call->cols - c, PANEL_FEW_COLS), .totals = totals};

		few_extra(call, &few, extra, c);
		panels_at(&at, 1, call->m[0]->format, c, few.at);
		call->kind->few[call->tokens](&few);
	}
}

/* A run's panels of a matrix, all columns of a panel before the next one. */
static void panels_few(const struct panel_call *call, const struct panel_run *run, size_t matrix,
		       float (*totals)[MOE_PANEL_ROWS])
{
	const size_t all = (run->end - run->first + MOE_PANEL_ROWS - 1) / MOE_PANEL_ROWS;
	const size_t streams = PANEL_STREAMS(call->tokens), each = call->streams ? all / streams : 0;
	const size_t rest = each * streams;

	memset(totals, 0, all * call->tokens * sizeof(totals[0]));
	if (call->cols > PANEL_FEW_COLS) {
		for (size_t p = 0; p < all; p++)
			panel_blocks(call, run, matrix, run->first + p * MOE_PANEL_ROWS, totals + p * call->tokens);
		return;
	}
	if (each)
		panels_streams(call, run, matrix, run->first, streams, each, totals);
	if (rest < all)
		panels_streams(call, run, matrix, run->first + rest * MOE_PANEL_ROWS, 1, all - rest,
			       totals + rest * call->tokens);
}

/* What is asked for next, its share with each tile: all at once would hold up what is read meanwhile. */
struct panel_asks {
	uintptr_t at[4];
	size_t lines[4], each;
};

static void panel_asks(const struct panel_call *call, const struct panel_at *from, size_t panels, size_t c,
		       size_t width, struct panel_asks *ret)
{
	const uint32_t format = call->m[0]->format;
	const size_t tiles = (call->tokens + PANEL_TILE_TOKENS - 1) / PANEL_TILE_TOKENS;
	struct panel_at at[2];

	*ret = (struct panel_asks){.each = 0};
	panels_at(from, panels, format, c + width, at);
	for (size_t i = 0; i < panels; i++) {
		ret->at[2 * i] = (uintptr_t)at[i].codes + (at[i].left ? 0 : at[i].jump_codes);
		ret->at[2 * i + 1] = (uintptr_t)at[i].scales + (at[i].left ? 0 : at[i].jump_scales);
		ret->lines[2 * i] = (moe_band_bytes(format, MOE_PLANE_CODES, PANEL_COLS) + 63) / 64;
		ret->lines[2 * i + 1] = (moe_band_bytes(format, MOE_PLANE_SCALES, PANEL_COLS) + 63) / 64;
		ret->each += ret->lines[2 * i] + ret->lines[2 * i + 1];
	}
	ret->each = (ret->each + tiles - 1) / tiles;
}

/* The next `most` lines or fewer, of one place. */
static inline size_t panel_ask_next(struct panel_asks *asks, size_t most, const char **ret)
{
	size_t i = 0, n;

	while (i < 3 && asks->lines[i] == 0)
		i++;
	n = panel_min(asks->lines[i], most);
	*ret = (const char *)asks->at[i];
	asks->at[i] += n * 64;
	asks->lines[i] -= n;
	return n;
}

/* A tile's share: what it can ask for while it multiplies so many columns, which holds it up less than what is asked
 * for before it begins (docs/decisions/0106). */
static inline struct many_asks panel_ask_some(struct panel_asks *asks, size_t cols)
{
	const size_t room = cols / MOE_BLOCK_COLS * PANEL_TILE_ASKS;
	struct many_asks ret;
	size_t n = panel_ask_next(asks, room, &ret.at);
	const char *at;

	ret.step = n * 64 / (room ? room : 1);
	for (; n < asks->each; n++) {
		if (panel_ask_next(asks, 1, &at) == 0)
			break;
		_mm_prefetch(at, _MM_HINT_T1);
	}
	return ret;
}

/* Tiles of nearly equal width: a narrow one waits for its own sums. */
static void panel_tiles_run(const struct panel_kind *kind, size_t panels, const struct panel_bytes *bytes, size_t cols,
			    struct panel_x *x, size_t tokens, struct panel_asks *asks, panel_totals *totals)
{
	for (size_t t = 0; t < tokens;) {
		const size_t tiles = (tokens - t + PANEL_TILE_TOKENS - 1) / PANEL_TILE_TOKENS;
		const size_t n = tiles > 2 ? PANEL_TILE_TOKENS : (tokens - t + tiles - 1) / tiles;

		x->asks = panel_ask_some(asks, cols);
		for (size_t p = 0; p < panels; p += PANEL_TILE_PANELS)
			kind->many[panel_min(panels - p, PANEL_TILE_PANELS) - 1][n](bytes + p, cols, x, t, totals + p);
		t += n;
	}
}

/* Columns of a run's panels of both matrices, in pairs: as many as have their activations in the second-level cache. */
struct panel_span {
	const struct panel_run *run;
	size_t panels, c, cols;
};

/* Where panel p of a span lies, or what comes after the matrix's last one. */
static struct panel_at panel_span_at(const struct panel_call *call, const struct panel_span *span, size_t matrix,
				     size_t p)
{
	const uint32_t format = call->m[0]->format;
	size_t row = span->run->first + p * MOE_PANEL_ROWS, c = span->c;
	struct kernel_matrix m;
	struct panel_at at = {0};

	if (p >= span->panels) {
		row = span->run->first + (p - span->panels) * MOE_PANEL_ROWS;
		if (++matrix == call->matrices) {
			matrix = 0;
			c += span->cols;
		}
	}
	if (c >= call->cols) {
		c = 0;
		row += span->run->end - span->run->first;
	}
	m = row >= call->rows && call->m[0]->next ? *call->m[0]->next : kernel_rows(call->m[matrix], row);
	at.codes = m.codes;
	at.scales = m.scales;
	panels_at(&at, 1, format, c, &at);
	return at;
}

/* Panels p and, where there is one, p + 1 of a span; then the next two are asked for. */
static size_t panel_span_place(const struct panel_call *call, const struct panel_span *span, size_t matrix, size_t p,
			       struct panel_at at[2])
{
	const uint32_t format = call->m[0]->format;
	const size_t n = panel_min(span->panels - p, 2);

	for (size_t i = 0; i < n; i++) {
		const struct panel_at after = panel_span_at(call, span, matrix, p + n + i);

		at[i] = panel_span_at(call, span, matrix, p + i);
		at[i].left = span->cols;
		at[i].ahead = PANEL_NEAR;
		at[i].jump_codes = (uintptr_t)after.codes - (uintptr_t)at[i].codes -
				   moe_band_bytes(format, MOE_PLANE_CODES, span->cols);
		at[i].jump_scales = (uintptr_t)after.scales - (uintptr_t)at[i].scales -
				    moe_band_bytes(format, MOE_PLANE_SCALES, span->cols);
	}
	return n;
}

static __attribute__((noinline)) void panels_pair(const struct panel_call *call, const struct panel_span *span,
						  size_t matrix, size_t p, panel_totals *totals)
{
	const uint32_t format = call->m[0]->format;
	struct panel_bytes bytes[2];
	struct panel_at from[2];
	const size_t n = panel_span_place(call, span, matrix, p, from);

	for (size_t c = 0; c < span->cols; c += PANEL_COLS) {
		const size_t width = panel_min(span->cols - c, PANEL_COLS);
		struct panel_x x = panel_x(format, call->x, call->cols, span->c + c);
		struct panel_asks asks;
		struct panel_at at[2];

		panels_at(from, n, format, c, at);
		for (size_t i = 0; i < n; i++)
			call->kind->decode(&at[i], width, &bytes[i]);
		panel_asks(call, from, n, c, width, &asks);
		panel_tiles_run(call->kind, n, bytes, width, &x, call->tokens, &asks, totals);
	}
}

static __attribute__((noinline)) void panels_many(const struct panel_call *call, const struct panel_run *run,
						  panel_kept *totals)
{
	const size_t panels = (run->end - run->first + MOE_PANEL_ROWS - 1) / MOE_PANEL_ROWS;
	const size_t fit = PANEL_SPAN_BYTES / call->tokens / PANEL_COLS * PANEL_COLS;
	const size_t spans = (call->cols + fit - 1) / fit;
	const size_t most = spans ? (call->cols / spans + PANEL_COLS) / PANEL_COLS * PANEL_COLS : 1;

	for (size_t i = 0; i < call->matrices; i++)
		for (size_t p = 0; p < panels; p++)
			memset(totals[i][p * PANEL_TOKENS], 0, call->tokens * sizeof(totals[i][0]));
	for (size_t c = 0; c < call->cols; c += most) {
		const struct panel_span span = {run, panels, c, panel_min(call->cols - c, most)};

		for (size_t i = 0; i < call->matrices; i++)
			for (size_t p = 0; p < panels; p += 2)
				panels_pair(call, &span, i, p, (panel_totals *)totals[i] + p);
	}
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

	if (!few)
		panels_many(call, run, totals);
	for (size_t i = 0; i < call->matrices && few; i++)
		panels_few(call, run, i, totals[i]);
	for (size_t row = run->first; row < run->end; row += VEC_FLOATS) {
		const size_t in = row - run->first, lane = in % MOE_PANEL_ROWS;

		for (size_t t = 0; t < call->tokens; t++) {
			const size_t at = in / MOE_PANEL_ROWS * step + t;

			panel_finish(call, row, run->end - row,
				     (const float *const[]){&totals[0][at][lane], &totals[1][at][lane]}, call->out[t]);
		}
	}
}

/* The tokens of a pass over a run. More than a few are read as few, and the run's codes again from the second-level
 * cache, up to PANEL_PASSES times (docs/decisions/0098, 0100); not codes of 8 bits where their products take the signs
 * of both. */
static size_t panel_pass_tokens(const struct panel_call *call)
{
	const size_t passes = (call->tokens + PANEL_FEW - 1) / PANEL_FEW;

	if (passes > PANEL_PASSES || (PANEL_WIDE_SIGNED && moe_formats[call->m[0]->format].bits == 8))
		return call->tokens;
	return (call->tokens + passes - 1) / passes;
}

static void panel_runs(const struct panel_call *call)
{
	const size_t pass = panel_pass_tokens(call);
	const size_t pairs = call->tokens <= PANEL_FEW ? PANEL_TOKENS / pass : PANEL_RUN_PANELS / 2;
	const size_t rows = pairs * PANEL_PAIR_ROWS;

	for (size_t row = 0; row < call->rows; row += rows) {
		const struct panel_run run = {row, row + panel_min(call->rows - row, rows)};

		for (size_t t = 0; t < call->tokens; t += pass) {
			struct panel_call part = *call;

			part.tokens = panel_min(call->tokens - t, pass);
			part.x += t;
			part.out += t;
			panel_run(&part, &run);
		}
	}
}

/* -- tiles of a format -------------------------------------------------------------------------------------------- */

#define PANEL_FEW_TILE(name, streams, format, tokens)                                                                  \
	static void name##_##tokens(const struct panel_few *few)                                                       \
	{                                                                                                              \
		tile_few(format, streams, tokens, few);                                                                \
	}

#define PANEL_FEW_TILES(name, streams, format)                                                                         \
	PANEL_FEW_TILE(name, streams(1), format, 1)                                                                    \
	PANEL_FEW_TILE(name, streams(2), format, 2)                                                                    \
	PANEL_FEW_TILE(name, streams(3), format, 3)                                                                    \
	PANEL_FEW_TILE(name, streams(4), format, 4)

#define PANEL_ONE(tokens) 1

#define PANEL_MANY_TILE(name, format, panels, tokens)                                                                  \
	static void name##_many_##panels##_##tokens(const struct panel_bytes *bytes, size_t cols,                      \
						    const struct panel_x *x, size_t first, panel_totals *totals)       \
	{                                                                                                              \
		tile_many(format, panels, tokens, bytes, cols, x, first, totals);                                      \
	}

#if PANEL_SIDE > 1
#define PANEL_STREAM_TILES(name, format) PANEL_FEW_TILES(name##_streams, PANEL_STREAMS, format)
#define PANEL_STREAM_LIST(name)                                                                                        \
	.streams = {NULL, name##_streams_1, name##_streams_2, name##_streams_3, name##_streams_4},
#else
#define PANEL_STREAM_TILES(name, format)
#define PANEL_STREAM_LIST(name)
#endif

/* Few tokens, and the decoder, of a format. */
#define PANEL_FORMAT(name, format)                                                                                     \
	PANEL_FEW_TILES(name##_few, PANEL_ONE, format)                                                                 \
	PANEL_STREAM_TILES(name, format)                                                                               \
	static void name##_decode(const struct panel_at *at, size_t cols, struct panel_bytes *bytes)                   \
	{                                                                                                              \
		panel_decode(format, at, cols, bytes);                                                                 \
	}

#define PANEL_KIND(name, many_tiles)                                                                                   \
	{                                                                                                              \
		.few = {NULL, name##_few_1, name##_few_2, name##_few_3, name##_few_4},                                 \
		PANEL_STREAM_LIST(name).decode = name##_decode, .many = many_tiles                                     \
	}

#endif
