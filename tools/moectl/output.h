/* SPDX-License-Identifier: MIT */
/*
 * output - a file that a verb writes.
 *
 * Law: what stood there stays until all of the new one is written. What is no regular file (a pipe, /dev/null, a link),
 * or lies in a folder that takes no new file, is written as it is; "-" is stdout, which main() looks after.
 */
#ifndef MOECTL_OUTPUT_H
#define MOECTL_OUTPUT_H

#include <limits.h>
#include <stdio.h>

struct output {
	const char *path;
	FILE *to;
	char fresh[PATH_MAX]; /* what becomes `path`; "": it is written itself */
};

/* -errno: it cannot be written; nothing is to be ended then. */
int output_open(struct output *ret, const char *path);

/* `r` < 0: there is no result, and what stood there stays. Returns r, or -errno. */
int output_end(struct output *o, int r);

#endif
