/* SPDX-License-Identifier: MIT */
/*
 * decode - matrices times the vectors of few tokens, at the speed at which the weights come.
 *
 * A block has two bands of 16 rows, of gate and of up, or of down, and up to CUDA_DECODE_PAIRS pairs, for which each
 * weight is read once. A thread has two rows of a band, of every 16th piece of their columns: of a panel a block of 32
 * columns, of plain rows 16 bytes. The next piece is on its way while one is multiplied, and few registers are needed
 * for a thread, so that many of them wait for memory at a time. Panels and 8-bit integers are integer dot products
 * with packed activations (PACK_I8_BLOCK, PACK_I8_ROW), all others float ones with the activations themselves. Sums are
 * in a fixed order.
 */
#include "kernels/cuda/weights.h"

#define DECODE_THREADS 256
#define DECODE_BANDS 2
#define DECODE_EACH 2                                              /* rows of a thread */
#define DECODE_SIDE (CUDA_DECODE_ROWS / DECODE_EACH)               /* threads side by side in a band */
#define DECODE_LANES (DECODE_THREADS / DECODE_BANDS / DECODE_SIDE) /* threads that share the columns of their rows */
#define DECODE_LINE(bytes) (((uint64_t)(bytes) + 63) & ~(uint64_t)63)

struct decode_sums {
	float f[CUDA_DECODE_PAIRS][DECODE_EACH];
	int32_t i[CUDA_DECODE_PAIRS][DECODE_EACH];
};

/* Where a band of 16 rows begins, and how many of them exist. */
struct decode_band {
	uint64_t codes, scales, pitch;
	uint32_t rows;
};

/* A piece as it lies in memory: codes, of a panel each 64 bytes' own 8, of plain rows 16 bytes each; and scales, of E4M3
 * in the first word. */
struct decode_codes {
	uint32_t w[8][DECODE_EACH];
	struct raw_scales scales[2]; /* of each group of columns */
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

/* What a panel's codes and scales are. Where it is known when the kernel is compiled, nothing is asked on the way. */
struct decode_kind {
	struct cuda_spec spec;
	int two; /* groups in 32 columns, so that activations have two scales there */
};

/* Of a block of a panel. */
FUNC void panel_fetch(struct decode_codes *ret, const struct decode_kind *kind, const struct decode_band *b,
		      unsigned bits, uint32_t piece, unsigned side)
{
	const uint64_t block = b->codes + (uint64_t)piece * 64 * bits + 4 * DECODE_EACH * side;
	unsigned i, group;

	UNROLL
	for (i = 0; i < bits; i++)
		load_once2(block + 64 * i, ret->w[i]);
	UNROLL
	for (i = 0; i < 2; i++)
		if (i == 0 || kind->two) {
			const uint64_t at = scale_block(&kind->spec, b->scales, piece * 32 + 16 * i, &group);

			two_scales_fetch(&ret->scales[i], &kind->spec, at, DECODE_EACH * side, group);
		}
}

FUNC void piece_fetch(struct decode_codes *ret, const struct cuda_product *p, const struct decode_kind *kind,
		      const struct decode_band *b, unsigned family, unsigned bits, uint32_t piece, unsigned side)
{
	const unsigned width = piece_columns(family), bytes = 16 / width;
	const uint32_t col = piece * width, n = p->cols - col < width ? p->cols - col : width;
	unsigned i, j;

	if (family == CUDA_FAMILY_PANEL) {
		panel_fetch(ret, kind, b, bits, piece, side);
		return;
	}
	UNROLL
	for (i = 0; i < DECODE_EACH; i++) {
		const unsigned row = DECODE_EACH * side + i;
		const struct words4 w = load_bytes16(b->codes + row * b->pitch + (uint64_t)col * bytes,
						     row < b->rows ? n * bytes : 0);

		UNROLL
		for (j = 0; j < 4; j++)
			ret->w[j][i] = w.w[j];
	}
	if (family == CUDA_FAMILY_FP8)
		ret->scales[0].scale = b->scales ? load_u32(b->scales + col / 128 * 4) : 0x3f800000;
}

/* Adds the integer sums of a group's columns, which meet their scales. */
FUNC void add_group(const struct cuda_spec *spec, const struct two_scales *s, float by, int32_t x_sum, int32_t *dot,
		    float *sums)
{
	unsigned i;

	UNROLL
	for (i = 0; i < DECODE_EACH; i++) {
		sums[i] = fmaf(s->scale[i] * by, (float)(dot[i] - s->zero[i] * x_sum), sums[i]);
		if (spec->zero >= MOE_ZERO_F16)
			sums[i] = fmaf(s->minimum[i] * by, (float)x_sum, sums[i]);
		dot[i] = 0;
	}
}

/* Half a block of 32 columns of a panel times all pairs: integer sums. */
FUNC void panel_half(unsigned code, const struct decode_codes *codes, const uint64_t *x, unsigned pairs, unsigned bits,
		     uint32_t piece, unsigned half, int32_t dots[CUDA_DECODE_PAIRS][DECODE_EACH])
{
	uint32_t low[2][DECODE_EACH], high[2][DECODE_EACH];
	unsigned i, j, k;

	UNROLL
	for (j = 0; j < 2; j++)
		UNROLL
	for (i = 0; i < DECODE_EACH; i++) {
		const unsigned part = 2 * half + j;

		codes_of_word(&low[j][i], &high[j][i], codes->w[bits == 8 ? 2 * part : part][i],
			      codes->w[more_codes(bits, part)][i], bits, code, part);
	}
	UNROLL
	for (k = 0; k < pairs; k++) {
		const struct words4 v = load_shared_words4(x[k] + piece * 32 + 16 * half);

		UNROLL
		for (i = 0; i < DECODE_EACH; i++)
			UNROLL
		for (j = 0; j < 2; j++)
			dots[k][i] = dot4(low[j][i], v.w[2 * j], dot4(high[j][i], v.w[2 * j + 1], dots[k][i]));
	}
}

/* A block of 32 columns of a panel times all pairs. */
FUNC void panel_piece(const struct cuda_product *p, const struct decode_kind *kind, const struct decode_codes *codes,
		      const uint64_t *x, unsigned pairs, unsigned bits, uint32_t piece, struct decode_sums *sums)
{
	const uint64_t line = DECODE_LINE(p->cols), lines = DECODE_LINE(p->cols / (kind->two ? 16 : 32) * 4);
	const int two = kind->two;
	int32_t dots[CUDA_DECODE_PAIRS][DECODE_EACH];
	struct two_scales s;
	unsigned k, half;

	memset(dots, 0, sizeof dots);
	UNROLL
	for (half = 0; half < 2; half++) {
		panel_half(kind->spec.code, codes, x, pairs, bits, piece, half, dots);
		if (half == 0 && !two)
			continue;
		two_scales_of(&s, &kind->spec, two && half ? &codes->scales[1] : &codes->scales[0], bits);
		UNROLL
		for (k = 0; k < pairs; k++) {
			const uint64_t at = x[k] + line + 4 * (two ? 2 * piece + half : piece);

			add_group(&kind->spec, &s, load_float(at), (int32_t)load_u32(at + lines), dots[k], sums->f[k]);
		}
	}
}

/* Columns 4 at .. 4 at + 3 of a piece of a plain row, as floats. */
FUNC void four_weights(float *ret, const struct decode_codes *codes, unsigned row, unsigned family, unsigned at)
{
	unsigned i;

	if (family == CUDA_FAMILY_FP8) {
		floats_of_e4m3(ret, codes->w[at][row]);
		return;
	}
	UNROLL
	for (i = 0; i < 4; i++) {
		const uint32_t bits = codes->w[2 * at + i / 2][row] >> i % 2 * 16 & 0xffff;

		ret[i] = family == CUDA_FAMILY_BF16 ? float_of_bf16(bits) : float_of_f16(bits);
	}
}

/* Sixteen bytes of plain rows of floats times all pairs. */
FUNC void float_piece(const struct cuda_product *p, const struct decode_codes *codes, const uint64_t *x, unsigned pairs,
		      unsigned family, uint32_t piece, struct decode_sums *sums)
{
	const unsigned width = piece_columns(family);
	const uint32_t col = piece * width;
	const float scale = family == CUDA_FAMILY_FP8 ? float_of(codes->scales[0].scale) : 1;
	float part[CUDA_DECODE_PAIRS][DECODE_EACH], w[DECODE_EACH][4], a[4];
	unsigned i, j, k, c;

	memset(part, 0, sizeof part);
	UNROLL
	for (j = 0; j < width; j += 4) {
		UNROLL
		for (i = 0; i < DECODE_EACH; i++)
			four_weights(w[i], codes, i, family, j / 4);
		UNROLL
		for (k = 0; k < pairs; k++) {
			load_floats4(a, x[k] + 4 * (uint64_t)(col + j), p->cols - col > j ? p->cols - col - j : 0);
			UNROLL
			for (i = 0; i < DECODE_EACH; i++) {
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
	for (k = 0; k < pairs; k++)
		UNROLL
	for (i = 0; i < DECODE_EACH; i++)
		sums->f[k][i] = fmaf(scale, part[k][i] * E4M3_UNIT, sums->f[k][i]);
}

/* The same of signed bytes. Rows of activations are filled up with zeros. */
FUNC void int8_piece(const struct decode_codes *codes, const uint64_t *x, unsigned pairs, uint32_t piece,
		     struct decode_sums *sums)
{
	unsigned i, j, k;

	UNROLL
	for (k = 0; k < pairs; k++) {
		const struct words4 v = load_shared_words4(x[k] + 64 + piece * 16);

		UNROLL
		for (i = 0; i < DECODE_EACH; i++)
			UNROLL
		for (j = 0; j < 4; j++)
			sums->i[k][i] = dot4(codes->w[j][i], v.w[j], sums->i[k][i]);
	}
}

/* A thread's pieces; the first one has been fetched. `pairs` is known when the kernel is compiled. */
FUNC void pieces_of(const struct cuda_product *p, const struct decode_kind *kind, const struct decode_band *b,
		    struct decode_codes *codes, const uint64_t *x, unsigned pairs, unsigned family, unsigned bits,
		    unsigned lane, unsigned side, struct decode_sums *sums)
{
	const uint32_t width = piece_columns(family), pieces = b->rows ? (p->cols + width - 1) / width : 0;
	const int ahead = family != CUDA_FAMILY_PANEL || pairs <= 2; /* or there are not enough registers */
	uint32_t piece;

	for (piece = lane; piece < pieces; piece += DECODE_LANES) {
		struct decode_codes next = *codes;

		if (ahead && piece + DECODE_LANES < pieces)
			piece_fetch(&next, p, kind, b, family, bits, piece + DECODE_LANES, side);
		if (family == CUDA_FAMILY_PANEL)
			panel_piece(p, kind, codes, x, pairs, bits, piece, sums);
		else if (family == CUDA_FAMILY_INT8)
			int8_piece(codes, x, pairs, piece, sums);
		else
			float_piece(p, codes, x, pairs, family, piece, sums);
		if (!ahead && piece + DECODE_LANES < pieces)
			piece_fetch(&next, p, kind, b, family, bits, piece + DECODE_LANES, side);
		*codes = next;
	}
}

/* True: it is that, and what is asked from here on is known when the kernel is compiled. */
FUNC int is_kind(struct decode_kind *kind, unsigned code, unsigned scale, unsigned zero)
{
	if (kind->spec.code != code || kind->spec.scale != scale || kind->spec.zero != zero)
		return 0;
	kind->spec.code = (uint8_t)code;
	kind->spec.scale = (uint8_t)scale;
	kind->spec.zero = (uint8_t)zero;
	return 1;
}

FUNC struct decode_kind kind_of(const struct cuda_product *p)
{
	return (struct decode_kind){p->spec, p->block == 16};
}

#define DECODE_KIND(code, scale, zero, groups)                                                                         \
	if (kind = kind_of(p), is_kind(&kind, code, scale, zero)) {                                                    \
		kind.two = (groups) == 2;                                                                              \
		pieces_of(p, &kind, b, codes, x, pairs, family, bits, lane, side, sums);                               \
		return;                                                                                                \
	}

/* Each kind of panel has a loop of its own; test-formats knows all formats. */
FUNC void all_pieces(const struct cuda_product *p, const struct decode_band *b, struct decode_codes *codes,
		     const uint64_t *x, unsigned pairs, unsigned family, unsigned bits, unsigned lane, unsigned side,
		     struct decode_sums *sums)
{
	struct decode_kind kind = kind_of(p);

	if (family != CUDA_FAMILY_PANEL) {
		pieces_of(p, &kind, b, codes, x, pairs, family, bits, lane, side, sums);
		return;
	}
	if (bits == 4) {
		DECODE_KIND(MOE_CODE_UINT, MOE_SCALE_F16, MOE_ZERO_NONE, 1)
		DECODE_KIND(MOE_CODE_UINT, MOE_SCALE_BF16, MOE_ZERO_NONE, 1)
		DECODE_KIND(MOE_CODE_UINT, MOE_SCALE_F16, MOE_ZERO_U8, 1)
		DECODE_KIND(MOE_CODE_UINT, MOE_SCALE_BF16, MOE_ZERO_U8, 1)
		DECODE_KIND(MOE_CODE_UINT, MOE_SCALE_F16, MOE_ZERO_F16, 1)
		DECODE_KIND(MOE_CODE_UINT, MOE_SCALE_F16_U8, MOE_ZERO_K, 1)
		DECODE_KIND(MOE_CODE_E2M1, MOE_SCALE_E8M0, MOE_ZERO_NONE, 1)
		DECODE_KIND(MOE_CODE_IQ4NL, MOE_SCALE_F16_S8, MOE_ZERO_NONE, 1)
	} else if (bits == 5) {
		DECODE_KIND(MOE_CODE_UINT, MOE_SCALE_F16_U8, MOE_ZERO_K, 1)
	} else if (bits == 6) {
		DECODE_KIND(MOE_CODE_UINT, MOE_SCALE_F16_S8, MOE_ZERO_NONE, 2)
	} else {
		DECODE_KIND(MOE_CODE_UINT, MOE_SCALE_F16, MOE_ZERO_NONE, 1)
	}
}
#undef DECODE_KIND

/* A row's sum with what belongs to the row. */
FUNC float row_result(const struct cuda_matrix m, uint64_t slot, uint32_t row, float sum, float by)
{
	if (m.row_scales != CUDA_ABSENT)
		sum *= load_float(slot + m.row_scales + 4 * row) * by;
	if (m.bias != CUDA_ABSENT)
		sum += load_float(slot + m.bias + 4 * row);
	return sum;
}

/* What threads have of the rows' sums. */
struct decode_parts {
	float of[CUDA_DECODE_PAIRS][DECODE_BANDS][DECODE_LANES][CUDA_DECODE_ROWS];
};

FUNC float last_sum(const struct decode_parts *parts, unsigned k, unsigned band, unsigned row)
{
	float sum = 0;
	unsigned i;

	UNROLL
	for (i = 0; i < DECODE_LANES; i++)
		sum += parts->of[k][band][i][row];
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
		const unsigned side = tid % DECODE_SIDE, lane = tid / DECODE_SIDE % DECODE_LANES;
		const uint32_t *order = (const uint32_t *)(uintptr_t)p->order;
		const uint32_t at = item->first + (tid < item->count ? tid : item->count - 1u);
		const struct decode_kind kind = kind_of(p);

		OWN(band) = band_of(p, item, family, matrices, first, tid / (DECODE_SIDE * DECODE_LANES));
		if (OWN(band).rows && lane * piece_columns(family) < p->cols)
			piece_fetch(&OWN(codes), p, &kind, &OWN(band), family, bits, lane, side);
		if (tid < CUDA_DECODE_PAIRS) /* those that do not exist are as the last one */
			x[tid] = p->x + (matrices > 1 ? order[at] / p->topk : at) * p->x_pitch;
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		const unsigned side = tid % DECODE_SIDE, lane = tid / DECODE_SIDE % DECODE_LANES;
		const unsigned which = tid / (DECODE_SIDE * DECODE_LANES);
		struct decode_sums sums;
		unsigned i, k;

		memset(&sums, 0, sizeof sums);
		/* Most items have few pairs, and what is left out for others would take its turn all the same. */
		if (item->count == 1)
			all_pieces(p, &OWN(band), &OWN(codes), x, 1, family, bits, lane, side, &sums);
		else if (item->count == 2)
			all_pieces(p, &OWN(band), &OWN(codes), x, 2, family, bits, lane, side, &sums);
		else
			all_pieces(p, &OWN(band), &OWN(codes), x, CUDA_DECODE_PAIRS, family, bits, lane, side, &sums);
		UNROLL
		for (k = 0; k < CUDA_DECODE_PAIRS; k++)
			UNROLL
		for (i = 0; i < DECODE_EACH; i++)
			if (k < item->count)
				parts.of[k][which][lane][DECODE_EACH * side + i] = family == CUDA_FAMILY_INT8
											   ? (float)sums.i[k][i]
											   : sums.f[k][i];
	}
	BARRIER();
	EACH_THREAD(tid)
	{
		const unsigned rows = matrices > 1 ? CUDA_DECODE_ROWS : DECODE_BANDS * CUDA_DECODE_ROWS;

		if (tid < item->count * rows)
			finish_row(p, item, x, first, family, matrices, tid, &parts);
	}
}

#define DECODE_BLOCKS(family, bits)                                                                                    \
	((family) == CUDA_FAMILY_PANEL ? (bits) < 6 ? 3 : 2 : (family) == CUDA_FAMILY_FP8 ? 3 : 4)

CUDA_VARIANTS(PRODUCT, decode, DECODE_BLOCKS)
