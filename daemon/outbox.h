/* SPDX-License-Identifier: MIT */
/*
 * outbox - what a keeper of descriptors (handover.h) is told, in order, without waiting for it.
 *
 * Law: what the keeper has no room for stays here, with a descriptor of its own, and everything after it behind it. A
 * letter that was never sent can be taken back. One that the keeper refuses is logged by name and left out: those
 * behind it are not held up by it.
 */
#ifndef DAEMON_OUTBOX_H
#define DAEMON_OUTBOX_H

#include <stdbool.h>
#include <stdint.h>

#define OUTBOX_LATE_NS 5000000000u /* a keeper that takes nothing for so long is complained of */

struct letter {
	struct letter *next, *prev;
	struct letter **ret; /* NULL again when it is gone; may be NULL */
	uint64_t since_ns;
	int fd; /* -1: none */
	const char *verb;
	char name[];
};

struct outbox {
	int sock; /* connected, a datagram each; the owner's */
	struct letter *first, *last;
	uint32_t n;
	bool late;                     /* complained of */
	void (*waits)(void *userdata); /* a letter has been put behind others, or is the first; may be NULL */
	void *userdata;
};

/* Tells it `verb` (a field that is set to 1; it outlives the letter) of `name` ("": of nothing), with the caller's fd
 * or -1. 0: it was sent, or waits, and then *ret, where given, is its letter for as long as it does; -errno: it was
 * refused, or there is no memory or descriptor to wait with. */
int outbox_tell(struct outbox *o, const char *verb, const char *name, int fd, struct letter **ret);

void outbox_take_back(struct outbox *o, struct letter *letter);

/* Sends what the keeper has room for. Returns how many letters still wait. */
uint32_t outbox_post(struct outbox *o);

/* Waits until none does: 0, or -ETIMEDOUT. */
int outbox_flush(struct outbox *o, uint64_t timeout_ns);

/* Throws away what waits. */
void outbox_clear(struct outbox *o);

#endif
