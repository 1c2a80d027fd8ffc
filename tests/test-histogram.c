/* SPDX-License-Identifier: MIT */
/* Buckets without gaps, quantiles against exact sorting, merging, and writers beside each other. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/histogram.h"
#include "base/util.h"
#include "tests/tap.h"

#define THREADS 4
#define VALUES 20000

static unsigned long long seed;

static void test_buckets(void)
{
	bool good = histogram_floor(0) == 0 && histogram_floor(HISTOGRAM_BUCKETS) == (uint64_t)1 << HISTOGRAM_TOP;

	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS && good; i++) {
		const uint64_t least = histogram_floor(i), next = histogram_floor(i + 1);

		good = next > least && histogram_bucket(least) == i && histogram_bucket(next - 1) == i &&
		       (next - least == 1 || (next - least) * 8 <= least);
	}
	ok(good, "%d buckets follow each other, each less than 1/8 wide", HISTOGRAM_BUCKETS);
	ok(histogram_bucket(UINT64_MAX) == HISTOGRAM_BUCKETS - 1 &&
		   histogram_bucket((uint64_t)1 << HISTOGRAM_TOP) == HISTOGRAM_BUCKETS - 1,
	   "what is larger is in the last one");
}

static int compare(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Of any size, from few values to many. */
static bool quantiles_agree(void)
{
	static const double shares[] = {0, .001, .25, .5, .9, .99, .999, 1};
	static uint64_t values[1000];
	uint64_t at_once[sizeof shares / sizeof *shares];
	const uint32_t n = 1 + (uint32_t)(tap_random(&seed) % 1000), bits = 1 + (uint32_t)(tap_random(&seed) % 40);
	struct histogram parts[2] = {0};
	bool good = true;

	for (uint32_t i = 0; i < n; i++) {
		values[i] = tap_random(&seed) >> (24 + tap_random(&seed) % bits);
		values[i] &= ((uint64_t)1 << 40) - 1;
		if (i % 2)
			histogram_add(&parts[1], values[i]);
		else
			histogram_add_alone(&parts[0], values[i]);
	}
	histogram_merge(&parts[0], &parts[1]);
	qsort(values, n, sizeof *values, compare);
	good = histogram_quantiles(&parts[0], shares, sizeof shares / sizeof *shares, at_once) == n;
	for (uint32_t i = 0; i < sizeof shares / sizeof *shares; i++) {
		const uint32_t place = (uint32_t)fmax(ceil(shares[i] * n), 1) - 1;
		const double exact = (double)values[place];

		good &= fabs((double)at_once[i] - exact) <= exact / 16;
		good &= at_once[i] == histogram_quantile(&parts[0], shares[i]);
	}
	return good && histogram_count(&parts[0]) == n;
}

static void *write_some(void *userdata)
{
	for (uint64_t i = 0; i < VALUES; i++)
		histogram_add(userdata, i);
	return NULL;
}

static void test_threads(void)
{
	static struct histogram h;
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, write_some, &h) != 0)
			abort();
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	ok(histogram_count(&h) == (uint64_t)THREADS * VALUES, "writers beside each other lose nothing");
}

/* What a value costs, the best of some rounds: by one writer, by one of several; and reading it all. Not judged. */
static void tell_costs(void)
{
	static const double shares[] = {.5, .9, .99, .999, 1};
	static struct histogram h;
	static uint64_t values[4096];
	uint64_t best[3] = {UINT64_MAX, UINT64_MAX, UINT64_MAX}, ret[sizeof shares / sizeof *shares];

	for (size_t i = 0; i < sizeof values / sizeof *values; i++)
		values[i] = tap_random(&seed) >> 40;
	for (int round = 0; round < 300; round++) {
		uint64_t began = now_ns(), ns;

		for (size_t i = 0; i < sizeof values / sizeof *values; i++)
			histogram_add_alone(&h, values[i]);
		ns = now_ns() - began;
		best[0] = ns < best[0] ? ns : best[0];
		began = now_ns();
		for (size_t i = 0; i < sizeof values / sizeof *values; i++)
			histogram_add(&h, values[i]);
		ns = now_ns() - began;
		best[1] = ns < best[1] ? ns : best[1];
		began = now_ns();
		histogram_quantiles(&h, shares, sizeof shares / sizeof *shares, ret);
		ns = now_ns() - began;
		best[2] = ns < best[2] ? ns : best[2];
	}
	diag("a value costs %.1f ns by the only writer, %.1f by one of several; five quantiles of a histogram %llu ns; "
	     "%zu bytes",
	     (double)best[0] / 4096, (double)best[1] / 4096, (unsigned long long)best[2], sizeof h);
}

int main(void)
{
	const struct histogram none = {0};
	bool good = true;

	seed = tap_seed();
	test_buckets();
	ok(histogram_quantile(&none, .5) == 0 && histogram_count(&none) == 0, "nothing was seen");
	for (int i = 0; i < 500 && good; i++)
		good = quantiles_agree();
	ok(good, "quantiles are those of sorting, to 1/16, also of two that were merged");
	test_threads();
	tell_costs();
	return tap_done();
}
