/* SPDX-License-Identifier: MIT */
/*
 * fuzz - what the fuzz targets share.
 *
 * Law: a target takes any bytes at all and gives the code that it is about what a stranger could give it: a file, a
 * message, words on a command line. It keeps nothing between two inputs that a result could depend on, and it checks
 * more than that nothing crashes: what was accepted must be usable, what was refused must say why. docs/FUZZING.md
 * tells how targets are run.
 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moe-error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Kept in every kind of build. */
#define fuzz_check(condition)                                                                                          \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                  \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

/* A refusal has a code, and one line that says why. */
static inline void fuzz_check_refused(int r, const struct moe_error *err)
{
	fuzz_check(r < 0 && err->code == r && err->text[0] && !strchr(err->text, '\n'));
}

/* The input, taken bit by bit; beyond its end there are zeros. */
struct fuzz_bytes {
	const uint8_t *at;
	size_t left;
};

static inline void fuzz_take(struct fuzz_bytes *from, void *to, size_t bytes)
{
	const size_t n = bytes < from->left ? bytes : from->left;

	memset(to, 0, bytes);
	if (n > 0)
		memcpy(to, from->at, n);
	from->at += n;
	from->left -= n;
}

static inline uint64_t fuzz_number(struct fuzz_bytes *from, size_t bytes)
{
	uint64_t value = 0;

	fuzz_take(from, &value, bytes);
	return value;
}

/* The next `n` bytes alone in memory of their own size, so that a sanitizer sees each byte read too far. */
static inline void *fuzz_alone(const uint8_t *at, size_t n)
{
	void *alone = malloc(n ? n : 1);

	fuzz_check(alone);
	if (n > 0)
		memcpy(alone, at, n);
	return alone;
}

#endif
