/* SPDX-License-Identifier: MIT */
/* prefill-coded - prefill of codes that are decoded on their way to shared memory: panels and E4M3. */
#ifndef KERNELS_CUDA_PREFILL_CODED_H
#define KERNELS_CUDA_PREFILL_CODED_H

#include "kernels/cuda/prefill-tile.h"

/* A group of Q6_K has 16 columns, those of all other panels 32 or more: then there are two scales for each step and
 * line, and two that go with sums of activations (minima, as floats, or zero points). A line of x_scale has its scales
 * likewise, and behind two of them the two sums. */
struct prefill_coded {
	MMA_ALIGNED uint32_t w[2][PREFILL_WORDS], x[2][PREFILL_WORDS];
	float scale[2][4][CUDA_PREFILL_ROWS];
	float x_scale[2][CUDA_PREFILL_PAIRS][4];
};

/* What a thread has on its way: codes, and what the scales of a line are made of; E4M3: its tiles' scales. */
struct prefill_raw {
	struct words4 w, more;
	uint32_t scale, zero, fine, fine_minimum;
	float tile_scale[2];
};

/* Panels: four rows and 8 columns, piece (j, q) of a block of 32 columns. A warp has two blocks of one panel. */
FUNC void panel_load(const struct cuda_product *p, const struct prefill_tile *tile, uint32_t step, unsigned bits,
		     unsigned matrices, unsigned tid, struct prefill_raw *raw)
{
	const unsigned line = tid / 32 * 16, j = tid / 4 % 4, q = tid % 4;
	const struct cuda_matrix *m = line_matrix(p, line, matrices);
	const uint32_t row = tile->row + line_row(line, matrices), col = step * 64 + tid / 16 % 2 * 32;
	const uint64_t block = tile->slot + m->codes + row / MOE_PANEL_ROWS * m->pitch +
			       (uint64_t)col / 32 * 64 * bits + 16 * q;

	if (row >= p->rows || col >= p->cols)
		return;
	raw->w = load_shared_words4(block + (bits == 8 ? 128 : 64) * j);
	if (bits == 5)
		raw->more = load_shared_words4(block + 256);
	if (bits == 6)
		raw->more = load_shared_words4(block + 256 + j / 2 * 64);
	if (bits == 8)
		raw->more = load_shared_words4(block + 128 * j + 64);
}

/* Row i of a piece as signed bytes: offsets are subtracted, other zero points are not. */
FUNC void panel_row(const struct cuda_spec *s, const struct prefill_raw *raw, unsigned bits, unsigned j, unsigned i,
		    uint32_t *low, uint32_t *high)
{
	const uint32_t up = (0x80u - s->offset) * 0x01010101;

	codes_of_word(low, high, raw->w.w[i], raw->more.w[i], bits, s->code, j);
	if (bits == 8 || s->code != MOE_CODE_UINT)
		return;
	*low = (*low + up) ^ 0x80808080; /* no byte is carried into the next */
	*high = (*high + up) ^ 0x80808080;
}

FUNC void panel_store(const struct cuda_product *p, const struct prefill_raw *raw, unsigned bits, unsigned tid,
		      uint32_t *to)
{
	const unsigned j = tid / 4 % 4, q = tid % 4, word = tid / 16 % 2 * 8 + 2 * j;
	unsigned i;

	UNROLL
	for (i = 0; i < 4; i++) {
		uint32_t *here = to + mma_chunk(tid / 32 * 16 + 4 * q + i, word / 4) + word % 4, low, high;

		panel_row(&p->spec, raw, bits, j, i, &low, &high);
		store_words2(here, low, high);
	}
}

/* What the scales of a line and of 32 columns are made of. */
FUNC void scale_load(const struct cuda_product *p, const struct prefill_tile *tile, uint32_t step, unsigned bits,
		     unsigned matrices, unsigned tid, struct prefill_raw *raw)
{
	const unsigned line = tid % 128, groups = 1u << (p->spec.block_shift - p->spec.group_shift);
	const struct cuda_matrix *m = line_matrix(p, line, matrices);
	const uint32_t row = tile->row + line_row(line, matrices), col = step * 64 + tid / 128 * 32;
	const unsigned in_band = row % MOE_PANEL_ROWS, k = p->spec.zero == MOE_ZERO_K;
	uint64_t block, fine;
	unsigned group;

	if (row >= p->rows || col >= p->cols)
		return;
	block = scale_block(&p->spec, tile->slot + m->scales + row / MOE_PANEL_ROWS * m->scale_pitch, col, &group);
	fine = block + (k ? 64 : 32) + group * 16 + in_band;
	raw->scale = p->spec.scale == MOE_SCALE_E8M0 ? load_u8(block + in_band) : load_u16(block + 2 * in_band);
	if (p->spec.zero == MOE_ZERO_U8)
		raw->zero = load_u8(block + 32 + in_band);
	else if (p->spec.zero != MOE_ZERO_NONE)
		raw->zero = load_u16(block + 32 + 2 * in_band);
	if (p->spec.scale >= MOE_SCALE_F16_U8)
		raw->fine = load_u8(fine);
	if (bits == 6)
		raw->fine |= load_u8(fine + 16) << 8;
	if (k)
		raw->fine_minimum = load_u8(fine + groups * 16);
}

/* As two_scales_of() makes them. */
FUNC void scale_store(const struct cuda_product *p, const struct prefill_raw *raw, unsigned bits, unsigned tid,
		      float (*to)[CUDA_PREFILL_ROWS])
{
	const unsigned line = tid % 128, half = tid / 128, kind = p->spec.scale, zero = p->spec.zero;
	float scale = kind == MOE_SCALE_E8M0   ? float_of_e8m0(raw->scale) * 0.5f
		      : kind == MOE_SCALE_BF16 ? float_of_bf16(raw->scale)
					       : float_of_f16(raw->scale);
	float other = zero == MOE_ZERO_U8 ? float_of(raw->zero) : 0;

	if (bits == 6) {
		to[2 * half][line] = scale * (float)(int8_t)raw->fine;
		to[2 * half + 1][line] = scale * (float)(int8_t)(raw->fine >> 8);
		return;
	}
	if (kind == MOE_SCALE_F16_U8)
		scale *= (float)raw->fine;
	else if (kind == MOE_SCALE_F16_S8)
		scale *= (float)(int8_t)raw->fine;
	if (zero == MOE_ZERO_F16)
		other = float_of_f16(raw->zero);
	else if (zero == MOE_ZERO_K)
		other = -(float_of_f16(raw->zero) * (float)raw->fine_minimum);
	to[half][line] = scale;
	to[2 + half][line] = other;
}

/* Scales, and sums of codes, of the pairs whose chunks a thread copies: two threads of four do it. */
FUNC void x_scale_copy(const struct cuda_product *p, const struct prefill_x *x, uint32_t step, unsigned bits,
		       unsigned tid, float (*to)[4])
{
	const unsigned second = tid % 4, cols = bits == 6 ? 16 : 32;
	const uint32_t blocks = (p->cols + cols - 1) / cols;
	const uint64_t skip = PREFILL_LINE(p->cols) + second * (bits == 6 ? 8 : PREFILL_LINE(blocks * 4)) +
			      (uint64_t)step * (64 / cols) * 4;
	unsigned i;

	if (second >= 2)
		return;
	UNROLL
	for (i = 0; i < 2; i++)
		if (x->from[i] != PREFILL_NOTHING)
			copy_async8(&to[tid / 4 + 64 * i][2 * second],
				    p->x + (uint64_t)(x->from[i] - second) * 16 + skip);
}

/* E4M3: sixteen codes of a line, and scales: of 16 rows and 128 columns. */
FUNC void e4m3_load(const struct cuda_product *p, const struct prefill_tile *tile, uint32_t step, unsigned matrices,
		    unsigned tid, struct prefill_raw *raw)
{
	const struct cuda_matrix *m = line_matrix(p, tid / 2, matrices);
	const uint32_t row = tile->row + line_row(tid / 2, matrices), col = step * 32 + tid % 2 * 16;
	const uint32_t left = row < p->rows && col < p->cols ? p->cols - col : 0;
	const uint64_t from = tile->slot + m->codes + row * m->pitch + col;

	if (left >= 16 && from % 16 == 0)
		raw->w = load_shared_words4(from);
	else
		raw->w = load_bytes16(from, left);
}

FUNC void e4m3_store(const struct prefill_raw *raw, unsigned tid, uint32_t *to)
{
	unsigned c, i;

	UNROLL
	for (c = 0; c < 2; c++) {
		struct words4 w;

		UNROLL
		for (i = 0; i < 4; i++)
			w.w[i] = bf16_of_e4m3(raw->w.w[2 * c + i / 2], i % 2);
		store_words4(to + mma_chunk(tid / 2, tid % 2 * 2 + c), w);
	}
}

FUNC float e4m3_scale(const struct cuda_product *p, const struct prefill_tile *tile, uint32_t step, unsigned matrices,
		      unsigned line)
{
	const struct cuda_matrix *m = line_matrix(p, line, matrices);
	const uint32_t row = tile->row + line_row(line, matrices);

	if (m->scales == CUDA_ABSENT || row >= p->rows)
		return 1;
	return load_float(tile->slot + m->scales + row / MOE_PANEL_ROWS * m->scale_pitch + step / 4 * 4);
}

/* The sums of 16 columns meet their scale: sums of 128 would take 64 registers more. */
FUNC void e4m3_multiply(const uint32_t *w, const uint32_t *x, uint32_t count, const float scale[2], unsigned tid,
			struct prefill_sums *sums)
{
	unsigned half, m, g, n, e;

	ROLLED
	for (half = 0; half < 2; half++) {
		struct mma_rows a[2];
		struct mma_tokens b;

		UNROLL
		for (m = 0; m < 2; m++)
			mma_rows_load(&a[m], w + (warp_line(tid) + 16 * m) * MMA_LINE, half, tid % 32);
		UNROLL
		for (g = 0; g < PREFILL_GROUPS; g++) {
			if (32 * g >= count)
				continue;
			mma_tokens_load(&b, x + (32 * g + warp_pair(tid)) * MMA_LINE, half, tid % 32);
			UNROLL
			for (m = 0; m < 2; m++)
				UNROLL
			for (n = 0; n < 2; n++) {
				float *to = sums->f[m][2 * g + n], part[4] = {0, 0, 0, 0};

				mma_half(part, &a[m], &b, n, tid % 32, 1);
				UNROLL
				for (e = 0; e < 4; e++)
					to[e] = fmaf(scale[m], part[e], to[e]);
			}
		}
	}
}

/* Integers up to 2^22 are added to these bits of 1.5 * 2^23, and what comes out is a float. */
#define PREFILL_WHOLE 0x4b400000

/* What a lane needs of scales: of its four rows, and of the four pairs that it has in a group. */
struct prefill_scales {
	float scale[2][2], other[2][2];
};

struct prefill_pairs {
	float scale[2][2], sum[2][2];
};

/* Adds the sums of one group of columns of one tile, which meet their scales. part: of 16 columns, which ones. */
FUNC void panel_tile(const struct cuda_spec *s, const struct mma_rows *a, const struct mma_tokens *b, unsigned n,
		     unsigned bits, unsigned part, unsigned lane, const float scale[2], const float other[2],
		     const struct prefill_pairs *pairs, float *sums)
{
	int32_t dots[4];
	unsigned e;

	UNROLL
	for (e = 0; e < 4; e++) {
		uint32_t from = PREFILL_WHOLE;

		if (bits != 6 && s->zero == MOE_ZERO_U8) /* of a pair that does not exist the sum is anything */
			from -= bits_of(other[e / 2]) * bits_of(pairs->sum[n][e % 2]);
		dots[e] = (int32_t)from;
	}
	if (bits == 6)
		mma_s8_part(dots, a, b, n, part, lane);
	else
		mma_s8(dots, a, b, n, lane);
	UNROLL
	for (e = 0; e < 4; e++) {
		const float by = pairs->scale[n][e % 2], dot = float_of((uint32_t)dots[e]) - float_of(PREFILL_WHOLE);

		sums[e] = fmaf(scale[e / 2] * by, dot, sums[e]);
		if (bits != 6 && s->zero >= MOE_ZERO_F16)
			sums[e] = fmaf(other[e / 2] * by, (float)(int32_t)bits_of(pairs->sum[n][e % 2]), sums[e]);
	}
}

FUNC void panel_scales(const struct prefill_coded *s, unsigned stage, unsigned group, unsigned tid,
		       struct prefill_scales *ret)
{
	unsigned m, h;

	UNROLL
	for (m = 0; m < 2; m++)
		UNROLL
	for (h = 0; h < 2; h++) {
		const unsigned line = warp_line(tid) + 16 * m + mma_row(tid % 32, 2 * h);

		ret->scale[m][h] = s->scale[stage][group][line];
		ret->other[m][h] = s->scale[stage][(group + 2) % 4][line];
	}
}

FUNC void panel_pairs(const struct prefill_coded *s, unsigned stage, unsigned group, unsigned pair0, unsigned tid,
		      struct prefill_pairs *ret)
{
	unsigned n, t;

	UNROLL
	for (n = 0; n < 2; n++)
		UNROLL
	for (t = 0; t < 2; t++) {
		const unsigned pair = pair0 + n * MMA_TOKENS + mma_token(tid % 32, t);

		ret->scale[n][t] = s->x_scale[stage][pair][group];
		ret->sum[n][t] = s->x_scale[stage][pair][(group + 2) % 4];
	}
}

/* A group of 32 or 16 columns. */
FUNC void panel_group(const struct cuda_product *p, const struct prefill_coded *s, unsigned stage, uint32_t count,
		      unsigned group, unsigned bits, unsigned tid, struct prefill_sums *sums)
{
	const unsigned half = bits == 6 ? group / 2 : group;
	struct prefill_scales rows;
	struct mma_rows a[2];
	unsigned m, g, n;

	panel_scales(s, stage, group, tid, &rows);
	UNROLL
	for (m = 0; m < 2; m++)
		mma_rows_load(&a[m], s->w[stage] + (warp_line(tid) + 16 * m) * MMA_LINE, half, tid % 32);
	UNROLL
	for (g = 0; g < PREFILL_GROUPS; g++) {
		const unsigned pair = 32 * g + warp_pair(tid);
		struct prefill_pairs pairs;
		struct mma_tokens b;

		if (32 * g >= count)
			continue;
		mma_tokens_load(&b, s->x[stage] + pair * MMA_LINE, half, tid % 32);
		panel_pairs(s, stage, group, pair, tid, &pairs);
		UNROLL
		for (m = 0; m < 2; m++)
			UNROLL
		for (n = 0; n < 2; n++)
			panel_tile(&p->spec, &a[m], &b, n, bits, group % 2, tid % 32, rows.scale[m], rows.other[m],
				   &pairs, sums->f[m][2 * g + n]);
	}
}

FUNC void panel_multiply(const struct cuda_product *p, const struct prefill_coded *s, uint32_t step, uint32_t count,
			 unsigned bits, unsigned tid, struct prefill_sums *sums)
{
	const unsigned cols = bits == 6 ? 16 : 32;
	unsigned group;

	ROLLED
	for (group = 0; group < 64 / cols; group++)
		if (step * 64 + group * cols < p->cols)
			panel_group(p, s, step % 2, count, group, bits, tid, sums);
}

FUNC void coded_load(const struct cuda_product *p, const struct prefill_tile *tile, uint32_t step, unsigned family,
		     unsigned bits, unsigned matrices, unsigned tid, struct prefill_raw *raw)
{
	if (family == CUDA_FAMILY_FP8) {
		e4m3_load(p, tile, step, matrices, tid, raw);
		return;
	}
	panel_load(p, tile, step, bits, matrices, tid, raw);
	scale_load(p, tile, step, bits, matrices, tid, raw);
}

FUNC void coded_store(const struct cuda_product *p, const struct prefill_raw *raw, uint32_t step, unsigned family,
		      unsigned bits, unsigned tid, struct prefill_coded *s)
{
	if (family == CUDA_FAMILY_FP8) {
		e4m3_store(raw, tid, s->w[step % 2]);
		return;
	}
	panel_store(p, raw, bits, tid, s->w[step % 2]);
	scale_store(p, raw, bits, tid, s->scale[step % 2]);
}

/* What has come of a step goes to shared memory, and the step's activations and the codes of the next set out. */
FUNC void coded_next(const struct cuda_product *p, const struct prefill_tile *tile, const struct prefill_x *x,
		     uint32_t step, uint32_t steps, unsigned family, unsigned bits, unsigned matrices, unsigned tid,
		     struct prefill_raw *raw, struct prefill_coded *s)
{
	x_copy(p, x, step, tid, s->x[step % 2]);
	if (family == CUDA_FAMILY_PANEL)
		x_scale_copy(p, x, step, bits, tid, s->x_scale[step % 2]);
	copies_end();
	coded_store(p, raw, step, family, bits, tid, s);
	if (step + 1 < steps)
		coded_load(p, tile, step + 1, family, bits, matrices, tid, raw);
}

FUNC void coded_multiply(const struct cuda_product *p, const struct prefill_tile *tile, const struct prefill_coded *s,
			 uint32_t step, unsigned family, unsigned bits, unsigned matrices, unsigned tid,
			 struct prefill_raw *raw, struct prefill_sums *sums)
{
	unsigned m;

	if (!warp_needed(p, tile, matrices, tid))
		return;
	if (family == CUDA_FAMILY_PANEL) {
		panel_multiply(p, s, step, tile->count, bits, tid, sums);
		return;
	}
	e4m3_multiply(s->w[step % 2], s->x[step % 2], tile->count, raw->tile_scale, tid, sums);
	UNROLL
	for (m = 0; m < 2; m++)
		if (step % 4 == 3 && step * 32 + 32 < p->cols)
			raw->tile_scale[m] = e4m3_scale(p, tile, step + 1, matrices, warp_line(tid) + 16 * m);
}

FUNC void prefill_coded(const struct cuda_product *p, unsigned family, unsigned bits, unsigned matrices)
{
	SHARED(struct prefill_coded, s);
	PER_THREAD(struct prefill_sums, sums);
	PER_THREAD(struct prefill_x, x);
	PER_THREAD(struct prefill_raw, raw);
	const struct prefill_tile tile = prefill_tile_of(p, matrices);
	const uint32_t cols = family == CUDA_FAMILY_FP8 ? 32 : 64, steps = (p->cols + cols - 1) / cols;
	uint32_t step;
	unsigned m;

	if (tile.count == 0)
		return;
	EACH_THREAD(tid)
	{
		memset(&OWN(sums), 0, sizeof OWN(sums));
		memset(&OWN(raw), 0, sizeof OWN(raw));
		if (steps == 0)
			continue;
		coded_load(p, &tile, 0, family, bits, matrices, tid, &OWN(raw));
		x_start(p, &tile, family, matrices, tid, &OWN(x));
		for (m = 0; m < 2 && family == CUDA_FAMILY_FP8; m++)
			OWN(raw).tile_scale[m] = e4m3_scale(p, &tile, 0, matrices, warp_line(tid) + 16 * m);
		coded_next(p, &tile, &OWN(x), 0, steps, family, bits, matrices, tid, &OWN(raw), &s);
	}
	for (step = 0; step < steps; step++) {
		COPIES_AWAIT(0);
		BARRIER();
		EACH_THREAD(tid)
		{
			if (step + 1 < steps)
				coded_next(p, &tile, &OWN(x), step + 1, steps, family, bits, matrices, tid, &OWN(raw),
					   &s);
			coded_multiply(p, &tile, &s, step, family, bits, matrices, tid, &OWN(raw), &OWN(sums));
		}
	}
	EACH_THREAD(tid)
	{
		finish(p, &tile, family, matrices, tid, &OWN(sums));
	}
}

#endif
