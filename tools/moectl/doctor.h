/* SPDX-License-Identifier: MIT */
/*
 * doctor - what this machine offers to the daemon, what is in force, and what to type to get more.
 *
 * Law: a check is fine, a note (works, could be better) or a problem (does not work): only problems make the exit
 * status 1. A note or a problem says what to type. What cannot be read is "unknown", never a guess.
 */
#ifndef TOOLS_DOCTOR_H
#define TOOLS_DOCTOR_H

#include <jansson.h>

#include "base/host.h"

enum verdict { FINE, NOTE, PROBLEM };

struct report {
	json_t *checks;
	int problems;
};

/* fix: NULL of what is fine. */
void check(struct report *r, enum verdict verdict, const char *what, const char *fix, const char *format, ...)
	__attribute__((format(printf, 5, 6)));

/* -- doctor-system.c: settings of the kernel, drivers, disks ------------------------------------------------------ */

void check_numa_balancing(struct report *r, const struct host *host);
void check_transparent(struct report *r);
void check_gpu(struct report *r);
/* Of models that the daemon has: can their files be read past the page cache, and in what steps? */
void check_disks(struct report *r, const json_t *models);

#endif
