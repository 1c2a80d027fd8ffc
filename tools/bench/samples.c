/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "bench.h"

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The smallest sample that so many of a thousand do not exceed: of a hundred the 99th is p99, and not the worst. */
static double at_rank(const double *sorted, uint32_t n, uint32_t per_mille)
{
	return sorted[((uint64_t)n * per_mille + 999) / 1000 - 1];
}

struct summary summarise(double *samples, uint32_t n)
{
	qsort(samples, n, sizeof *samples, by_value);
	return (struct summary){
		.best = samples[0],
		.p50 = samples[n / 2],
		.p99 = at_rank(samples, n, 990),
		.p999 = at_rank(samples, n, 999),
		.worst = samples[n - 1],
	};
}
