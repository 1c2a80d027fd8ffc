/* SPDX-License-Identifier: MIT */
/* Buckets without gaps, quantiles against exact sorting, merging, and writers beside each other. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/histogram.h"
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
	const uint32_t n = 1 + (uint32_t)(tap_random(&seed) % 1000), bits = 1 + (uint32_t)(tap_random(&seed) % 40);
	struct histogram parts[2] = {0};
	bool good = true;

	for (uint32_t i = 0; i < n; i++) {
		values[i] = tap_random(&seed) >> (24 + tap_random(&seed) % bits);
		values[i] &= ((uint64_t)1 << 40) - 1;
		histogram_add(&parts[i % 2], values[i]);
	}
	histogram_merge(&parts[0], &parts[1]);
	qsort(values, n, sizeof *values, compare);
	for (uint32_t i = 0; i < sizeof shares / sizeof *shares; i++) {
		const uint32_t place = (uint32_t)fmax(ceil(shares[i] * n), 1) - 1;
		const double exact = (double)values[place];

		good &= fabs((double)histogram_quantile(&parts[0], shares[i]) - exact) <= exact / 16;
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
	return tap_done();
}
