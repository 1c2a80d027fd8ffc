/* SPDX-License-Identifier: MIT */
/*
 * axpy - y += a x, written in the vec_* names of the level that includes this file. One rounding per element.
 */
#ifndef KERNELS_VEC_AXPY_H
#define KERNELS_VEC_AXPY_H

static inline void vec_axpy(size_t n, float a, const float *x, float *y)
{
	const vec factor = vec_set(a);
	size_t i = 0;

	for (; n - i >= VEC_FLOATS; i += VEC_FLOATS)
		vec_store(y + i, vec_fma(factor, vec_load(x + i), vec_load(y + i)));
	if (i < n)
		vec_store_n(y + i, vec_fma(factor, vec_load_n(x + i, n - i), vec_load_n(y + i, n - i)), n - i);
}

#endif
