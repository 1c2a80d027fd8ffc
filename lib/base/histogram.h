/* SPDX-License-Identifier: MIT */
/*
 * histogram - how often a value was seen, with a bounded relative error, in fixed memory.
 *
 * Values below 16 have a bucket each; above, each power of two is cut into 8 buckets of equal width. So a bucket's ends
 * are less than 1/8 apart, and what histogram_quantile says is the middle of the bucket that the exact quantile lies
 * in: off by 1/16 of it at most. From 2^40 on (18 minutes of nanoseconds) all is in the last bucket.
 *
 * Adding is one relaxed atomic addition, from any thread; of a histogram that has one writer, a load and a store. Who
 * reads meanwhile sees some values and not yet others. Histograms are merged by adding their buckets, in any order:
 * nothing is lost, since all have the same buckets.
 */
#ifndef BASE_HISTOGRAM_H
#define BASE_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BITS 3 /* a power of two has 2^3 buckets */
#define HISTOGRAM_TOP 40
#define HISTOGRAM_BUCKETS ((HISTOGRAM_TOP - HISTOGRAM_BITS + 1) << HISTOGRAM_BITS)

struct histogram {
	uint64_t buckets[HISTOGRAM_BUCKETS]; /* zeros at first */
};

static inline uint32_t histogram_bucket(uint64_t value)
{
	uint32_t high;

	if (value < 2u << HISTOGRAM_BITS)
		return (uint32_t)value;
	if (value >> HISTOGRAM_TOP)
		return HISTOGRAM_BUCKETS - 1;
	high = 63 - (uint32_t)__builtin_clzll(value);
	return ((high - HISTOGRAM_BITS) << HISTOGRAM_BITS) + (uint32_t)(value >> (high - HISTOGRAM_BITS));
}

/* The least value of the bucket; of the one behind the last 2^HISTOGRAM_TOP. */
static inline uint64_t histogram_floor(uint32_t bucket)
{
	const uint32_t shift = bucket >> HISTOGRAM_BITS;

	if (bucket < 2u << HISTOGRAM_BITS)
		return bucket;
	return (uint64_t)(bucket - ((shift - 1) << HISTOGRAM_BITS)) << (shift - 1);
}

static inline void histogram_add(struct histogram *h, uint64_t value)
{
	__atomic_fetch_add(&h->buckets[histogram_bucket(value)], 1, __ATOMIC_RELAXED);
}

/* By the only thread that ever writes it. */
static inline void histogram_add_alone(struct histogram *h, uint64_t value)
{
	uint64_t *bucket = &h->buckets[histogram_bucket(value)];

	__atomic_store_n(bucket, __atomic_load_n(bucket, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

static inline void histogram_merge(struct histogram *to, const struct histogram *from)
{
	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++)
		__atomic_fetch_add(&to->buckets[i], __atomic_load_n(&from->buckets[i], __ATOMIC_RELAXED),
				   __ATOMIC_RELAXED);
}

static inline uint64_t histogram_count(const struct histogram *h)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++)
		n += __atomic_load_n(&h->buckets[i], __ATOMIC_RELAXED);
	return n;
}

/* Of n values in ascending order the one at place ceil(share * n), counted from 1, but the first at least; 0 of none.
 * shares: 0 to 1, ascending. Returns n. */
static inline uint64_t histogram_quantiles(const struct histogram *h, const double *shares, uint32_t n_shares,
					   uint64_t *ret)
{
	const uint64_t n = histogram_count(h);
	uint64_t seen = 0;
	uint32_t k = 0;

	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS && n > 0 && k < n_shares; i++) {
		const uint64_t least = histogram_floor(i);

		seen += __atomic_load_n(&h->buckets[i], __ATOMIC_RELAXED);
		for (; k < n_shares && seen > 0 && ((double)seen >= shares[k] * (double)n || seen >= n); k++)
			ret[k] = least + (histogram_floor(i + 1) - least) / 2;
	}
	while (k < n_shares)
		ret[k++] = 0;
	return n;
}

static inline uint64_t histogram_quantile(const struct histogram *h, double share)
{
	uint64_t value;

	histogram_quantiles(h, &share, 1, &value);
	return value;
}

#endif
