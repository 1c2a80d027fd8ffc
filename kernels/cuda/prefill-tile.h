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

/* A thread copies one chunk of two lines, and of one pair scales. What stands in lines without a pair is nobody's. */
struct prefill_x {
	uint32_t row[2], scaled;
};

#define PREFILL_NO_ROW UINT32_MAX

FUNC void x_start(const struct cuda_product *p, const struct prefill_tile *tile, unsigned matrices, unsigned tid,
		  struct prefill_x *x)
{
	const unsigned pair = tid / 4, scaled = tid % CUDA_PREFILL_PAIRS;

	x->row[0] = pair < tile->count ? x_row(p, tile, pair, matrices) : PREFILL_NO_ROW;
	x->row[1] = pair + 64 < tile->count ? x_row(p, tile, pair + 64, matrices) : PREFILL_NO_ROW;
	x->scaled = scaled < tile->count ? x_row(p, tile, scaled, matrices) : PREFILL_NO_ROW;
}

/* Packed rows are filled up with zeros to whole steps. */
FUNC void x_copy(const struct cuda_product *p, const struct prefill_x *x, uint32_t step, unsigned family, unsigned tid,
		 uint32_t *to)
{
	const unsigned head = family == CUDA_FAMILY_INT8 || family == CUDA_FAMILY_F16 ? 64 : 0;
	const uint64_t from = p->x + head + (uint64_t)step * 64 + tid % 4 * 16;
	unsigned i;

	UNROLL
	for (i = 0; i < 2; i++)
		if (x->row[i] != PREFILL_NO_ROW)
			copy_async16(to + mma_chunk(tid / 4 + 64 * i, tid % 4), from + x->row[i] * p->x_pitch, 16);
}

/* -- the end ------------------------------------------------------------------------------------------------------ */

/* The product of a row and a pair, with what belongs to either. */
FUNC float prefill_result(const struct cuda_matrix *m, uint64_t slot, uint32_t row, float by, float sum)
{
	if (m->row_scales != CUDA_ABSENT)
		by *= load_float(slot + m->row_scales + 4 * (uint64_t)row);
	sum *= by;
	return m->bias != CUDA_ABSENT ? sum + load_float(slot + m->bias + 4 * (uint64_t)row) : sum;
}

/* Result e of a tile of pairs: one row of gate and up, or one of each tile of lines. */
FUNC void finish_one(const struct cuda_product *p, const struct prefill_tile *tile, unsigned matrices, uint32_t pair,
		     unsigned line, float by, const float sum[2])
{
	const uint32_t at = tile->pair + pair, to = ((const uint32_t *)(uintptr_t)p->order)[at];
	const uint32_t row = tile->row + line_row(line, matrices);
	const uint64_t slot = tile->slot;
	float *y = (float *)(uintptr_t)p->y;
	unsigned m;

	if (matrices == 2) {
		if (row < p->rows)
			y[(uint64_t)at * p->rows + row] = gated(p->activation, p->limit,
								prefill_result(&p->a, slot, row, by, sum[0]),
								prefill_result(&p->b, slot, row, by, sum[1]));
		return;
	}
	UNROLL
	for (m = 0; m < 2; m++)
		if (row + 16 * m < p->rows)
			y[(uint64_t)to * p->rows + row + 16 * m] = prefill_result(&p->a, slot, row + 16 * m, by,
										  sum[m]);
}

FUNC void finish(const struct cuda_product *p, const struct prefill_tile *tile, unsigned family, unsigned matrices,
		 unsigned tid, const struct prefill_sums *sums)
{
	const int scaled = family == CUDA_FAMILY_INT8 || family == CUDA_FAMILY_F16;
	unsigned n, e, m;

	UNROLL
	for (n = 0; n < 2 * PREFILL_GROUPS; n++)
		UNROLL
	for (e = 0; e < 4; e++) {
		const unsigned pair = n / 2 * 32 + warp_pair(tid) + n % 2 * MMA_TOKENS + mma_token(tid % 32, e);
		float by = 1, sum[2];

		if (pair >= tile->count)
			continue;
		if (scaled)
			by = load_float(p->x + x_row(p, tile, pair, matrices) * p->x_pitch);
		UNROLL
		for (m = 0; m < 2; m++)
			sum[m] = family == CUDA_FAMILY_INT8 ? (float)sums->i[m][n][e] : sums->f[m][n][e];
		finish_one(p, tile, matrices, pair, warp_line(tid) + mma_row(tid % 32, e), by, sum);
	}
}

FUNC struct prefill_tile prefill_tile_of(const struct cuda_product *p, unsigned matrices)
{
	const struct cuda_item *item = (const struct cuda_item *)(uintptr_t)p->items + BLOCK_INDEX / p->tiles;
	const struct cuda_counts *counts = (const struct cuda_counts *)(uintptr_t)p->counts;
	struct prefill_tile tile = {0, BLOCK_INDEX % p->tiles * (CUDA_PREFILL_ROWS / matrices), 0, 0};

	if (BLOCK_INDEX / p->tiles < counts->n_items) {
		tile.slot = item->slot;
		tile.pair = item->first;
		tile.count = item->count;
	}
	return tile;
}

/* Whether the warp has rows at all. */
FUNC int warp_needed(const struct cuda_product *p, const struct prefill_tile *tile, unsigned matrices, unsigned tid)
{
	return tile->row + line_row(warp_line(tid), matrices) < p->rows;
}

#endif
