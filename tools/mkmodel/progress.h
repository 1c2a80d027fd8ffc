/* SPDX-License-Identifier: MIT */
/*
 * progress - a line on stderr while something large is written, and the writing itself.
 */
#ifndef MKMODEL_PROGRESS_H
#define MKMODEL_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moe-error.h"

struct progress {
	bool shown;
	uint64_t done, total; /* bytes */
	uint64_t started_ns, printed_ns;
};

/* `wanted`: lines are printed, once the work has taken long enough for anyone to wonder. */
struct progress progress_start(bool wanted, uint64_t total);

/* Prints a line when it is time to. */
void progress_add(struct progress *progress, uint64_t bytes);

/* All bytes, or an error that names `path`. */
int progress_write(struct progress *progress, int fd, const char *path, const void *data, size_t bytes,
		   struct moe_error *err);

#endif
