/* SPDX-License-Identifier: MIT */
/*
 * handout - a document that is given to whoever asked for it.
 *
 * Law: who has it mapped could keep its pages, at the daemon's cost, for as long as he likes. So each connection has
 * one at most, whose descriptors are on its account, and the pages are given back (holes.h) when the last that was
 * given it asks for another one or leaves. Others get it read-only. Who writes it publishes it before another thread
 * sees it; then the reactor's alone.
 */
#ifndef DAEMON_HANDOUT_H
#define DAEMON_HANDOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HANDOUT_FDS 2 /* the file, and the read-only one of it */

struct account;
struct charge;
struct holes;

struct handout {
	int fd;       /* a memfd, or why there is none: -errno */
	int readonly; /* that others get; without /proc fd itself, which is sealed then */
	uint64_t bytes;
	uint32_t holders;
	const struct account *last; /* who came last, to compare with; NULL: nobody did */
	bool shared;                /* users have it that are not the same */
};

struct handout *handout_new(void); /* empty, and the caller's; NULL: there is no memory */

/* 0 or -errno. */
int handout_open(struct handout *handout);
int handout_append(struct handout *handout, const void *text, size_t bytes);
int handout_publish(struct handout *handout);

/* There is none, and why: r, which it returns. */
int handout_fail(struct handout *handout, int r);

/* One holder more, of a user. */
void handout_take(struct handout *handout, const struct account *account);

/* One holder less, whose `charge` (NULL: nobody's) has HANDOUT_FDS for it. Returns NULL. */
struct handout *handout_drop(struct handout *handout, struct holes *holes, struct charge *charge);

#endif
