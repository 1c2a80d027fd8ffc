/* SPDX-License-Identifier: MIT */
/*
 * decode - matrices times the vectors of few tokens, at the speed at which the weights come.
 *
 * A block has 16 rows of one or two matrices, and up to CUDA_DECODE_PAIRS pairs, for which each weight is read once, in
 * pieces of 16 bytes: of panels 16 threads have a block of 32 columns; of plain rows 16 threads have a row. Panels and
 * 8-bit integers are integer dot products with packed activations (PACK_I8_BLOCK, PACK_I8_ROW), all others float ones
 * with the activations themselves. Sums are in a fixed order.
 */
#include "kernels/cuda/weights.h"

#define DECODE_THREADS 256
#define DECODE_LANES 16 /* of a row, or of a block of a panel */
#define DECODE_LINE(bytes) (((uint64_t)(bytes) + 63) & ~(uint64_t)63)

struct decode_sums {
	float f[2][CUDA_DECODE_PAIRS][PIECE_ROWS]; /* plain rows: of row 0 only */
	int32_t i[2][CUDA_DECODE_PAIRS];
};

/* Where one matrix's tile of 16 rows begins. */
struct decode_tile {
	uint64_t codes, scales, pitch;
	uint32_t rows; /* of the 16 that exist */
};

/* Where an item's rows are: a slot has all of them. */
FUNC struct cuda_matrix matrix_of(const struct cuda_product *p, const struct cuda_item *item, unsigned matrices,
				  unsigned which)
{
	if (item->share)
		return ((const struct cuda_share *)(uintptr_t)p->shares)[item->share - 1]
			.part[matrices > 1 ? which : 2];
	return which ? p->b : p->a;
}

/* Of the product's rows. */
FUNC uint32_t rows_of(const struct cuda_product *p, const struct cuda_item *item, unsigned matrices,
		      uint32_t *ret_first)
{
	const struct cuda_share *share;

	*ret_first = 0;
	if (item->share == 0)
		return p->rows;
	share = (const struct cuda_share *)(uintptr_t)p->shares + item->share - 1;
	*ret_first = share->first[matrices > 1 ? 0 : 1];
	return share->rows[matrices > 1 ? 0 : 1];
}

FUNC struct decode_tile tile_of(const struct cuda_matrix m, uint64_t slot, uint32_t first, uint32_t rows, int panel)
{
	struct decode_tile t;

	t.pitch = m.pitch;
	t.codes = slot + m.codes + (uint64_t)(panel ? first / CUDA_DECODE_ROWS : first) * m.pitch;
	t.scales = m.scales == CUDA_ABSENT ? 0
					   : slot + m.scales + (uint64_t)(first / CUDA_DECODE_ROWS) * m.scale_pitch;
	t.rows = rows - first < CUDA_DECODE_ROWS ? rows - first : CUDA_DECODE_ROWS;
	return t;
}

/* One block of 32 columns of a panel, this thread's piece of it, times all pairs. */
FUNC void panel_block(const struct cuda_product *p, const struct decode_tile *t, const uint64_t *x, uint32_t count,
		      unsigned bits, uint32_t block, unsigned lane, float sums[CUDA_DECODE_PAIRS][PIECE_ROWS])
{
	const unsigned j = lane / 4, q = lane % 4, col = block * 32 + j * 8;
	const uint64_t x_scale = DECODE_LINE(p->cols) + col / p->block * 4;
	struct piece w;
	struct piece_scales s;
	unsigned i, k, group;
	const uint64_t scales = scale_block(&p->spec, t->scales, col, &group);

	piece_load(&w, t->codes + (uint64_t)block * 64 * bits, bits, p->spec.code, j, q);
	UNROLL
	for (i = 0; i < PIECE_ROWS; i++)
		row_scales(&p->spec, scales, 4 * q + i, group, bits, &s.scale[i], &s.minimum[i], &s.zero[i]);
	UNROLL
	for (k = 0; k < CUDA_DECODE_PAIRS; k++) {
		if (k < count) {
			const float by = load_float(x[k] + x_scale);
			uint32_t low, high;
			int32_t sum;

			load_words2(x[k] + col, &low, &high);
			sum = dot4(low, 0x01010101, dot4(high, 0x01010101, 0));
			UNROLL
			for (i = 0; i < PIECE_ROWS; i++) {
				const int32_t dot = dot4(w.low[i], low, dot4(w.high[i], high, 0));

				sums[k][i] = fmaf(s.scale[i] * by, (float)(dot - s.zero[i] * sum), sums[k][i]);
				if (p->spec.zero >= MOE_ZERO_F16)
					sums[k][i] = fmaf(s.minimum[i] * by, (float)sum, sums[k][i]);
			}
		}
	}
}

/* Sixteen bytes of a plain row, of which n columns exist, as floats. */
FUNC float weight_of(const struct words4 *w, unsigned family, unsigned i)
{
	if (family == CUDA_FAMILY_BF16)
		return float_of_bf16(w->w[i / 2] >> i % 2 * 16 & 0xffff);
	if (family == CUDA_FAMILY_F16)
		return float_of_f16(w->w[i / 2] >> i % 2 * 16 & 0xffff);
	return float_of_e4m3(w->w[i / 4] >> i % 4 * 8 & 0xff);
}

/* n of `width` activations; the others are zero. */
FUNC void load_floats(float *ret, uint64_t address, unsigned width, unsigned n)
{
	unsigned i;

	if (n == width && address % 16 == 0) {
		UNROLL
		for (i = 0; i < width; i += 4) {
			const struct words4 w = load_shared_words4(address + 4 * i);

			ret[i] = float_of(w.w[0]);
			ret[i + 1] = float_of(w.w[1]);
			ret[i + 2] = float_of(w.w[2]);
			ret[i + 3] = float_of(w.w[3]);
		}
		return;
	}
	UNROLL
	for (i = 0; i < width; i++)
		ret[i] = i < n ? load_float(address + 4 * i) : 0;
}

FUNC void row_chunk(const struct cuda_product *p, const struct decode_tile *t, const uint64_t *x, uint32_t count,
		    unsigned family, uint32_t col, unsigned row, struct decode_sums *sums, unsigned m)
{
	const unsigned width = family == CUDA_FAMILY_BF16 || family == CUDA_FAMILY_F16 ? 8 : 16, bytes = 16 / width;
	const unsigned n = p->cols - col < width ? p->cols - col : width;
	const struct words4 w = load_bytes16(t->codes + row * t->pitch + (uint64_t)col * bytes, n * bytes);
	const float scale = family == CUDA_FAMILY_FP8 && t->scales ? load_float(t->scales + col / 128 * 4) : 1;
	unsigned i, k;

	UNROLL
	for (k = 0; k < CUDA_DECODE_PAIRS; k++) {
		if (k < count) {
			float part = family == CUDA_FAMILY_FP8 ? 0 : sums->f[m][k][0], a[16];

			if (family == CUDA_FAMILY_INT8) {
				const struct words4 v = load_shared_words4(x[k] + 64 + col);

				UNROLL
				for (i = 0; i < 4; i++)
					sums->i[m][k] = dot4(w.w[i], v.w[i], sums->i[m][k]);
				continue;
			}
			load_floats(a, x[k] + 4 * (uint64_t)col, width, n);
			UNROLL
			for (i = 0; i < width; i++)
				part = fmaf(weight_of(&w, family, i), a[i], part);
			sums->f[m][k][0] = family == CUDA_FAMILY_FP8 ? fmaf(scale, part, sums->f[m][k][0]) : part;
		}
	}
}

/* A row's sum with what belongs to the row. */
FUNC float row_result(const struct cuda_matrix m, uint64_t slot, uint32_t row, float sum, float by)
{
	if (m.row_scales != CUDA_ABSENT)
		sum *= load_float(slot + m.row_scales + 4 * row) * by;
	if (m.bias != CUDA_ABSENT)
		sum += load_float(slot + m.bias + 4 * row);
	return sum;
}

FUNC void decode(const struct cuda_product *p, unsigned family, unsigned bits, unsigned matrices)
{
	SHARED(float, part)[2][DECODE_THREADS * PIECE_ROWS];
	SHARED(float, chunk)[2][DECODE_LANES][CUDA_DECODE_ROWS];
	SHARED(uint64_t, x)[CUDA_DECODE_PAIRS];
	PER_THREAD(struct decode_sums, sums);
	const uint32_t index = BLOCK_INDEX / p->tiles, first = BLOCK_INDEX % p->tiles * CUDA_DECODE_ROWS;
	const struct cuda_item *item = (const struct cuda_item *)(uintptr_t)p->items + index;
	const uint32_t *order = (const uint32_t *)(uintptr_t)p->order;
	const int panel = family == CUDA_FAMILY_PANEL;
	struct decode_tile tile[2];
	uint32_t k, rows, begin;

	if (index >= ((const struct cuda_counts *)(uintptr_t)p->counts)->n_items)
		return;
	rows = rows_of(p, item, matrices, &begin);
	if (first >= rows)
		return;
	tile[0] = tile_of(matrix_of(p, item, matrices, 0), item->slot, first, rows, panel);
	tile[1] = tile_of(matrix_of(p, item, matrices, matrices > 1), item->slot, first, rows, panel);
	EACH_THREAD(tid)
	{
		const uint32_t at = item->first + tid;

		if (tid < item->count)
			x[tid] = p->x + (matrices > 1 ? order[at] / p->topk : at) * p->x_pitch;
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		const unsigned lane = tid % DECODE_LANES, other = tid / DECODE_LANES;
		const unsigned width = family == CUDA_FAMILY_BF16 || family == CUDA_FAMILY_F16 ? 8 : 16;

		memset(&OWN(sums), 0, sizeof OWN(sums));
		if (panel)
			for (uint32_t b = other; b < p->cols / 32; b += DECODE_THREADS / DECODE_LANES)
				UNROLL
		for (unsigned m = 0; m < matrices; m++)
			panel_block(p, &tile[m], x, item->count, bits, b, lane, OWN(sums).f[m]);
		else if (other < tile[0].rows) for (uint32_t c = lane * width; c < p->cols; c += DECODE_LANES * width)
			UNROLL for (unsigned m = 0; m < matrices; m++)
				row_chunk(p, &tile[m], x, item->count, family, c, other, &OWN(sums), m);
	}
	UNROLL
	for (k = 0; k < CUDA_DECODE_PAIRS; k++) {
		if (k >= item->count)
			break;
		EACH_THREAD(tid)
		{
			UNROLL
			for (unsigned m = 0; m < matrices; m++) {
				if (panel)
					memcpy(&part[m][tid * PIECE_ROWS], OWN(sums).f[m][k], sizeof OWN(sums).f[m][k]);
				else
					chunk[m][tid % DECODE_LANES][tid / DECODE_LANES] =
						family == CUDA_FAMILY_INT8 ? (float)OWN(sums).i[m][k]
									   : OWN(sums).f[m][k][0];
			}
		}
		BARRIER();
		if (panel) {
			EACH_THREAD(tid)
			{
				const unsigned row = tid % CUDA_DECODE_ROWS, other = tid / CUDA_DECODE_ROWS;

				for (unsigned m = 0; m < matrices; m++) {
					float sum = 0;

					for (unsigned j = 0; j < 4; j++)
						sum += part[m][(other * DECODE_LANES + j * 4) * PIECE_ROWS + row];
					chunk[m][other][row] = sum;
				}
			}
			BARRIER();
		}
		EACH_THREAD(tid)
		{
			const uint32_t at = item->first + k, row = first + tid;
			float sum[2] = {0, 0};
			const float by = family == CUDA_FAMILY_INT8 ? load_float(x[k]) : 1;

			if (tid >= tile[0].rows)
				continue;
			for (unsigned m = 0; m < matrices; m++) {
				for (unsigned i = 0; i < DECODE_LANES; i++)
					sum[m] += chunk[m][i][tid];
				sum[m] = row_result(matrix_of(p, item, matrices, m), item->slot, row, sum[m], by);
			}
			if (matrices > 1)
				((float *)(uintptr_t)p->y)[(uint64_t)at * p->rows + begin + row] = gated(
					p->activation, p->limit, sum[0], sum[1]);
			else
				((float *)(uintptr_t)p->y)[(uint64_t)order[at] * p->rows + begin + row] = sum[0];
		}
		BARRIER();
	}
}

CUDA_VARIANTS(PRODUCT, decode, DECODE_THREADS)
