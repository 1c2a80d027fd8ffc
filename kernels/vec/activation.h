/* SPDX-License-Identifier: MIT */
/*
 * activation - SiLU and the two GELUs of a vector.
 *
 * Errors against the exact function of the same argument a: SiLU at most 2^-21 of its value, the GELUs at most
 * 2^-21 |a|, and in each case 2^-140 more where numbers become denormal. An infinite a < 0 gives NaN, as a * 0
 * does.
 */
#ifndef KERNELS_VEC_ACTIVATION_H
#define KERNELS_VEC_ACTIVATION_H

#include <math.h>

#include "kernels/kernels.h"

/*
 * e^a for a <= 0, error below 2^-22 of the value: a = n ln 2 + r with |r| <= ln 2 / 2 (ln 2 in two parts, the first one
 * short enough that its product with n is exact), Taylor's polynomial of degree 7 for e^r (what is cut off: r^8 / 8! <
 * 2^-27), times 2^n. Below -104 it is 0 in binary32.
 */
static inline vec vec_exp_negative(vec a)
{
	const vec clamped = vec_max(vec_set(-104.0f), a);
	const vec n = vec_round(vec_mul(clamped, vec_set(0x1.715476p+0f)));
	const vec r = vec_fma(n, vec_set(-0x1.7f7d1cp-20f), vec_fma(n, vec_set(-0x1.62e4p-1f), clamped));
	vec p = vec_set(1.0f / 5040);

	p = vec_fma(p, r, vec_set(1.0f / 720));
	p = vec_fma(p, r, vec_set(1.0f / 120));
	p = vec_fma(p, r, vec_set(1.0f / 24));
	p = vec_fma(p, r, vec_set(1.0f / 6));
	p = vec_fma(p, r, vec_set(0.5f));
	p = vec_fma(p, r, vec_set(1.0f));
	p = vec_fma(p, r, vec_set(1.0f));
	return vec_scale(p, n);
}

/* a / (1 + e^-b), without overflow: for b < 0 as a e^b / (1 + e^b). */
static inline vec vec_times_sigmoid(vec a, vec b)
{
	const vec z = vec_exp_negative(vec_negative_abs(b)), one = vec_set(1.0f);

	return vec_mul(a, vec_div(vec_if_negative(b, z, one), vec_add(one, z)));
}

/* 0.5 a (1 + tanh(s)) = a / (1 + e^-2s), s = sqrt(2 / pi) (a + 0.044715 a^3). */
static inline vec vec_gelu_tanh(vec a)
{
	const vec inner = vec_fma(vec_mul(a, a), vec_set(0.044715f), vec_set(1.0f));

	return vec_times_sigmoid(a, vec_mul(vec_mul(a, vec_set(1.5957691216f)), inner));
}

/* With the C library's erfc, element by element. */
static inline vec vec_gelu(vec a)
{
	float f[VEC_FLOATS];

	vec_store(f, a);
	for (size_t i = 0; i < VEC_FLOATS; i++)
		f[i] = 0.5f * f[i] * erfcf(-(float)M_SQRT1_2 * f[i]);
	return vec_load(f);
}

static inline vec vec_min(vec a, vec b)
{
	return vec_negate(vec_max(vec_negate(a), vec_negate(b)));
}

/* As struct kernel_act says; NaNs stay. */
static inline vec vec_gated(const struct kernel_act *act, vec g, vec u)
{
	const vec limit = vec_set(act->limit);

	switch (act->kind) {
	case KERNEL_GELU:
		return vec_mul(vec_gelu(g), u);
	case KERNEL_GELU_TANH:
		return vec_mul(vec_gelu_tanh(g), u);
	case KERNEL_SWIGLU_CLAMPED:
		g = vec_min(limit, g);
		u = vec_max(vec_negate(limit), vec_min(limit, u));
		return vec_mul(vec_times_sigmoid(g, vec_mul(vec_set(1.702f), g)), vec_add(u, vec_set(1.0f)));
	case KERNEL_SILU:
		break;
	}
	return vec_mul(vec_times_sigmoid(g, g), u);
}

#endif
