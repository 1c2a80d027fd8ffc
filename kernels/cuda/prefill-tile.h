/* SPDX-License-Identifier: MIT */
/* prefill-tile - what all prefill kernels do alike: which lines and pairs a thread has, activations, and the end. */
#ifndef KERNELS_CUDA_PREFILL_TILE_H
#define KERNELS_CUDA_PREFILL_TILE_H

#include "kernels/cuda/mma.h"
#include "kernels/cuda/weights.h"

#define PREFILL_THREADS 256
#define PREFILL_WORDS (CUDA_PREFILL_ROWS * MMA_LINE) /* of a step's weights; of its activations as many */
#define PREFILL_STAGES 3                             /* of plain rows; where codes are decoded there are two */
#define PREFILL_GROUPS 4                             /* of 32 pairs; a warp has 16 of each, two tiles */
#define PREFILL_BATCH 4                              /* tiles of pairs that are finished together */
#define PREFILL_LINE(bytes) (((uint64_t)(bytes) + 63) & ~(uint64_t)63)

/* What a lane has of the results: of its two tiles of lines, and of tiles of pairs. */
struct prefill_sums {
	float f[2][2 * PREFILL_GROUPS][4];
	int32_t i[2][2 * PREFILL_GROUPS][4];
};

/* A block's work. */
struct prefill_tile {
	uint64_t slot;
	uint32_t row, pair, count; /* the first row, the first pair, and how many pairs */
};

/* The row of the tile that a line is of. Of two matrices every other 16 lines are of the second. */
FUNC uint32_t line_row(unsigned line, unsigned matrices)
{
	return matrices == 1 ? line : line / 32 * 16 + line % 16;
}

FUNC const struct cuda_matrix *line_matrix(const struct cuda_product *p, unsigned line, unsigned matrices)
{
	return matrices == 2 && line / 16 % 2 ? &p->b : &p->a;
}

/* A warp's first line, and its first pair in the first group. */
FUNC unsigned warp_line(unsigned tid)
{
	return tid / 32 % 4 * 32;
}

FUNC unsigned warp_pair(unsigned tid)
{
	return tid / 128 * 16;
}

/* Which row of x is that of a pair. */
FUNC uint32_t x_row(const struct cuda_product *p, const struct prefill_tile *tile, unsigned pair, unsigned matrices)
{
	const uint32_t at = tile->pair + pair;
	const uint32_t *order = (const uint32_t *)(uintptr_t)p->order;

	return matrices > 1 ? order[at] / p->topk : at;
}

/* -- activations -------------------------------------------------------------------------------------------------- */

/* A thread copies one chunk of two lines, from here on; in 16 bytes, which takes half of an address' registers. What
 * stands in lines without a pair is nobody's. */
struct prefill_x {
	uint32_t from[2];
};

#define PREFILL_NOTHING UINT32_MAX

FUNC void x_start(const struct cuda_product *p, const struct prefill_tile *tile, unsigned family, unsigned matrices,
		  unsigned tid, struct prefill_x *x)
{
	const unsigned head = family == CUDA_FAMILY_INT8 || family == CUDA_FAMILY_F16 ? 64 : 0;
	unsigned i;

	UNROLL
	for (i = 0; i < 2; i++) {
		const unsigned pair = tid / 4 + 64 * i;

		x->from[i] = PREFILL_NOTHING;
		if (pair < tile->count)
			x->from[i] = (uint32_t)((x_row(p, tile, pair, matrices) * p->x_pitch + head) / 16) + tid % 4;
	}
}

/* Packed rows are filled up with zeros to whole steps. */
FUNC void x_copy(const struct cuda_product *p, const struct prefill_x *x, uint32_t step, unsigned tid, uint32_t *to)
{
	unsigned i;

	UNROLL
	for (i = 0; i < 2; i++)
		if (x->from[i] != PREFILL_NOTHING)
			copy_async16(to + mma_chunk(tid / 4 + 64 * i, tid % 4),
				     p->x + (uint64_t)x->from[i] * 16 + (uint64_t)step * 64, 16);
}

/* What a lane's results meet: of its rows (tile of lines; first or second 8 of them), and of the pairs (tile; which) of
 * half of its tiles. It is read before results are written, so that they do not wait for it one by one. */
struct prefill_ends {
	float scale[2][2], bias[2][2];
	float by[PREFILL_BATCH][2];
	uint32_t place[PREFILL_BATCH][2];
};

/* The pair of a warp's tile n that is a lane's t-th. */
FUNC unsigned lane_pair(unsigned n, unsigned t, unsigned tid)
{
	return n / 2 * 32 + warp_pair(tid) + n % 2 * MMA_TOKENS + mma_token(tid % 32, t);
}

FUNC uint32_t lane_row(const struct prefill_tile *tile, unsigned m, unsigned h, unsigned matrices, unsigned tid)
{
	return tile->row + line_row(warp_line(tid) + 16 * m + mma_row(tid % 32, 2 * h), matrices);
}

FUNC void ends_of_rows(const struct cuda_product *p, const struct prefill_tile *tile, unsigned matrices, unsigned tid,
		       struct prefill_ends *ends)
{
	unsigned m, h;

	UNROLL
	for (m = 0; m < 2; m++)
		UNROLL
	for (h = 0; h < 2; h++) {
		const struct cuda_matrix *w = line_matrix(p, 16 * m, matrices);
		const uint32_t row = lane_row(tile, m, h, matrices, tid);

		ends->scale[m][h] = 1;
		ends->bias[m][h] = 0;
		if (row < p->rows && w->row_scales != CUDA_ABSENT)
			ends->scale[m][h] = load_float(tile->slot + w->row_scales + 4 * (uint64_t)row);
		if (row < p->rows && w->bias != CUDA_ABSENT)
			ends->bias[m][h] = load_float(tile->slot + w->bias + 4 * (uint64_t)row);
	}
}

FUNC void ends_of_pairs(const struct cuda_product *p, const struct prefill_tile *tile, unsigned family,
			unsigned matrices, unsigned first, unsigned tid, struct prefill_ends *ends)
{
	const int scaled = family == CUDA_FAMILY_INT8 || family == CUDA_FAMILY_F16;
	unsigned n, t;

	UNROLL
	for (n = 0; n < PREFILL_BATCH; n++)
		UNROLL
	for (t = 0; t < 2; t++) {
		const unsigned pair = lane_pair(first + n, t, tid);

		ends->by[n][t] = 1;
		ends->place[n][t] = tile->pair + pair;
		if (pair >= tile->count)
			continue;
		if (scaled)
			ends->by[n][t] = load_float(p->x + x_row(p, tile, pair, matrices) * p->x_pitch);
		if (matrices == 1)
			ends->place[n][t] = ((const uint32_t *)(uintptr_t)p->order)[tile->pair + pair];
	}
}

/* The results of a pair, whose place in y it is, and of two rows: of gate and up the same one. */
FUNC void finish_two(const struct cuda_product *p, unsigned matrices, uint32_t place, const uint32_t row[2],
		     const float result[2])
{
	float *y = (float *)(uintptr_t)p->y + (uint64_t)place * p->rows;

	if (matrices == 2) {
		if (row[0] < p->rows)
			y[row[0]] = gated(p->activation, p->limit, result[0], result[1]);
		return;
	}
	if (row[0] < p->rows)
		y[row[0]] = result[0];
	if (row[1] < p->rows)
		y[row[1]] = result[1];
}

FUNC void finish(const struct cuda_product *p, const struct prefill_tile *tile, unsigned family, unsigned matrices,
		 unsigned tid, const struct prefill_sums *sums)
{
	struct prefill_ends ends;
	unsigned n, e, m;

	ends_of_rows(p, tile, matrices, tid, &ends);
	UNROLL
	for (n = 0; n < 2 * PREFILL_GROUPS; n++) {
		if (n % PREFILL_BATCH == 0)
			ends_of_pairs(p, tile, family, matrices, n, tid, &ends);
		UNROLL
		for (e = 0; e < 4; e++) {
			const unsigned h = e / 2, t = e % 2;
			uint32_t row[2];
			float result[2];

			if (lane_pair(n, t, tid) >= tile->count)
				continue;
			UNROLL
			for (m = 0; m < 2; m++) {
				row[m] = lane_row(tile, m, h, matrices, tid);
				result[m] = family == CUDA_FAMILY_INT8 ? (float)sums->i[m][n][e] : sums->f[m][n][e];
				result[m] *= ends.by[n % PREFILL_BATCH][t] * ends.scale[m][h];
				if (line_matrix(p, 16 * m, matrices)->bias != CUDA_ABSENT)
					result[m] += ends.bias[m][h];
			}
			finish_two(p, matrices, ends.place[n % PREFILL_BATCH][t], row, result);
		}
	}
}

/* An item is read whether it is one or not: there is room for as many as there are blocks. */
FUNC struct prefill_tile prefill_tile_of(const struct cuda_product *p, unsigned matrices)
{
	const struct cuda_item *item = (const struct cuda_item *)(uintptr_t)p->items + BLOCK_INDEX / p->tiles;
	const uint32_t n_items = ((const struct cuda_counts *)(uintptr_t)p->counts)->n_items;
	struct prefill_tile tile;

	tile.slot = item->slot;
	tile.row = BLOCK_INDEX % p->tiles * (CUDA_PREFILL_ROWS / matrices);
	tile.pair = item->first;
	tile.count = item->count;
	if (BLOCK_INDEX / p->tiles >= n_items)
		tile.count = 0;
	return tile;
}

/* Whether the warp has rows at all. */
FUNC int warp_needed(const struct cuda_product *p, const struct prefill_tile *tile, unsigned matrices, unsigned tid)
{
	return tile->row + line_row(warp_line(tid), matrices) < p->rows;
}

#endif
