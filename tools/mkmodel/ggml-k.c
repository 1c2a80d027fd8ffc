/* SPDX-License-Identifier: MIT */
/* ggml-k - the formats of 256 weights: the groups' own scales are numbers of six or eight bits times one F16 number. */
#include <endian.h>
#include <math.h>
#include <string.h>

#include "base/util.h"
#include "tools/mkmodel/ggml.h"
#include "tools/mkmodel/number.h"
#include "tools/mkmodel/search.h"

#define BLOCK 256
#define GROUPS 8
#define GROUP 32
#define SIX_BITS 63

/* One block of ramps, d * scale * code - dmin * minimum. */
struct ramps {
	float d, dmin; /* as stored */
	uint8_t scale[GROUPS], minimum[GROUPS];
	uint8_t codes[BLOCK];
};

static float clamp(float x, float lo, float hi)
{
	return x < lo ? lo : x > hi ? hi : x;
}

/* The pair of small numbers next to the wanted ones that loses least. */
static void choose_pair(struct ramps *r, uint32_t g, const float *x, float hi, struct ramp wanted)
{
	const int scale = r->d > 0 ? (int)number_round(clamp(wanted.scale / r->d, 0, SIX_BITS)) : 0;
	const int minimum = r->dmin > 0 ? (int)number_round(clamp(-wanted.minimum / r->dmin, 0, SIX_BITS)) : 0;
	float least = INFINITY;

	r->minimum[g] = (uint8_t)minimum;
	for (int s = MAX(scale - 1, 1); s <= MIN(scale + 1, SIX_BITS) && r->d > 0; s++)
		for (int m = MAX(minimum - 1, 0); m <= MIN(minimum + 1, SIX_BITS); m++) {
			const struct ramp ramp = {r->d * (float)s, -(r->dmin * (float)m)};
			const float error = search_ramp_error(x, GROUP, hi, ramp);

			if (error < least) {
				least = error;
				r->scale[g] = (uint8_t)s;
				r->minimum[g] = (uint8_t)m;
			}
		}
}

static void find_ramps(struct ramps *r, const float *x, float hi)
{
	struct ramp wanted[GROUPS];
	float scale = 0, minimum = 0;

	memset(r, 0, sizeof *r);
	for (uint32_t g = 0; g < GROUPS; g++) {
		wanted[g] = search_ramp(x + g * GROUP, GROUP, hi, true);
		scale = fmaxf(scale, wanted[g].scale);
		minimum = fmaxf(minimum, -wanted[g].minimum);
	}
	r->d = number_as(TENSOR_F16, scale / SIX_BITS);
	r->dmin = number_as(TENSOR_F16, minimum / SIX_BITS);
	for (uint32_t g = 0; g < GROUPS; g++) {
		float step, low;

		choose_pair(r, g, x + g * GROUP, hi, wanted[g]);
		step = r->d * (float)r->scale[g];
		low = r->dmin * (float)r->minimum[g];
		for (uint32_t i = 0; i < GROUP && step > 0; i++)
			r->codes[g * GROUP + i] = (uint8_t)search_code(x[g * GROUP + i] + low, (struct grid){0, hi},
								       step);
	}
}

/* d, dmin and the packed scales and minima: 16 bytes. */
static uint8_t *put_scales(const struct ramps *r, uint8_t *to)
{
	to += number_store(TENSOR_F16, r->d, to);
	to += number_store(TENSOR_F16, r->dmin, to);
	for (uint32_t i = 0; i < 4; i++) {
		to[i] = (uint8_t)(r->scale[i] | r->scale[4 + i] >> 4 << 6);
		to[4 + i] = (uint8_t)(r->minimum[i] | r->minimum[4 + i] >> 4 << 6);
		to[8 + i] = (uint8_t)((r->scale[4 + i] & 15) | (r->minimum[4 + i] & 15) << 4);
	}
	return to + 12;
}

static void put_low_halves(const uint8_t codes[BLOCK], uint8_t *to)
{
	for (uint32_t j = 0; j < BLOCK / 64; j++)
		for (uint32_t i = 0; i < 32; i++)
			*to++ = (uint8_t)((codes[64 * j + i] & 15) | (codes[64 * j + 32 + i] & 15) << 4);
}

void ggml_q4_k(const float *x, uint8_t *to)
{
	struct ramps r;

	find_ramps(&r, x, 15);
	put_low_halves(r.codes, put_scales(&r, to));
}

void ggml_q5_k(const float *x, uint8_t *to)
{
	struct ramps r;

	find_ramps(&r, x, 31);
	to = put_scales(&r, to);
	memset(to, 0, GROUP);
	for (uint32_t i = 0; i < BLOCK; i++)
		to[i % GROUP] |= (uint8_t)(r.codes[i] >> 4 << i / GROUP);
	put_low_halves(r.codes, to + GROUP);
}

/* The whole number of steps of d next to `wanted` that loses least, from lo to hi and not 0; 0 for zeros. */
static int choose_steps(const float *x, uint32_t n, float d, float wanted, float lo, float hi,
			float (*error)(const float *x, uint32_t n, float scale))
{
	const int steps = d > 0 ? (int)number_round(clamp(wanted / d, lo, hi)) : 0;
	float least = INFINITY;
	int best = 0;

	for (int s = MAX(steps - 1, (int)lo); s <= MIN(steps + 1, (int)hi) && wanted != 0 && d > 0; s++) {
		const float now = s ? error(x, n, d * (float)s) : INFINITY;

		if (now < least) {
			least = now;
			best = s;
		}
	}
	return best;
}

static const struct grid grid_q6 = {-32, 31};

static float error_q6(const float *x, uint32_t n, float scale)
{
	return search_error(x, n, grid_q6, scale);
}

static void put_q6_codes(const uint8_t codes[BLOCK], uint8_t *low, uint8_t *high)
{
	for (uint32_t half = 0; half < 2; half++, codes += 128, low += 64, high += 32)
		for (uint32_t i = 0; i < 32; i++) {
			low[i] = (uint8_t)((codes[i] & 15) | (codes[64 + i] & 15) << 4);
			low[32 + i] = (uint8_t)((codes[32 + i] & 15) | (codes[96 + i] & 15) << 4);
			high[i] = (uint8_t)(codes[i] >> 4 | codes[32 + i] >> 4 << 2 | codes[64 + i] >> 4 << 4 |
					    codes[96 + i] >> 4 << 6);
		}
}

void ggml_q6_k(const float *x, uint8_t *to)
{
	float wanted[16], most = 0, d;
	uint8_t codes[BLOCK];

	for (uint32_t g = 0; g < 16; g++) {
		wanted[g] = search_scale(x + 16 * g, 16, grid_q6, TENSOR_F32, true);
		if (search_error(x + 16 * g, 16, (struct grid){0, 0}, 1) == 0)
			wanted[g] = 0;
		most = fmaxf(most, fabsf(wanted[g]));
	}
	d = number_as(TENSOR_F16, most / 127);
	for (uint32_t g = 0; g < 16; g++) {
		const int s = choose_steps(x + 16 * g, 16, d, wanted[g], -128, 127, error_q6);

		to[192 + g] = (uint8_t)s;
		for (uint32_t i = 16 * g; i < 16 * (g + 1); i++)
			codes[i] = (uint8_t)(s ? search_code(x[i], grid_q6, d * (float)s) + 32 : 32);
	}
	put_q6_codes(codes, to, to + 128);
	number_store(TENSOR_F16, d, to + 208);
}

/* The values of ggml's non-linear four bits. */
static const int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static float error_iq4(const float *x, uint32_t n, float scale)
{
	return search_table_error(x, n, values, scale);
}

void ggml_iq4_xs(const float *x, uint8_t *to)
{
	float wanted[GROUPS], most = 0, d;
	uint16_t high = 0;

	for (uint32_t g = 0; g < GROUPS; g++) {
		wanted[g] = search_table(x + GROUP * g, GROUP, values);
		most = fmaxf(most, fabsf(wanted[g]));
	}
	d = number_as(TENSOR_F16, most / 31);
	memset(to, 0, 136);
	for (uint32_t g = 0; g < GROUPS; g++) {
		const float *group = x + GROUP * g;
		const int s = choose_steps(group, GROUP, d, wanted[g], -32, 31, error_iq4);
		const float inverse = s ? 1 / (d * (float)s) : 0; /* a group of zeros has scale 0, whatever its codes */

		high |= (uint16_t)((s + 32) >> 4 << 2 * g);
		to[4 + g / 2] |= (uint8_t)(((s + 32) & 15) << g % 2 * 4);
		for (uint32_t i = 0; i < 16; i++)
			to[8 + 16 * g + i] = (uint8_t)(search_nearest(values, group[i] * inverse) |
						       search_nearest(values, group[16 + i] * inverse) << 4);
	}
	number_store(TENSOR_F16, d, to);
	high = htole16(high);
	memcpy(to + 2, &high, sizeof high);
}
