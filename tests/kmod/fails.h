/* SPDX-License-Identifier: MIT */
/*
 * fails - a way: one call that is made to fail at each of its allocations and copies. What it needs is made before,
 * what it leaves is taken back after, both without failures.
 */
#ifndef TESTS_KMOD_FAILS_H
#define TESTS_KMOD_FAILS_H

#include "tests/kmod/rings.h"

#define FAILS_BLOB 3000u

/* What the ways share: a pool that may be mapped and exported, and what one of them makes on the way. */
struct scene {
	int dev, importer, file; /* file: of a second pool */
	uint64_t pool, epoch, second, lease;
	int other, fd; /* a second open device; what a call gave */
	char *at;
	char blob[FAILS_BLOB];
	uint32_t queue;
	struct moe_kmod_fetched fetched;
	struct moe_kmod_answer answer;
	struct io_uring ring;
};

struct way {
	const char *name;
	int least; /* failures that there must be at least, or they are not injected where they should */
	void (*before)(struct scene *s);
	bool (*call)(struct scene *s);
	void (*after)(struct scene *s, bool done);
	bool takes; /* what a call that fails at its last copy would have told is gone, as with any read */
	bool ring;  /* it needs io_uring */
};

extern const struct way queue_ways[];
extern const size_t n_queue_ways;

#endif
