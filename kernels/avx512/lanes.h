/* SPDX-License-Identifier: MIT */
/*
 * lanes - the sums of rows.h for many tokens with a lane for each token, for row-major weights.
 *
 * A tile of rows.h has 24 vectors for 24 results and adds up elements at its end. Here a block of the activations of 16
 * tokens is transposed into a panel once for all of a call's rows: a vector has the same column of 16 tokens, weights
 * are decoded a few rows at a time into the first-level cache and broadcast as they are loaded, and 24 vectors are 384
 * results. Weights need no transposing, which would cost a third of 32 tokens' time (docs/decisions/0022).
 *
 * Law: the same bits as rows.h's. There element e of a vector is the chain over columns e, e + 16, ... of a block, and
 * a tree adds the elements up. Here the 16 chains are run one after the other, in an order in which the tree's inner
 * nodes are due one by one, like the carries of a binary counter. Of groups with scales two chains are run by turns,
 * whose scaled sums are a leaf. Sums of integers are exact in any order.
 *
 * A panel: 16 chains in that order, each of up to LANES_STEPS vectors. Of integers a vector has four columns of each
 * token, and chains are columns one after the other.
 */
#ifndef KERNELS_AVX512_LANES_H
#define KERNELS_AVX512_LANES_H

#include "kernels/avx512/vec.h"
#include "kernels/vec/rows_run.h"

#define LANES_PANELS (ROWS_TOTALS / VEC_FLOATS)
#define LANES_WIDTH 4     /* panels of a tile at most */
#define LANES_ROWS 12     /* rows of a tile at most */
#define LANES_RUN_STEP 48 /* rows: whole tiles of each shape */
#define LANES_RUN_ROWS 528
#define LANES_CHAINS 16
#define LANES_LEVELS 4 /* of the tree over them */
#define LANES_STEPS (ROWS_BLOCK_BYTES / VEC_BYTES)
#define LANES_CHAIN_BYTES ((LANES_STEPS + 1) * VEC_BYTES)                    /* chains do not meet in one set */
#define LANES_PANEL_BYTES (LANES_CHAINS * LANES_CHAIN_BYTES + 4 * VEC_BYTES) /* nor do panels */
#define LANES_UNROLL 4
#define LANES_GROUP_STEPS (ROWS_GROUP / LANES_CHAINS)
#define LANES_GROUPS (LANES_STEPS / LANES_GROUP_STEPS)

/* Some rows of a column block, ROWS_BUFFER_PITCH apart, and some panels. */
struct lanes_tile {
	const char *w, *x;
	size_t steps;                        /* of a chain; of integers: of all */
	const char *ahead;                   /* rows of weights that each chain asks for a part of */
	size_t ahead_pitch, ahead_step;      /* from row to row, from chain to chain */
	const float (*scales)[LANES_GROUPS]; /* of each row, where groups have some */
	float *totals;                       /* of the first row and token */
	size_t pitch;                        /* floats from row to row */
};

typedef void lanes_function(const struct lanes_tile *tile);

/* The chain that comes i-th: the four of a lane as vec_pair and vec_quad add them, then lanes two apart. Its own
 * inverse: also the place of a chain. */
static const uint8_t lanes_order[LANES_CHAINS] = {0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15};

typedef vec lanes_sums[LANES_ROWS][LANES_WIDTH];

ROWS_INLINE bool lanes_integers(enum rows_kind kind)
{
	return rows_x_bytes(kind) == 1;
}

ROWS_INLINE vec lanes_all(const char *w)
{
	vec v;

	__asm__("vbroadcastss %1, %0" : "=v"(v) : "m"(*(const float *)w));
	return v;
}

ROWS_INLINE void lanes_clear(size_t panels, size_t rows, lanes_sums sums)
{
#pragma GCC unroll 12
	for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (size_t p = 0; p < panels; p++)
			sums[r][p] = vec_zero();
}

/* totals += sums. */
ROWS_INLINE void lanes_add(enum rows_kind kind, size_t panels, size_t rows, lanes_sums sums,
			   const struct lanes_tile *tile)
{
#pragma GCC unroll 12
	for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (size_t p = 0; p < panels; p++) {
			float *to = tile->totals + r * tile->pitch + p * VEC_FLOATS;

			vec_store(to, lanes_integers(kind) ? vec_add_int(vec_load(to), sums[r][p])
							   : vec_add(vec_load(to), sums[r][p]));
		}
}

/* sums += a number of each row times a vector of each panel. */
ROWS_INLINE void lanes_step(enum rows_kind kind, size_t panels, size_t rows, lanes_sums sums, const char *w,
			    const char *x)
{
	vec activations[LANES_WIDTH];

#pragma GCC unroll 4
	for (size_t p = 0; p < panels; p++)
		activations[p] = vec_loaded((const float *)(x + p * LANES_PANEL_BYTES));
#pragma GCC unroll 12
	for (size_t r = 0; r < rows; r++) {
		const vec weight = lanes_all(w + r * ROWS_BUFFER_PITCH);

#pragma GCC unroll 4
		for (size_t p = 0; p < panels; p++)
			sums[r][p] = row_dot(kind, sums[r][p], weight, activations[p]);
	}
}

/* Some steps of one chain or of two, whose weights and activations are apart by `w_apart` and LANES_CHAIN_BYTES.
 * Unrolled: otherwise the end of the loop comes as a surprise each time. */
ROWS_INLINE void lanes_chains(enum rows_kind kind, size_t panels, size_t rows, size_t chains, lanes_sums *sums,
			      const char *w, size_t w_apart, const char *x, size_t steps)
{
	const size_t stride = lanes_integers(kind) ? 4 : VEC_BYTES;
	size_t i = 0;

	for (; i + LANES_UNROLL <= steps; i += LANES_UNROLL)
#pragma GCC unroll 4
		for (size_t j = 0; j < LANES_UNROLL; j++)
#pragma GCC unroll 2
			for (size_t k = 0; k < chains; k++)
				lanes_step(kind, panels, rows, sums[k], w + k * w_apart + (i + j) * stride,
					   x + k * LANES_CHAIN_BYTES + (i + j) * VEC_BYTES);
#pragma GCC unroll 1
	for (; i < steps; i++)
#pragma GCC unroll 2
		for (size_t k = 0; k < chains; k++)
			lanes_step(kind, panels, rows, sums[k], w + k * w_apart + i * stride,
				   x + k * LANES_CHAIN_BYTES + i * VEC_BYTES);
}

/* to += or = sums: a node of the tree. */
ROWS_INLINE void lanes_node(size_t panels, size_t rows, bool add, lanes_sums to, lanes_sums sums)
{
#pragma GCC unroll 12
	for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (size_t p = 0; p < panels; p++)
			to[r][p] = add ? vec_add(to[r][p], sums[r][p]) : sums[r][p];
}

/* The i-th leaf's sums go into the tree; the last one's are its root, which is `levels` above. */
ROWS_INLINE void lanes_fold(size_t panels, size_t rows, size_t levels, lanes_sums sums, size_t i, lanes_sums *tree)
{
	size_t level = 0;

	for (; i & 1; i >>= 1, level++)
		lanes_node(panels, rows, true, sums, tree[level]);
	if (level < levels)
		lanes_node(panels, rows, false, tree[level], sums);
}

/* What the i-th chain asks for: weights that are decoded soon, into the second-level cache: the first has no room. */
ROWS_INLINE void lanes_ask(enum rows_kind kind, size_t rows, const struct lanes_tile *tile, size_t i)
{
	const uintptr_t ahead = (uintptr_t)tile->ahead + i * tile->ahead_step;

#pragma GCC unroll 12
	for (size_t r = 0; r < rows; r++) {
		_mm_prefetch((const char *)(ahead + r * tile->ahead_pitch), _MM_HINT_T1);
		if (lanes_integers(kind))
			_mm_prefetch((const char *)(ahead + r * tile->ahead_pitch + VEC_BYTES), _MM_HINT_T1);
	}
}

ROWS_INLINE void lanes_run_floats(size_t panels, size_t rows, size_t chains, const struct lanes_tile *tile)
{
	lanes_sums sums[2], tree[LANES_LEVELS];

	for (size_t i = 0; i < LANES_CHAINS; i += chains) {
		const size_t first = lanes_order[i], second = lanes_order[i + chains - 1];

		for (size_t j = 0; j < chains; j++)
			lanes_ask(ROWS_F32, rows, tile, i + j);
#pragma GCC unroll 2
		for (size_t j = 0; j < chains; j++)
			lanes_clear(panels, rows, sums[j]);
		lanes_chains(ROWS_F32, panels, rows, chains, sums, tile->w + first * sizeof(float),
			     (second - first) * sizeof(float), tile->x + i * LANES_CHAIN_BYTES, tile->steps);
		if (chains == 2)
			lanes_node(panels, rows, true, sums[0], sums[1]);
		lanes_fold(panels, rows, chains == 2 ? LANES_LEVELS - 1 : LANES_LEVELS, sums[0], i / chains, tree);
	}
	lanes_add(ROWS_F32, panels, rows, sums[0], tile);
}

/* Sums in memory on purpose: the compiler would keep them in registers, and others of a tile's innermost loop not. */
typedef float lanes_kept[LANES_ROWS][LANES_WIDTH][VEC_FLOATS];

ROWS_INLINE void lanes_keep(size_t panels, size_t rows, lanes_sums sums, lanes_kept *kept)
{
#pragma GCC unroll 12
	for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (size_t p = 0; p < panels; p++)
			vec_store((*kept)[r][p], sums[r][p]);
	__asm__("" : "+m"(*kept));
}

/* sums = those of the i-th and the next chain in a group from `step` on; by turns where registers are scarce. */
ROWS_INLINE void lanes_pair(size_t panels, size_t rows, size_t chains, lanes_sums sums[2],
			    const struct lanes_tile *tile, size_t i, size_t step)
{
	_Alignas(64) lanes_kept kept;

#pragma GCC unroll 2
	for (size_t j = 0; j < 2; j += chains) {
		const size_t first = lanes_order[i + j], second = lanes_order[i + j + chains - 1];

#pragma GCC unroll 2
		for (size_t k = 0; k < chains; k++)
			lanes_clear(panels, rows, sums[k]);
		lanes_chains(ROWS_F32, panels, rows, chains, sums, tile->w + first * sizeof(float) + step * VEC_BYTES,
			     (second - first) * sizeof(float), tile->x + (i + j) * LANES_CHAIN_BYTES + step * VEC_BYTES,
			     LANES_GROUP_STEPS);
		if (j == 0 && chains == 1)
			lanes_keep(panels, rows, sums[0], &kept);
	}
#pragma GCC unroll 12
	for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (size_t p = 0; p < panels; p++)
			sums[0][r][p] = vec_add(chains == 2 ? sums[1][r][p] : vec_load(kept[r][p]), sums[0][r][p]);
}

/* scaled += scale * the sums of a group. */
ROWS_INLINE void lanes_scale(size_t panels, size_t rows, lanes_sums sums, const struct lanes_tile *tile, size_t group,
			     lanes_kept *scaled)
{
#pragma GCC unroll 12
	for (size_t r = 0; r < rows; r++) {
		const vec scale = vec_set(tile->scales[r][group]);

#pragma GCC unroll 4
		for (size_t p = 0; p < panels; p++)
			sums[r][p] = vec_fma(scale, sums[r][p], group ? vec_load((*scaled)[r][p]) : vec_zero());
	}
	lanes_keep(panels, rows, sums, scaled);
}

ROWS_INLINE void lanes_run_groups(size_t panels, size_t rows, size_t chains, const struct lanes_tile *tile)
{
	_Alignas(64) lanes_kept scaled;
	lanes_sums sums[2], tree[LANES_LEVELS];

	for (size_t i = 0; i < LANES_CHAINS; i += 2) {
		size_t group = 0;

		lanes_ask(ROWS_F32, rows, tile, i);
		lanes_ask(ROWS_F32, rows, tile, i + 1);
		do {
			lanes_pair(panels, rows, chains, sums, tile, i, group * LANES_GROUP_STEPS);
			lanes_scale(panels, rows, sums[0], tile, group, &scaled);
		} while (++group * LANES_GROUP_STEPS < tile->steps);
		lanes_fold(panels, rows, LANES_LEVELS - 1, sums[0], i / 2, tree);
	}
	lanes_add(ROWS_F32, panels, rows, sums[0], tile);
}

ROWS_INLINE void lanes_run_integers(enum rows_kind kind, size_t panels, size_t rows, const struct lanes_tile *tile)
{
	lanes_sums sums;

	lanes_clear(panels, rows, sums);
	for (size_t i = 0, left = tile->steps; i < LANES_CHAINS; i++) {
		const size_t steps = left < LANES_STEPS ? left : LANES_STEPS;

		lanes_ask(kind, rows, tile, i);
		lanes_chains(kind, panels, rows, 1, &sums, tile->w + i * LANES_STEPS * 4, 0,
			     tile->x + i * LANES_CHAIN_BYTES, steps);
		left -= steps;
	}
	lanes_add(kind, panels, rows, sums, tile);
}

ROWS_INLINE void lanes_run(enum rows_kind kind, size_t panels, size_t rows, size_t chains,
			   const struct lanes_tile *tile)
{
	if (lanes_integers(kind))
		lanes_run_integers(kind, panels, rows, tile);
	else if (kind == ROWS_FP8)
		lanes_run_groups(panels, rows, chains, tile);
	else
		lanes_run_floats(panels, rows, chains, tile);
}

/* -- panels ------------------------------------------------------------------------------------------------------- */

/* 16 bytes of 16 rows become 4 columns in each of four vectors; here rows r .. r + 7, r + 4 in the upper halves. */
ROWS_INLINE void lanes_turn_quads(const __m512i rows[4], __m512i ret[4])
{
	const __m512i low = _mm512_unpacklo_epi32(rows[0], rows[1]), high = _mm512_unpackhi_epi32(rows[0], rows[1]);
	const __m512i low2 = _mm512_unpacklo_epi32(rows[2], rows[3]), high2 = _mm512_unpackhi_epi32(rows[2], rows[3]);

	ret[0] = _mm512_unpacklo_epi64(low, low2);
	ret[1] = _mm512_unpackhi_epi64(low, low2);
	ret[2] = _mm512_unpacklo_epi64(high, high2);
	ret[3] = _mm512_unpackhi_epi64(high, high2);
}

/* 32 bytes of two rows, the second in the upper half. */
ROWS_INLINE __m512i lanes_two_rows(const char *row, const char *second)
{
	const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)row));

	return _mm512_inserti64x4(low, _mm256_loadu_si256((const __m256i *)second), 1);
}

/* 64 bytes of 16 rows, `at` bytes from where they begin, become 16 vectors of 4 bytes of each row. Rows are often a
 * multiple of 4 KiB apart: both halves of a line are read before others take its place. */
ROWS_INLINE void lanes_transpose(const char *const *rows, size_t at, __m512i ret[16])
{
	__m512i two[2][2][4], quads[2][2][4]; /* halves of lines, halves of rows */

#pragma GCC unroll 2
	for (size_t upper = 0; upper < 2; upper++)
#pragma GCC unroll 4
		for (size_t r = 0; r < 4; r++) {
			const char *row = rows[upper * 8 + r] + at, *second = rows[upper * 8 + r + 4] + at;

			two[0][upper][r] = lanes_two_rows(row, second);
			two[1][upper][r] = lanes_two_rows(row + 32, second + 32);
		}
#pragma GCC unroll 2
	for (size_t half = 0; half < 2; half++) {
		lanes_turn_quads(two[half][0], quads[half][0]);
		lanes_turn_quads(two[half][1], quads[half][1]);
#pragma GCC unroll 4
		for (size_t i = 0; i < 4; i++) {
			const __m512i a = quads[half][0][i], b = quads[half][1][i];

			ret[half * 8 + i] = _mm512_shuffle_i32x4(a, b, 0x88);
			ret[half * 8 + 4 + i] = _mm512_shuffle_i32x4(a, b, 0xdd);
		}
	}
}

/* The step-th 64 bytes of 16 tokens' blocks. */
ROWS_INLINE void lanes_turn_step(bool integers, const char *const *x, size_t at, size_t step, char *panel)
{
	const size_t chains = LANES_STEPS / LANES_CHAINS; /* of integers: steps for a chain */
	__m512i v[16];

	lanes_transpose(x, at, v);
#pragma GCC unroll 16
	for (size_t i = 0; i < 16; i++)
		_mm512_store_si512(integers ? panel + step / chains * LANES_CHAIN_BYTES +
						      (step % chains * LANES_CHAINS + i) * VEC_BYTES
					    : panel + lanes_order[i] * LANES_CHAIN_BYTES + step * VEC_BYTES,
				   v[i]);
}

/* `bytes` of up to 16 tokens' activations, x_at bytes from where they begin; filled up with zeros to `whole`. */
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

/* A column block; `whole` columns with the zeros behind it. */
struct lanes_block {
	size_t c, cols, whole;
};

static inline struct lanes_block lanes_block(const struct lanes_call *l, size_t c)
{
	const size_t cols = l->call->cols - c < l->call->block ? l->call->cols - c : l->call->block;
	const size_t step = lanes_integers(l->kind) ? 4 : l->kind == ROWS_FP8 ? ROWS_GROUP : VEC_FLOATS;

	return (struct lanes_block){c, cols, (cols + step - 1) / step * step};
}

/* Rows first .. first + n of a matrix, decoded, and the scales of their groups; rows behind them are zeros. */
ROWS_INLINE void lanes_decode(const struct lanes_call *l, size_t matrix, size_t first, size_t n,
			      const struct lanes_block *block, float (*scales)[LANES_GROUPS])
{
	const struct rows_kernel *k = l->call->k;
	const size_t bytes = block->cols * k->x_bytes, whole = block->whole * k->x_bytes;
	const size_t groups = (block->cols + ROWS_GROUP - 1) / ROWS_GROUP;
	char *to = l->buffer;

	for (size_t r = 0; r < n; r++, to += ROWS_BUFFER_PITCH) {
		k->decode(rows_at(l->call, matrix, first + r, block->c), block->cols, to);
		memset(to + bytes, 0, whole - bytes);
		if (l->kind == ROWS_FP8)
			memcpy(scales[r], rows_scales(l->call->m[matrix], first + r, block->c),
			       groups * sizeof(scales[r][0]));
	}
	for (size_t r = n; r < l->shape->rows; r++, to += ROWS_BUFFER_PITCH)
		memset(to, 0, whole);
}

/* All tokens by the rows in the buffer. The first tile asks for the rows at `next`. */
ROWS_INLINE void lanes_tiles(const struct lanes_call *l, size_t matrix, size_t row, const struct lanes_block *block,
			     const float (*scales)[LANES_GROUPS], const char *next)
{
	for (size_t j = 0, at = 0; j < l->tiles; j++) {
		const size_t n = l->panels / l->tiles + (j < l->panels % l->tiles);
		const struct lanes_tile tile = {
			.w = l->buffer,
			.x = l->panel + at * LANES_PANEL_BYTES,
			.steps = block->whole / (lanes_integers(l->kind) ? 4 : VEC_FLOATS),
			.ahead = next,
			.ahead_pitch = j ? 0 : l->call->m[matrix]->pitch,
			.ahead_step = j ? 0 : l->call->block * l->call->k->w_bytes / LANES_CHAINS,
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
	const size_t x_bytes = call->k->x_bytes, rows = l->shape->rows;
	float scales[LANES_ROWS][LANES_GROUPS] = {0};

	for (size_t c = 0; c < call->cols; c += call->block) {
		const struct lanes_block block = lanes_block(l, c);

		for (size_t p = 0; p < l->panels; p++)
			lanes_turn(lanes_integers(l->kind), l->x + p * VEC_FLOATS, l->tokens - p * VEC_FLOATS,
				   rows_x_at(call, false, c), block.cols * x_bytes, block.whole * x_bytes,
				   l->panel + p * LANES_PANEL_BYTES);
		for (size_t i = 0; i < call->matrices; i++)
			for (size_t r = run->first; r < run->end; r += rows) {
				const size_t n = run->end - r < rows ? run->end - r : rows;

				lanes_decode(l, i, r, n, &block, scales);
				lanes_tiles(l, i, r - run->first, &block, (const float(*)[LANES_GROUPS])scales,
					    rows_next(call, run, i, r, n, c));
			}
	}
}

/* The totals of a run, with a lane for each token, as results. */
static void lanes_finish(const struct lanes_call *l, const struct rows_run *run, const struct kernel_act *act,
			 float *const *out)
{
	for (size_t r = run->first; r < run->end; r += ROWS_CHUNK)
		for (size_t t = 0; t < l->tokens; t += VEC_FLOATS) {
			_Alignas(64) float totals[2][VEC_FLOATS * ROWS_CHUNK];

			for (size_t i = 0; i < l->call->matrices; i++) {
				const float *from = l->totals[i] + (r - run->first) * l->pitch + t;
				const char *rows[ROWS_CHUNK];
				__m512i v[VEC_FLOATS];

				for (size_t j = 0; j < ROWS_CHUNK; j++)
					rows[j] = (const char *)(from + j * l->pitch);
				lanes_transpose(rows, 0, v);
				for (size_t j = 0; j < VEC_FLOATS; j++)
					_mm512_store_si512(totals[i] + j * ROWS_CHUNK, v[j]);
			}
			rows_finish(l->call, act, r, rows_chunk(run->end, r),
				    l->tokens - t < VEC_FLOATS ? l->tokens - t : VEC_FLOATS, l->x + t,
				    (const float *const[]){totals[0], totals[1]}, out + t);
		}
}

/* A call's rows for up to ROWS_TOTALS tokens. */
ROWS_INLINE void lanes_rows(enum rows_kind kind, const struct lanes_shape *shapes, const struct rows_call *call,
			    const struct kernel_act *act, size_t tokens, const void *const *x, float *const *out)
{
	_Alignas(64) char panel[LANES_PANELS * LANES_PANEL_BYTES], buffer[LANES_ROWS * ROWS_BUFFER_PITCH];
	_Alignas(64) float totals[2 * LANES_RUN_ROWS * ROWS_TOTALS];
	const size_t panels = (tokens + VEC_FLOATS - 1) / VEC_FLOATS, pitch = panels * VEC_FLOATS;
	const size_t tiles = (panels + LANES_WIDTH - 1) / LANES_WIDTH;
	const size_t floats = sizeof(totals) / sizeof(totals[0]) / call->matrices;
	const size_t most = floats / pitch / LANES_RUN_STEP * LANES_RUN_STEP;
	const struct lanes_call l = {
		.call = call,
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
	static __attribute__((noinline)) void name##_##panels##_##rows##_##chains(const struct lanes_tile *tile)       \
	{                                                                                                              \
		lanes_run(kind, panels, rows, chains, tile);                                                           \
	}

/* rows_lanes_function `name`; two panels alone are best with `rows` rows and `chains` chains at a time. */
#define LANES(name, kind, rows, chains)                                                                                \
	LANES_FUNCTION(name, kind, 1, 12, 1)                                                                           \
	LANES_FUNCTION(name, kind, 2, rows, chains)                                                                    \
	LANES_FUNCTION(name, kind, 2, 8, 1)                                                                            \
	LANES_FUNCTION(name, kind, 3, 8, 1)                                                                            \
	LANES_FUNCTION(name, kind, 3, 6, 1)                                                                            \
	LANES_FUNCTION(name, kind, 4, 6, 1)                                                                            \
	static const struct lanes_shape name##_shapes[] = {{12, {name##_1_12_1}},                                      \
							   {rows, {NULL, name##_2_##rows##_##chains}},                 \
							   {8, {NULL, name##_2_8_1, name##_3_8_1}},                    \
							   {6, {NULL, NULL, name##_3_6_1, name##_4_6_1}}};             \
	static void name(const struct rows_call *call, const struct kernel_act *act, size_t tokens,                    \
			 const void *const *x, float *const *out)                                                      \
	{                                                                                                              \
		lanes_rows(kind, name##_shapes, call, act, tokens, x, out);                                            \
	}

#endif
