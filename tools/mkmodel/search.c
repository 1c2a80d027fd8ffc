/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/search.h"

#include <math.h>
#include <string.h>

#include "tools/mkmodel/number.h"

/* Eight weights at once: a group is a multiple of LANES. */
#define LANES 8

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t masks __attribute__((vector_size(4 * LANES)));

/* Shares of the range that a candidate keeps: a little more than all, all, and less down to seven tenths. */
#define SHARES 12

static float share(int i)
{
	return (float)(103 - 3 * i) / 100;
}

static float clamp(float x, float lo, float hi)
{
	return x < lo ? lo : x > hi ? hi : x;
}

static lanes load(const float *x)
{
	lanes ret;

	memcpy(&ret, x, sizeof ret);
	return ret;
}

static lanes all(float x)
{
	return (lanes){x, x, x, x, x, x, x, x};
}

static lanes choose(masks mask, lanes yes, lanes no)
{
	return (lanes)(((masks)yes & mask) | ((masks)no & ~mask));
}

/* The nearest whole numbers from lo to hi. */
static lanes codes(lanes x, lanes lo, lanes hi)
{
	const lanes shift = all(12582912.0f);

	x = choose(x < lo, lo, x);
	x = choose(x > hi, hi, x);
	return x + shift - shift;
}

static float total(lanes sums)
{
	return (sums[0] + sums[1] + (sums[2] + sums[3])) + (sums[4] + sums[5] + (sums[6] + sums[7]));
}

/* The weight that is furthest from zero, with its sign. */
static float extreme(const float *x, uint32_t n)
{
	float most = 0;

	for (uint32_t i = 0; i < n; i++)
		most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
	return most;
}

int search_code(float x, struct grid grid, float scale)
{
	return (int)number_round(clamp(x / scale, grid.lo, grid.hi));
}

float search_error(const float *x, uint32_t n, struct grid grid, float scale)
{
	const lanes inverse = all(1 / scale), step = all(scale), lo = all(grid.lo), hi = all(grid.hi);
	lanes sums = all(0);

	for (uint32_t i = 0; i < n; i += LANES) {
		const lanes w = load(x + i), d = codes(w * inverse, lo, hi) * step - w;

		sums += d * d;
	}
	return total(sums);
}

/* The scale that is best for the codes that this scale gives. */
static float refine(const float *x, uint32_t n, struct grid grid, float scale)
{
	const lanes inverse = all(1 / scale), lo = all(grid.lo), hi = all(grid.hi);
	lanes xq = all(0), qq = all(0);

	for (uint32_t i = 0; i < n; i += LANES) {
		const lanes w = load(x + i), q = codes(w * inverse, lo, hi);

		xq += w * q;
		qq += q * q;
	}
	return total(qq) > 0 ? total(xq) / total(qq) : scale;
}

struct best {
	float scale, error;
};

static void try_scale(struct best *best, const float *x, uint32_t n, struct grid grid, enum tensor_type type,
		      float scale)
{
	float error;

	scale = number_as(type, scale);
	if (scale == 0 || !isfinite(1 / scale))
		return;
	error = search_error(x, n, grid, scale);
	if (error < best->error)
		*best = (struct best){scale, error};
}

float search_scale(const float *x, uint32_t n, struct grid grid, enum tensor_type type, bool both)
{
	const float most = extreme(x, n);
	const float full = both ? most / grid.lo : fabsf(most) / grid.hi;
	struct best best = {1, INFINITY};

	if (most == 0)
		return 1;
	for (int i = 0; i < SHARES; i++)
		try_scale(&best, x, n, grid, type, full * share(i));
	if (both) /* the grid reaches less far on its other side */
		try_scale(&best, x, n, grid, type, -most / grid.hi);
	try_scale(&best, x, n, grid, type, refine(x, n, grid, best.scale));
	return best.scale;
}

struct affine search_affine(const float *x, uint32_t n, uint8_t first, uint8_t last, enum tensor_type type)
{
	struct affine best = {1, first < 8 && last > 8 ? 8 : first};
	float lo = 0, hi = 0, least = INFINITY;

	for (uint32_t i = 0; i < n; i++) {
		lo = fminf(lo, x[i]);
		hi = fmaxf(hi, x[i]);
	}
	if (lo == hi)
		return best;
	for (int i = 0; i < SHARES; i++) {
		const float scale = number_as(type, (hi - lo) * share(i) / 15);
		const float middle = number_round(-lo / scale * share(i));

		for (float zero = middle - 1; scale > 0 && zero <= middle + 1; zero++) {
			const float z = clamp(zero, first, last);
			const float error = search_error(x, n, (struct grid){-z, 15 - z}, scale);

			if (error < least) {
				least = error;
				best = (struct affine){scale, (uint8_t)z};
			}
		}
	}
	return best;
}

float search_ramp_error(const float *x, uint32_t n, float hi, struct ramp ramp)
{
	const lanes inverse = all(1 / ramp.scale), step = all(ramp.scale), low = all(ramp.minimum), top = all(hi);
	lanes sums = all(0);

	for (uint32_t i = 0; i < n; i += LANES) {
		const lanes w = load(x + i), d = codes((w - low) * inverse, all(0), top) * step + low - w;

		sums += d * d;
	}
	return total(sums);
}

/* The straight line through the weights over the codes that `from` gives them: least squares in scale and minimum. */
static struct ramp fit(const float *x, uint32_t n, float hi, struct ramp from, bool below)
{
	const lanes inverse = all(1 / from.scale), low = all(from.minimum), top = all(hi);
	lanes sums = all(0), sums_q = all(0), sums_qq = all(0), sums_xq = all(0);
	float sum, q, qq, xq, det;
	struct ramp fitted;

	for (uint32_t i = 0; i < n; i += LANES) {
		const lanes w = load(x + i), code = codes((w - low) * inverse, all(0), top);

		sums += w;
		sums_q += code;
		sums_qq += code * code;
		sums_xq += w * code;
	}
	sum = total(sums), q = total(sums_q), qq = total(sums_qq), xq = total(sums_xq);
	det = (float)n * qq - q * q;
	if (!(det > 0))
		return from;
	fitted.scale = ((float)n * xq - sum * q) / det;
	fitted.minimum = (sum - fitted.scale * q) / (float)n;
	if (below && fitted.minimum > 0)
		fitted = (struct ramp){xq / qq, 0};
	return fitted.scale > 0 && isfinite(1 / fitted.scale) ? fitted : from;
}

struct ramp search_ramp(const float *x, uint32_t n, float hi, bool below)
{
	float lo = x[0], top = x[0], least = INFINITY;
	struct ramp best;

	for (uint32_t i = 1; i < n; i++) {
		lo = fminf(lo, x[i]);
		top = fmaxf(top, x[i]);
	}
	if (below)
		lo = fminf(lo, 0);
	best = (struct ramp){0, lo};
	if (!isfinite(hi / (top - lo)))
		return best;
	for (int i = 0; i < SHARES; i++) {
		const float kept = share(i), middle = (top + lo) / 2;
		const float minimum = below && lo == 0 ? 0 : middle + (lo - middle) * kept;
		const struct ramp start = {(top - lo) * kept / hi, below ? fminf(minimum, 0) : minimum};
		const struct ramp now = fit(x, n, hi, start, below);
		const float error = search_ramp_error(x, n, hi, now);

		if (error < least) {
			least = error;
			best = now;
		}
	}
	return best;
}

uint8_t search_nearest(const int8_t values[16], float x)
{
	uint8_t code = 0;

	/* One step up for each middle between neighbours that lies below x. */
	for (int i = 0; i < 15; i++)
		code = (uint8_t)(code + (x > 0.5f * (float)(values[i] + values[i + 1])));
	return code;
}

float search_table_error(const float *x, uint32_t n, const int8_t values[16], float scale)
{
	const lanes inverse = all(1 / scale), step = all(scale);
	lanes sums = all(0);

	for (uint32_t i = 0; i < n; i += LANES) {
		const lanes w = load(x + i), wanted = w * inverse;
		lanes near = all((float)values[0]), d;

		for (uint32_t t = 0; t < 15; t++)
			near += choose(wanted > all(0.5f * (float)(values[t] + values[t + 1])),
				       all((float)(values[t + 1] - values[t])), all(0));
		d = near * step - w;
		sums += d * d;
	}
	return total(sums);
}

float search_table(const float *x, uint32_t n, const int8_t values[16])
{
	const float most = extreme(x, n);
	float least = INFINITY, best = 0;

	if (most == 0)
		return 0;
	for (int i = 0; i < 2 * SHARES; i++) {
		const float end = (float)values[i % 2 ? 15 : 0];
		const float scale = most / end * share(i / 2);
		float error;

		if (!isfinite(1 / scale))
			continue;
		error = search_table_error(x, n, values, scale);
		if (error < least) {
			least = error;
			best = scale;
		}
	}
	return best;
}
