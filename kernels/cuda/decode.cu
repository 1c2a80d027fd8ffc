/* SPDX-License-Identifier: MIT */
/*
 * decode - matrices times the vectors of few tokens, at the speed at which the weights come.
 *
 * A block has two bands of 16 rows, of gate and of up, or of down, and up to CUDA_DECODE_PAIRS pairs, for which each
 * weight is read once. A thread has four rows of a band, of every 32nd piece of their columns: of a panel a block of 32
 * columns, of plain rows 16 bytes. The next piece is on its way while one is multiplied; what a piece needs of the
 * activations and of the scales is brought once for its four rows. Panels and 8-bit integers are integer dot products
 * with packed activations (PACK_I8_BLOCK, PACK_I8_ROW), all others float ones with the activations themselves. Sums are
 * in a fixed order.
 */
#include "kernels/cuda/weights.h"

#define DECODE_THREADS 256
#define DECODE_BANDS 2
#define DECODE_LANES 32 /* threads that share the columns of four rows */
#define DECODE_FEW 8    /* sums that are left of a row's before the last addition */
#define DECODE_LINE(bytes) (((uint64_t)(bytes) + 63) & ~(uint64_t)63)

struct decode_sums {
	float f[CUDA_DECODE_PAIRS][PIECE_ROWS];
	int32_t i[CUDA_DECODE_PAIRS][PIECE_ROWS];
};

/* Where a band of 16 rows begins, and how many of them exist. */
struct decode_band {
	uint64_t codes, scales, pitch;
	uint32_t rows;
};

/* The codes of a piece, as they lie in memory. */
struct decode_codes {
	struct words4 w[8];
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

/* The block's band number `which` of an item. */
FUNC struct decode_band band_of(const struct cuda_product *p, const struct cuda_item *item, unsigned family,
				unsigned matrices, uint32_t first, unsigned which)
{
	const struct cuda_matrix m = matrix_of(p, item, matrices, matrices > 1 ? which : 0);
	struct decode_band b = {0, 0, 0, 0};
	uint32_t rows, begin;

	rows = rows_of(p, item, matrices, &begin);
	first += matrices > 1 ? 0 : which * CUDA_DECODE_ROWS;
	if (first >= rows)
		return b;
	b.pitch = m.pitch;
	b.codes = item->slot + m.codes +
		  (uint64_t)(family == CUDA_FAMILY_PANEL ? first / CUDA_DECODE_ROWS : first) * m.pitch;
	if (m.scales != CUDA_ABSENT)
		b.scales = item->slot + m.scales + (uint64_t)(first / CUDA_DECODE_ROWS) * m.scale_pitch;
	b.rows = rows - first < CUDA_DECODE_ROWS ? rows - first : CUDA_DECODE_ROWS;
	return b;
}

/* Columns of a piece. */
FUNC unsigned piece_columns(unsigned family)
{
	return family == CUDA_FAMILY_PANEL ? 32 : family == CUDA_FAMILY_BF16 || family == CUDA_FAMILY_F16 ? 8 : 16;
}

FUNC void piece_fetch(struct decode_codes *ret, const struct cuda_product *p, const struct decode_band *b,
		      unsigned family, unsigned bits, uint32_t piece, unsigned quad)
{
	const uint64_t block = b->codes + (uint64_t)piece * 64 * bits + 16 * quad;
	const unsigned width = piece_columns(family), bytes = 16 / width;
	const uint32_t col = piece * width, n = p->cols - col < width ? p->cols - col : width;
	unsigned i;

	if (family == CUDA_FAMILY_PANEL) {
		UNROLL
		for (i = 0; i < bits; i++)
			ret->w[i] = load_words4(block + 64 * i);
		return;
	}
	UNROLL
	for (i = 0; i < PIECE_ROWS; i++) {
		const unsigned row = PIECE_ROWS * quad + i;

		ret->w[i] = load_bytes16(b->codes + row * b->pitch + (uint64_t)col * bytes,
					 row < b->rows ? n * bytes : 0);
	}
}

/* Adds the integer sums of a group's columns, which meet their scales. */
FUNC void add_group(const struct cuda_product *p, const struct piece_scales *s, float by, int32_t x_sum, int32_t *dot,
		    float *sums)
{
	unsigned i;

	UNROLL
	for (i = 0; i < PIECE_ROWS; i++) {
		sums[i] = fmaf(s->scale[i] * by, (float)(dot[i] - s->zero[i] * x_sum), sums[i]);
		if (p->spec.zero >= MOE_ZERO_F16)
			sums[i] = fmaf(s->minimum[i] * by, (float)x_sum, sums[i]);
		dot[i] = 0;
	}
}

/* A block of 32 columns of a panel, four rows of it, times all pairs. */
FUNC void panel_piece(const struct cuda_product *p, const struct decode_band *b, const struct decode_codes *codes,
		      const uint64_t *x, uint32_t count, unsigned bits, uint32_t piece, unsigned quad,
		      struct decode_sums *sums)
{
	const uint64_t line = DECODE_LINE(p->cols), lines = DECODE_LINE(p->cols / p->block * 4);
	const uint64_t x_scales = line + (uint64_t)piece * 32 / p->block * 4;
	const int two = p->block == 16; /* groups */
	struct piece_scales s[2];
	struct piece w[4];
	unsigned i, j, k, half, group;
	uint64_t scales;

	UNROLL
	for (half = 0; half < 2; half++) {
		s[half] = s[0];
		if (half == 1 && !two)
			continue;
		scales = scale_block(&p->spec, b->scales, piece * 32 + 16 * half, &group);
		quad_scales(&s[half], &p->spec, scales, quad, group, bits);
	}
	UNROLL
	for (j = 0; j < 4; j++)
		piece_values(&w[j], codes->w, bits, p->spec.code, j);
	UNROLL
	for (k = 0; k < CUDA_DECODE_PAIRS; k++) {
		int32_t dot[PIECE_ROWS] = {0, 0, 0, 0};

		if (k >= count)
			continue;
		UNROLL
		for (half = 0; half < 2; half++) {
			const struct words4 v = load_shared_words4(x[k] + piece * 32 + 16 * half);
			const uint64_t at = x[k] + x_scales + (two ? 4 * half : 0);

			UNROLL
			for (i = 0; i < PIECE_ROWS; i++) {
				dot[i] = dot4(w[2 * half].low[i], v.w[0], dot4(w[2 * half].high[i], v.w[1], dot[i]));
				dot[i] = dot4(w[2 * half + 1].low[i], v.w[2],
					      dot4(w[2 * half + 1].high[i], v.w[3], dot[i]));
			}
			if (half == 1 || two)
				add_group(p, &s[half], load_float(at), (int32_t)load_u32(at + lines), dot, sums->f[k]);
		}
	}
}

/* Four of the columns that word `at` and those behind it have of a plain row, as floats. */
FUNC void four_weights(float *ret, const struct words4 *w, unsigned family, unsigned at)
{
	unsigned i;

	if (family == CUDA_FAMILY_FP8) {
		floats_of_e4m3(ret, w->w[at]);
		return;
	}
	UNROLL
	for (i = 0; i < 4; i++) {
		const uint32_t bits = w->w[2 * at + i / 2] >> i % 2 * 16 & 0xffff;

		ret[i] = family == CUDA_FAMILY_BF16 ? float_of_bf16(bits) : float_of_f16(bits);
	}
}

/* Sixteen bytes of four plain rows of floats times all pairs. */
FUNC void float_piece(const struct cuda_product *p, const struct decode_band *b, const struct decode_codes *codes,
		      const uint64_t *x, uint32_t count, unsigned family, uint32_t piece, struct decode_sums *sums)
{
	const unsigned width = piece_columns(family);
	const uint32_t col = piece * width;
	const float scale = family == CUDA_FAMILY_FP8 && b->scales ? load_float(b->scales + col / 128 * 4) : 1;
	float part[CUDA_DECODE_PAIRS][PIECE_ROWS], w[PIECE_ROWS][4], a[4];
	unsigned i, j, k, c;

	memset(part, 0, sizeof part);
	UNROLL
	for (j = 0; j < width; j += 4) {
		UNROLL
		for (i = 0; i < PIECE_ROWS; i++)
			four_weights(w[i], &codes->w[i], family, j / 4);
		UNROLL
		for (k = 0; k < CUDA_DECODE_PAIRS; k++) {
			if (k >= count)
				continue;
			load_floats4(a, x[k] + 4 * (uint64_t)(col + j), p->cols - col > j ? p->cols - col - j : 0);
			UNROLL
			for (i = 0; i < PIECE_ROWS; i++) {
				float *to = family == CUDA_FAMILY_FP8 ? &part[k][i] : &sums->f[k][i];

				UNROLL
				for (c = 0; c < 4; c++)
					*to = fmaf(w[i][c], a[c], *to);
			}
		}
	}
	if (family != CUDA_FAMILY_FP8)
		return;
	UNROLL
	for (k = 0; k < CUDA_DECODE_PAIRS; k++)
		UNROLL
	for (i = 0; i < PIECE_ROWS; i++)
		if (k < count)
			sums->f[k][i] = fmaf(scale, part[k][i] * E4M3_UNIT, sums->f[k][i]);
}

/* The same of signed bytes. Rows of activations are filled up with zeros. */
FUNC void int8_piece(const struct decode_codes *codes, const uint64_t *x, uint32_t count, uint32_t piece,
		     struct decode_sums *sums)
{
	unsigned i, j, k;

	UNROLL
	for (k = 0; k < CUDA_DECODE_PAIRS; k++) {
		if (k < count) {
			const struct words4 v = load_shared_words4(x[k] + 64 + piece * 16);

			UNROLL
			for (i = 0; i < PIECE_ROWS; i++)
				UNROLL
			for (j = 0; j < 4; j++)
				sums->i[k][i] = dot4(codes->w[i].w[j], v.w[j], sums->i[k][i]);
		}
	}
}

/* A thread's pieces; the first one has been fetched. */
FUNC void all_pieces(const struct cuda_product *p, const struct decode_band *b, struct decode_codes *codes,
		     const uint64_t *x, uint32_t count, unsigned family, unsigned bits, unsigned lane, unsigned quad,
		     struct decode_sums *sums)
{
	const uint32_t width = piece_columns(family), pieces = b->rows ? (p->cols + width - 1) / width : 0;
	const int ahead = family != CUDA_FAMILY_PANEL || bits < 6; /* others have no registers left for it */
	uint32_t piece;

	for (piece = lane; piece < pieces; piece += DECODE_LANES) {
		struct decode_codes next = *codes;

		if (ahead && piece + DECODE_LANES < pieces)
			piece_fetch(&next, p, b, family, bits, piece + DECODE_LANES, quad);
		if (family == CUDA_FAMILY_PANEL)
			panel_piece(p, b, codes, x, count, bits, piece, quad, sums);
		else if (family == CUDA_FAMILY_INT8)
			int8_piece(codes, x, count, piece, sums);
		else
			float_piece(p, b, codes, x, count, family, piece, sums);
		if (!ahead && piece + DECODE_LANES < pieces)
			piece_fetch(&next, p, b, family, bits, piece + DECODE_LANES, quad);
		*codes = next;
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

/* What threads have of the rows' sums, and what is left of them. */
struct decode_parts {
	float all[CUDA_DECODE_PAIRS][DECODE_BANDS][DECODE_LANES][CUDA_DECODE_ROWS];
	float few[CUDA_DECODE_PAIRS][DECODE_BANDS][DECODE_FEW][CUDA_DECODE_ROWS];
};

FUNC float last_sum(const struct decode_parts *parts, unsigned k, unsigned band, unsigned row)
{
	float sum = 0;
	unsigned i;

	UNROLL
	for (i = 0; i < DECODE_FEW; i++)
		sum += parts->few[k][band][i][row];
	return sum;
}

/* One row of one pair. */
FUNC void finish_row(const struct cuda_product *p, const struct cuda_item *item, const uint64_t *x, uint32_t first,
		     unsigned family, unsigned matrices, unsigned unit, const struct decode_parts *parts)
{
	const unsigned rows = matrices > 1 ? CUDA_DECODE_ROWS : DECODE_BANDS * CUDA_DECODE_ROWS;
	const unsigned k = unit / rows, band = unit % rows / CUDA_DECODE_ROWS, own = unit % CUDA_DECODE_ROWS;
	const uint32_t *order = (const uint32_t *)(uintptr_t)p->order;
	const uint32_t at = item->first + k, row = first + unit % rows;
	float *y = (float *)(uintptr_t)p->y, by, a, b;
	uint32_t begin;

	if (row >= rows_of(p, item, matrices, &begin))
		return;
	by = family == CUDA_FAMILY_INT8 ? load_float(x[k]) : 1;
	a = row_result(matrix_of(p, item, matrices, 0), item->slot, row, last_sum(parts, k, band, own), by);
	if (matrices == 1) {
		y[(uint64_t)order[at] * p->rows + begin + row] = a;
		return;
	}
	b = row_result(matrix_of(p, item, matrices, 1), item->slot, row, last_sum(parts, k, 1, own), by);
	y[(uint64_t)at * p->rows + begin + row] = gated(p->activation, p->limit, a, b);
}

FUNC void decode(const struct cuda_product *p, unsigned family, unsigned bits, unsigned matrices)
{
	SHARED(struct decode_parts, parts);
	SHARED(uint64_t, x)[CUDA_DECODE_PAIRS];
	PER_THREAD(struct decode_band, band);
	PER_THREAD(struct decode_codes, codes);
	const uint32_t index = BLOCK_INDEX / p->tiles;
	const uint32_t first = BLOCK_INDEX % p->tiles * CUDA_DECODE_ROWS * (matrices > 1 ? 1 : DECODE_BANDS);
	const struct cuda_item *item = (const struct cuda_item *)(uintptr_t)p->items + index;

	if (index >= ((const struct cuda_counts *)(uintptr_t)p->counts)->n_items)
		return;
	EACH_THREAD(tid)
	{
		const unsigned quad = tid % 4, lane = tid / 4 % DECODE_LANES;
		const uint32_t *order = (const uint32_t *)(uintptr_t)p->order;
		const uint32_t at = item->first + tid;

		OWN(band) = band_of(p, item, family, matrices, first, tid / (4 * DECODE_LANES));
		if (OWN(band).rows && lane * piece_columns(family) < p->cols)
			piece_fetch(&OWN(codes), p, &OWN(band), family, bits, lane, quad);
		if (tid < item->count)
			x[tid] = p->x + (matrices > 1 ? order[at] / p->topk : at) * p->x_pitch;
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		const unsigned quad = tid % 4, lane = tid / 4 % DECODE_LANES, which = tid / (4 * DECODE_LANES);
		struct decode_sums sums;
		unsigned i, k;

		memset(&sums, 0, sizeof sums);
		all_pieces(p, &OWN(band), &OWN(codes), x, item->count, family, bits, lane, quad, &sums);
		UNROLL
		for (k = 0; k < CUDA_DECODE_PAIRS; k++)
			UNROLL
		for (i = 0; i < PIECE_ROWS; i++)
			parts.all[k][which][lane][PIECE_ROWS * quad + i] = family == CUDA_FAMILY_INT8
										   ? (float)sums.i[k][i]
										   : sums.f[k][i];
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		const unsigned row = tid % CUDA_DECODE_ROWS, few = tid / CUDA_DECODE_ROWS % DECODE_FEW;
		const unsigned which = tid / (CUDA_DECODE_ROWS * DECODE_FEW);
		unsigned i, k;

		UNROLL
		for (k = 0; k < CUDA_DECODE_PAIRS; k++) {
			float sum = 0;

			UNROLL
			for (i = few; i < DECODE_LANES; i += DECODE_FEW)
				sum += parts.all[k][which][i][row];
			parts.few[k][which][few][row] = sum;
		}
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		const unsigned rows = matrices > 1 ? CUDA_DECODE_ROWS : DECODE_BANDS * CUDA_DECODE_ROWS;

		if (tid < item->count * rows)
			finish_row(p, item, x, first, family, matrices, tid, &parts);
	}
}

CUDA_VARIANTS(PRODUCT, decode, DECODE_THREADS)
