/* SPDX-License-Identifier: MIT */
/*
 * test-formats-weight - kernel_weight, which everything else is measured by: against published numbers, planes made by
 * hand, and the other reading of uapi/moe_format.h in kernel-decode.h.
 */
#include "tests/kernel-problem.h"

/* -- numbers ------------------------------------------------------------------------------------------------------ */

static bool same(double got, double want)
{
	return isnan(want) ? isnan(got) : got == want && !signbit(got) == !signbit(want);
}

/* The value of each code of a row-major format of 16 or 8 bits without scales or with one of 1. */
static double code_value(uint32_t format, uint32_t code)
{
	const uint8_t bytes[2] = {(uint8_t)code, (uint8_t)(code >> 8)};
	const float one = 1.0f;
	const struct kernel_matrix m = {
		.format = format, .codes = bytes, .row_scales = &one, .pitch = 2, .scales = NULL};

	return kernel_weight(&m, 0, 0);
}

static void halves_check(void)
{
	bool bf16 = true, f16 = true;

	for (uint32_t i = 0; i < 65536; i++) {
		const uint32_t wide = i << 16;
		const uint16_t narrow = (uint16_t)i;
		_Float16 half;
		float value;

		memcpy(&value, &wide, sizeof(value));
		memcpy(&half, &narrow, sizeof(half));
		bf16 = bf16 && same(code_value(MOE_FORMAT_BF16, i), value);
		f16 = f16 && same(code_value(MOE_FORMAT_F16, i), (double)half);
	}
	ok(bf16, "bfloat16: all codes are the upper half of binary32");
	ok(f16, "binary16: all codes are what the compiler says");
}

static void bytes_check(void)
{
	double largest = 0.0, least_positive = INFINITY;
	bool e4m3 = true, s8 = true;
	int nans = 0;

	for (int i = 0; i < 256; i++) {
		const int exponent = i / 8 % 16, fraction = i % 8, sign = i < 128 ? 1 : -1;
		const double got = code_value(MOE_FORMAT_FP8_ROW, (uint32_t)i);
		double want = exponent ? 8 + fraction : fraction; /* in eighths, then times a power of two */

		for (int e = exponent ? exponent : 1; e < 10; e++)
			want /= 2;
		for (int e = 10; e < exponent; e++)
			want *= 2;
		nans += isnan(got);
		e4m3 = e4m3 && (i % 128 == 127 ? isnan(got) : same(got, sign * want));
		largest = got > largest ? got : largest;
		least_positive = got > 0 && got < least_positive ? got : least_positive;
		s8 = s8 && code_value(MOE_FORMAT_INT8, (uint32_t)i) == (signed char)i;
	}
	ok(e4m3, "E4M3: all codes by formula");
	ok(nans == 2 && largest == 448 && least_positive == 0x1p-9, "E4M3: two NaNs, no infinity, 2^-9 to 448");
	ok(code_value(MOE_FORMAT_FP8_ROW, 0x38) == 1 && code_value(MOE_FORMAT_FP8_ROW, 0x3c) == 1.5 &&
		   code_value(MOE_FORMAT_FP8_ROW, 0xc0) == -2 && code_value(MOE_FORMAT_FP8_ROW, 0x08) == 0x1p-6,
	   "E4M3: 1, 1.5, -2 and the least normal number");
	ok(s8, "INT8: two's complement");
}

/* -- panels made by hand ------------------------------------------------------------------------------------------ */

#define PANEL_BYTES (256 * BAND) /* of 256 columns of 8 bits */

/* A panel of 256 columns with all scales 1, zeros 0, minima 0. */
struct panel {
	uint8_t codes[PANEL_BYTES], scales[16 * 64];
	struct kernel_matrix m;
};

static void panel_new(struct panel *p, uint32_t format)
{
	const struct moe_format_spec *f = &moe_formats[format];

	memset(p, 0, sizeof(*p));
	for (uint32_t b = 0; b < 256u / f->block; b++) {
		uint8_t *block = p->scales + b * f->block_bytes;
		/* Where the fine scales begin: behind d, and dmin where there is one. */
		uint8_t *fine = block + (f->zero == MOE_ZERO_K ? 64 : 32);

		for (uint32_t r = 0; r < BAND; r++) {
			if (f->scale == MOE_SCALE_E8M0)
				block[r] = 127;
			else
				memcpy(block + 2 * r, &(uint16_t){f->scale == MOE_SCALE_BF16 ? 0x3f80 : 0x3c00}, 2);
		}
		if (f->scale == MOE_SCALE_F16_U8 || f->scale == MOE_SCALE_F16_S8)
			memset(fine, 1, 256u / f->group * BAND);
	}
	p->m = (struct kernel_matrix){.format = format,
				      .codes = p->codes,
				      .scales = p->scales,
				      .pitch = sizeof(p->codes),
				      .scale_pitch = sizeof(p->scales)};
}

/* One byte that is not zero, and where its bits must be found. */
static const struct place {
	uint32_t bits;
	size_t byte;
	uint8_t value;
	size_t row, col;
	uint32_t code;
} places[] = {
	{8, 0, 200, 0, 0, 200},
	{8, 63, 7, 15, 3, 7},
	{8, 64, 9, 0, 4, 9},
	{8, 511, 255, 15, 31, 255},
	{8, 512 + 3 * 64 + 22, 77, 5, 32 + 12 + 2, 77},
	{4, 0, 0x0b, 0, 0, 11},
	{4, 0, 0xb0, 0, 4, 11},
	{4, 255, 0x0f, 15, 24 + 3, 15},
	{4, 255, 0xf0, 15, 31, 15},
	{4, 256 + 64 + 9, 0x05, 2, 32 + 8 + 1, 5},
	{4, 256 + 64 + 9, 0x50, 2, 32 + 12 + 1, 5},
	{5, 0, 0x0b, 0, 0, 11},
	{5, 256, 0x01, 0, 0, 16},
	{5, 256, 0x80, 0, 28, 16},
	{5, 256 + 63, 0x10, 15, 16 + 3, 16},
	{5, 320 + 256 + 6, 0x04, 1, 32 + 8 + 2, 16},
	{5, 320 + 192 + 5, 0x70, 1, 32 + 28 + 1, 7},
	{6, 0, 0x0b, 0, 0, 11},
	{6, 256, 0x03, 0, 0, 48},
	{6, 256, 0x04, 0, 4, 16},
	{6, 256, 0x80, 0, 12, 32},
	{6, 256 + 64, 0x02, 0, 16, 32},
	{6, 256 + 127, 0xc0, 15, 31, 48},
	{6, 384 + 256 + 64 + 10, 0x10, 2, 32 + 16 + 8 + 2, 16},
};

static void places_check(uint32_t format)
{
	const struct moe_format_spec *f = &moe_formats[format];
	struct panel p;
	int found = 0;
	bool good = true;

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		const struct place *at = &places[i];
		double zero, want;

		if (at->bits != f->bits)
			continue;
		found++;
		panel_new(&p, format);
		zero = kernel_weight(&p.m, at->row, at->col);
		p.codes[at->byte] = at->value;
		want = decode_value(f, at->code);
		for (size_t r = 0; r < BAND; r++)
			for (size_t c = 0; c < 64; c++) {
				/* the other nibble's or bits' owners keep the value of code 0 */
				const double got = kernel_weight(&p.m, r, c);
				const bool here = r == at->row && c == at->col;

				if (got != (here ? want : zero)) {
					diag("byte %zu = 0x%02x: row %zu column %zu is %g", at->byte, at->value, r, c,
					     got);
					good = false;
				}
			}
	}
	ok(good && found >= 5, "%s: bytes made by hand are found in their rows and columns", f->name);
}

/* A row's 16 codes in one block column after another. */
static bool table_good(uint32_t format, const double *want)
{
	struct panel p;
	bool good = true;

	for (unsigned code = 0; code < 16; code++) {
		panel_new(&p, format);
		p.codes[0] = (uint8_t)code;
		good = good && same(kernel_weight(&p.m, 0, 0), want[code]);
	}
	return good;
}

static void tables_check(void)
{
	static const double e2m1[16] = {0.0,  0.5,  1.0,  1.5,  2.0,  3.0,  4.0,  6.0,
					-0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0};
	static const double iq4nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
	struct panel p;
	bool good = true;

	ok(table_good(MOE_FORMAT_MXFP4, e2m1), "MXFP4: the 16 values of E2M1");
	ok(table_good(MOE_FORMAT_IQ4_XS, iq4nl), "IQ4_XS: the 16 values of IQ4_NL");
	panel_new(&p, MOE_FORMAT_MXFP4);
	p.codes[4 * 3] = 2; /* row 3: 1.0 */
	for (int i = 0; i < 256; i++) {
		p.scales[3] = (uint8_t)i;
		good = good && same(kernel_weight(&p.m, 3, 0), i == 255 ? NAN : ldexp(1.0, i - 127));
	}
	ok(good, "MXFP4: the 256 scales");
}

/* Scales by hand: a code of 3 in row 2, column `col`. */
static double by_hand(uint32_t format, size_t col, void (*scales)(uint8_t *block))
{
	struct panel p;
	const size_t v = col % 32 / 4, bits = moe_formats[format].bits;

	panel_new(&p, format);
	p.codes[col / 32 * (bits * 64) + (bits == 8 ? v : v / 2) * 64 + 2 * 4 + col % 4] =
		(uint8_t)(bits < 8 && v % 2 ? 0x30 : 0x03);
	scales(p.scales + col / moe_formats[format].block * moe_formats[format].block_bytes);
	return kernel_weight(&p.m, 2, col);
}

static void put16(uint8_t *at, uint16_t bits)
{
	memcpy(at, &bits, sizeof(bits));
}

static void scale_half(uint8_t *block)
{
	put16(block + 2 * 2, 0x3800); /* 0.5 as F16; as BF16 2^-15 */
}

static void scale_zero_point(uint8_t *block)
{
	scale_half(block);
	block[32 + 2] = 10;
}

static void scale_minimum(uint8_t *block)
{
	scale_half(block);
	put16(block + 32 + 2 * 2, 0xc000); /* -2 */
}

/* Groups 0 .. 7 of s behind d and dmin, then those of m. */
static void scale_k(uint8_t *block)
{
	scale_half(block);
	put16(block + 32 + 2 * 2, 0x3400); /* 0.25 */
	block[64 + 16 * 2 + 2] = 40;       /* group 2 */
	block[64 + 16 * 8 + 16 * 2 + 2] = 60;
}

static void scale_signed(uint8_t *block)
{
	scale_half(block);
	block[32 + 16 * 3 + 2] = 0xf0; /* group 3: -16 */
}

static void scales_check(void)
{
	ok(by_hand(MOE_FORMAT_INT4_G32_F16, 37, scale_half) == (3 - 8) * 0.5, "INT4 F16: 0.5 (3 - 8)");
	ok(by_hand(MOE_FORMAT_INT4_G128_BF16, 129, scale_half) == (3 - 8) * 0x1p-15, "INT4 BF16: 2^-15 (3 - 8)");
	ok(by_hand(MOE_FORMAT_INT4_G64_F16_ZP, 64, scale_zero_point) == (3 - 10) * 0.5, "INT4 ZP: 0.5 (3 - 10)");
	ok(by_hand(MOE_FORMAT_Q8_0, 33, scale_half) == (3 - 128) * 0.5, "Q8_0: 0.5 (3 - 128)");
	ok(by_hand(MOE_FORMAT_Q4_1, 40, scale_minimum) == 3 * 0.5 - 2, "Q4_1: 0.5 * 3 - 2");
	ok(by_hand(MOE_FORMAT_Q4_K, 64, scale_k) == 0.5 * 40 * 3 - 0.25 * 60, "Q4_K: 0.5 * 40 * 3 - 0.25 * 60");
	ok(by_hand(MOE_FORMAT_Q5_K, 95, scale_k) == 0.5 * 40 * 3 - 0.25 * 60, "Q5_K: 0.5 * 40 * 3 - 0.25 * 60");
	ok(by_hand(MOE_FORMAT_Q6_K, 48, scale_signed) == 0.5 * -16 * (3 - 32), "Q6_K: 0.5 * -16 * (3 - 32)");
	ok(by_hand(MOE_FORMAT_IQ4_XS, 127, scale_signed) == 0.5 * -16 * -65, "IQ4_XS: 0.5 * -16 * -65");
}

static void rows_check(void)
{
	static const float tiles[2][3] = {{1, 2, 3}, {4, 5, 6}};
	static const float scales[3] = {0.5f, -2, 3};
	static uint8_t codes[17][300];
	const struct kernel_matrix block = {.format = MOE_FORMAT_FP8_BLOCK,
					    .codes = codes,
					    .scales = tiles,
					    .pitch = sizeof(codes[0]),
					    .scale_pitch = sizeof(tiles[0])};
	const struct kernel_matrix row = {
		.format = MOE_FORMAT_INT8, .codes = codes, .row_scales = scales, .pitch = sizeof(codes[0])};

	memset(codes, 0x38, sizeof(codes)); /* 1.0 as E4M3, 56 as an integer */
	ok(kernel_weight(&block, 0, 0) == 1 && kernel_weight(&block, 15, 127) == 1 &&
		   kernel_weight(&block, 0, 128) == 2 && kernel_weight(&block, 15, 299) == 3 &&
		   kernel_weight(&block, 16, 0) == 4 && kernel_weight(&block, 16, 256) == 6,
	   "FP8: a scale for 16 rows and 128 columns");
	ok(kernel_weight(&row, 0, 9) == 28 && kernel_weight(&row, 1, 299) == -112 && kernel_weight(&row, 2, 0) == 168,
	   "INT8: a scale for each row");
}

/* -- the other reading -------------------------------------------------------------------------------------------- */

static void whole_check(struct problem *p, uint32_t format)
{
	const size_t unit = col_unit(format);
	bool good = true;

	for (int i = 0; i < 40 && good; i++) {
		p->rows = 1 + pick(40);
		p->cols = unit > 1 ? unit * (1 + pick(3)) : 1 + pick(300);
		p->tokens = 0;
		problem_new(p, format, once_in(2) ? DATA_PLAIN : DATA_SPECIAL);
		for (size_t c = 0; c < p->cols && good; c++)
			for (size_t r = 0; r < p->rows && good; r++) {
				const double want = p->numbers[0].w[c * p->numbers[0].stride + r];
				const double got = kernel_weight(&p->whole[0], p->row0 + r, p->col0 + c);

				good = (isnan(want) ? isnan(got) : got == want) &&
				       same(kernel_weight(&p->m[0], r, c), got);
				if (!good)
					diag("rows %zu cols %zu: row %zu column %zu is %g and not %g", p->rows, p->cols,
					     r, c, got, want);
			}
	}
	ok(good, "%s: random matrices and pieces of them as another reading has them", moe_formats[format].name);
}

int main(void)
{
	static struct problem problem;

	seed = tap_seed();
	decode_tables();
	problem_init(&problem);
	halves_check();
	bytes_check();
	tables_check();
	scales_check();
	rows_check();
	for (uint32_t f = MOE_FORMAT_NONE + 1; f < MOE_FORMAT_COUNT; f++) {
		if (moe_formats[f].panel)
			places_check(f);
		whole_check(&problem, f);
	}
	return tap_done();
}
