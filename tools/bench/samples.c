/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "bench.h"

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

struct summary summarise(double *samples, uint32_t n)
{
	qsort(samples, n, sizeof *samples, by_value);
	return (struct summary){
		.best = samples[0],
		.p50 = samples[n / 2],
		.p99 = samples[(uint64_t)n * 99 / 100],
		.p999 = samples[(uint64_t)n * 999 / 1000],
		.worst = samples[n - 1],
	};
}
