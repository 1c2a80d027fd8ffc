/* SPDX-License-Identifier: MIT */
/*
 * heat - experts ranked by how many (token, expert) pairs of a step want them.
 *
 * An expert and its pairs are one number, so that ranking is plain sorting: more pairs are hotter; of two with the same
 * pairs the lower id is hotter. Keys of one step are distinct. Nothing here allocates.
 */
#ifndef LIB_HEAT_H
#define LIB_HEAT_H

#include <stdint.h>

static inline uint64_t heat_key(uint32_t pairs, int32_t expert)
{
	return (uint64_t)pairs << 32 | (UINT32_MAX - (uint32_t)expert);
}

static inline int32_t heat_expert(uint64_t key)
{
	return (int32_t)(UINT32_MAX - (uint32_t)key);
}

static inline uint32_t heat_pairs(uint64_t key)
{
	return (uint32_t)(key >> 32);
}

/* Lets the key at `at` sink in a heap whose root is the smallest of n keys. */
static inline void heat_sink(uint64_t *keys, uint32_t n, uint32_t at)
{
	uint64_t key = keys[at];

	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child >= n)
			break;
		if (child + 1 < n && keys[child + 1] < keys[child])
			child++;
		if (key <= keys[child])
			break;
		keys[at] = keys[child];
		at = child;
	}
	keys[at] = key;
}

/* Descending order, hottest first; O(n log n), in place. */
static inline void heat_sort(uint64_t *keys, uint32_t n)
{
	uint32_t i;

	for (i = n / 2; i-- > 0;)
		heat_sink(keys, n, i);
	while (n > 1) {
		uint64_t smallest = keys[0];

		keys[0] = keys[--n];
		keys[n] = smallest;
		heat_sink(keys, n, 0);
	}
}

#endif
