/* SPDX-License-Identifier: MIT */
/*
 * The quantizers of moe-mkmodel: number types, the error of each format against its own step, and where each bit lies.
 * The decoders are written from the formats' public definitions, weight by weight, and share no line with the code.
 */
#include <math.h>
#include <string.h>

#include "base/util.h"
#include "tap.h"
#include "tools/mkmodel/form.h"
#include "tools/mkmodel/ggml.h"
#include "tools/mkmodel/number.h"
#include "tools/mkmodel/search.h"

#define ROWS 24
#define COLS 512
#define WEIGHTS (ROWS * COLS)

/* A decoded weight, and how far apart the numbers around it are. */
struct found {
	float value, step;
};

static float half(const uint8_t *at)
{
	_Float16 x;

	memcpy(&x, at, 2);
	return (float)x;
}

static float brain(const uint8_t *at)
{
	uint32_t bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24;
	float x;

	memcpy(&x, &bits, 4);
	return x;
}

static float single(const uint8_t *at)
{
	float x;

	memcpy(&x, at, 4);
	return x;
}

/* Of eight bits: sign, exponent (bias 7), fraction. */
static float e4m3(uint8_t code)
{
	const int e = code >> 3 & 15, f = code & 7;
	const double x = e ? (1 + f / 8.0) * pow(2, e - 7) : f / 8.0 * pow(2, -6);

	return (float)(code & 0x80 ? -x : x);
}

static const float e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
static const float iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* The step around a number that is the `code`th of an ascending table: the wider one of both sides. */
static float step_in(const float *sorted, int n, float value)
{
	float step = 0;

	for (int i = 0; i + 1 < n; i++)
		if (sorted[i] == value || sorted[i + 1] == value)
			step = fmaxf(step, sorted[i + 1] - sorted[i]);
	return step;
}

/* -- GGUF blocks: weight i of a block ------------------------------------------------------------------------------ */

static int nibble_16_apart(const uint8_t *at, int i)
{
	return i < 16 ? at[i] & 15 : at[i - 16] >> 4;
}

static struct found q8_0(const uint8_t *b, int i)
{
	return (struct found){half(b) * (int8_t)b[2 + i], half(b)};
}

static struct found q4_0(const uint8_t *b, int i)
{
	return (struct found){half(b) * (float)(nibble_16_apart(b + 2, i) - 8), fabsf(half(b))};
}

static struct found q4_1(const uint8_t *b, int i)
{
	return (struct found){half(b) * (float)nibble_16_apart(b + 4, i) + half(b + 2), half(b)};
}

static struct found mxfp4(const uint8_t *b, int i)
{
	static const float sorted[] = {-6, -4, -3, -2, -1.5f, -1, -0.5f, 0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
	const float value = e2m1[nibble_16_apart(b + 1, i)], scale = powf(2, (float)b[0] - 127);

	return (struct found){scale * value, scale * step_in(sorted, 15, value)};
}

/* The scale and minimum of group g: 6 bits each in 12 bytes. */
static void scale_and_minimum(const uint8_t *s, int g, int *scale, int *minimum)
{
	if (g < 4) {
		*scale = s[g] & 63;
		*minimum = s[g + 4] & 63;
	} else {
		*scale = (s[g + 4] & 15) + 16 * (s[g - 4] >> 6);
		*minimum = (s[g + 4] >> 4) + 16 * (s[g] >> 6);
	}
}

static struct found ramp_weight(const uint8_t *b, int i, int code)
{
	int scale, minimum;

	scale_and_minimum(b + 4, i / 32, &scale, &minimum);
	return (struct found){half(b) * (float)scale * (float)code - half(b + 2) * (float)minimum,
			      half(b) * (float)scale};
}

static struct found q4_k(const uint8_t *b, int i)
{
	const uint8_t byte = b[16 + i / 64 * 32 + i % 32];

	return ramp_weight(b, i, i / 32 % 2 ? byte >> 4 : byte & 15);
}

static struct found q5_k(const uint8_t *b, int i)
{
	const uint8_t byte = b[48 + i / 64 * 32 + i % 32], fifth = b[16 + i % 32] >> i / 32 & 1;

	return ramp_weight(b, i, (i / 32 % 2 ? byte >> 4 : byte & 15) + 16 * fifth);
}

static struct found q6_k(const uint8_t *b, int i)
{
	const int in = i % 128, quarter = in / 32, at = in % 32;
	const uint8_t low = b[i / 128 * 64 + quarter % 2 * 32 + at], high = b[128 + i / 128 * 32 + at];
	const int code = (quarter < 2 ? low & 15 : low >> 4) + 16 * (high >> 2 * quarter & 3);
	const float scale = half(b + 208) * (int8_t)b[192 + i / 16];

	return (struct found){scale * (float)(code - 32), fabsf(scale)};
}

static struct found iq4_xs(const uint8_t *b, int i)
{
	const int g = i / 32, high = (b[2] | b[3] << 8) >> 2 * g & 3;
	const int scale = (g % 2 ? b[4 + g / 2] >> 4 : b[4 + g / 2] & 15) + 16 * high - 32;
	const float value = iq4[nibble_16_apart(b + 8 + 16 * g, i % 32)], d = half(b) * (float)scale;

	return (struct found){d * value, fabsf(d) * step_in(iq4, 16, value)};
}

static struct found bf16(const uint8_t *b, int i)
{
	return (struct found){brain(b), fabsf(brain(b)) / 128};
}

static struct found f16(const uint8_t *b, int i)
{
	return (struct found){half(b), fabsf(half(b)) / 1024 + 6e-8f};
}

/* -- folders: weight [r][c] of a matrix of ROWS x COLS ------------------------------------------------------------- */

static int nibble(const uint8_t *words, size_t word, int place)
{
	return words[4 * word + place / 2] >> place % 2 * 4 & 15;
}

struct tensors {
	const struct form *form;
	const uint8_t *at[FORM_TENSORS_MAX];
};

static struct found fp8_block(const struct tensors *t, int r, int c)
{
	const uint8_t code = t->at[0][r * COLS + c];
	const float scale = single(t->at[1] + 4 * (r / 128 * (COLS / 128) + c / 128));
	const float step = fmaxf(powf(2, (float)(code >> 3 & 15) - 10), powf(2, -9));

	return (struct found){scale * e4m3(code), scale * step};
}

static struct found fp8_channel(const struct tensors *t, int r, int c)
{
	const uint8_t code = t->at[0][r * COLS + c];
	const float scale = brain(t->at[1] + 2 * r), step = fmaxf(powf(2, (float)(code >> 3 & 15) - 10), powf(2, -9));

	return (struct found){scale * e4m3(code), scale * step};
}

static struct found int8(const struct tensors *t, int r, int c)
{
	const float scale = brain(t->at[1] + 2 * r);

	return (struct found){scale * (int8_t)t->at[0][r * COLS + c], scale};
}

static struct found int4_ct(const struct tensors *t, int r, int c)
{
	const int groups = COLS / (int)t->form->group, g = c / (int)t->form->group;
	const int code = nibble(t->at[0], (size_t)(r * COLS + c) / 8, c % 8);
	const int zero = t->form->zeros ? nibble(t->at[3], (size_t)(r / 8 * groups + g), r % 8) : 8;
	const float scale = brain(t->at[1] + 2 * (r * groups + g));

	return (struct found){scale * (float)(code - zero), scale};
}

static struct found gptq(const struct tensors *t, int r, int c)
{
	uint32_t g;
	int code, zero;
	float scale;

	memcpy(&g, t->at[3] + 4 * c, 4);
	code = nibble(t->at[0], (size_t)(c / 8 * ROWS + r), c % 8);
	zero = nibble(t->at[1], (size_t)(g * (ROWS / 8)) + (size_t)(r / 8), r % 8) + 1;
	scale = half(t->at[2] + 2 * (g * ROWS + (uint32_t)r));
	return (struct found){scale * (float)(code - zero), scale};
}

static struct found awq(const struct tensors *t, int r, int c)
{
	static const int place[8] = {0, 4, 1, 5, 2, 6, 3, 7}; /* of row r % 8: the inverse of 0 2 4 6 1 3 5 7 */
	const int g = c / (int)t->form->group;
	const int code = nibble(t->at[0], (size_t)(c * (ROWS / 8) + r / 8), place[r % 8]);
	const int zero = nibble(t->at[1], (size_t)(g * (ROWS / 8) + r / 8), place[r % 8]);
	const float scale = half(t->at[2] + 2 * (g * ROWS + r));

	return (struct found){scale * (float)(code - zero), scale};
}

/* -- error bounds -------------------------------------------------------------------------------------------------- */

/* Normally distributed, one group in eight with an outlier, one with zeros, one all alike. */
static void fill(float *w, unsigned long long *state)
{
	for (int i = 0; i < WEIGHTS; i++) {
		float sum = 0;

		for (int k = 0; k < 12; k++)
			sum += (float)(tap_random(state) >> 40) / (float)(1 << 24);
		w[i] = number_from_bf16(number_to_bf16(0.02f * (sum - 6)));
	}
	for (int g = 0; g < WEIGHTS / 32; g += 8) {
		w[32 * g] *= 4; /* stays exact in BF16 */
		for (int i = 0; i < 32; i++) {
			w[32 * (g + 1) + i] = 0;
			w[32 * (g + 2) + i] = 0.015625f;
		}
	}
}

struct sums {
	double error, all; /* squares */
	unsigned beyond;   /* weights further from their decoded value than half a step, though in range */
	bool finite;
};

/* A weight may be cut off at the end of the range; there the bound is the sum of squares. */
static void count(struct sums *s, const float *w, const struct found *found, int from, int to)
{
	float lo = INFINITY, hi = -INFINITY;

	for (int i = from; i < to; i++) {
		lo = fminf(lo, found[i].value);
		hi = fmaxf(hi, found[i].value);
	}
	for (int i = from; i < to; i++) {
		const float d = fabsf(w[i] - found[i].value);

		s->error += (double)d * d;
		s->all += (double)w[i] * w[i];
		s->finite &= isfinite(found[i].value);
		s->beyond += w[i] >= lo && w[i] <= hi && d > found[i].step * 0.5001f + fabsf(w[i]) * 1e-6f;
	}
}

static const struct {
	const char *name;
	struct found (*weight)(const uint8_t *block, int i);
	double most; /* relative error, root of mean squares */
	uint32_t group;
} types[] = {
	{"q8_0", q8_0, 0.0058, 32},     {"q4_0", q4_0, 0.0865, 32},  {"q4_1", q4_1, 0.0735, 32},
	{"q4_k", q4_k, 0.0725, 32},     {"q5_k", q5_k, 0.036, 32},   {"q6_k", q6_k, 0.0182, 16},
	{"iq4_xs", iq4_xs, 0.0775, 32}, {"mxfp4", mxfp4, 0.116, 32}, {"bf16", bf16, 0.0000001, 1},
	{"f16", f16, 0.0000001, 1},
};

static void test_types(const float *w)
{
	static struct found found[WEIGHTS];
	static uint8_t bytes[WEIGHTS * 2];

	for (size_t t = 0; t < ARRAY_LEN(types); t++) {
		const struct ggml_type *type = ggml_find(types[t].name);
		struct sums s = {.finite = true};
		double relative;

		require(type, "%s is known", types[t].name);
		for (uint32_t i = 0; i < WEIGHTS / type->cols; i++)
			type->block(w + i * type->cols, bytes + i * type->bytes);
		for (uint32_t i = 0; i < WEIGHTS; i++)
			found[i] = types[t].weight(bytes + i / type->cols * type->bytes, (int)(i % type->cols));
		for (int i = 0; i < WEIGHTS; i += (int)types[t].group)
			count(&s, w, found, i, i + (int)types[t].group);
		relative = sqrt(s.error / s.all);
		ok(s.finite && relative <= types[t].most, "%s: relative error %.5f, at most %.5f", types[t].name,
		   relative, types[t].most);
		ok(s.beyond == 0, "%s: in range nothing is further off than half a step (%u)", types[t].name, s.beyond);
	}
}

static const struct {
	const char *name;
	struct found (*weight)(const struct tensors *tensors, int row, int col);
	double most;
} forms[] = {
	{"fp8-block", fp8_block, 0.0265},
	{"fp8-channel", fp8_channel, 0.027},
	{"int8", int8, 0.0114},
	{"int4-ct-g32", int4_ct, 0.0925},
	{"int4-ct-g64", int4_ct, 0.0995},
	{"int4-ct-g128", int4_ct, 0.116},
	{"int4-ct-g32-zp", int4_ct, 0.0785},
	{"int4-ct-g64-zp", int4_ct, 0.086},
	{"int4-ct-g128-zp", int4_ct, 0.1015},
	{"gptq-g32", gptq, 0.0925},
	{"gptq-g64", gptq, 0.0995},
	{"gptq-g128", gptq, 0.116},
	{"gptq-g128-zp", gptq, 0.1015},
	{"awq-g32", awq, 0.0785},
	{"awq-g64", awq, 0.086},
	{"awq-g128", awq, 0.1015},
};

static void test_forms(const float *w)
{
	static struct found found[WEIGHTS];
	static uint8_t bytes[WEIGHTS * 2];

	for (size_t f = 0; f < ARRAY_LEN(forms); f++) {
		const struct form *form = form_find(forms[f].name);
		const uint32_t group = form && form->group ? form->group : 1;
		struct form_tensor tensors[FORM_TENSORS_MAX];
		struct tensors t = {.form = form};
		struct sums s = {.finite = true};
		double relative;
		int n;

		require(form, "%s is known", forms[f].name);
		n = form_tensors(form, ROWS, COLS, TENSOR_BF16, tensors, NULL);
		require(n >= 2, "%s takes the shape", forms[f].name);
		memset(bytes, 0xaa, sizeof bytes);
		for (int i = 0, at = 0; i < n; at += (int)tensors[i++].bytes)
			t.at[i] = bytes + at;
		form_quantize(form, w, ROWS, COLS, TENSOR_BF16, bytes);
		for (int i = 0; i < WEIGHTS; i++)
			found[i] = forms[f].weight(&t, i / COLS, i % COLS);
		for (int i = 0; i < WEIGHTS; i += (int)group)
			count(&s, w, found, i, i + (int)group);
		relative = sqrt(s.error / s.all);
		ok(s.finite && relative <= forms[f].most, "%s: relative error %.5f, at most %.5f", forms[f].name,
		   relative, forms[f].most);
		ok(s.beyond == 0, "%s: in range nothing is further off than half a step (%u)", forms[f].name, s.beyond);
	}
}

/* -- exact numbers: weights that a format holds come back as they were --------------------------------------------- */

static void test_exact_types(unsigned long long *state)
{
	static float x[256];
	uint8_t b[256];
	unsigned wrong = 0;

	for (int round = 0; round < 50; round++) {
		for (int i = 0; i < 256; i++) {
			const int g = i / 32, scale = g ? 1 + g * 7 : 63;
			const int code = i % 32 < 2 ? i % 32 * 15 : (int)(tap_random(state) % 16);

			x[i] = (float)(scale * code) / 1024 - (float)(g ? 8 * g + 7 : 3) / 256;
		}
		ggml_find("q4_k")->block(x, b);
		for (int i = 0; i < 256; i++)
			wrong += q4_k(b, i).value != x[i];
		for (int i = 0; i < 256; i++) {
			const int scale = i / 16 == 3 ? 127 : -(i / 16) - 1;
			const int code = i % 16 == 0 ? -32 : (int)(tap_random(state) % 64) - 32;

			x[i] = (float)(scale * code) / 4096;
		}
		ggml_find("q6_k")->block(x, b);
		for (int i = 0; i < 256; i++)
			wrong += q6_k(b, i).value != x[i];
		for (int i = 0; i < 256; i++) {
			const int scale = i / 32 == 5 ? 31 : i / 32 - 9;
			const int code = i % 32 == 0 ? 0 : (int)(tap_random(state) % 16);

			x[i] = (float)scale * iq4[code] / 65536;
		}
		ggml_find("iq4_xs")->block(x, b);
		for (int i = 0; i < 256; i++)
			wrong += iq4_xs(b, i).value != x[i];
		for (int i = 0; i < 32; i++)
			x[i] = ldexpf(e2m1[i ? tap_random(state) % 16 : 7], -5);
		ggml_find("mxfp4")->block(x, b);
		for (int i = 0; i < 32; i++)
			wrong += mxfp4(b, i).value != x[i];
	}
	ok(wrong == 0, "q4_k, q6_k, iq4_xs and mxfp4 give back the weights that they hold (%u wrong)", wrong);
}

/* -- layouts by hand ----------------------------------------------------------------------------------------------- */

static void test_small_types(void)
{
	static const uint8_t expected[] = {0x00, 0x38, 0x80, 0xf1, 0x92, 0xa3, 0xb4, 0xc5, 0xd6,
					   0xe7, 0x88, 0x89, 0x8a, 0x8b, 0x8c, 0x8d, 0x8e, 0x8f};
	static const uint8_t exponents[] = {127 + 1, 0x07, 0xf1, 0x82, 0x03};
	float x[32] = {-4, -3.5f, -3, -2.5f, -2, -1.5f, -1, -0.5f, 0, 0.5f, 1, 1.5f, 2, 2.5f, 3, 3.5f};
	uint8_t b[64];

	/* d = 0.5: code = x / d + 8. Weight 16 + i goes into the high half of byte i. */
	for (int i = 0; i < 8; i++)
		x[16 + i] = i == 0 ? 0 : i == 1 ? 3.5f : 0.5f * (float)(i - 1);
	ggml_find("q4_0")->block(x, b);
	ok(memcmp(b, expected, sizeof expected) == 0, "q4_0: %02x%02x %02x %02x %02x ... %02x", b[0], b[1], b[2], b[3],
	   b[4], b[17]);

	memset(x, 0, sizeof x);
	x[0] = 12; /* 2^1 * 6: code 7 */
	x[1] = 1;  /* 0.5: code 1 */
	x[17] = -12;
	x[2] = 2; /* 1: code 2 */
	x[18] = -0.0f;
	x[3] = 3; /* 1.5: code 3 */
	ggml_find("mxfp4")->block(x, b);
	b[3] |= 0x80; /* a zero has no sign here; the next line shows its place */
	ok(memcmp(b, exponents, sizeof exponents) == 0, "mxfp4: %02x %02x %02x %02x %02x", b[0], b[1], b[2], b[3],
	   b[4]);

	for (int i = 0; i < 32; i++)
		x[i] = (float)(i - 16) * 0.25f;
	x[31] = 31.75f; /* 127 steps */
	ggml_find("q8_0")->block(x, b);
	ok(b[0] == 0x00 && b[1] == 0x34 && (int8_t)b[2] == -16 && b[2 + 30] == 14 && b[2 + 31] == 127, "q8_0");

	for (int i = 0; i < 32; i++)
		x[i] = 2 + 0.5f * (float)(i % 16);
	ggml_find("q4_1")->block(x, b);
	ok(b[1] == 0x38 && b[2] == 0 && b[3] == 0x40 && b[4] == 0x00 && b[5] == 0x11 && b[19] == 0xff, "q4_1");
}

/* Row r, column c holds code (r + c) % 15 + 1 of scale 0.5 and zero point 8. */
static void fill_sample(float *w, int rows, int cols)
{
	for (int r = 0; r < rows; r++)
		for (int c = 0; c < cols; c++)
			w[r * cols + c] = 0.5f * (float)((r + c) % 15 + 1 - 8);
}

static void test_words(void)
{
	static const uint8_t first[] = {0x21, 0x43, 0x65, 0x87}, second[] = {0xa9, 0xcb, 0xed, 0x1f};
	static const uint8_t down[] = {0x21, 0x43, 0x65, 0x87}; /* eight rows of column 0, first row lowest */
	static const uint8_t even[] = {0x31, 0x75, 0x42, 0x86}; /* the same as AWQ orders them */
	uint8_t b[8 * 32 * 2];
	float w[8 * 32];

	fill_sample(w, 8, 32);
	form_quantize(form_find("int4-ct-g32"), w, 8, 32, TENSOR_BF16, b);
	ok(memcmp(b, first, 4) == 0 && memcmp(b + 4, second, 4) == 0 && b[16] == 0x32,
	   "int4-ct: eight columns a word, the first one lowest");
	ok(b[128] == 0x00 && b[129] == 0x3f && b[128 + 16] == 8 && b[128 + 24] == 32,
	   "int4-ct: BF16 scales, then the shape");

	form_quantize(form_find("gptq-g32"), w, 8, 32, TENSOR_BF16, b);
	ok(memcmp(b, first, 4) == 0 && b[4] == 0x32 && memcmp(b + 4 * 8, second, 4) == 0,
	   "gptq: eight columns a word, rows side by side");
	ok(b[128] == 0x77 && b[131] == 0x77 && b[132] == 0x00 && b[133] == 0x38 && b[148] == 0,
	   "gptq: zero point 8 is stored as 7, then F16 scales, then group indices");

	form_quantize(form_find("awq-g32"), w, 8, 32, TENSOR_BF16, b);
	for (int i = 0; i < 8 * 32; i++) /* codes from 0 to 15, so that the zero point is certain */
		w[i] = 0.5f * (float)((i / 32 + i % 32) % 16 - 8);
	form_quantize(form_find("awq-g32"), w, 8, 32, TENSOR_BF16, b);
	ok(b[0] == 0x20 && b[1] == 0x64 && b[2] == 0x31 && b[3] == 0x75 && memcmp(b + 4, even, 4) == 0,
	   "awq: eight rows a word, in the order 0 2 4 6 1 3 5 7");
	ok(b[128] == 0x88 && b[131] == 0x88 && b[133] == 0x38, "awq: zero points, then F16 scales");

	form_quantize(form_find("int4-ct-g32-zp"), w, 8, 32, TENSOR_BF16, b);
	ok(b[0] == 0x10 && b[128 + 16 + 16] == 0x88, "int4-ct-zp: zero points after the shape");
	for (int i = 0; i < 8 * 32; i++) /* row r has zero point r + 1 */
		w[i] = 0.5f * (float)(i % 16 - (i / 32 + 1));
	form_quantize(form_find("int4-ct-g32-zp"), w, 8, 32, TENSOR_BF16, b);
	ok(memcmp(b + 128 + 32, down, 4) == 0, "int4-ct-zp: eight rows a word, the first one lowest");
}

/* -- numbers ------------------------------------------------------------------------------------------------------- */

static void test_numbers(void)
{
	unsigned wrong = 0, halves = 0;

	for (unsigned i = 0; i < 256; i++) {
		if ((i & 0x7f) == 0x7f)
			continue;
		wrong += number_from_e4m3((uint8_t)i) != e4m3((uint8_t)i) || number_to_e4m3(e4m3((uint8_t)i)) != i;
		if ((i & 0x7f) <
		    0x7e) { /* the middle between neighbours goes to the even one, a bit more or less does not */
			const float a = e4m3((uint8_t)i), b = e4m3((uint8_t)(i + 1)), middle = (a + b) / 2;

			wrong += number_to_e4m3(middle) != i + (i & 1);
			wrong += number_to_e4m3(nextafterf(middle, b)) != i + 1 ||
				 number_to_e4m3(nextafterf(middle, a)) != i;
		}
	}
	wrong += number_to_e4m3(1e9f) != 0x7e || number_to_e4m3(-465) != 0xfe;
	ok(wrong == 0, "E4M3: all codes, ties to even, 448 at most (%u wrong)", wrong);
	for (unsigned i = 0; i < 65536; i++) {
		const uint8_t bytes[2] = {(uint8_t)i, (uint8_t)(i >> 8)};
		const float x = half(bytes);

		if ((i >> 10 & 31) == 31)
			continue;
		halves += number_from_f16((uint16_t)i) != x || number_to_f16(x) != i;
		halves += (i & 0x7fff) < 0x7bff &&
			  number_to_f16((x + number_from_f16((uint16_t)(i + 1))) / 2) != i + (i & 1);
	}
	ok(halves == 0, "F16: all numbers, ties to even (%u wrong)", halves);
	ok(number_to_f16(1e9f) == 0x7bff, "F16: scales saturate");
	wrong = 0;
	for (uint8_t i = 0; i < 16; i++)
		wrong += number_from_e2m1(i) != e2m1[i] || number_to_e2m1(e2m1[i]) != (i == 8 ? 0 : i);
	wrong += number_to_e2m1(0.25f) != 0 || number_to_e2m1(0.75f) != 2 || number_to_e2m1(2.5f) != 4 ||
		 number_to_e2m1(5) != 6 || number_to_e2m1(-100) != 15 || number_to_e2m1(3.5f) != 6;
	ok(wrong == 0, "E2M1: all codes, ties to even, 6 at most (%u wrong)", wrong);
	ok(number_to_bf16(1.00390625f) == 0x3f80 && number_to_bf16(1.01171875f) == 0x3f82 &&
		   number_to_bf16(-1) == 0xbf80,
	   "BF16: ties to even");
}

static void test_shapes(void)
{
	struct form_tensor tensors[FORM_TENSORS_MAX];
	struct moe_error err = {0};

	ok(form_tensors(form_find("gptq-g128"), 8, 64, TENSOR_BF16, tensors, &err) < 0 &&
		   strstr(err.text, "group of 128"),
	   "%s", err.text);
	ok(form_tensors(form_find("awq-g32"), 12, 64, TENSOR_BF16, tensors, &err) < 0 &&
		   strstr(err.text, "multiple of 8"),
	   "%s", err.text);
	ok(form_tensors(form_find("fp8-block"), 130, 200, TENSOR_BF16, tensors, &err) == 2 && tensors[1].dims[0] == 2 &&
		   tensors[1].dims[1] == 2 && tensors[1].bytes == 16,
	   "fp8-block: the last blocks may be short");
	ok(!form_find("int4") && !ggml_find("q4_k_m") && !ggml_find(""), "nothing else is known");
}

int main(void)
{
	static float w[WEIGHTS];
	unsigned long long fixed = 20260401, state = tap_seed(); /* the bounds are those of these weights */

	fill(w, &fixed);
	test_numbers();
	test_types(w);
	test_forms(w);
	test_exact_types(&state);
	test_small_types();
	test_words();
	test_shapes();
	return tap_done();
}
