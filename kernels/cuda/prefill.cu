/* SPDX-License-Identifier: MIT */
/*
 * prefill - matrices times the vectors of many tokens, by tensor cores: a grouped matrix product, one group an expert.
 *
 * A block has 64 rows of one or two matrices and up to 64 pairs of one expert. It goes through the columns in steps of
 * 32: all threads bring a step's weights and packed activations to shared memory, weights as the tensor cores take them
 * (panels and 8-bit integers as signed bytes, 16-bit formats as they are, E4M3 as bfloat16, which is exact); then each
 * of 8 warps multiplies 16 rows with 32 pairs. Integer sums of a step meet their scales at once and are added up as
 * floats; those of plain rows at the end. The sums of a pair do not depend on its neighbours.
 */
#include "kernels/cuda/mma.h"
#include "kernels/cuda/weights.h"

#define PREFILL_THREADS 256
#define PREFILL_STEP 32  /* columns */
#define PREFILL_PITCH 20 /* words from row to row: 32 columns of 16 bits, and 4 words so that banks do not meet */
#define PREFILL_TILES 4  /* of 8 pairs, of one warp */
#define PREFILL_LINE(bytes) (((uint64_t)(bytes) + 63) & ~(uint64_t)63)

/* One step in shared memory. Scales: of each group (2 where a group has 16 columns) and row. */
struct prefill_step {
	uint32_t weights[2][CUDA_PREFILL_ROWS * PREFILL_PITCH];
	uint32_t x[CUDA_PREFILL_PAIRS * PREFILL_PITCH];
	float scale[2][2][CUDA_PREFILL_ROWS], minimum[2][2][CUDA_PREFILL_ROWS];
	int32_t zero[2][2][CUDA_PREFILL_ROWS];
	float x_scale[2][CUDA_PREFILL_PAIRS];
	int32_t x_sum[2][CUDA_PREFILL_PAIRS];
};

/* What a lane has of the results. */
struct prefill_sums {
	float f[2][PREFILL_TILES][4];
	float part[2][PREFILL_TILES][4]; /* E4M3: of the columns that share a scale */
	int32_t i[2][PREFILL_TILES][4];
};

/* Four rows and 8 columns of a block of a panel; of the first q also the scales. */
FUNC void stage_piece(const struct cuda_product *p, const struct cuda_matrix *m, uint64_t slot, uint32_t first,
		      uint32_t col, unsigned bits, unsigned unit, struct prefill_step *s, unsigned which)
{
	const unsigned panel = unit / 16, j = unit / 4 % 4, q = unit % 4;
	const uint32_t band = first / MOE_PANEL_ROWS + panel;
	struct piece w;
	unsigned i;

	if (first + panel * MOE_PANEL_ROWS < p->rows)
		piece_load(&w, slot + m->codes + band * m->pitch + (uint64_t)col / 32 * 64 * bits, bits, p->spec.code,
			   j, q);
	else
		memset(&w, 0, sizeof w);
	UNROLL
	for (i = 0; i < PIECE_ROWS; i++) {
		uint32_t *to = s->weights[which] + (panel * MOE_PANEL_ROWS + 4 * q + i) * PREFILL_PITCH + 2 * j;

		to[0] = w.low[i];
		to[1] = w.high[i];
	}
}

FUNC void stage_scales(const struct cuda_product *p, const struct cuda_matrix *m, uint64_t slot, uint32_t first,
		       uint32_t col, unsigned bits, unsigned unit, struct prefill_step *s, unsigned which)
{
	const unsigned row = unit % CUDA_PREFILL_ROWS, half = unit / CUDA_PREFILL_ROWS;
	const uint32_t band = (first + row) / MOE_PANEL_ROWS;
	unsigned group;
	uint64_t block;

	s->scale[which][half][row] = s->minimum[which][half][row] = 0;
	s->zero[which][half][row] = 0;
	if (band * MOE_PANEL_ROWS >= p->rows)
		return;
	block = scale_block(&p->spec, slot + m->scales + band * m->scale_pitch, col + half * p->block, &group);
	row_scales(&p->spec, block, (first + row) % MOE_PANEL_ROWS, group, bits, &s->scale[which][half][row],
		   &s->minimum[which][half][row], &s->zero[which][half][row]);
}

/* Sixteen bytes of a plain row; E4M3 becomes twice as many. */
FUNC void stage_chunk(const struct cuda_product *p, const struct cuda_matrix *m, uint64_t slot, uint32_t first,
		      uint32_t col, unsigned family, unsigned unit, struct prefill_step *s, unsigned which)
{
	const unsigned chunks = family == CUDA_FAMILY_BF16 || family == CUDA_FAMILY_F16 ? 4 : 2, bytes = chunks / 2;
	const unsigned row = unit / chunks, chunk = unit % chunks, width = PREFILL_STEP / chunks;
	const uint32_t at = col + chunk * width;
	const unsigned n = first + row >= p->rows || at >= p->cols ? 0 : p->cols - at < width ? p->cols - at : width;
	const struct words4 w = load_bytes16(slot + m->codes + (first + row) * m->pitch + (uint64_t)at * bytes,
					     n * bytes);
	uint32_t *to = s->weights[which] + row * PREFILL_PITCH + chunk * (family == CUDA_FAMILY_FP8 ? 8 : 4);
	unsigned i;

	if (family == CUDA_FAMILY_FP8) {
		UNROLL
		for (i = 0; i < 8; i++) {
			const uint32_t two = w.w[i / 2] >> i % 2 * 16;

			to[i] = bits_of(float_of_e4m3(two & 0xff)) >> 16 |
				(bits_of(float_of_e4m3(two >> 8 & 0xff)) & 0xffff0000);
		}
		return;
	}
	UNROLL
	for (i = 0; i < 4; i++)
		to[i] = w.w[i];
}

/* The packed activations of a step: lines are filled up with zeros, so there is always a whole step of them. */
FUNC void stage_x(const struct cuda_product *p, const uint64_t *x, uint32_t count, uint32_t col, unsigned family,
		  unsigned tid, struct prefill_step *s)
{
	const unsigned chunks = family == CUDA_FAMILY_INT8 || family == CUDA_FAMILY_PANEL ? 2 : 4, bytes = chunks / 2;
	const unsigned head = family == CUDA_FAMILY_INT8 || family == CUDA_FAMILY_F16 ? 64 : 0;
	unsigned unit, i;

	for (unit = tid; unit < CUDA_PREFILL_PAIRS * chunks; unit += PREFILL_THREADS) {
		const unsigned pair = unit / chunks, chunk = unit % chunks;
		uint32_t *to = s->x + pair * PREFILL_PITCH + chunk * 4;
		struct words4 w;

		memset(&w, 0, sizeof w);
		if (pair < count)
			w = load_shared_words4(x[pair] + head + (uint64_t)col * bytes + chunk * 16);
		UNROLL
		for (i = 0; i < 4; i++)
			to[i] = w.w[i];
	}
	if (family == CUDA_FAMILY_PANEL && tid < 2 * CUDA_PREFILL_PAIRS) {
		const unsigned pair = tid % CUDA_PREFILL_PAIRS, half = tid / CUDA_PREFILL_PAIRS;
		const uint32_t blocks = (p->cols + p->block - 1) / p->block;
		const uint64_t at = PREFILL_LINE(p->cols) + (uint64_t)(col / p->block + half) * 4;
		const int there = pair < count && col / p->block + half < blocks;

		s->x_scale[half][pair] = there ? load_float(x[pair] + at) : 0;
		s->x_sum[half][pair] = there ? (int32_t)load_u32(x[pair] + at + PREFILL_LINE(blocks * 4)) : 0;
	}
}

FUNC void stage(const struct cuda_product *p, uint64_t slot, uint32_t first, uint32_t col, unsigned family,
		unsigned bits, unsigned matrices, unsigned tid, struct prefill_step *s)
{
	const unsigned units = family == CUDA_FAMILY_BF16 || family == CUDA_FAMILY_F16 ? 256
			       : family == CUDA_FAMILY_PANEL                           ? 64
										       : 128;
	const unsigned groups = family == CUDA_FAMILY_PANEL ? PREFILL_STEP / p->block : 0;
	unsigned i;

	for (i = tid; i < units * matrices; i += PREFILL_THREADS) {
		const unsigned which = i / units;

		if (family == CUDA_FAMILY_PANEL)
			stage_piece(p, which ? &p->b : &p->a, slot, first, col, bits, i % units, s, which);
		else
			stage_chunk(p, which ? &p->b : &p->a, slot, first, col, family, i % units, s, which);
	}
	for (i = tid; i < CUDA_PREFILL_ROWS * groups * matrices; i += PREFILL_THREADS) {
		const unsigned which = i / (CUDA_PREFILL_ROWS * groups);

		stage_scales(p, which ? &p->b : &p->a, slot, first, col, bits, i % (CUDA_PREFILL_ROWS * groups), s,
			     which);
	}
}

/* Adds the integer sums of one group, which meet their scales. */
FUNC void add_scaled(const struct cuda_product *p, const struct prefill_step *s, unsigned which, unsigned half,
		     unsigned row0, unsigned pair0, unsigned lane, const int32_t *dots, float *sums)
{
	unsigned e;

	UNROLL
	for (e = 0; e < 4; e++) {
		const unsigned row = row0 + mma_row(lane, e), pair = pair0 + mma_token(lane, e);
		const float by = s->x_scale[half][pair];
		const int32_t x_sum = s->x_sum[half][pair];

		sums[e] = fmaf(s->scale[which][half][row] * by, (float)(dots[e] - s->zero[which][half][row] * x_sum),
			       sums[e]);
		if (p->spec.zero >= MOE_ZERO_F16)
			sums[e] = fmaf(s->minimum[which][half][row] * by, (float)x_sum, sums[e]);
	}
}

/* One step of one tile of 16 rows and 8 pairs. */
FUNC void multiply(const struct cuda_product *p, const struct prefill_step *s, unsigned family, unsigned which,
		   unsigned row0, unsigned pair0, unsigned lane, unsigned n, struct prefill_sums *sums)
{
	const uint32_t *a = s->weights[which] + row0 * PREFILL_PITCH, *b = s->x + pair0 * PREFILL_PITCH;
	unsigned half;

	if (family == CUDA_FAMILY_INT8) {
		mma_s8_k32(sums->i[which][n], a, b, PREFILL_PITCH, lane);
	} else if (family == CUDA_FAMILY_PANEL && p->block == 32) {
		int32_t dots[4] = {0, 0, 0, 0};

		mma_s8_k32(dots, a, b, PREFILL_PITCH, lane);
		add_scaled(p, s, which, 0, row0, pair0, lane, dots, sums->f[which][n]);
	} else if (family == CUDA_FAMILY_PANEL) {
		for (half = 0; half < 2; half++) {
			int32_t dots[4] = {0, 0, 0, 0};

			mma_s8_k16(dots, a + 4 * half, b + 4 * half, PREFILL_PITCH, lane);
			add_scaled(p, s, which, half, row0, pair0, lane, dots, sums->f[which][n]);
		}
	} else {
		float *to = family == CUDA_FAMILY_FP8 ? sums->part[which][n] : sums->f[which][n];

		UNROLL
		for (half = 0; half < 2; half++)
			mma_half_k16(to, a + 8 * half, b + 8 * half, PREFILL_PITCH, lane, family != CUDA_FAMILY_F16);
	}
}

/* E4M3: the end of 128 columns, or of all: their sums meet the scale of the tile that they and the row are in. */
FUNC void fold(const struct cuda_product *p, const struct cuda_matrix *m, uint64_t slot, uint32_t row0, uint32_t col,
	       unsigned which, struct prefill_sums *sums)
{
	float scale = 1;
	unsigned n, e;

	if (m->scales != CUDA_ABSENT && row0 < p->rows)
		scale = load_float(slot + m->scales + row0 / MOE_PANEL_ROWS * m->scale_pitch + col / 128 * 4);
	UNROLL
	for (n = 0; n < PREFILL_TILES; n++)
		UNROLL
	for (e = 0; e < 4; e++) {
		sums->f[which][n][e] = fmaf(scale, sums->part[which][n][e], sums->f[which][n][e]);
		sums->part[which][n][e] = 0;
	}
}

/* The product of a row and a pair, with what belongs to either. */
FUNC float prefill_result(const struct cuda_matrix *m, uint64_t slot, uint32_t row, uint64_t x, unsigned family,
			  float sum, int32_t dot)
{
	float by = family == CUDA_FAMILY_INT8 || family == CUDA_FAMILY_F16 ? load_float(x) : 1;

	if (m->row_scales != CUDA_ABSENT)
		by *= load_float(slot + m->row_scales + 4 * (uint64_t)row);
	sum = (family == CUDA_FAMILY_INT8 ? (float)dot : sum) * by;
	return m->bias != CUDA_ABSENT ? sum + load_float(slot + m->bias + 4 * (uint64_t)row) : sum;
}

FUNC void finish(const struct cuda_product *p, const struct cuda_item *item, const uint64_t *x, uint32_t first,
		 unsigned family, unsigned matrices, unsigned tid, const struct prefill_sums *sums)
{
	const unsigned lane = tid % 32, row0 = tid / 32 % 4 * MMA_ROWS, pair0 = tid / 128 * 32;
	const uint32_t *order = (const uint32_t *)(uintptr_t)p->order;
	float *y = (float *)(uintptr_t)p->y;
	unsigned n, e;

	UNROLL
	for (n = 0; n < PREFILL_TILES; n++)
		UNROLL
	for (e = 0; e < 4; e++) {
		const uint32_t row = first + row0 + mma_row(lane, e);
		const uint32_t pair = pair0 + n * MMA_TOKENS + mma_token(lane, e), at = item->first + pair;
		float a, b;

		if (row >= p->rows || pair >= item->count)
			continue;
		a = prefill_result(&p->a, item->slot, row, x[pair], family, sums->f[0][n][e], sums->i[0][n][e]);
		if (matrices == 1) {
			y[(uint64_t)order[at] * p->rows + row] = a;
			continue;
		}
		b = prefill_result(&p->b, item->slot, row, x[pair], family, sums->f[1][n][e], sums->i[1][n][e]);
		y[(uint64_t)at * p->rows + row] = gated(p->activation, p->limit, a, b);
	}
}

FUNC void prefill(const struct cuda_product *p, unsigned family, unsigned bits, unsigned matrices)
{
	SHARED(struct prefill_step, step);
	SHARED(uint64_t, x)[CUDA_PREFILL_PAIRS];
	PER_THREAD(struct prefill_sums, sums);
	const uint32_t index = BLOCK_INDEX / p->tiles, first = BLOCK_INDEX % p->tiles * CUDA_PREFILL_ROWS;
	const struct cuda_item *item = (const struct cuda_item *)(uintptr_t)p->items + index;
	const uint32_t *order = (const uint32_t *)(uintptr_t)p->order;
	uint32_t col;

	if (index >= ((const struct cuda_counts *)(uintptr_t)p->counts)->n_items)
		return;
	EACH_THREAD(tid)
	{
		const uint32_t at = item->first + tid;

		memset(&OWN(sums), 0, sizeof OWN(sums));
		if (tid < item->count)
			x[tid] = p->x + (matrices > 1 ? order[at] / p->topk : at) * p->x_pitch;
	}
	BARRIER();
	for (col = 0; col < p->cols; col += PREFILL_STEP) {
		EACH_THREAD(tid)
		{
			stage(p, item->slot, first, col, family, bits, matrices, tid, &step);
			stage_x(p, x, item->count, col, family, tid, &step);
		}
		BARRIER();
		EACH_THREAD(tid)
		{
			const unsigned lane = tid % 32, row0 = tid / 32 % 4 * MMA_ROWS, pair0 = tid / 128 * 32;
			unsigned n, m;

			UNROLL
			for (m = 0; m < matrices; m++)
				UNROLL
			for (n = 0; n < PREFILL_TILES; n++)
				if (pair0 + n * MMA_TOKENS < item->count)
					multiply(p, &step, family, m, row0, pair0 + n * MMA_TOKENS, lane, n,
						 &OWN(sums));
			if (family == CUDA_FAMILY_FP8 && (col % 128 == 96 || col + PREFILL_STEP >= p->cols))
				UNROLL
			for (m = 0; m < matrices; m++)
				fold(p, m ? &p->b : &p->a, item->slot, first + row0, col, m, &OWN(sums));
		}
		BARRIER();
	}
	EACH_THREAD(tid)
	{
		finish(p, item, x, first, family, matrices, tid, &OWN(sums));
	}
}

CUDA_VARIANTS(PRODUCT, prefill, PREFILL_THREADS)
