/* SPDX-License-Identifier: MIT */
/*
 * kernel-decode - matrices as plain numbers, by a reading of uapi/moe_format.h of its own: it goes through the planes
 * in the order of their bytes and puts each code where the text says that it belongs, where kernel_weight looks up a
 * row and a column. Numbers are made by formula into tables.
 */
#ifndef TESTS_KERNEL_DECODE_H
#define TESTS_KERNEL_DECODE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

#define BAND MOE_PANEL_ROWS

/* A decoded matrix, by columns: the weight of (row, col) is w[col * stride + row]. */
struct numbers {
	size_t stride;    /* rows, rounded up to a band */
	double *w;        /* weights */
	double *parts;    /* |scale * value| + |minimum|: what bounds their terms */
	double *most;     /* of each row: the largest finite |weight| */
	double *scales;   /* of each row: the largest finite |scale| and |minimum| */
	bool *infinite;   /* of each row: whether a scale or a minimum is infinite */
	size_t room;      /* numbers in w */
	size_t room_rows; /* in most */
};

static inline void numbers_size(struct numbers *n, size_t rows, size_t cols)
{
	n->stride = (rows + BAND - 1) / BAND * BAND;
	if (n->stride * cols > n->room) {
		n->room = n->stride * cols;
		n->w = realloc(n->w, n->room * sizeof(double));
		n->parts = realloc(n->parts, n->room * sizeof(double));
	}
	if (n->stride > n->room_rows) {
		n->room_rows = n->stride;
		n->most = realloc(n->most, n->room_rows * sizeof(double));
		n->scales = realloc(n->scales, n->room_rows * sizeof(double));
		n->infinite = realloc(n->infinite, n->room_rows * sizeof(bool));
	}
	for (size_t r = 0; r < n->stride; r++) {
		n->most[r] = n->scales[r] = 0.0;
		n->infinite[r] = false;
	}
}

/* -- numbers ------------------------------------------------------------------------------------------------------ */

static double decode_e4m3[256], decode_e8m0[256], decode_f16[65536], decode_bf16[65536];

/* A binary number with the given fields: bias, bits of the fraction; without infinities and NaNs. */
static inline double decode_fields(uint32_t code, int exponent_bits, int fraction_bits, int bias)
{
	const uint32_t fraction = code & ((1u << fraction_bits) - 1);
	const int exponent = (int)(code >> fraction_bits & ((1u << exponent_bits) - 1));
	const double sign = code >> (fraction_bits + exponent_bits) ? -1.0 : 1.0;
	const double unit = pow(2.0, -fraction_bits);

	if (exponent == 0)
		return sign * fraction * unit * pow(2.0, 1 - bias);
	return sign * (1.0 + fraction * unit) * pow(2.0, exponent - bias);
}

static inline double decode_ieee(uint32_t code, int exponent_bits, int fraction_bits)
{
	const uint32_t top = (1u << exponent_bits) - 1, fraction = code & ((1u << fraction_bits) - 1);

	if ((code >> fraction_bits & top) != top)
		return decode_fields(code, exponent_bits, fraction_bits, (int)(top >> 1));
	if (fraction)
		return NAN;
	return code >> (fraction_bits + exponent_bits) ? -INFINITY : INFINITY;
}

static inline void decode_tables(void)
{
	for (uint32_t i = 0; i < 65536; i++) {
		decode_f16[i] = decode_ieee(i, 5, 10);
		decode_bf16[i] = decode_ieee(i, 8, 7);
	}
	for (uint32_t i = 0; i < 256; i++) {
		decode_e4m3[i] = (i | 0x80) == 0xff ? NAN : decode_fields(i, 4, 3, 7);
		decode_e8m0[i] = i == 255 ? NAN : pow(2.0, (int)i - 127);
	}
}

static inline double decode_value(const struct moe_format_spec *f, uint32_t code)
{
	static const signed char iq4nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

	switch (f->code) {
	case MOE_CODE_E2M1:
		return decode_fields(code, 2, 1, 1);
	case MOE_CODE_IQ4NL:
		return iq4nl[code];
	case MOE_CODE_E4M3:
		return decode_e4m3[code];
	case MOE_CODE_S8:
		return code < 128 ? (double)code : (double)code - 256.0;
	case MOE_CODE_F16:
		return decode_f16[code];
	case MOE_CODE_BF16:
		return decode_bf16[code];
	default:
		return (double)code - (double)f->offset;
	}
}

static inline double decode_half(const uint8_t *plane, size_t i, bool bf16)
{
	const uint32_t code = plane[2 * i] | (uint32_t)plane[2 * i + 1] << 8;

	return bf16 ? decode_bf16[code] : decode_f16[code];
}

/* -- panels ------------------------------------------------------------------------------------------------------- */

/* The codes of a block of 32 columns of a panel, from its bytes in order: codes[col][row]. */
static inline void decode_block(uint32_t bits, const uint8_t *bytes, uint8_t codes[MOE_BLOCK_COLS][BAND])
{
	/* Byte i of vector v is row i / 4, column 4 v + i % 4. */
#define PLACE(v, i) codes[4 * (v) + (i) % 4][(i) / 4]
	if (bits == 8) {
		for (size_t v = 0; v < 8; v++)
			for (size_t i = 0; i < 64; i++)
				PLACE(v, i) = *bytes++;
		return;
	}
	for (size_t j = 0; j < 4; j++)
		for (size_t i = 0; i < 64; i++, bytes++) {
			PLACE(2 * j, i) = *bytes & 0x0f;
			PLACE(2 * j + 1, i) = *bytes >> 4;
		}
	if (bits == 5)
		for (size_t i = 0; i < 64; i++, bytes++)
			for (size_t v = 0; v < 8; v++)
				PLACE(v, i) |= (uint8_t)((*bytes >> v & 1) * 16);
	if (bits == 6)
		for (size_t j = 0; j < 2; j++)
			for (size_t i = 0; i < 64; i++, bytes++)
				for (size_t u = 0; u < 4; u++)
					PLACE(4 * j + u, i) |= (uint8_t)((*bytes >> 2 * u & 3) * 16);
#undef PLACE
}

/* What a group's codes of 16 rows are multiplied by, and what is added. */
struct group {
	double scale[BAND], zero[BAND], minimum[BAND];
};

/* Group g of a scale block, whose vectors lie one behind the other. */
static inline void decode_group(const struct moe_format_spec *f, const uint8_t *vectors, size_t g, struct group *ret)
{
	const size_t groups = f->block / f->group;
	const uint8_t *second = vectors + 2 * BAND; /* behind a vector of 16-bit scales */
	const uint8_t *fine = f->zero == MOE_ZERO_K ? second + 2 * BAND : second;

	for (size_t r = 0; r < BAND; r++) {
		ret->zero[r] = ret->minimum[r] = 0.0;
		switch (f->scale) {
		case MOE_SCALE_E8M0:
			ret->scale[r] = decode_e8m0[vectors[r]];
			break;
		case MOE_SCALE_F16_U8:
			ret->scale[r] = decode_half(vectors, r, false) * fine[BAND * g + r];
			break;
		case MOE_SCALE_F16_S8:
			ret->scale[r] = decode_half(vectors, r, false) * ((fine[BAND * g + r] ^ 0x80) - 128);
			break;
		default:
			ret->scale[r] = decode_half(vectors, r, f->scale == MOE_SCALE_BF16);
		}
		if (f->zero == MOE_ZERO_U8)
			ret->zero[r] = second[r];
		else if (f->zero == MOE_ZERO_F16)
			ret->minimum[r] = decode_half(second, r, false);
		else if (f->zero == MOE_ZERO_K)
			ret->minimum[r] = -(decode_half(second, r, false) * fine[BAND * (groups + g) + r]);
	}
}

static inline void numbers_scale(struct numbers *n, size_t row, double scale)
{
	if (isinf(scale))
		n->infinite[row] = true;
	else if (fabs(scale) > n->scales[row])
		n->scales[row] = fabs(scale);
}

static inline void numbers_put(struct numbers *n, size_t row, size_t col, double product, double minimum)
{
	const double w = product + minimum;

	n->w[col * n->stride + row] = w;
	n->parts[col * n->stride + row] = fabs(product) + fabs(minimum);
	if (isfinite(w) && fabs(w) > n->most[row])
		n->most[row] = fabs(w);
}

static inline void decode_panel(struct numbers *n, const struct moe_format_spec *f, const uint8_t *codes,
				const uint8_t *scales, size_t band, size_t cols)
{
	const size_t block_bytes = MOE_BLOCK_COLS * BAND * f->bits / 8;
	uint8_t block[MOE_BLOCK_COLS][BAND];
	double values[256];
	struct group g;

	for (uint32_t i = 0; i < 1u << f->bits; i++)
		values[i] = decode_value(f, i);
	for (size_t c = 0; c < cols; c++) {
		if (c % MOE_BLOCK_COLS == 0) {
			decode_block(f->bits, codes, block);
			codes += block_bytes;
		}
		if (c % f->group == 0) {
			decode_group(f, scales, c % f->block / f->group, &g);
			for (size_t r = 0; r < BAND; r++) {
				numbers_scale(n, band * BAND + r, g.scale[r]);
				numbers_scale(n, band * BAND + r, g.minimum[r]);
			}
		}
		for (size_t r = 0; r < BAND; r++)
			numbers_put(n, band * BAND + r, c,
				    g.scale[r] * (values[block[c % MOE_BLOCK_COLS][r]] - g.zero[r]), g.minimum[r]);
		if ((c + 1) % f->block == 0)
			scales += f->block_bytes;
	}
}

/* -- rows --------------------------------------------------------------------------------------------------------- */

static inline void decode_row(struct numbers *n, const struct kernel_matrix *m, size_t row, size_t cols)
{
	const struct moe_format_spec *f = &moe_formats[m->format];
	const uint8_t *codes = (const uint8_t *)m->codes + row * m->pitch;
	const char *tiles = (const char *)m->scales + row / 16 * m->scale_pitch;

	for (size_t c = 0; c < cols; c++) {
		const uint32_t code = f->bits == 8 ? codes[c] : codes[2 * c] | (uint32_t)codes[2 * c + 1] << 8;
		float scale = 1.0f;

		if (f->scale == MOE_SCALE_F32_ROW)
			memcpy(&scale, m->row_scales + row, sizeof(scale));
		else if (f->scale == MOE_SCALE_F32_TILE)
			memcpy(&scale, tiles + c / 128 * sizeof(scale), sizeof(scale));
		if (f->scale != MOE_SCALE_NONE)
			numbers_scale(n, row, scale);
		numbers_put(n, row, c, decode_value(f, code) * (double)scale, 0.0);
	}
}

/* Rows beyond `rows` of a last band of row-major formats are zero. */
static inline void decode(struct numbers *n, const struct kernel_matrix *m, size_t rows, size_t cols)
{
	const struct moe_format_spec *f = &moe_formats[m->format];

	if (decode_e8m0[127] == 0.0)
		decode_tables();
	numbers_size(n, rows, cols);
	for (size_t r = 0; r < n->stride; r += f->panel ? BAND : 1) {
		if (f->panel)
			decode_panel(n, f, (const uint8_t *)m->codes + r / BAND * m->pitch,
				     (const uint8_t *)m->scales + r / BAND * m->scale_pitch, r / BAND, cols);
		else if (r < rows)
			decode_row(n, m, r, cols);
		else
			for (size_t c = 0; c < cols; c++)
				numbers_put(n, r, c, 0.0, 0.0);
	}
}

#endif
