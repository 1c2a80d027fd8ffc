/* SPDX-License-Identifier: MIT */
/*
 * taps - what clients route, for whoever in the daemon wants to know.
 *
 * Law: the reactor's alone. A session's tap is open while a sink wants it, and looked at every few milliseconds: no
 * turn of the rings pays for it, and what a client writes meanwhile waits in its tap, or is counted as lost. How much
 * is read at once is bounded. Each route goes to all sinks that want the session, in the order in which its client
 * planned them.
 */
#ifndef DAEMON_TAPS_H
#define DAEMON_TAPS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/loop.h"
#include "uapi/moe_trace.h"

struct service;
struct session;

/* Embedded in what listens. A sink may take itself out in `tick` only. */
struct tap_sink {
	/* Always the same answer for the same session. */
	bool (*wants)(struct tap_sink *sink, const struct session *session);
	/* Ids and weights are behind it (moe_trace.h); all are checked. Gone after the call. */
	void (*route)(struct tap_sink *sink, const struct session *session, const struct moe_route *route);
	/* So many are missing here, or a little before. May be NULL, as the others below. */
	void (*lost)(struct tap_sink *sink, const struct session *session, uint64_t routes);
	/* After its last route: the session ends. */
	void (*left)(struct tap_sink *sink, const struct session *session);
	/* After each look at the taps. */
	void (*tick)(struct tap_sink *sink);
	struct tap_sink *next;
};

struct taps {
	struct service *service;
	struct source clock; /* fd -1: never wanted so far */
	struct tap_sink *sinks;
	struct moe_route *record; /* room for the longest */
	uint32_t turn;            /* whose turn it is first */
};

void taps_init(struct taps *taps, struct service *service);
/* No sink is there any more. */
void taps_free(struct taps *taps);

/* -ENOMEM, -EMFILE. */
int taps_add(struct taps *taps, struct tap_sink *sink, struct moe_error *err);
void taps_remove(struct taps *taps, struct tap_sink *sink);

/* What the taps have now. */
void taps_look(struct taps *taps);

/* A session of a client that knows of taps begins: it is listened to from its first step on. */
void taps_join(struct taps *taps, struct session *session);

/* A session is about to end: what its tap still has, and the end. */
void taps_leave(struct taps *taps, struct session *session);

#endif
