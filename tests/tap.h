/* SPDX-License-Identifier: MIT */
/*
 * tap - the Test Anything Protocol in one header: what `prove` reads.
 *
 *     int main(void) { ok(1 + 1 == 2, "addition"); return tap_done(); }
 *
 * A failing ok() goes on, so that one run shows all failures; require() ends the program, for what the rest depends on.
 * The plan comes last, so that a crash is seen as a missing plan.
 */
#ifndef TESTS_TAP_H
#define TESTS_TAP_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/*
 * No limit of a test may be missed by a machine that has other things to do, or under a sanitizer, which is twenty
 * times slower. What takes milliseconds has come within "soon", or it was waiting for something else; who waits for
 * what must come gives up after "patience", and stops as soon as it is there.
 */
#define TAP_SOON_NS 20000000000ull
#define TAP_PATIENCE_S 600

/* One for all files of a program. */
__attribute__((weak)) int tap_count, tap_failed;

__attribute__((format(printf, 4, 5), unused)) static bool tap_ok(bool good, const char *file, int line,
								 const char *format, ...)
{
	va_list args;

	printf("%sok %d - ", good ? "" : "not ", ++tap_count);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	if (!good) {
		tap_failed++;
		printf("#   failed at %s:%d\n", file, line);
	}
	fflush(stdout);
	return good;
}

#define ok(condition, ...) tap_ok(condition, __FILE__, __LINE__, __VA_ARGS__)

__attribute__((unused)) static int tap_done(void)
{
	printf("1..%d\n", tap_count);
	fflush(stdout);
	return tap_failed ? 1 : 0;
}

#define require(condition, ...)                                                                                        \
	do {                                                                                                           \
		if (!ok(condition, __VA_ARGS__))                                                                       \
			exit(tap_done());                                                                              \
	} while (0)

/* One result that says what was not run and why. */
__attribute__((format(printf, 1, 2), unused)) static void tap_skip(const char *format, ...)
{
	va_list args;

	printf("ok %d # SKIP ", ++tap_count);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout); /* or a fork would print it twice */
}

__attribute__((format(printf, 1, 2), unused)) static void diag(const char *format, ...)
{
	va_list args;

	fputs("# ", stdout);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout); /* or a fork would print it twice */
}

/*
 * Where what a test makes is: "$TMPDIR/NAME", where NAME ends as mkdtemp, mkstemp or mkstemps want it. There must be
 * room for sockets below it, whose paths have 107 bytes at most: where $TMPDIR is too long for that, it is /tmp.
 * Returns `to`.
 */
#define TAP_TMP 64
#define TAP_TMP_MAX 32
static inline char *tap_tmp(char to[TAP_TMP], const char *name)
{
	const char *folder = getenv("TMPDIR");

	if (!folder || !*folder || strlen(folder) > TAP_TMP_MAX)
		folder = "/tmp";
	snprintf(to, TAP_TMP, "%s/%s", folder, name);
	return to;
}

/*
 * The seed of a random test, printed, so that the run can be repeated: $TEST_SEED, which continuous integration fixes,
 * or the clock's. Once a program, before anything is drawn.
 */
static inline unsigned long long tap_seed(void)
{
	const char *given = getenv("TEST_SEED");
	unsigned long long seed;
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	seed = given ? strtoull(given, NULL, 0)
		     : (unsigned long long)t.tv_sec * 1000000000 + (unsigned long long)t.tv_nsec;
	diag("TEST_SEED=%llu", seed);
	return seed;
}

/* false when the patience that began with the first call (`*end` 0) is over; else a moment has passed. */
static inline bool tap_wait(uint64_t *end)
{
	struct timespec t;
	uint64_t now;

	clock_gettime(CLOCK_MONOTONIC, &t);
	now = (uint64_t)t.tv_sec;
	if (*end == 0)
		*end = now + TAP_PATIENCE_S;
	nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	return now < *end;
}

/* A small generator: xorshift64* (Marsaglia 2003). */
static inline unsigned long long tap_random(unsigned long long *state)
{
	unsigned long long x = *state ? *state : 88172645463325252ULL;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	*state = x;
	return x * 2685821657736338717ULL;
}

#endif
