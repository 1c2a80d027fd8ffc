/* SPDX-License-Identifier: MIT */
/* weight - the exact value of one weight, read from the planes as uapi/moe_format.h describes them. */
#include "kernels/levels.h"
#include "kernels/ref/scalar.h"

static const double e2m1_values[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
static const double iq4nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static uint16_t load16(const uint8_t *p)
{
	uint16_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static double load_float(const uint8_t *p)
{
	float v;

	memcpy(&v, p, sizeof(v));
	return v;
}

/* The code of a column in a panel's row. */
static uint32_t panel_code(const uint8_t *panel, uint32_t bits, size_t row, size_t col)
{
	const uint8_t *block = panel + col / MOE_BLOCK_COLS * (MOE_BLOCK_COLS * MOE_PANEL_ROWS * bits / 8);
	const size_t v = col % MOE_BLOCK_COLS / 4, i = row * 4 + col % 4;
	uint32_t code;

	if (bits == 8)
		return block[v * 64 + i];
	code = block[v / 2 * 64 + i] >> (v % 2 * 4) & 15;
	if (bits == 5)
		code |= (block[256 + i] >> v & 1u) << 4;
	if (bits == 6)
		code |= (block[256 + v / 4 * 64 + i] >> (v % 4 * 2) & 3u) << 4;
	return code;
}

static double code_value(const struct moe_format_spec *f, uint32_t code)
{
	switch (f->code) {
	case MOE_CODE_BF16:
		return bf16_value((uint16_t)code);
	case MOE_CODE_F16:
		return f16_value((uint16_t)code);
	case MOE_CODE_E4M3:
		return e4m3_value((uint8_t)code);
	case MOE_CODE_S8:
		return (int8_t)code;
	case MOE_CODE_E2M1:
		return e2m1_values[code];
	case MOE_CODE_IQ4NL:
		return iq4nl_values[code];
	default:
		return (double)code - f->offset;
	}
}

/* The weight of a column whose code is worth `value`, from its scale block (of 16 rows); `col` counts from the block's
 * first. */
static double panel_weight(const struct moe_format_spec *f, const uint8_t *scales, size_t row, size_t col, double value)
{
	const size_t group = col / f->group, groups = f->block / f->group;
	const uint8_t *fine = scales + (f->zero == MOE_ZERO_K ? 64 : 32) + group * 16 + row;
	const double d = f->scale == MOE_SCALE_E8M0   ? e8m0_value(scales[row])
			 : f->scale == MOE_SCALE_BF16 ? bf16_value(load16(scales + 2 * row))
						      : f16_value(load16(scales + 2 * row));

	switch (f->zero) {
	case MOE_ZERO_U8:
		return d * (value - scales[32 + row]);
	case MOE_ZERO_F16:
		return d * value + f16_value(load16(scales + 32 + 2 * row));
	case MOE_ZERO_K:
		return d * fine[0] * value - f16_value(load16(scales + 32 + 2 * row)) * fine[groups * 16];
	default:
		return f->scale == MOE_SCALE_F16_S8 ? d * (int8_t)fine[0] * value : d * value;
	}
}

double kernel_weight(const struct kernel_matrix *m, size_t row, size_t col)
{
	const struct moe_format_spec *f = &moe_formats[m->format];
	const uint8_t *codes = (const uint8_t *)m->codes + row / moe_band_rows(m->format, MOE_PLANE_CODES) * m->pitch;
	const uint8_t *scales = m->scales;
	double value;

	if (f->panel)
		value = code_value(f, panel_code(codes, f->bits, row % MOE_PANEL_ROWS, col));
	else
		value = code_value(f, f->bits == 16 ? load16(codes + 2 * col) : codes[col]);
	if (scales)
		scales += row / MOE_PANEL_ROWS * m->scale_pitch + col / f->block * f->block_bytes;
	switch (f->scale) {
	case MOE_SCALE_NONE:
		return value;
	case MOE_SCALE_F32_ROW:
		return value * m->row_scales[row];
	case MOE_SCALE_F32_TILE:
		return value * load_float(scales);
	default:
		return panel_weight(f, scales, row % MOE_PANEL_ROWS, col % f->block, value);
	}
}
