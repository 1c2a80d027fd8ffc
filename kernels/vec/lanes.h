/* SPDX-License-Identifier: MIT */
/*
 * lanes - the sums of rows.h for many tokens with a lane for each token, for row-major weights: a tile of some rows and
 * panels of tokens, in the vec_* names of the level that includes this file.
 *
 * A tile of rows.h has as many vectors as results and adds up elements at its end. Here a block of the activations of
 * VEC_FLOATS tokens is transposed into a panel once for all of a call's rows: a vector has the same column of so many
 * tokens, weights are decoded a few rows at a time into the first-level cache and broadcast as they are loaded, and a
 * vector of sums is VEC_FLOATS results. Weights need no transposing, which would cost a third of 32 tokens' time
 * (docs/decisions/0022, 0091).
 *
 * Law: the same bits as rows.h's. There element e of a vector is the chain over columns e, e + VEC_FLOATS, ... of a
 * block, and a tree adds the elements up. Here these chains are run one after the other, in an order in which the
 * tree's inner nodes are due one by one, like the carries of a binary counter. Of groups with scales two chains are run
 * by turns, whose scaled sums are a leaf. Sums of integers are exact in any order.
 *
 * A panel: the chains in that order, each of up to LANES_STEPS vectors. Of integers a vector has four columns of each
 * token, or two that were widened to 16 bits, and chains are columns one after the other.
 *
 * A step's vectors are pairs of columns where the level multiplies bfloat16 in pairs: a chain is over those.
 *
 * The level defines LANES_WIDTH, panels of a tile at most; LANES_ROWS, rows of the buffer at most; LANES_LEVELS, of the
 * tree over the chains; and lanes_order[i], the chain that comes i-th, its own inverse: also the place of a chain.
 *
 * Where the compiler would keep sums in memory, the level defines LANES_TWO(kind, sums, w, x): the sums of two panels
 * += *w * x.
 */
#ifndef KERNELS_VEC_LANES_H
#define KERNELS_VEC_LANES_H

#include "kernels/vec/rows_run.h"

#define LANES_PANELS (ROWS_TOTALS / VEC_FLOATS)
#define LANES_CHAINS VEC_FLOATS
#define LANES_STEPS (ROWS_BLOCK_BYTES / VEC_BYTES)
#define LANES_CHAIN_BYTES ((LANES_STEPS + 1) * VEC_BYTES)                    /* chains do not meet in one set */
#define LANES_PANEL_BYTES (LANES_CHAINS * LANES_CHAIN_BYTES + 4 * VEC_BYTES) /* nor do panels */
#define LANES_UNROLL 4
#define LANES_GROUPS (ROWS_BLOCK_BYTES / 2 / ROWS_GROUP) /* of a block at most */

/* Some rows of a column block, ROWS_BUFFER_PITCH apart, and some panels. */
struct lanes_tile {
	const char *w, *x;
	size_t steps;                        /* of a chain; of integers: of all */
	const char *ahead;                   /* some rows of weights that each chain asks for a part of */
	size_t ahead_rows;                   /* how many; all tiles of some rows together ask for the next ones */
	size_t ahead_pitch, ahead_step;      /* from row to row, from chain to chain */
	const float (*scales)[LANES_GROUPS]; /* of each row, where groups have some */
	float *totals;                       /* of the first row and token */
	size_t pitch;                        /* floats from row to row */
};

typedef void lanes_function(const struct lanes_tile *tile);

typedef vec lanes_sums[LANES_ROWS][LANES_WIDTH];

ROWS_INLINE bool lanes_integers(enum rows_kind kind)
{
	return kind == ROWS_INT8 || kind == ROWS_UINT8 || kind == ROWS_INT16;
}

/* That one element of a vector has of a token. */
ROWS_INLINE size_t lanes_columns(enum rows_kind kind)
{
	return 4 / rows_x_bytes(kind);
}

/* Products of floats of one kind or another with a scale for each group. */
ROWS_INLINE bool lanes_grouped(enum rows_kind kind)
{
	return kind == ROWS_FP8 || kind == ROWS_FP8_DOT;
}

ROWS_INLINE size_t lanes_group_steps(enum rows_kind kind)
{
	return ROWS_GROUP / LANES_CHAINS / lanes_columns(kind);
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

/* sums += the number at w times a vector of each panel. */
ROWS_INLINE void lanes_row(enum rows_kind kind, size_t panels, vec sums[LANES_WIDTH], const char *w,
			   const vec activations[LANES_WIDTH])
{
#ifdef LANES_TWO
	if (panels == 2) {
		LANES_TWO(kind, sums, (const float *)w, activations);
		return;
	}
#endif
	const vec weight = lanes_all(w);

#pragma GCC unroll 4
	for (size_t p = 0; p < panels; p++)
		sums[p] = row_dot(kind, sums[p], weight, activations[p]);
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
	for (size_t r = 0; r < rows; r++)
		lanes_row(kind, panels, sums[r], w + r * ROWS_BUFFER_PITCH, activations);
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
ROWS_INLINE void lanes_ask(const struct lanes_tile *tile, size_t i)
{
	uintptr_t row = (uintptr_t)tile->ahead + i * tile->ahead_step;

	for (size_t r = 0; r < tile->ahead_rows; r++, row += tile->ahead_pitch)
		for (size_t at = 0; at < tile->ahead_step; at += ROWS_STEP_BYTES)
			_mm_prefetch((const char *)(row + at), _MM_HINT_T1);
}

/* Steps of a chain are a constant where the block is whole: the end of one costs a tenth of its time otherwise. */
ROWS_INLINE void lanes_run_floats(enum rows_kind kind, size_t panels, size_t rows, size_t chains,
				  const struct lanes_tile *tile, size_t steps)
{
	lanes_sums sums[2], tree[LANES_LEVELS];

	for (size_t i = 0; i < LANES_CHAINS; i += chains) {
		const size_t first = lanes_order[i], second = lanes_order[i + chains - 1];

		for (size_t j = 0; j < chains; j++)
			lanes_ask(tile, i + j);
#pragma GCC unroll 2
		for (size_t j = 0; j < chains; j++)
			lanes_clear(panels, rows, sums[j]);
		lanes_chains(kind, panels, rows, chains, sums, tile->w + first * sizeof(float),
			     (second - first) * sizeof(float), tile->x + i * LANES_CHAIN_BYTES, steps);
		if (chains == 2)
			lanes_node(panels, rows, true, sums[0], sums[1]);
		lanes_fold(panels, rows, chains == 2 ? LANES_LEVELS - 1 : LANES_LEVELS, sums[0], i / chains, tree);
	}
	lanes_add(kind, panels, rows, sums[0], tile);
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
ROWS_INLINE void lanes_pair(enum rows_kind kind, size_t panels, size_t rows, size_t chains, lanes_sums sums[2],
			    const struct lanes_tile *tile, size_t i, size_t step)
{
	_Alignas(64) lanes_kept kept;

#pragma GCC unroll 2
	for (size_t j = 0; j < 2; j += chains) {
		const size_t first = lanes_order[i + j], second = lanes_order[i + j + chains - 1];

#pragma GCC unroll 2
		for (size_t k = 0; k < chains; k++)
			lanes_clear(panels, rows, sums[k]);
		lanes_chains(kind, panels, rows, chains, sums, tile->w + first * sizeof(float) + step * VEC_BYTES,
			     (second - first) * sizeof(float), tile->x + (i + j) * LANES_CHAIN_BYTES + step * VEC_BYTES,
			     lanes_group_steps(kind));
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

ROWS_INLINE void lanes_run_groups(enum rows_kind kind, size_t panels, size_t rows, size_t chains,
				  const struct lanes_tile *tile)
{
	_Alignas(64) lanes_kept scaled;
	lanes_sums sums[2], tree[LANES_LEVELS];

	for (size_t i = 0; i < LANES_CHAINS; i += 2) {
		size_t group = 0;

		lanes_ask(tile, i);
		lanes_ask(tile, i + 1);
		do {
			lanes_pair(kind, panels, rows, chains, sums, tile, i, group * lanes_group_steps(kind));
			lanes_scale(panels, rows, sums[0], tile, group, &scaled);
		} while (++group * lanes_group_steps(kind) < tile->steps);
		lanes_fold(panels, rows, LANES_LEVELS - 1, sums[0], i / 2, tree);
	}
	lanes_add(kind, panels, rows, sums[0], tile);
}

#define LANES_PART_LEAST 4 /* rows */

/* Rows of a part: with two chains of each at a time, sums and scaled sums of a part have room in 32 registers. */
ROWS_INLINE size_t lanes_part_rows(size_t panels)
{
	return 8 / panels;
}

/* scaled = those of the i-th and the next chain over all groups of a part. */
ROWS_INLINE void lanes_part_scaled(enum rows_kind kind, size_t panels, const struct lanes_tile *part, size_t i,
				   lanes_sums scaled)
{
	const size_t rows = lanes_part_rows(panels), steps = lanes_group_steps(kind);
	const size_t first = lanes_order[i] * sizeof(float), second = lanes_order[i + 1] * sizeof(float);

	lanes_clear(panels, rows, scaled);
	for (size_t group = 0, step = 0; step < part->steps; group++, step += steps) {
		lanes_sums sums[2];

#pragma GCC unroll 2
		for (size_t k = 0; k < 2; k++)
			lanes_clear(panels, rows, sums[k]);
		lanes_chains(kind, panels, rows, 2, sums, part->w + first + step * VEC_BYTES, second - first,
			     part->x + i * LANES_CHAIN_BYTES + step * VEC_BYTES, steps);
		lanes_node(panels, rows, true, sums[0], sums[1]);
#pragma GCC unroll 8
		for (size_t r = 0; r < rows; r++) {
			const vec scale = vec_set(part->scales[r][group]);

#pragma GCC unroll 2
			for (size_t p = 0; p < panels; p++)
				scaled[r][p] = vec_fma(scale, sums[0][r][p], scaled[r][p]);
		}
	}
}

/* The sums of lanes_run_groups by parts of a tile, which meet two chains of the panels one after the other: nothing but
 * the tree is kept in memory. Groups of bfloat16 are four steps: to keep their sums took a sixth of the time. */
ROWS_INLINE void lanes_run_parts(enum rows_kind kind, size_t panels, size_t rows, const struct lanes_tile *tile)
{
	const size_t n = lanes_part_rows(panels);
	lanes_sums scaled, tree[LANES_ROWS / LANES_PART_LEAST][LANES_LEVELS];

	for (size_t i = 0; i < LANES_CHAINS; i += 2) {
		lanes_ask(tile, i);
		lanes_ask(tile, i + 1);
#pragma GCC unroll 1
		for (size_t r = 0; r < rows; r += n) {
			struct lanes_tile part = *tile;

			part.w += r * ROWS_BUFFER_PITCH;
			part.scales += r;
			part.totals += r * tile->pitch;
			lanes_part_scaled(kind, panels, &part, i, scaled);
			lanes_fold(panels, n, LANES_LEVELS - 1, scaled, i / 2, tree[r / n]);
			if (i + 2 == LANES_CHAINS)
				lanes_add(kind, panels, n, scaled, &part);
		}
	}
}

ROWS_INLINE void lanes_run_integers(enum rows_kind kind, size_t panels, size_t rows, const struct lanes_tile *tile,
				    size_t all)
{
	lanes_sums sums;

	lanes_clear(panels, rows, sums);
	for (size_t i = 0, left = all; i < LANES_CHAINS; i++) {
		const size_t steps = left < LANES_STEPS ? left : LANES_STEPS;

		lanes_ask(tile, i);
		lanes_chains(kind, panels, rows, 1, &sums, tile->w + i * LANES_STEPS * 4, 0,
			     tile->x + i * LANES_CHAIN_BYTES, steps);
		left -= steps;
	}
	lanes_add(kind, panels, rows, sums, tile);
}

ROWS_INLINE void lanes_run(enum rows_kind kind, size_t panels, size_t rows, size_t chains,
			   const struct lanes_tile *tile)
{
	if (lanes_integers(kind) && tile->steps == LANES_CHAINS * LANES_STEPS)
		lanes_run_integers(kind, panels, rows, tile, LANES_CHAINS * LANES_STEPS);
	else if (lanes_integers(kind))
		lanes_run_integers(kind, panels, rows, tile, tile->steps);
	else if (lanes_grouped(kind) && panels <= 2 && chains == 2 && rows % lanes_part_rows(panels) == 0)
		lanes_run_parts(kind, panels, rows, tile);
	else if (lanes_grouped(kind))
		lanes_run_groups(kind, panels, rows, chains, tile);
	else if (tile->steps == LANES_STEPS)
		lanes_run_floats(kind, panels, rows, chains, tile, LANES_STEPS);
	else
		lanes_run_floats(kind, panels, rows, chains, tile, tile->steps);
}

#endif
