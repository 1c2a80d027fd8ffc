/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/ggml.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "tools/mkmodel/number.h"
#include "tools/mkmodel/search.h"

/* 32 codes of four bits: the first 16 in the low halves. */
static void put_halves(const uint8_t codes[32], uint8_t *to)
{
	for (int i = 0; i < 16; i++)
		to[i] = (uint8_t)(codes[i] | codes[16 + i] << 4);
}

static float largest(const float *x, uint32_t n)
{
	float most = 0;

	for (uint32_t i = 0; i < n; i++)
		most = fmaxf(most, fabsf(x[i]));
	return most;
}

static void block_q8_0(const float *x, uint8_t *to)
{
	const struct grid grid = {-127, 127};
	const float d = number_as(TENSOR_F16, largest(x, 32) / 127);

	to += number_store(TENSOR_F16, d, to);
	for (int i = 0; i < 32; i++)
		to[i] = d > 0 ? (uint8_t)search_code(x[i], grid, d) : 0;
}

static void block_q4_0(const float *x, uint8_t *to)
{
	const struct grid grid = {-8, 7};
	const float d = search_scale(x, 32, grid, TENSOR_F16, true);
	uint8_t codes[32];

	for (int i = 0; i < 32; i++)
		codes[i] = (uint8_t)(search_code(x[i], grid, d) + 8);
	put_halves(codes, to + number_store(TENSOR_F16, d, to));
}

static void block_q4_1(const float *x, uint8_t *to)
{
	const struct grid grid = {0, 15};
	const struct ramp ramp = search_ramp(x, 32, grid.hi, false);
	const float d = number_as(TENSOR_F16, ramp.scale), m = number_as(TENSOR_F16, ramp.minimum);
	uint8_t codes[32];

	for (int i = 0; i < 32; i++)
		codes[i] = d > 0 ? (uint8_t)search_code(x[i] - m, grid, d) : 0;
	to += number_store(TENSOR_F16, d, to);
	to += number_store(TENSOR_F16, m, to);
	put_halves(codes, to);
}

/* Twice the numbers of E2M1; there are two zeros. */
static const int8_t e2m1_doubled[16] = {-12, -8, -6, -4, -3, -2, -1, 0, 0, 1, 2, 3, 4, 6, 8, 12};

static uint8_t mxfp4_codes(const float x[32], uint8_t codes[32])
{
	const float most = largest(x, 32);
	float least = INFINITY;
	int exponent, best = 0;

	memset(codes, 0, 32);
	if (most == 0)
		return 0;
	/* The rule of the MX standard, which cuts off what is above 6, and its neighbours. */
	frexpf(most, &exponent);
	exponent -= 3;
	for (int e = MAX(exponent - 1, -127); e <= MIN(MAX(exponent + 1, -127), 127); e++) {
		const float error = search_table_error(x, 32, e2m1_doubled, ldexpf(0.5f, e));

		if (error < least) {
			least = error;
			best = e;
		}
	}
	for (int i = 0; i < 32; i++)
		codes[i] = number_to_e2m1(ldexpf(x[i], -best));
	return (uint8_t)(best + 127);
}

static void block_mxfp4(const float *x, uint8_t *to)
{
	uint8_t codes[32];

	to[0] = mxfp4_codes(x, codes);
	put_halves(codes, to + 1);
}

static void block_bf16(const float *x, uint8_t *to)
{
	number_store(TENSOR_BF16, *x, to);
}

static void block_f16(const float *x, uint8_t *to)
{
	number_store(TENSOR_F16, *x, to);
}

static const struct ggml_type types[] = {
	{"q8_0", 8, 7, 32, 34, block_q8_0},        {"q4_0", 2, 2, 32, 18, block_q4_0},
	{"q4_1", 3, 3, 32, 20, block_q4_1},        {"q4_k", 12, 14, 256, 144, ggml_q4_k},
	{"q5_k", 13, 16, 256, 176, ggml_q5_k},     {"q6_k", 14, 18, 256, 210, ggml_q6_k},
	{"iq4_xs", 23, 30, 256, 136, ggml_iq4_xs}, {"mxfp4", 39, 38, 32, 17, block_mxfp4},
	{"bf16", 30, 32, 1, 2, block_bf16},        {"f16", 1, 1, 1, 2, block_f16},
};

const struct ggml_type *ggml_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(types); i++)
		if (strcmp(types[i].name, name) == 0)
			return &types[i];
	return NULL;
}

void ggml_list(char *ret, size_t size)
{
	size_t used = 0;

	ret[0] = '\0';
	for (size_t i = 0; i < ARRAY_LEN(types) && used < size; i++)
		used += (size_t)snprintf(ret + used, size - used, "%s%s", i ? ", " : "", types[i].name);
}
