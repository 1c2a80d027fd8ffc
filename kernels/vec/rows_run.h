/* SPDX-License-Identifier: MIT */
/*
 * rows_run - gate_up and matmul over the tiles of rows.h, in the vec_* names of the level that includes this file.
 *
 * A run of rows, sixteen at a time. Up to ROWS_PASSES * ROWS_FEW_TOKENS tokens the weights are decoded where they
 * are multiplied, row by row (rows_serial.h), and so they are in four streams (rows_streams.h) for the tokens that
 * a kernel has these for; many rows of gate are read before as many of up: one long stream, then another. With
 * more, every token passes by a block of columns in tiles (rows.h), and all ROWS_RUN rows of a run by one block
 * before the next: decoded (or only copied) once into a buffer, or as it lies in the record where it needs no
 * decoding: any number of tokens where the first-level cache has room for the rows (docs/decisions/0074), else up
 * to ROWS_IN_PLACE (0009). The first tiles ask for the next block, the others for the next activations. A kernel
 * may have a way of its own for many tokens, with a lane for each (lanes_run.h), which is taken where few lanes
 * would be idle.
 */
#ifndef KERNELS_VEC_ROWS_RUN_H
#define KERNELS_VEC_ROWS_RUN_H

#include "kernels/levels.h"
#include "kernels/vec/activation.h"
#include "kernels/vec/rows.h"
#include "kernels/vec/rows_serial.h"
#include "kernels/vec/rows_streams.h"

#define ROWS_TOTALS 128          /* tokens whose totals are kept at a time */
#define ROWS_INT_COLS (1u << 17) /* so many products of 8 bits fit into 32 */
/* Rows of the buffer do not meet in one set of the first-level cache. */
#define ROWS_BUFFER_PITCH (ROWS_BLOCK_BYTES + 64)
#define ROWS_PASSES 2 /* of few tokens before it pays to decode weights once for all */
#define ROWS_PASS_BYTES                                                                                                \
	32768 /* of the few tokens' activations: they stay in the first-level cache beside the weights */
/* Groups of the columns that are summed in one go, at 2 bytes an activation. */
#define ROWS_PART_GROUPS (ROWS_SERIAL_BLOCKS * ROWS_BLOCK_BYTES / 2 / ROWS_GROUP)
/* Where 16 rows that are not copied have no room in the first-level cache: */
#define ROWS_IN_PLACE 32     /* tokens up to which it does not pay to copy them */
#define ROWS_IN_PLACE_ROWS 8 /* that have room */

struct rows_call;

/* All rows of a call for up to ROWS_TOTALS tokens. */
typedef void rows_lanes_function(const struct rows_call *call, const struct kernel_act *act, size_t tokens,
				 const void *const *x, float *const *out);

struct rows_kernel {
	size_t w_bytes, x_bytes;                                  /* of a column, in the record and in a packed row */
	size_t few_x_bytes;                                       /* the latter for few tokens; smaller: PACK_F16 */
	rows_serial_function *const *few;                         /* [tokens], 1 .. ROWS_FEW_TOKENS */
	rows_tile_function *const *many;                          /* [tokens], 1 .. tile_tokens */
	rows_tile_function *const *in_place;                      /* the same of weights as they lie, or NULL */
	size_t tile_tokens;                                       /* at most ROWS_TOKENS */
	void (*decode)(const void *codes, size_t cols, void *to); /* to x_bytes a column */
	rows_streams_function *const *streams; /* [tokens], 1 .. ROWS_STREAM_TOKENS, of streams side by side, or NULL */
	size_t side_over, side_most;           /* tokens that those are for; `most` 0: ROWS_FEW_TOKENS */
	size_t side_cols;                      /* rows of more columns are read so with fewer tokens too; 0: none are */
	size_t near;                           /* bytes ahead that few tokens' weights are asked for; 0: none are */
	size_t side_near;                      /* the same of streams side by side */
	size_t far;                            /* the same of a line of each page; 0: none is */
	rows_lanes_function *lanes;            /* for more than lanes_over tokens, or NULL */
	size_t lanes_over;                     /* at least what `few` is for */
	bool integer;                          /* PACK_I8_ROW */
	bool up;                               /* PACK_F32_UP */
	bool roomy;                            /* 48 KiB of first-level cache: what needs no decoding is never copied */
	uint32_t offset;                       /* that has been added to integer weights */
};

/* Scales where a format has none: to ask for each group whether there are any costs a single token 3 %. */
static const float rows_ones[ROWS_PART_GROUPS] = {[0 ... ROWS_PART_GROUPS - 1] = 1.0f};

/* The matrices of a call. */
struct rows_call {
	const struct rows_kernel *k;
	const struct kernel_matrix *m[2];
	size_t matrices, rows, cols, block; /* columns of a block */
};

/* Rows of one matrix that are read before the same rows of the other. */
struct rows_run {
	size_t first, end;
};

static inline const char *rows_at(const struct rows_call *call, size_t matrix, size_t row, size_t col)
{
	const struct kernel_matrix *m = call->m[matrix];

	return (const char *)((uintptr_t)m->codes + row * m->pitch + col * call->k->w_bytes);
}

/* FP16 activations for few tokens, the same as FP32 for many. */
static inline bool rows_halves(const struct rows_kernel *k)
{
	return k->few_x_bytes < k->x_bytes;
}

/* Where column c is in a packed row. */
static inline size_t rows_x_at(const struct rows_call *call, bool few, size_t c)
{
	const struct rows_kernel *k = call->k;

	if (rows_halves(k) && !few)
		return KERNEL_F16_FLOATS(call->cols) + c * k->x_bytes;
	return (k->integer || k->up || rows_halves(k) ? KERNEL_HEAD : 0) + c * (few ? k->few_x_bytes : k->x_bytes);
}

/* Those of a row's groups from column c on. */
static inline const char *rows_scales(const struct kernel_matrix *m, size_t row, size_t c)
{
	if (!m->scales)
		return (const char *)rows_ones;
	return (const char *)m->scales + row / MOE_PANEL_ROWS * m->scale_pitch + c / ROWS_GROUP * sizeof(float);
}

/* What is read after rows first .. first + n of a block of a run's columns: more rows of it, the next columns, the
 * other matrix, the next rows (which usually follow in memory even where the call's rows end). */
static inline const char *rows_next(const struct rows_call *call, const struct rows_run *run, size_t matrix,
				    size_t first, size_t n, size_t col)
{
	if (first + n < run->end)
		return rows_at(call, matrix, first + n, col);
	if (col + call->block < call->cols)
		return rows_at(call, matrix, run->first, col + call->block);
	if (matrix + 1 < call->matrices)
		return rows_at(call, matrix + 1, run->first, 0);
	return rows_at(call, 0, run->end, 0);
}

/* The same of runs of rows: of one matrix, of the other, what the caller has next, or those behind them. */
static inline void rows_spans(const struct rows_call *call, const struct rows_run *run, struct rows_span spans[3])
{
	const struct kernel_matrix *next = call->m[0]->next;
	const size_t width = call->cols * call->k->w_bytes;
	size_t n = 0;

	for (; n < call->matrices; n++)
		spans[n] = (struct rows_span){(uintptr_t)rows_at(call, n, run->first, 0), call->m[n]->pitch,
					      run->end - run->first, width};
	if (next && run->end == call->rows)
		spans[n] = (struct rows_span){(uintptr_t)next->codes, next->pitch, SIZE_MAX, next->pitch};
	else
		spans[n] = (struct rows_span){(uintptr_t)rows_at(call, 0, run->end, 0), call->m[0]->pitch, SIZE_MAX,
					      width};
}

/* Few tokens, which the weights are decoded for where they are multiplied. */
static inline bool rows_few(const struct rows_call *call, size_t tokens)
{
	return tokens <= ROWS_PASSES * ROWS_FEW_TOKENS && !(call->k->integer && call->cols > ROWS_INT_COLS);
}

/* Tokens whose rows are read in streams, where there are enough rows. */
static inline bool rows_side(const struct rows_call *call, size_t tokens)
{
	const struct rows_kernel *k = call->k;

	return k->streams && (tokens > k->side_over || (k->side_cols && call->cols > k->side_cols)) &&
	       tokens <= (k->side_most ? k->side_most : ROWS_FEW_TOKENS) && !(k->integer && call->cols > ROWS_INT_COLS);
}

/* n rows, four at a time; those that do not fill a tile one by one, as four times the same row, with a copy of their
 * totals. */
static inline void rows_tiles(rows_tile_function *const *functions, struct rows_tile *tile, size_t n, size_t tokens)
{
	const size_t pitch = tile->pitch;
	const char *w = tile->w;
	float copy[ROWS_TOKENS * ROWS_CHUNK] = {0}, *totals = tile->totals;

	tile->tiles = n / ROWS_TILE;
	if (tile->tiles)
		functions[tokens](tile);
	tile->tiles = 1;
	for (size_t r = n / ROWS_TILE * ROWS_TILE; r < n; r++) {
		tile->w = w + r * pitch;
		tile->pitch = 0;
		tile->totals = copy;
		for (size_t t = 0; t < tokens; t++)
			memcpy(copy + t * ROWS_CHUNK, totals + t * ROWS_CHUNK + r, sizeof(copy[0]));
		functions[tokens](tile);
		for (size_t t = 0; t < tokens; t++)
			memcpy(totals + t * ROWS_CHUNK + r, copy + t * ROWS_CHUNK, sizeof(copy[0]));
	}
}

/* As many rows at a time as pass by once: with more tokens than a pass has, they are at hand for the next pass. */
static inline void rows_direct(const struct rows_call *call, struct rows_ahead *ahead, size_t matrix, size_t first,
			       size_t n, size_t tokens, const void *const *x, float *totals)
{
	const struct rows_kernel *k = call->k;
	const size_t most = ROWS_SERIAL_BLOCKS * call->block, fit = ROWS_PASS_BYTES / (call->cols * k->few_x_bytes + 1);
	const size_t pass = fit < 1 ? 1 : fit < ROWS_FEW_TOKENS ? fit : ROWS_FEW_TOKENS;
	const size_t step = tokens > pass || call->cols > most ? ROWS_TILE : ROWS_CHUNK;

	for (size_t r = 0; r < n; r += step)
		for (size_t c = 0; c < call->cols; c += most)
			for (size_t t = 0; t < tokens; t += pass) {
				const char *w = rows_at(call, matrix, first + r, c);
				struct rows_ahead again = {.at = (uintptr_t)w, .end = UINTPTR_MAX};
				const size_t width = tokens - t < pass ? tokens - t : pass;
				const size_t cols = call->cols - c < most ? call->cols - c : most;
				const struct rows_serial part = {
					.w = w,
					.pitch = call->m[matrix]->pitch,
					.rows = n - r < step ? n - r : step,
					.cols = cols,
					.block = call->block,
					.blocks = (cols + call->block - 1) / call->block,
					.ahead = t ? &again : ahead,
					.x = x + t,
					.x_at = rows_x_at(call, true, c),
					.scales = rows_scales(call->m[matrix], first, c),
					.totals = totals + t * ROWS_CHUNK + r,
					.far = k->far,
				};

				k->few[width](&part);
			}
}

/* All tokens by n rows; the first tiles ask for as many rows from `next` on, the others for the next activations. */
static inline void rows_pass(const struct rows_call *call, rows_tile_function *const *functions, struct rows_tile tile,
			     const char *next, size_t next_pitch, size_t n, size_t tokens)
{
	const struct rows_kernel *k = call->k;
	const size_t tiles = (tokens + k->tile_tokens - 1) / k->tile_tokens, asks = tiles < ROWS_TILE ? 2 : ROWS_TILE;

	for (size_t j = 0; j < tiles; j++) {
		const size_t width = tokens / tiles + (j < tokens % tiles);
		const bool ask = j < asks;
		struct rows_tile one = tile;

		one.ahead = next + (ask ? j * (ROWS_TILE / asks) * next_pitch : 0);
		one.ahead_pitch = next_pitch;
		one.ahead_second = ask && asks < ROWS_TILE ? next_pitch : 0;
		one.ahead_step = ask ? ROWS_STEP_BYTES * k->w_bytes / k->x_bytes : ROWS_STEP_BYTES;
		one.x_ahead = ask || j + 1 == tiles ? NULL : tile.x + width;
		one.x_ahead_tokens = tokens / tiles;
		rows_tiles(functions, &one, n, width);
		tile.x += width;
		tile.totals += width * ROWS_CHUNK;
	}
}

/* The same for many tokens, decoded before. */
static __attribute__((noinline)) void rows_many(const struct rows_call *call, const struct rows_tile *tile,
						const char *next, size_t n, size_t tokens)
{
	const struct rows_kernel *k = call->k;
	_Alignas(64) char buffer[ROWS_CHUNK * ROWS_BUFFER_PITCH];
	struct rows_tile decoded = *tile;

	decoded.w = buffer;
	decoded.pitch = ROWS_BUFFER_PITCH;
	decoded.cols = rows_filled(k->up, tile->cols);
	for (size_t r = 0; r < n; r++)
		k->decode(tile->w + r * tile->pitch, tile->cols, buffer + r * ROWS_BUFFER_PITCH);
	rows_pass(call, k->many, decoded, next, tile->pitch, n, tokens);
}

/* The same without a copy, some rows at a time. */
static void rows_in_place(const struct rows_call *call, const struct rows_tile *tile, const char *next, size_t n,
			  size_t tokens)
{
	const size_t most = call->k->roomy ? ROWS_CHUNK : ROWS_IN_PLACE_ROWS;

	for (size_t r = 0; r < n; r += most) {
		const size_t rows = n - r < most ? n - r : most;
		struct rows_tile part = *tile;

		part.w += r * tile->pitch;
		part.totals += r;
		rows_pass(call, call->k->in_place, part, next + r * tile->pitch, tile->pitch, rows, tokens);
	}
}

/* Exact sums of more columns than 32 bits have room for, as floats. */
static __attribute__((noinline)) void rows_long(const struct rows_call *call, size_t matrix, size_t first, size_t n,
						size_t tokens, const void *const *x, float *totals)
{
	for (size_t t = 0; t < tokens; t++)
		for (size_t r = 0; r < n; r++) {
			const int8_t *w = (const int8_t *)rows_at(call, matrix, first + r, 0);
			const int8_t *codes = (const int8_t *)x[t] + KERNEL_HEAD;
			int64_t sum = 0;

			for (size_t c = 0; c < call->cols; c++)
				sum += w[c] * codes[c];
			totals[t * ROWS_CHUNK + r] = (float)sum;
		}
}

static inline size_t rows_chunk(size_t rows, size_t first)
{
	return rows - first < ROWS_CHUNK ? rows - first : ROWS_CHUNK;
}

/* totals[t][r] += the products of rows first .. first + n of a matrix, for few tokens or of very many columns. */
static inline void rows_sums(const struct rows_call *call, struct rows_ahead *ahead, size_t matrix, size_t first,
			     size_t n, size_t tokens, const void *const *x, float *totals)
{
	if (rows_few(call, tokens))
		rows_direct(call, ahead, matrix, first, n, tokens, x, totals);
	else
		rows_long(call, matrix, first, n, tokens, x, totals);
}

/* The same of a run's rows for many tokens: a block of columns, whose activations stay in the second-level cache, at a
 * time. */
static void rows_blocks(const struct rows_call *call, const struct rows_run *run, size_t matrix, size_t tokens,
			const void *const *x, float *totals)
{
	const struct rows_kernel *k = call->k;
	const struct kernel_matrix *m = call->m[matrix];

	for (size_t c = 0; c < call->cols; c += call->block)
		for (size_t r = run->first; r < run->end; r += ROWS_CHUNK) {
			const size_t n = rows_chunk(run->end, r);
			const char *next = rows_next(call, run, matrix, r, ROWS_CHUNK, c);
			const struct rows_tile tile = {
				.w = rows_at(call, matrix, r, c),
				.pitch = m->pitch,
				.cols = call->cols - c < call->block ? call->cols - c : call->block,
				.x = x,
				.x_at = rows_x_at(call, false, c),
				.scales = rows_scales(m, r, c),
				.totals = totals + (r - run->first) * tokens,
			};

			if (k->in_place && (k->roomy || tokens <= ROWS_IN_PLACE))
				rows_in_place(call, &tile, next, n, tokens);
			else
				rows_many(call, &tile, next, n, tokens);
		}
}

/* Totals of n rows from row `first` on with their scales and bias. */
static inline vec rows_scaled(const struct rows_call *call, const struct kernel_matrix *m, const float *totals,
			      size_t first, size_t n, const void *x)
{
	vec out = vec_load(totals);

	if (call->k->integer) {
		const struct kernel_i8_row *row = x;
		const vec scales = vec_load_upto(m->row_scales + first, n);

		if (call->cols <= ROWS_INT_COLS)
			out = vec_from_int(out, 0u - call->k->offset * (uint32_t)row->sum);
		out = vec_mul(out, vec_mul(scales, vec_set(row->scale)));
	} else {
		if (call->k->up || rows_halves(call->k))
			out = vec_mul(out, vec_set(((const struct kernel_float_row *)x)->scale));
		if (m->row_scales)
			out = vec_mul(out, vec_load_upto(m->row_scales + first, n));
	}
	return m->bias ? vec_add(out, vec_load_upto(m->bias + first, n)) : out;
}

/* totals: of the rows' first token; a line from token to token. */
static inline void rows_finish(const struct rows_call *call, const struct kernel_act *act, size_t first, size_t n,
			       size_t tokens, const void *const *x, const float *const totals[2], float *const *out)
{
	for (size_t t = 0; t < tokens; t++)
		for (size_t r = 0; r < n; r += VEC_FLOATS) {
			const size_t row = first + r, left = n - r, at = t * ROWS_CHUNK + r;
			vec v = rows_scaled(call, call->m[0], totals[0] + at, row, left, x[t]);

			if (act)
				v = vec_gated(act, v, rows_scaled(call, call->m[1], totals[1] + at, row, left, x[t]));
			v = vec_one_nan(v);
			if (left >= VEC_FLOATS)
				vec_store(out[t] + row, v);
			else
				vec_store_n(out[t] + row, v, left);
		}
}

/* Rows of a run that are read in streams: a multiple of those of a line of totals. */
static inline size_t rows_in_streams(const struct rows_call *call, size_t n, size_t tokens)
{
	return rows_side(call, tokens) && n >= 4 * ROWS_CHUNK ? n / ROWS_CHUNK * ROWS_CHUNK : 0;
}

/* The sums of four rows that are the r-th of each stream, some tokens at a time. */
static void rows_streams_turn(const struct rows_call *call, const struct rows_streams *rows, size_t r, size_t quarter,
			      size_t tokens, const void *const *x, float *totals)
{
	const size_t passes = (tokens + ROWS_STREAM_TOKENS - 1) / ROWS_STREAM_TOKENS;
	float sums[ROWS_STREAM_TOKENS * ROWS_CHUNK];
	struct rows_streams part = *rows;

	part.totals = sums;
	for (size_t p = 0, t = 0, width; p < passes; p++, t += width) {
		width = tokens / passes + (p < tokens % passes);
		part.x = x + t;
		part.x_at = rows_x_at(call, width <= ROWS_FEW_TOKENS, 0);
		memset(sums, 0, sizeof(sums));
		call->k->streams[width](&part);
		for (size_t i = 0; i < ROWS_TILE; i++) {
			const size_t row = i * quarter + r;

			for (size_t j = 0; j < width; j++)
				memcpy(&totals[(row / ROWS_CHUNK * tokens + t + j) * ROWS_CHUNK + row % ROWS_CHUNK],
				       &sums[j * ROWS_CHUNK + i], sizeof(sums[0]));
		}
	}
}

/* totals += the products of n rows of a matrix from row `first` on, in four streams of a quarter of them each. */
static void rows_streams(const struct rows_call *call, size_t matrix, size_t first, size_t n, size_t tokens,
			 const void *const *x, float *totals)
{
	const struct rows_kernel *k = call->k;
	const struct kernel_matrix *m = call->m[matrix];
	const size_t quarter = n / ROWS_TILE, width = call->cols * k->w_bytes;
	struct rows_streams part = {.apart = quarter * m->pitch,
				    .cols = call->cols,
				    .block = call->block,
				    .width = width,
				    .near = width < k->side_near ? width : k->side_near,
				    .scale_step = m->scales ? sizeof(float) : 0};

	for (size_t r = 0; r < quarter; r++) {
		part.w = rows_at(call, matrix, first + r, 0);
		for (size_t i = 0; i < ROWS_TILE; i++)
			part.scales[i] = rows_scales(m, first + i * quarter + r, 0);
		part.after = (uintptr_t)part.w + m->pitch;
		part.after_apart = part.apart;
		if (r + 1 == quarter && matrix + 1 < call->matrices) {
			part.after = (uintptr_t)rows_at(call, matrix + 1, first, 0);
			part.after_apart = quarter * call->m[matrix + 1]->pitch;
		} else if (r + 1 == quarter && call->m[0]->next) {
			part.after = (uintptr_t)call->m[0]->next->codes;
			part.after_apart = quarter * call->m[0]->next->pitch;
		}
		rows_streams_turn(call, &part, r, quarter, tokens, x, totals);
	}
}

/* A run of rows for at most ROWS_TOTALS tokens. */
static void rows_run(const struct rows_call *call, const struct rows_run *run, const struct kernel_act *act,
		     size_t tokens, const void *const *x, float *const *out)
{
	_Alignas(64) float totals[2][ROWS_TOTALS * ROWS_RUN];
	const size_t side = rows_in_streams(call, run->end - run->first, tokens);
	const bool many = !rows_few(call, tokens) && !(call->k->integer && call->cols > ROWS_INT_COLS);
	const struct rows_run rest = {run->first + side, run->end};
	struct rows_span spans[3];
	struct rows_ahead ahead;

	rows_spans(call, run, spans);
	ahead = serial_ahead(spans, call->k->near);
	for (size_t i = 0; i < call->matrices; i++) {
		memset(totals[i], 0,
		       ((run->end - run->first + ROWS_CHUNK - 1) / ROWS_CHUNK) * tokens * ROWS_CHUNK *
			       sizeof(totals[i][0]));
		if (side)
			rows_streams(call, i, run->first, side, tokens, x, totals[i]);
		if (many) {
			rows_blocks(call, &rest, i, tokens, x, totals[i] + side * tokens);
			continue;
		}
		ahead.run_end = (uintptr_t)rows_at(call, i, run->end, 0);
		ahead.then = spans[i + 1].first;
		for (size_t r = rest.first; r < run->end; r += ROWS_CHUNK)
			rows_sums(call, &ahead, i, r, rows_chunk(run->end, r), tokens, x,
				  totals[i] + (r - run->first) * tokens);
	}
	for (size_t r = run->first; r < run->end; r += ROWS_CHUNK) {
		const size_t at = (r - run->first) * tokens;

		rows_finish(call, act, r, rows_chunk(run->end, r), tokens, x,
			    (const float *const[]){totals[0] + at, totals[1] + at}, out);
	}
}

/* Where at most one lane in eight would be idle. */
static inline bool rows_lanes(const struct rows_call *call, size_t tokens)
{
	const size_t lanes = (tokens + VEC_FLOATS - 1) / VEC_FLOATS * VEC_FLOATS;

	return call->k->lanes && tokens > call->k->lanes_over && 8 * tokens >= 7 * lanes &&
	       !(call->k->integer && call->cols > ROWS_INT_COLS);
}

static void rows_runs(const struct rows_call *call, const struct kernel_act *act, size_t tokens, const void *const *x,
		      float *const *out)
{
	for (size_t t = 0; t < tokens; t += ROWS_TOTALS) {
		const size_t width = tokens - t < ROWS_TOTALS ? tokens - t : ROWS_TOTALS;
		const bool long_run = rows_few(call, width) || rows_side(call, width);
		const size_t rows = long_run ? ROWS_TOTALS / width * ROWS_CHUNK : ROWS_RUN;

		if (rows_lanes(call, width)) {
			call->k->lanes(call, act, width, x + t, out + t);
			continue;
		}
		for (size_t r = 0; r < call->rows; r += rows) {
			const struct rows_run run = {r, call->rows - r < rows ? call->rows : r + rows};

			rows_run(call, &run, act, width, x + t, out + t);
		}
	}
}

static inline void rows_gate_up(const struct rows_kernel *k, const struct kernel_matrix *gate,
				const struct kernel_matrix *up, size_t rows, size_t cols, const struct kernel_act *act,
				size_t tokens, const void *const *x, float *const *h)
{
	const struct rows_call call = {k, {gate, up}, 2, rows, cols, ROWS_BLOCK_BYTES / k->x_bytes};

	rows_runs(&call, act, tokens, x, h);
}

static inline void rows_matmul(const struct rows_kernel *k, const struct kernel_matrix *w, size_t rows, size_t cols,
			       size_t tokens, const void *const *x, float *const *y)
{
	const struct rows_call call = {k, {w}, 1, rows, cols, ROWS_BLOCK_BYTES / k->x_bytes};

	rows_runs(&call, NULL, tokens, x, y);
}

/* struct kernel_ops `ops` of a struct rows_kernel `kernel`. */
#define ROWS_OPS(ops, kernel, packing, packer)                                                                         \
	static void ops##_gate_up(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows,       \
				  size_t cols, const struct kernel_act *act, size_t tokens, const void *const *x,      \
				  float *const *h)                                                                     \
	{                                                                                                              \
		rows_gate_up(&(kernel), gate, up, rows, cols, act, tokens, x, h);                                      \
	}                                                                                                              \
	static void ops##_matmul(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens,               \
				 const void *const *x, float *const *y)                                                \
	{                                                                                                              \
		rows_matmul(&(kernel), w, rows, cols, tokens, x, y);                                                   \
	}                                                                                                              \
	const struct kernel_ops ops = {                                                                                \
		.pack = packing, .pack_row = packer, .gate_up = ops##_gate_up, .matmul = ops##_matmul};

#endif
