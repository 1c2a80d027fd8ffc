/* SPDX-License-Identifier: MIT */
/*
 * faults/talk - what is asked of a daemon on its bus: documents, figures, a load and an unload, errors.
 *
 * Law: what is asked is answered, rightly or with an error that has a name and words, and nothing is waited for to the
 * end of patience. A daemon that has lost its bus is not on it: then all is refused, by the bus.
 */
#ifndef TESTS_FAULTS_TALK_H
#define TESTS_FAULTS_TALK_H

#include <stdbool.h>
#include <stdint.h>

struct talk {
	const char *model_path; /* loaded as "small" already */
	bool faulted;           /* something may be refused, the bus itself too ... */
	bool ever;              /* ... and again and again */
	uint32_t fine, refused; /* the answers */
	char why[256];          /* what is wrong, "": nothing */
};

/* A bus of this process's own, whose address it returns; it ends with talk_end, or the process. */
const char *talk_begin(void);
void talk_end(void);

/* False: no bus can be had here. */
bool talk_can(void);

void talk(struct talk *talk);

#endif
