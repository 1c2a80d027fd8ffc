/* SPDX-License-Identifier: MIT */
/*
 * remedy - a file that mends what doctor has found, also after the next boot; and how it gets where it belongs.
 *
 * Law: a remedy is one file, and nothing is written that was not shown and then allowed, file by file. A file is there
 * with its whole text or as it was before. No command is run: what makes the file take effect stands in `next`, for a
 * person to type.
 */
#ifndef TOOLS_REMEDY_H
#define TOOLS_REMEDY_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "moe-error.h"

#define REMEDIES_MAX 48 /* of 16 nodes, and those of which there is one */

struct remedy {
	char check[64];      /* whose finding it mends */
	char path[PATH_MAX]; /* with the root before it */
	size_t root_bytes;   /* so much of it is the root, "" that of this system */
	char text[768];
	char next[256]; /* what to type then */
};

struct remedies {
	unsigned n;
	struct remedy list[REMEDIES_MAX];
};

/* The one to be filled in, its check and path set; NULL: there is no room. `path` may be written as by printf. */
struct remedy *remedies_add(struct remedies *all, const char *check, const char *root, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* The file says it already: there is nothing to write, only something to type. */
bool remedy_is_there(const struct remedy *remedy);

/* Puts the file there, and the folders above it. Links are followed as a system would whose root that is: of a tree
 * that somebody else has made none leads out of it. 0 or -errno. */
int remedy_write(const struct remedy *remedy, struct moe_error *err);

/* Shows each one that is not there and asks on the terminal, or, if `yes`, only shows. Returns how many could not be
 * written. */
unsigned remedies_offer(const struct remedies *all, bool yes);

#endif
