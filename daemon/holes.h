/* SPDX-License-Identifier: MIT */
/*
 * holes - pages that are given back although a client may still have them mapped.
 *
 * Law: a hole in a file walks every mapping of it, in every process, and a client makes as many of those as it likes:
 * none is made by the reactor. A thread makes the holes of one user, one after the other, and ends with the last; what
 * several users had has one of its own, while there are few threads: nobody waits for what another user has mapped.
 * What they are of stays on its account until they are made, so who makes them slow has less meanwhile. When the
 * daemon ends what was answered may be read still: then files are closed as they are.
 */
#ifndef DAEMON_HOLES_H
#define DAEMON_HOLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/accounts.h"
#include "moe-error.h"

struct loop;

#define HOLES_EACH 2 /* files at a time */

struct hole {
	int fd; /* of a memfd; taken over, and closed afterwards */
	uint64_t at, bytes;
};

struct holes;

/* `loop` is woken when a charge can be given back. -ENOMEM. */
int holes_new(struct holes **ret, struct loop *loop, struct moe_error *err);

/* From the reactor: soon, by a thread; at once where there is none. The charge, if it is open, is taken over and
 * closed by a later holes_collect. `shared`: other users had it mapped as well, and none of theirs waits for it.
 * After holes_end, and with NULL for `holes`, nothing but closing is done, at once. */
void holes_make(struct holes *holes, const struct hole *list, size_t n, struct charge *charge, bool shared);

/* The reactor's turn: gives charges back. True: there were some. */
bool holes_collect(struct holes *holes);

/* Of the reactor: none waits, and no charge of one. */
bool holes_none(const struct holes *holes);

/* What waits is closed; what is being made goes on, and the loop is not touched any more. Takes NULL. */
void holes_end(struct holes *holes);

struct holes *holes_free(struct holes *holes); /* ends, and waits for what is being made; takes NULL, returns NULL */

#endif
