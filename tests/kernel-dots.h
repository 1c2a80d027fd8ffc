/* SPDX-License-Identifier: MIT */
/*
 * kernel-dots - what the results of a problem may be: exact dot products of the weights with what packed activations
 * stand for, and the bounds that kernels.h states.
 *
 * Where numbers are ordinary the bound decides. Otherwise the order of operations, which is a kernel's own, decides
 * whether infinity or NaN comes out, and these are the rules:
 *   - a NaN among the factors gives NaN
 *   - terms that are infinite give that infinity, or NaN where scales or minima are applied apart from the codes, or
 *     where denormals may count as zero
 *   - where binary32 can overflow on the way, what is not finite is right, as it is in a row with an infinite scale
 */
#ifndef TESTS_KERNEL_DOTS_H
#define TESTS_KERNEL_DOTS_H

#include "tests/kernel-problem.h"

/* Of each token and row of a problem: the exact dot product with bias, and the sum of the magnitudes of the terms that
 * are finite. */
struct dots {
	double value[2][TOKENS_MAX * ROWS_MAX];
	double magnitude[2][TOKENS_MAX * ROWS_MAX];
	double x[TOKENS_MAX * COLS_MAX]; /* what the packed activations stand for: [tokens][cols] */
	double x_sum[TOKENS_MAX], x_most[TOKENS_MAX];
	size_t x_count; /* numbers in x that the rest belongs to */
};

/* -- packed activations ------------------------------------------------------------------------------------------- */

static inline float load_f32(const void *p, size_t i)
{
	float v;

	memcpy(&v, (const char *)p + 4 * i, sizeof(v));
	return v;
}

static inline int32_t load_i32(const void *p, size_t i)
{
	int32_t v;

	memcpy(&v, (const char *)p + 4 * i, sizeof(v));
	return v;
}

/* Codes cols first .. first + n times scale; false when `sum` is not theirs. */
static inline bool unpack_codes(const int8_t *codes, size_t n, float scale, int32_t sum, double *x)
{
	int32_t found = 0;

	for (size_t i = 0; i < n; i++) {
		x[i] = (double)codes[i] * (double)scale;
		found += codes[i];
	}
	return isnan(scale) || found == sum;
}

/* What products of sums take off for 32 codes (kernels/vec/panel_pairs.h). */
static inline int32_t share_of(const int8_t *codes, int most)
{
	int32_t share = 0;

	for (int i = 0; i < 32; i++) {
		const int factor = i % 8 < 4 ? most : most - 128;

		share -= factor * codes[i] + (i % 8 < 4 ? codes[i] * codes[i + 4] : 0);
	}
	return share;
}

static inline bool unpack_shares(const struct kernel_ops *ops, size_t cols, const char *packed)
{
	bool good = true;

	for (size_t c = 0; c < cols; c += ops->block)
		good = good && load_i32(packed + KERNEL_I8_SHARES(cols, ops->block), c / ops->block) ==
				       share_of((const int8_t *)packed + c, ops->most);
	return good;
}

static inline bool unpack_blocks(const struct kernel_ops *ops, size_t cols, const char *packed, double *x)
{
	bool good = true;

	for (size_t c = 0; c < cols; c += ops->block)
		good = unpack_codes((const int8_t *)packed + c, least(cols - c, ops->block),
				    load_f32(packed + KERNEL_I8_SCALES(cols), c / ops->block),
				    load_i32(packed + KERNEL_I8_SUMS(cols, ops->block), c / ops->block), x + c) &&
		       good;
	for (size_t c = cols; c < KERNEL_I8_SCALES(cols); c++)
		good = good && packed[c] == 0;
	return good;
}

/* The scale is a power of two; zeros behind the last column. */
static inline bool unpack_up(size_t cols, const char *packed, double *x)
{
	const double scale = load_f32(packed, 0);
	bool good = true;
	int exponent;

	for (size_t c = 0; c < cols; c++)
		x[c] = load_f32(packed + KERNEL_HEAD, kernel_fours(c)) * scale * ldexp(1.0, -KERNEL_UP);
	for (size_t c = cols; c % KERNEL_FOURS; c++)
		good = good && load_f32(packed + KERNEL_HEAD, kernel_fours(c)) == 0.0f;
	return good && frexp(scale, &exponent) == 0.5 && scale >= 1.0;
}

/* Twice the same, and zeros between. */
static inline bool unpack_halves(size_t cols, const char *packed, double *x)
{
	const size_t floats = KERNEL_F16_FLOATS(cols);
	bool good = true;

	for (size_t c = 0; c < cols; c++) {
		const double code = decode_half((const uint8_t *)packed + KERNEL_HEAD, c, false);
		const double again = load_f32(packed + floats, c);

		good = good && (isnan(code) ? isnan(again) : again == code);
		x[c] = code * load_f32(packed, 0);
	}
	for (size_t i = KERNEL_HEAD + cols * sizeof(uint16_t); i < floats; i++)
		good = good && packed[i] == 0;
	return good;
}

/* What a packed row stands for; false when it is not laid out as kernels.h says. */
static inline bool unpack(const struct kernel_ops *ops, size_t cols, const char *packed, double *x)
{
	switch (ops->pack) {
	case PACK_I8_ROW:
		return unpack_codes((const int8_t *)packed + 64, cols, load_f32(packed, 0), load_i32(packed, 1), x);
	case PACK_I8_BLOCK:
		return unpack_blocks(ops, cols, packed, x);
	case PACK_I8_PAIRS:
		return unpack_blocks(ops, cols, packed, x) && unpack_shares(ops, cols, packed);
	case PACK_BF16:
		for (size_t c = 0; c < cols; c++)
			x[c] = decode_half((const uint8_t *)packed, c, true);
		return true;
	case PACK_F16:
		return unpack_halves(cols, packed, x);
	case PACK_F32_UP:
		return unpack_up(cols, packed, x);
	case PACK_F32:
		break;
	}
	for (size_t c = 0; c < cols; c++)
		x[c] = load_f32(packed, c);
	return true;
}

/* The nearest bfloat16, ties to even; what is beyond the largest by half a step or more is infinite. */
static inline double nearest_bf16(double x)
{
	int exponent;
	double step, rounded;

	if (!isfinite(x) || x == 0.0)
		return x;
	frexp(x, &exponent);
	step = ldexp(1.0, exponent - 8 < -133 ? -133 : exponent - 8);
	rounded = nearbyint(x / step) * step;
	return fabs(rounded) >= 0x1p128 ? copysign(INFINITY, x) : rounded;
}

/* Codes of a group of columns with one scale, of 127 or `codes` at most: within max|x| (1 / (2 * codes) + 2^-22), or
 * NaN; 2^-126 more where the scale would be denormal. */
static inline bool group_good(int codes, const float *x, size_t n, const double *got)
{
	double most = 0.0;
	bool good = true, finite = true;

	for (size_t i = 0; i < n; i++) {
		finite = finite && isfinite(x[i]);
		most = fmax(most, fabs((double)x[i]));
	}
	for (size_t i = 0; i < n; i++)
		good = good && (finite ? fabs(got[i] - (double)x[i]) <= most * (0.5 / codes + 0x1p-22) + 0x1p-126
				       : isnan(got[i]));
	return good;
}

/* FP16 codes with a power of two for all: infinities and NaNs stay what they are. */
static inline bool halves_good(const float *x, size_t n, const double *got)
{
	double most = 0.0;
	bool good = true;

	for (size_t i = 0; i < n; i++)
		most = isfinite(x[i]) ? fmax(most, fabs((double)x[i])) : most;
	for (size_t i = 0; i < n; i++) {
		const double near = fmax(fabs((double)x[i]) * 0x1p-11, fmax(most * 0x1p-39, 0x1p-150));

		good = good && (isnan(x[i])   ? isnan(got[i])
				: isinf(x[i]) ? got[i] == (double)x[i]
					      : fabs(got[i] - (double)x[i]) <= near);
	}
	return good;
}

/* Whether what a packed row stands for is as near to x as its kind promises. */
static inline bool pack_good(const struct kernel_ops *ops, size_t cols, const float *x, const double *got)
{
	const size_t group = ops->pack == PACK_I8_ROW ? cols : ops->block;
	const int codes = ops->pack == PACK_I8_PAIRS ? ops->most : 127;
	bool good = true;

	if (ops->pack == PACK_I8_ROW || ops->pack == PACK_I8_BLOCK || ops->pack == PACK_I8_PAIRS) {
		for (size_t c = 0; c < cols; c += group)
			good = good && group_good(codes, x + c, least(cols - c, group), got + c);
		return good;
	}
	if (ops->pack == PACK_F16)
		return halves_good(x, cols, got);
	for (size_t c = 0; c < cols && good; c++) {
		const double want = ops->pack == PACK_BF16 ? nearest_bf16(x[c]) : (double)x[c];

		good = isnan(want) ? isnan(got[c])
				   : got[c] == want || (ops->pack == PACK_F32_UP && fabs(got[c] - want) <= 0x1p-149) ||
					     (ops->pack == PACK_BF16 && fabs(x[c]) < 0x1p-126f && got[c] == 0);
	}
	return good;
}

/* -- dot products ------------------------------------------------------------------------------------------------- */

/* Four columns a turn: most of what a test of many problems does is done here. */
static inline void dots_of_token(const struct numbers *n, const double *x, size_t cols, double *value,
				 double *magnitude)
{
	const size_t stride = n->stride;
	size_t c = 0;

	for (; c + 4 <= cols; c += 4) {
		const double *w = n->w + c * stride, *parts = n->parts + c * stride, *a = x + c;
		const double b[4] = {fabs(a[0]), fabs(a[1]), fabs(a[2]), fabs(a[3])};

		for (size_t r = 0; r < stride; r++) {
			value[r] += w[r] * a[0] + w[r + stride] * a[1] + w[r + 2 * stride] * a[2] +
				    w[r + 3 * stride] * a[3];
			magnitude[r] += parts[r] * b[0] + parts[r + stride] * b[1] + parts[r + 2 * stride] * b[2] +
					parts[r + 3 * stride] * b[3];
		}
	}
	for (; c < cols; c++)
		for (size_t r = 0; r < stride; r++) {
			value[r] += n->w[c * stride + r] * x[c];
			magnitude[r] += n->parts[c * stride + r] * fabs(x[c]);
		}
}

/* Of the terms that are finite, where not all are. */
static inline double finite_magnitude(const struct problem *p, const struct dots *d, int i, size_t r, size_t t)
{
	const struct numbers *n = &p->numbers[i];
	double sum = p->m[i].bias && isfinite(p->m[i].bias[r]) ? fabs((double)p->m[i].bias[r]) : 0.0;

	for (size_t c = 0; c < p->cols; c++) {
		const double term = n->parts[c * n->stride + r] * fabs(d->x[t * p->cols + c]);

		sum += isfinite(term) ? term : 0.0;
	}
	return sum;
}

/* Fills the dot products of a problem with the activations d->x. */
static inline void dots_fill(struct dots *d, const struct problem *p)
{
	for (size_t t = 0; t < p->tokens; t++) {
		const double *x = d->x + t * p->cols;

		d->x_sum[t] = d->x_most[t] = 0.0;
		for (size_t c = 0; c < p->cols; c++)
			if (isfinite(x[c])) {
				d->x_sum[t] += fabs(x[c]);
				d->x_most[t] = fmax(d->x_most[t], fabs(x[c]));
			}
		for (int i = 0; i < 2; i++) {
			const struct numbers *n = &p->numbers[i];
			double *value = d->value[i] + t * ROWS_MAX, *magnitude = d->magnitude[i] + t * ROWS_MAX;

			for (size_t r = 0; r < n->stride; r++) {
				value[r] = p->m[i].bias && r < p->rows ? p->m[i].bias[r] : 0.0;
				magnitude[r] = fabs(value[r]);
			}
			dots_of_token(n, x, p->cols, value, magnitude);
			for (size_t r = 0; r < p->rows; r++)
				if (!isfinite(magnitude[r]))
					magnitude[r] = finite_magnitude(p, d, i, r, t);
		}
	}
}

/* One dot product, and how far a result may be from it. */
struct dot {
	double value, bound, magnitude;
	bool wide;  /* binary32 may overflow on the way */
	bool loose; /* an infinity may be a NaN */
	bool odd;   /* a scale is infinite */
};

static inline struct dot dot_of(const struct problem *p, const struct dots *d, enum kernel_pack pack, int i, size_t r,
				size_t t)
{
	const struct moe_format_spec *f = &moe_formats[p->format];
	const struct numbers *n = &p->numbers[i];
	const size_t at = t * ROWS_MAX + r,
		     terms = p->cols * (f->zero == MOE_ZERO_F16 || f->zero == MOE_ZERO_K ? 2 : 1);
	const double magnitude = d->magnitude[i][at];
	struct dot ret = {.value = d->value[i][at], .magnitude = magnitude, .odd = n->infinite[r]};

	ret.bound = (double)(terms + 8) * 0x1p-23 * magnitude +
		    (double)terms * 0x1p-125 * (1.0 + n->most[r] + n->scales[r] + d->x_most[t]);
	if (pack == PACK_F32_UP) /* what is small beside a row's largest is denormal before the scale */
		ret.bound += (double)terms * 0x1p-156 * d->x_most[t] * n->scales[r];
	ret.loose = f->scale != MOE_SCALE_NONE || pack == PACK_BF16;
	/* With scales, codes of up to 448 and zero points of up to 255 may be summed up first. */
	ret.wide = magnitude > FLT_MAX / 2 || n->scales[r] * 1024 * (1.0 + d->x_sum[t]) > FLT_MAX / 2 ||
		   (ret.loose && 1024 * d->x_sum[t] > FLT_MAX / 2);
	return ret;
}

static inline bool dot_good(const struct dot *d, double got)
{
	if (!isfinite(got) && (d->odd || (d->wide && !isnan(d->value))))
		return true;
	if (isnan(d->value))
		return isnan(got);
	if (isinf(d->value))
		return got == d->value || (d->loose && isnan(got));
	return fabs(got - d->value) <= d->bound;
}

/* -- gate and up -------------------------------------------------------------------------------------------------- */

/* act(a, .) without its second factor. */
static inline double act_value(const struct kernel_act *act, double a)
{
	switch (act->kind) {
	case KERNEL_GELU: /* erfc and not 1 + erf: the left tail keeps its digits */
		return 0.5 * a * erfc(-a / sqrt(2.0));
	case KERNEL_GELU_TANH:
		return 0.5 * a * (1.0 + tanh(sqrt(2.0 / M_PI) * (a + 0.044715 * a * a * a)));
	case KERNEL_SWIGLU_CLAMPED:
		a = fmin(a, act->limit);
		return a / (1.0 + exp(-1.702 * a));
	case KERNEL_SILU:
		break;
	}
	return a / (1.0 + exp(-a));
}

static inline bool dot_ordinary(const struct dot *d)
{
	return isfinite(d->value) && !d->wide && !d->odd;
}

/* |f(a + e) - f(a)| <= 1.2 e for each activation: their slopes lie between -0.13 and 1.13. */
static inline bool gated_good(const struct kernel_act *act, const struct dot *g, const struct dot *u, double got)
{
	const bool clamped = act->kind == KERNEL_SWIGLU_CLAMPED;
	const double limit = act->limit;
	double f, ef, factor, bound;

	if (!dot_ordinary(g) || !dot_ordinary(u)) /* only what is NaN for sure is known */
		return (!isnan(g->value) || g->odd) && (!isnan(u->value) || u->odd) ? true : isnan(got);
	f = act_value(act, g->value);
	ef = 1.2 * g->bound + 0x1p-21 * (act->kind == KERNEL_SILU ? fabs(f) : fabs(g->value)) + 0x1p-140;
	factor = clamped ? fmax(-limit, fmin(limit, u->value)) + 1.0 : u->value;
	bound = ef * (fabs(factor) + u->bound) + fabs(f) * u->bound + fabs(f * factor) * 0x1p-23 + 0x1p-149;
	if (fabs(f * factor) + bound > FLT_MAX)
		return true;
	return fabs(got - f * factor) <= bound;
}

#endif
