/* SPDX-License-Identifier: MIT */
/*
 * kernel-problem - one random problem for the kernels of a format: two matrices, activations and outputs.
 *
 * Each plane, each row of activations and the list of them end at a wall. A problem is a piece of whole matrices, as a
 * slice of tensor parallelism is: its first row and column need not be the first. Between the bands of a plane, between
 * packed rows and behind the rows of a last panel lies what may not matter.
 */
#ifndef TESTS_KERNEL_PROBLEM_H
#define TESTS_KERNEL_PROBLEM_H

#include "kernels/kernels.h"
#include "tests/kernel-decode.h"
#include "tests/kernel-walls.h"

#define ROWS_MAX 704
#define COLS_MAX 37120
#define TOKENS_MAX 136
#define CANARY 0x5aa5c33cu
#define CANARIES 16

enum data { DATA_PLAIN, DATA_SPECIAL };

struct problem {
	uint32_t format;
	enum data data;
	size_t rows, cols, tokens;
	size_t row0, col0; /* in the whole matrices */
	struct kernel_matrix whole[2];
	struct kernel_matrix m[2]; /* the rows and columns of the problem */
	struct kernel_matrix next; /* which m[0] names, or not */
	struct numbers numbers[2]; /* of m, decoded */
	struct kernel_act act;
	const float *x[TOKENS_MAX];
	const void **packed; /* [tokens] */
	float **out;         /* [tokens] */
	size_t packed_bytes, packed_pitch;
	struct wall planes[2][MOE_PLANES], xs, packs, outs, pack_list, out_list;
};

/* Its memory, for any problem. */
static inline void problem_init(struct problem *p)
{
	const size_t plane[MOE_PLANES] = {8 << 20, 4 << 20, 4 << 10, 4 << 10};

	*p = (struct problem){0};
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < MOE_PLANES; k++)
			p->planes[i][k] = wall_new(plane[k]);
	p->xs = wall_new((COLS_MAX + 8) * sizeof(float) * TOKENS_MAX);
	p->packs = wall_new((COLS_MAX + 256) * (sizeof(float) + sizeof(uint16_t)) * TOKENS_MAX);
	p->outs = wall_new((ROWS_MAX + 2 * CANARIES) * sizeof(float) * (TOKENS_MAX + 1));
	p->pack_list = wall_new(TOKENS_MAX * sizeof(void *));
	p->out_list = wall_new(TOKENS_MAX * sizeof(void *));
}

/* -- weights ------------------------------------------------------------------------------------------------------ */

static inline float plain_scale(void)
{
	return ldexpf(0.5f + 0.5f * fabsf(plain_float()), -(int)pick(8)) * (once_in(2) ? -1.0f : 1.0f);
}

/* A 16-bit float of either kind, 2^-10 .. 2 */
static inline uint16_t plain_half(bool bf16)
{
	const uint32_t r = (uint32_t)(tap_random(&seed) >> 32), sign = r & 0x8000, exponent = (r >> 16) % 11;

	return (uint16_t)(bf16 ? sign | (117 + exponent) << 7 | (r & 127) : sign | (5 + exponent) << 10 | (r & 1023));
}

static inline void codes_fill(uint32_t format, uint8_t *codes, size_t bytes)
{
	const struct moe_format_spec *f = &moe_formats[format];

	fill_random(codes, bytes);
	if (f->code == MOE_CODE_E4M3)
		for (size_t i = 0; i < bytes; i++)
			codes[i] -= (codes[i] & 0x7f) == 0x7f; /* no NaN */
	for (size_t i = 1; f->bits == 16 && i < bytes; i += 2) /* below 2: sign and exponent lie in the upper byte */
		codes[i] = (uint8_t)(f->code == MOE_CODE_BF16 ? (codes[i] & 0x80) | (56 + (codes[i] & 7))
							      : codes[i] & 0xbf);
}

/* The scales of 16 rows. */
static inline void scale_block_fill(uint32_t format, uint32_t zeros, uint8_t *block)
{
	const struct moe_format_spec *f = &moe_formats[format];

	fill_random(block, f->block_bytes); /* fine scales and minima may be anything */
	if (f->scale == MOE_SCALE_F32_TILE) {
		memcpy(block, &(float){plain_scale()}, sizeof(float));
		return;
	}
	for (size_t r = 0; r < BAND; r++) {
		if (f->scale == MOE_SCALE_E8M0)
			block[r] = (uint8_t)(112 + block[r] % 18);
		else
			memcpy(block + 2 * r, &(uint16_t){plain_half(f->scale == MOE_SCALE_BF16)}, 2);
		if (f->zero == MOE_ZERO_F16 || f->zero == MOE_ZERO_K)
			memcpy(block + 2 * BAND + 2 * r, &(uint16_t){plain_half(false)}, 2);
		if (f->zero == MOE_ZERO_U8)
			block[2 * BAND + r] = (uint8_t)(block[2 * BAND + r] % zeros);
	}
}

static inline void scale_block_spoil(uint32_t format, uint8_t *block)
{
	const struct moe_format_spec *f = &moe_formats[format];
	const size_t r = pick(BAND);

	if (f->scale == MOE_SCALE_F32_TILE)
		memcpy(block, &(float){special_float()}, sizeof(float));
	else if (f->scale == MOE_SCALE_E8M0)
		block[r] = special_e8m0();
	else if (once_in(2) && (f->zero == MOE_ZERO_F16 || f->zero == MOE_ZERO_K))
		memcpy(block + 2 * BAND + 2 * r, &(uint16_t){special_f16()}, 2);
	else
		memcpy(block + 2 * r, &(uint16_t){f->scale == MOE_SCALE_BF16 ? special_bf16() : special_f16()}, 2);
}

static inline void code_spoil(uint32_t format, uint8_t *row, size_t col)
{
	if (moe_formats[format].code == MOE_CODE_E4M3)
		row[col] = special_e4m3();
	else if (format == MOE_FORMAT_BF16 || format == MOE_FORMAT_F16)
		memcpy(row + 2 * col, &(uint16_t){format == MOE_FORMAT_BF16 ? special_bf16() : special_f16()}, 2);
}

/* A few special values in each plane: so few that most results are still numbers. */
static inline void matrix_spoil(struct kernel_matrix *m, size_t rows, size_t cols)
{
	const struct moe_format_spec *f = &moe_formats[m->format];

	for (uint32_t i = pick(6); i-- > 0 && !f->panel;)
		code_spoil(m->format, (uint8_t *)m->codes + pick((uint32_t)rows) * m->pitch, pick((uint32_t)cols));
	for (uint32_t i = pick(4); i-- > 0 && m->scales;)
		scale_block_spoil(m->format, (uint8_t *)m->scales + pick((uint32_t)rows) / BAND * m->scale_pitch +
						     pick((uint32_t)cols) / f->block * f->block_bytes);
	for (uint32_t i = pick(4); i-- > 0 && m->row_scales;)
		memcpy((float *)m->row_scales + pick((uint32_t)rows), &(float){special_float()}, sizeof(float));
	for (uint32_t i = pick(3); i-- > 0 && m->bias;)
		memcpy((float *)m->bias + pick((uint32_t)rows), &(float){special_float()}, sizeof(float));
}

/* Bands of `pitch` bytes whose last one ends where its `bytes` do. */
static inline uint8_t *plane_bands(const struct wall *w, size_t bands, size_t pitch, size_t bytes, size_t *ret)
{
	*ret = bands ? (bands - 1) * pitch + bytes : 0;
	return wall_before(w, *ret);
}

static inline float *plane_floats(const struct wall *w, size_t rows)
{
	float *to = wall_before(w, rows * sizeof(float));

	for (size_t r = 0; r < rows; r++)
		to[r] = plain_scale();
	return to;
}

static inline void matrix_new(struct problem *p, int i, size_t rows, size_t cols)
{
	const struct moe_format_spec *f = &moe_formats[p->format];
	const size_t band_rows = moe_band_rows(p->format, MOE_PLANE_CODES);
	const size_t code_bytes = moe_band_bytes(p->format, MOE_PLANE_CODES, cols);
	const size_t scale_bytes = moe_band_bytes(p->format, MOE_PLANE_SCALES, cols);
	const size_t unit = f->panel ? 64 : f->bits / 8, scale_unit = f->panel ? 16 : 4;
	const uint32_t zeros = once_in(4) ? 256 : 17;
	struct kernel_matrix *m = &p->whole[i];
	size_t bytes;
	uint8_t *at;

	*m = (struct kernel_matrix){.format = p->format, .pitch = code_bytes + unit * (once_in(2) ? 0 : pick(9))};
	at = plane_bands(&p->planes[i][MOE_PLANE_CODES], (rows + band_rows - 1) / band_rows, m->pitch, code_bytes,
			 &bytes);
	codes_fill(p->format, at, bytes);
	m->codes = at;
	if (moe_format_has(p->format, MOE_PLANE_SCALES)) {
		m->scale_pitch = scale_bytes + scale_unit * (once_in(2) ? 0 : pick(9));
		at = plane_bands(&p->planes[i][MOE_PLANE_SCALES], (rows + BAND - 1) / BAND, m->scale_pitch, scale_bytes,
				 &bytes);
		fill_random(at, bytes);
		for (size_t band = 0; band < (rows + BAND - 1) / BAND; band++)
			for (size_t b = 0; b < scale_bytes; b += f->block_bytes)
				scale_block_fill(p->format, zeros, at + band * m->scale_pitch + b);
		m->scales = at;
	}
	if (moe_format_has(p->format, MOE_PLANE_ROW_SCALES))
		m->row_scales = plane_floats(&p->planes[i][MOE_PLANE_ROW_SCALES], rows);
	if (once_in(2))
		m->bias = plane_floats(&p->planes[i][MOE_PLANE_BIAS], rows);
	if (p->data == DATA_SPECIAL && rows && cols && once_in(2))
		matrix_spoil(m, rows, cols);
}

/* -- activations -------------------------------------------------------------------------------------------------- */

static inline void x_fill(enum data data, float *x, size_t cols)
{
	static const float magnitudes[] = {1.0f, 1.0f, 0x1p-120f, 0x1p-140f, 0x1p60f, 0x1p120f};
	const bool spoilt = data == DATA_SPECIAL && once_in(2);
	const float magnitude = spoilt ? magnitudes[pick(6)] : ldexpf(1.0f, 4 - (int)pick(9));
	const uint32_t kind = pick(8);

	for (size_t c = 0; c < cols; c++) {
		x[c] = plain_float() * magnitude;
		if (kind == 0) /* a wide range */
			x[c] = ldexpf(x[c], -(int)pick(12));
		else if (kind == 1) /* signs only */
			x[c] = copysignf(magnitude, x[c]);
	}
	if (kind == 2 && cols && !spoilt) /* one that stands out */
		x[pick((uint32_t)cols)] *= 100.0f;
	if (kind == 3 && once_in(4))
		memset(x, 0, cols * sizeof(x[0]));
	for (uint32_t i = pick(4); i-- > 0 && spoilt && cols;)
		x[pick((uint32_t)cols)] = special_float();
}

static inline void x_new(struct problem *p)
{
	size_t end = 0;

	for (size_t t = 0; t < p->tokens; t++) {
		float *x;

		end += p->cols * sizeof(float) + (t ? 4 * pick(8) : 0); /* the first ends at the wall */
		x = wall_before(&p->xs, end);
		x_fill(p->data, x, p->cols);
		p->x[t] = x;
	}
}

static inline void act_pick(struct kernel_act *act)
{
	static const float limits[] = {7.0f, 7.0f, 0.25f, 1.5f, 0x1p100f};

	*act = (struct kernel_act){.kind = pick(4), .limit = limits[pick(5)]};
}

/* -- the whole ---------------------------------------------------------------------------------------------------- */

static inline const void *moved(const void *p, size_t bytes)
{
	return p ? (const char *)p + bytes : NULL;
}

/* Rows from row0 and columns from col0 on of a whole matrix. */
static inline struct kernel_matrix piece(const struct kernel_matrix *whole, size_t row0, size_t col0)
{
	struct kernel_matrix m = kernel_rows(whole, row0);

	m.codes = moved(m.codes, moe_band_bytes(m.format, MOE_PLANE_CODES, col0));
	m.scales = moved(m.scales, moe_band_bytes(m.format, MOE_PLANE_SCALES, col0));
	return m;
}

/* Where a piece may begin. */
static inline size_t row_unit(uint32_t format)
{
	const bool plain = !moe_formats[format].panel && !moe_format_has(format, MOE_PLANE_SCALES);

	return plain ? 1 : MOE_PANEL_ROWS;
}

static inline size_t col_unit(uint32_t format)
{
	return moe_formats[format].block ? moe_formats[format].block : 1;
}

/* What is read next is never read: it may end where memory does, or be nowhere. */
static inline void next_new(struct problem *p)
{
	const struct wall *codes = &p->planes[0][MOE_PLANE_CODES];

	p->next = (struct kernel_matrix){.format = p->format,
					 .codes = once_in(2) ? codes->end - pick(4096)
							     : (const void *)(uintptr_t)pick(64),
					 .pitch = pick(8192),
					 .scale_pitch = pick(512)};
	if (once_in(2))
		p->m[0].next = &p->next;
}

/* p->rows, cols, tokens are the caller's; row0 and col0 are random. */
static inline void problem_new(struct problem *p, uint32_t format, enum data data)
{
	p->format = format;
	p->data = data;
	p->row0 = once_in(3) ? pick(1 + 32 / (uint32_t)row_unit(format)) * row_unit(format) : 0;
	p->col0 = once_in(3) ? pick(1 + 256 / (uint32_t)col_unit(format)) * col_unit(format) : 0;
	if (p->rows == 0 || p->cols == 0)
		p->row0 = p->col0 = 0;
	for (int i = 0; i < 2; i++) {
		matrix_new(p, i, p->row0 + p->rows, p->col0 + p->cols);
		p->m[i] = piece(&p->whole[i], p->row0, p->col0);
		decode(&p->numbers[i], &p->m[i], p->rows, p->cols);
	}
	next_new(p);
	act_pick(&p->act);
	x_new(p);
}

/* A few weights of each matrix as kernel_weight has them. */
static inline bool problem_weights_good(const struct problem *p, int samples)
{
	for (int i = 0; i < samples && p->rows && p->cols; i++) {
		const size_t r = pick((uint32_t)p->rows), c = pick((uint32_t)p->cols);
		const struct numbers *n = &p->numbers[i % 2];
		const double got = kernel_weight(&p->whole[i % 2], p->row0 + r, p->col0 + c);
		const double want = n->w[c * n->stride + r];

		if (isnan(want) ? !isnan(got) : got != want) {
			diag("%s: kernel_weight of row %zu column %zu is %g and not %g", moe_formats[p->format].name,
			     p->row0 + r, p->col0 + c, got, want);
			return false;
		}
	}
	return true;
}

/* -- packed rows and outputs -------------------------------------------------------------------------------------- */

/* Packs all tokens; false where something behind a packed row was written. */
static inline bool problem_pack(struct problem *p, const struct kernel_ops *ops)
{
	const size_t first = pick((uint32_t)p->tokens), tokens = p->tokens;
	bool good = true;

	p->packed = wall_before(&p->pack_list, tokens * sizeof(void *));
	p->packed_bytes = kernel_packed_bytes(ops, p->cols);
	p->packed_pitch = p->packed_bytes + (once_in(2) ? 64 : 0);
	memset(wall_before(&p->packs, tokens * p->packed_pitch), 0xff, tokens * p->packed_pitch);
	for (size_t t = 0; t < tokens; t++) { /* token `first` ends at the wall */
		const size_t place = (t + tokens - first) % tokens;
		char *to = wall_before(&p->packs, place * p->packed_pitch + p->packed_bytes);

		if (ops->pack_row)
			ops->pack_row(p->cols, ops->block, p->x[t], to);
		else if (p->cols)
			memcpy(to, p->x[t], p->cols * sizeof(float));
		p->packed[t] = to;
	}
	for (size_t t = 0; t < tokens; t++) {
		const char *end = (const char *)p->packed[t] + p->packed_bytes;

		for (size_t i = 0; i < p->packed_pitch - p->packed_bytes && end < p->packs.end; i++)
			good = good && end[i] == (char)0xff;
	}
	return good;
}

/* Outputs between canaries; token 0's row ends at the wall. */
static inline void outputs_new(struct problem *p)
{
	size_t end = 0;
	float *at = NULL;

	p->out = (float **)wall_before(&p->out_list, p->tokens * sizeof(float *));
	for (size_t t = 0; t < p->tokens; t++) {
		end += p->rows + (t ? CANARIES + pick(3) : 0);
		p->out[t] = wall_before(&p->outs, end * sizeof(float));
	}
	end += CANARIES;
	at = wall_before(&p->outs, end * sizeof(float));
	for (size_t i = 0; i < end; i++)
		memcpy(at + i, &(uint32_t){CANARY}, sizeof(float));
}

/* True when every word outside the outputs is as it was. */
static inline bool canaries_live(const struct problem *p)
{
	const char *end = p->outs.end;
	bool good = true;

	for (size_t t = 0; t <= p->tokens; t++) { /* what lies between the row of t - 1 and that of t below it */
		const char *at = t < p->tokens ? (const char *)(p->out[t] + p->rows) : end - 4 * CANARIES;

		for (const char *i = at; i < end; i += 4)
			good = good && memcmp(i, &(uint32_t){CANARY}, 4) == 0;
		if (t < p->tokens)
			end = (const char *)p->out[t];
	}
	return good;
}

#endif
