/* SPDX-License-Identifier: MIT */
/*
 * kernel-walls - memory whose end is a wall, and random numbers to fill it with: for the tests of kernels.
 *
 * A wall is a page that cannot be touched. An arena is made once and used for many problems, because a system call per
 * problem would cost more than the problem.
 */
#ifndef TESTS_KERNEL_WALLS_H
#define TESTS_KERNEL_WALLS_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/tap.h"

static unsigned long long seed;

/* Below n, or 0. */
static inline uint32_t pick(uint32_t n)
{
	return n ? (uint32_t)(tap_random(&seed) >> 33) % n : 0;
}

/* Whether it happens: once in n times. */
static inline bool once_in(uint32_t n)
{
	return pick(n) == 0;
}

static inline size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* In -1 .. 1. */
static inline float plain_float(void)
{
	return (float)((double)(tap_random(&seed) >> 11) * 0x1p-52 - 1.0);
}

static inline void fill_random(void *to, size_t bytes)
{
	char *p = to;

	for (; bytes >= 8; p += 8, bytes -= 8)
		memcpy(p, &(unsigned long long){tap_random(&seed)}, 8);
	memcpy(p, &(unsigned long long){tap_random(&seed)}, bytes);
}

struct wall {
	char *end;
	size_t bytes; /* before the end */
};

static inline struct wall wall_new(size_t bytes)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct wall w = {.bytes = (bytes + page - 1) / page * page};
	char *map = mmap(NULL, w.bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (map == MAP_FAILED || mprotect(map + w.bytes, page, PROT_NONE) < 0) {
		printf("Bail out! no memory\n");
		exit(1);
	}
	w.end = map + w.bytes;
	return w;
}

/* `bytes` that end exactly at the wall. */
static inline void *wall_before(const struct wall *w, size_t bytes)
{
	if (bytes > w->bytes) {
		printf("Bail out! a problem of %zu bytes does not fit the test's %zu\n", bytes, w->bytes);
		exit(1);
	}
	return w->end - bytes;
}

/* +-0, the least and the largest denormal, the largest finite ones, +-inf, NaN, 1 */
#define SPECIALS 10

static inline float special_float(void)
{
	static const float specials[SPECIALS] = {
		0.0f, -0.0f, 0x1p-149f, -0x1.fffffcp-127f, FLT_MAX, -FLT_MAX, INFINITY, -INFINITY, NAN, 1.0f};

	return specials[pick(SPECIALS)];
}

static inline uint16_t special_bf16(void)
{
	static const uint16_t specials[SPECIALS] = {0,      0x8000, 1,      0x807f, 0x7f7f,
						    0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x3f80};

	return specials[pick(SPECIALS)];
}

static inline uint16_t special_f16(void)
{
	static const uint16_t specials[SPECIALS] = {0,      0x8000, 1,      0x83ff, 0x7bff,
						    0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x3c00};

	return specials[pick(SPECIALS)];
}

static inline uint8_t special_e4m3(void)
{
	static const uint8_t specials[] = {0x00, 0x80, 0x01, 0x87, 0x7e, 0xfe, 0x7f, 0xff};

	return specials[pick(sizeof(specials))];
}

static inline uint8_t special_e8m0(void)
{
	static const uint8_t specials[] = {0, 1, 126, 127, 253, 254, 255};

	return specials[pick(sizeof(specials))];
}

#endif
