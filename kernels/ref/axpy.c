/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"

void axpy_ref(size_t n, float a, const float *x, float *y)
{
	for (size_t i = 0; i < n; i++)
		y[i] = (float)((double)y[i] + (double)a * (double)x[i]);
}
