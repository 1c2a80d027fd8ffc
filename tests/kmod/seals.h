/* SPDX-License-Identifier: MIT */
/* seals - ways to write through a mapping that was sealed, each of which must fail (seal-ways.c). */
#ifndef TESTS_KMOD_SEALS_H
#define TESTS_KMOD_SEALS_H

#include "tests/kmod/device.h"

#define SEAL_PAGES 2u /* of the mapping */

/* The mapping; `refused` says whether the way was, and leaves all as it was. */
struct seal_way {
	const char *name;
	bool (*refused)(char *at);
};
extern const struct seal_way seal_ways[];
extern const unsigned seal_ways_n;

/* A userfaultfd that watches the mapping, or -1. */
int seal_watch(char *at);

/* An io_uring with the mapping's first page registered, or -1; reads a word from `fd` into it. */
int seal_pin(char *at);
bool seal_pin_writes(int ring, int fd, char *at);

#endif
