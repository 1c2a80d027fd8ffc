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
ROWS_INLINE void lanes_ask(size_t rows, const struct lanes_tile *tile, size_t i)
{
	uintptr_t ahead = (uintptr_t)tile->ahead + i * tile->ahead_step;

	for (size_t left = tile->ahead_step; left; left -= left < ROWS_STEP_BYTES ? left : ROWS_STEP_BYTES) {
#pragma GCC unroll 12
		for (size_t r = 0; r < rows; r++)
			_mm_prefetch((const char *)(ahead + r * tile->ahead_pitch), _MM_HINT_T1);
		ahead += ROWS_STEP_BYTES;
	}
}

ROWS_INLINE void lanes_run_floats(size_t panels, size_t rows, size_t chains, const struct lanes_tile *tile)
{
	lanes_sums sums[2], tree[LANES_LEVELS];

	for (size_t i = 0; i < LANES_CHAINS; i += chains) {
		const size_t first = lanes_order[i], second = lanes_order[i + chains - 1];

		for (size_t j = 0; j < chains; j++)
			lanes_ask(rows, tile, i + j);
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

		lanes_ask(rows, tile, i);
		lanes_ask(rows, tile, i + 1);
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

		lanes_ask(rows, tile, i);
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

#endif
