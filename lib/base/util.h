/* SPDX-License-Identifier: MIT */
/* util - the few words every file uses. */
#ifndef BASE_UTIL_H
#define BASE_UTIL_H

#include <stdint.h>
#include <time.h>

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define CACHE_LINE 64
#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* `align` is a power of two; the value is the program's own (outside values: checked_align). */
#define ALIGN_UP(value, align) (((value) + ((align)-1)) & ~((__typeof__(value))(align)-1))
#define DIV_UP(value, by) (((value) + (by)-1) / (by))

/* CLOCK_MONOTONIC in nanoseconds. */
static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Where a few instructions count: what is rare is out of the way, what is frequent is without a call. */
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))

/* One turn of a polling loop: tells the core that it spins. */
static inline void cpu_relax(void)
{
	__builtin_ia32_pause();
}

#endif
