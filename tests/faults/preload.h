/* SPDX-License-Identifier: MIT */
/*
 * faults/preload - what the parts of the preloaded library share: which call is to fail. What it is for: preload.c.
 */
#ifndef TESTS_FAULTS_PRELOAD_H
#define TESTS_FAULTS_PRELOAD_H

#include <stdbool.h>
#include <stdint.h>

enum kind { MEMORY, MAP, FILES, DESCRIPTOR, THREAD, POPULATE, MESSAGE, RING, COMPLETION, SHORT, KINDS };

/* A function that this library stands before. All are looked for before main, as a loader that memory was refused to in
 * the middle of dlopen may keep its lock, for which a thread that looks later waits for ever. */
struct real {
	const char *name;
	void *at;
};

#define REAL(name)                                                                                                     \
	({                                                                                                             \
		static struct real real_ __attribute__((section("reals"), used)) = {#name, NULL};                      \
		(__typeof__(&name))(real_.at ?: real_of(&real_));                                                      \
	})

void *real_of(struct real *real);

/* Counts the call; true: it is to fail, and errno is set. */
bool fails(enum kind kind, int error);
/* The same of what is no call, at a place of its own. */
bool strikes(enum kind kind, uint64_t place);
/* Whether calls are counted. */
bool preload_runs(void);
/* What completions, and io_uring itself, fail with. */
int preload_value(void);

void take_lock(void);
void give_lock(void);

static inline uint64_t mix(uint64_t a, uint64_t b)
{
	return (a ^ b) * 0x9e3779b97f4a7c15ull + (a >> 29);
}

#endif
