/* SPDX-License-Identifier: MIT */
#include "kernels/avx2/vec.h"
#include "kernels/levels.h"
#include "kernels/vec/axpy.h"

void axpy_avx2(size_t n, float a, const float *x, float *y)
{
	vec_axpy(n, a, x, y);
}
