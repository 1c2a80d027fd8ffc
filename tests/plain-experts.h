/* SPDX-License-Identifier: MIT */
/*
 * plain-experts - random expert records of any format, and what they compute, in double precision and without any
 * trick: what the device's, the pool's and the engine's results are held against.
 */
#ifndef TESTS_PLAIN_EXPERTS_H
#define TESTS_PLAIN_EXPERTS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "kernels/record.h"
#include "tests/tap.h"
#include "uapi/moe_manifest.h"

/* Weights are of this magnitude at most, so that outputs are of the order of 1. */
#define PLAIN_WEIGHT 0.3

/* -- layouts ------------------------------------------------------------------------------------------------------ */

static inline uint64_t plain_plane_bytes(const struct moe_part *part, enum moe_plane plane)
{
	const uint32_t band = moe_band_rows(part->format, plane);

	return DIV_UP(part->rows, band) * moe_band_bytes(part->format, plane, part->cols);
}

/* hidden and inter are multiples of the formats' blocks, where these lie in panels. */
static inline void plain_layout(struct moe_layout *ret, uint32_t gate_up, uint32_t down, uint32_t hidden,
				uint32_t inter, bool bias)
{
	uint64_t at = 0;

	*ret = (struct moe_layout){.shares = 1,
				   .part = {{.format = gate_up, .rows = inter, .cols = hidden},
					    {.format = gate_up, .rows = inter, .cols = hidden},
					    {.format = down, .rows = hidden, .cols = inter}}};
	for (int i = 0; i < MOE_PARTS; i++) {
		struct moe_part *part = &ret->part[i];

		for (int plane = 0; plane < MOE_PLANES; plane++) {
			if (plane == MOE_PLANE_BIAS ? !bias : !moe_format_has(part->format, (enum moe_plane)plane))
				continue;
			part->plane[plane] = at;
			at += ALIGN_UP(plain_plane_bytes(part, (enum moe_plane)plane), (uint64_t)MOE_PART_ALIGN);
		}
	}
	ret->record_bytes = ALIGN_UP(at, (uint64_t)MOE_RECORD_ALIGN);
}

/* -- shares ------------------------------------------------------------------------------------------------------- */

/* The share that has a row, of `rows`: units of 16 rows are dealt as evenly as can be, in order. */
static inline uint32_t plain_share_of(uint32_t rows, uint32_t row, uint32_t shares)
{
	return (uint32_t)(((row / 16 + 1) * (uint64_t)shares - 1) / DIV_UP(rows, 16));
}

/* The layout of the same records in several pool files. */
static inline void plain_spread(struct moe_layout *ret, const struct moe_layout *whole, uint32_t shares)
{
	uint64_t at = 0;

	*ret = *whole;
	ret->shares = shares;
	for (int i = 0; i < MOE_PARTS * MOE_PLANES; i++) {
		struct moe_part *part = &ret->part[i / MOE_PLANES];
		const enum moe_plane plane = (enum moe_plane)(i % MOE_PLANES);
		const uint32_t units = DIV_UP(part->rows, 16), rows = MIN(DIV_UP(units, shares) * 16, part->rows);
		const uint64_t bands = DIV_UP(rows, moe_band_rows(part->format, plane));

		if (i > 0 && part->plane[plane] == 0)
			continue;
		part->plane[plane] = at;
		at += ALIGN_UP(bands * moe_band_bytes(part->format, plane, part->cols), (uint64_t)MOE_PART_ALIGN);
	}
	ret->record_bytes = ALIGN_UP(at, (uint64_t)MOE_RECORD_ALIGN);
}

/* Copies a share's rows of a whole record to where the share lies, or back. */
static inline void plain_move_share(const struct moe_layout *whole, uint8_t *record, const struct moe_layout *spread,
				    uint32_t share, uint8_t *memory, bool back)
{
	for (int i = 0; i < MOE_PARTS * MOE_PLANES; i++) {
		const struct moe_part *part = &whole->part[i / MOE_PLANES];
		const enum moe_plane plane = (enum moe_plane)(i % MOE_PLANES);
		const uint64_t bytes = moe_band_bytes(part->format, plane, part->cols);
		uint8_t *of_record = record + part->plane[plane];
		uint8_t *of_share = memory + spread->part[i / MOE_PLANES].plane[plane];

		if (i > 0 && part->plane[plane] == 0)
			continue;
		for (uint32_t row = 0; row < part->rows; row += moe_band_rows(part->format, plane)) {
			if (plain_share_of(part->rows, row, spread->shares) == share) {
				memcpy(back ? of_record : of_share, back ? of_share : of_record, bytes);
				of_share += bytes;
			}
			of_record += bytes;
		}
	}
}

/* What hidden and inter must be multiples of in a record of one format. */
static inline uint32_t plain_multiple(uint32_t format)
{
	return moe_formats[format].panel ? moe_formats[format].block : 1;
}

/* -- records ------------------------------------------------------------------------------------------------------ */

static inline double plain_random(unsigned long long *seed, double scale)
{
	return ((double)(tap_random(seed) >> 11) / 4503599627370496.0 - 1) * scale;
}

static inline void plain_put16(uint8_t *to, bool bf16, double value)
{
	const float single = (float)value;
	const _Float16 half = (_Float16)value;

	memcpy(to, bf16 ? (const char *)&single + 2 : (const char *)&half, 2);
}

/* The largest value of a code, zero points aside. */
static inline double plain_largest(const struct moe_format_spec *f)
{
	switch (f->code) {
	case MOE_CODE_E4M3:
		return 16; /* of those that plain_fill_codes takes */
	case MOE_CODE_E2M1:
		return 6;
	case MOE_CODE_UINT:
		return MAX((double)f->offset, (double)(1 << f->bits) - 1 - f->offset);
	default:
		return 127;
	}
}

static inline void plain_fill_codes(uint8_t *to, uint64_t bytes, const struct moe_format_spec *f,
				    unsigned long long *seed)
{
	for (uint64_t i = 0; i < bytes; i += f->bits == 16 ? 2 : 1) {
		const uint32_t random = (uint32_t)(tap_random(seed) >> 32);

		if (f->bits == 16)
			plain_put16(to + i, f->code == MOE_CODE_BF16, plain_random(seed, PLAIN_WEIGHT));
		else
			to[i] = (uint8_t)(f->code == MOE_CODE_E4M3 ? (random >> 8 & 0x80) | random % 0x58 : random);
	}
}

/* A scale block of 16 rows. */
static inline void plain_fill_scales(uint8_t *to, const struct moe_format_spec *f, unsigned long long *seed)
{
	const double scale = PLAIN_WEIGHT / plain_largest(f);
	const uint32_t groups = f->group ? f->block / f->group : 1;
	uint8_t *fine = to + (f->zero == MOE_ZERO_K ? 64 : 32);
	const float tile = (float)(scale * (1.5 + plain_random(seed, 0.5)) / 2);

	if (f->scale == MOE_SCALE_F32_TILE) {
		memcpy(to, &tile, sizeof tile);
		return;
	}
	for (uint32_t r = 0; r < MOE_PANEL_ROWS; r++) {
		const double random = scale * (1.5 + plain_random(seed, 0.5)) / 2;

		switch (f->scale) {
		case MOE_SCALE_E8M0:
			to[r] = (uint8_t)(121 + tap_random(seed) % 2);
			continue;
		case MOE_SCALE_F16_U8:
		case MOE_SCALE_F16_S8:
			plain_put16(to + 2 * r, false, random / 32);
			break;
		default:
			plain_put16(to + 2 * r, f->scale == MOE_SCALE_BF16, random);
		}
		if (f->zero == MOE_ZERO_U8)
			to[32 + r] = (uint8_t)(tap_random(seed) % 16);
		else if (f->zero == MOE_ZERO_F16)
			plain_put16(to + 32 + 2 * r, false, plain_random(seed, PLAIN_WEIGHT));
		else if (f->zero == MOE_ZERO_K)
			plain_put16(to + 32 + 2 * r, false, PLAIN_WEIGHT / 64);
	}
	if (f->scale == MOE_SCALE_F16_U8 || f->scale == MOE_SCALE_F16_S8)
		for (uint32_t i = 0; i < groups * MOE_PANEL_ROWS * (f->zero == MOE_ZERO_K ? 2 : 1); i++)
			fine[i] = (uint8_t)(tap_random(seed) % 64 - (f->scale == MOE_SCALE_F16_S8 ? 32 : 0));
}

static inline void plain_fill_part(const struct moe_part *part, uint8_t *record, unsigned long long *seed)
{
	const struct moe_format_spec *f = &moe_formats[part->format];
	const uint64_t scales = moe_format_has(part->format, MOE_PLANE_SCALES)
					? plain_plane_bytes(part, MOE_PLANE_SCALES) / f->block_bytes
					: 0;

	plain_fill_codes(record + part->plane[MOE_PLANE_CODES], plain_plane_bytes(part, MOE_PLANE_CODES), f, seed);
	for (uint64_t i = 0; i < scales; i++)
		plain_fill_scales(record + part->plane[MOE_PLANE_SCALES] + i * f->block_bytes, f, seed);
	for (uint32_t i = 0; i < part->rows; i++) {
		const float scale = (float)(PLAIN_WEIGHT / plain_largest(f) * (1.5 + plain_random(seed, 0.5)) / 2);
		const float bias = (float)plain_random(seed, 1);

		if (part->plane[MOE_PLANE_ROW_SCALES])
			memcpy(record + part->plane[MOE_PLANE_ROW_SCALES] + 4 * (uint64_t)i, &scale, 4);
		if (part->plane[MOE_PLANE_BIAS])
			memcpy(record + part->plane[MOE_PLANE_BIAS] + 4 * (uint64_t)i, &bias, 4);
	}
}

static inline void plain_fill_record(const struct moe_layout *layout, uint8_t *record, unsigned long long *seed)
{
	memset(record, 0, layout->record_bytes);
	for (int i = 0; i < MOE_PARTS; i++)
		plain_fill_part(&layout->part[i], record, seed);
}

/* One rank's slice of a record, packed as in a slot. */
static inline void plain_pack(const struct moe_slice *slice, const uint8_t *record, uint8_t *slot)
{
	for (int i = 0; i < MOE_PARTS * MOE_PLANES; i++) {
		const struct moe_slice_plane *p = &slice->plane[i / MOE_PLANES][i % MOE_PLANES];

		for (uint64_t row = 0; row < p->rows; row++)
			memcpy(slot + p->slot_offset + row * p->width, record + p->offset + row * p->pitch, p->width);
	}
}

/* -- what they compute -------------------------------------------------------------------------------------------- */

/* A record's numbers, in double. */
struct plain_values {
	uint32_t hidden, inter;
	double *matrix[MOE_PARTS], *bias[MOE_PARTS];
};

static inline void plain_decode(struct plain_values *ret, const struct moe_layout *layout, const uint8_t *record)
{
	struct moe_slice whole;

	moe_slice_of(&whole, layout, 0, 1);
	ret->inter = layout->part[MOE_PART_GATE].rows;
	ret->hidden = layout->part[MOE_PART_GATE].cols;
	for (int i = 0; i < MOE_PARTS; i++) {
		const struct kernel_matrix m = record_matrix(record, layout, &whole, (enum moe_part_name)i,
							     RECORD_IN_POOL);
		const uint32_t rows = layout->part[i].rows, cols = layout->part[i].cols;

		ret->matrix[i] = malloc((size_t)rows * cols * sizeof(double));
		ret->bias[i] = calloc(rows, sizeof(double));
		if (!ret->matrix[i] || !ret->bias[i])
			abort();
		for (uint32_t r = 0; r < rows; r++) {
			for (uint32_t c = 0; c < cols; c++)
				ret->matrix[i][(size_t)r * cols + c] = kernel_weight(&m, r, c);
			if (m.bias)
				ret->bias[i][r] = m.bias[r];
		}
	}
}

static inline void plain_forget(struct plain_values *values)
{
	for (int i = 0; i < MOE_PARTS; i++) {
		free(values->matrix[i]);
		free(values->bias[i]);
	}
	*values = (struct plain_values){0};
}

static inline double plain_activate(uint32_t activation, double limit, double g, double u)
{
	switch (activation) {
	case MOE_ACTIVATION_GELU:
		return 0.5 * g * (1 + erf(g / sqrt(2))) * u;
	case MOE_ACTIVATION_GELU_TANH:
		return 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
	case MOE_ACTIVATION_SWIGLU_CLAMPED:
		g = fmin(g, limit);
		return g / (1 + exp(-1.702 * g)) * (fmax(fmin(u, limit), -limit) + 1);
	default:
		return g / (1 + exp(-g)) * u;
	}
}

/*
 * y[hidden] += weight * (rows first .. first + count of the intermediate dimension of the expert)(x), with the bias of
 * down where first is 0; magnitude (may be NULL) += what rounding errors of y are proportional to.
 */
static inline void plain_expert(const struct plain_values *v, uint32_t activation, double limit, uint32_t first,
				uint32_t count, double weight, const float *x, double *y, double *magnitude)
{
	const double *down = v->matrix[MOE_PART_DOWN];

	for (uint32_t i = first; i < first + count; i++) {
		const double *gate = v->matrix[MOE_PART_GATE] + (size_t)i * v->hidden;
		const double *up = v->matrix[MOE_PART_UP] + (size_t)i * v->hidden;
		double g = v->bias[MOE_PART_GATE][i], u = v->bias[MOE_PART_UP][i], gm = fabs(g), um = fabs(u), h;

		for (uint32_t j = 0; j < v->hidden; j++) {
			g += gate[j] * x[j];
			u += up[j] * x[j];
			gm += fabs(gate[j] * x[j]);
			um += fabs(up[j] * x[j]);
		}
		h = plain_activate(activation, limit, g, u);
		for (uint32_t j = 0; j < v->hidden; j++) {
			y[j] += weight * h * down[(size_t)j * v->inter + i];
			if (magnitude)
				magnitude[j] += fabs(weight * down[(size_t)j * v->inter + i]) * gm * (um + 1);
		}
	}
	for (uint32_t j = 0; j < v->hidden && first == 0; j++)
		y[j] += weight * v->bias[MOE_PART_DOWN][j];
	for (uint32_t j = 0; j < v->hidden && magnitude; j++)
		magnitude[j] += fabs(weight * v->bias[MOE_PART_DOWN][j]);
}

/* The share of the magnitude by which a level's results may differ: what packed activations lose, amply. */
static inline double plain_tolerance(const struct kernels *kernels, const struct moe_layout *layout)
{
	double worst = 1e-5;

	for (int i = 0; i < MOE_PARTS; i++) {
		const enum kernel_pack pack = kernels->of[layout->part[i].format]->pack;

		worst = fmax(worst, pack == PACK_F32 || pack == PACK_F32_UP ? 0 : pack == PACK_BF16 ? 0.01 : 0.03);
	}
	return worst;
}

#endif
