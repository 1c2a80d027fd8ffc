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
#include "remedy.h"
#include "settings/settings.h"

enum verdict { FINE, NOTE, PROBLEM };

struct report {
	json_t *checks;
	size_t printed; /* of them */
	int problems;
	const char *root; /* before the paths of files that are read and written; "" is the system itself */
	struct remedies remedies;
};

/* fix: NULL of what is fine. */
void check(struct report *r, enum verdict verdict, const char *what, const char *fix, const char *format, ...)
	__attribute__((format(printf, 5, 6)));

/* -- doctor-system.c: settings of the kernel, drivers, disks ------------------------------------------------------ */

/* What files below the root say goes before what this machine has. */
void host_look_below(struct host *host, const char *root);
/* The kernel finds no pages of 1 GiB in this CPU. False: it does, or is not known. */
bool lacks_1g(const char *root);
void check_numa_balancing(struct report *r, const struct host *host);
void check_transparent(struct report *r, const struct host *host);
void check_gpu(struct report *r);
void check_module(struct report *r, const struct settings *s);
/* RLIMIT_MEMLOCK of the daemon, by its number; 0: of this process. */
void check_memlock(struct report *r, const struct host *host, int pid);
/* Of models, objects with a name and a path: can their files be read past the page cache, and in what steps? */
void check_disks(struct report *r, const json_t *models);
/* A remedy of one line of sysctl.d. */
void add_sysctl(struct report *r, const char *check, const char *name, const char *line);

/* -- doctor-daemon.c: the one that runs, or does not --------------------------------------------------------------- */

struct arguments;
void check_daemon(struct report *r, const struct arguments *arg, const struct host *host, const struct settings *s);

/* -- doctor-user.c ------------------------------------------------------------------------------------------------- */

/* A model of the service's own files, asked by root; else, and where it is not known, true. */
bool service_may_read(const struct report *r, const struct settings_model *m);

/* -- doctor-pages.c: what the configured models want -------------------------------------------------------------- */

/* `words`: of --huge-pages, or NULL; then the models say it. `served`: by a daemon that may have them in memory.
 * -EINVAL: wrong words, and why. */
int check_wanted(struct report *r, const struct host *host, const struct settings *s, const char *words, bool served,
		 struct moe_error *err);

#endif
