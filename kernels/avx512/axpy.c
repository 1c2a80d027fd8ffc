/* SPDX-License-Identifier: MIT */
#include "kernels/avx512/vec.h"
#include "kernels/levels.h"
#include "kernels/vec/axpy.h"

void axpy_avx512(size_t n, float a, const float *x, float *y)
{
	vec_axpy(n, a, x, y);
}
