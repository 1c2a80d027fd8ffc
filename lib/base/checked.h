/* SPDX-License-Identifier: MIT */
/*
 * checked - arithmetic on numbers that come from a file or from a client.
 *
 * Each function returns true and stores the exact result, or returns false and leaves *ret untouched. Integers from
 * outside go through these and nothing else: a bare + or * on them is a bug.
 */
#ifndef BASE_CHECKED_H
#define BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool checked_add(uint64_t *ret, uint64_t a, uint64_t b)
{
	uint64_t sum;

	if (__builtin_add_overflow(a, b, &sum))
		return false;
	*ret = sum;
	return true;
}

static inline bool checked_mul(uint64_t *ret, uint64_t a, uint64_t b)
{
	uint64_t product;

	if (__builtin_mul_overflow(a, b, &product))
		return false;
	*ret = product;
	return true;
}

/* `align` is a power of two. */
static inline bool checked_align(uint64_t *ret, uint64_t value, uint64_t align)
{
	uint64_t sum;

	if (!checked_add(&sum, value, align - 1))
		return false;
	*ret = sum & ~(align - 1);
	return true;
}

/* True when [offset, offset + length) lies within [0, size). */
static inline bool checked_range(uint64_t offset, uint64_t length, uint64_t size)
{
	return offset <= size && length <= size - offset;
}

#endif
