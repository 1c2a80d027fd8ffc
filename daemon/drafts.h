/* SPDX-License-Identifier: MIT */
/*
 * drafts - documents (documents.h) in the making, one at a time, each for all who wait for it.
 *
 * Law: a document takes as long as there are sessions and layers, up to a quarter of a second, and the rings wait for
 * none of it: between two turns of the reactor one piece is made, and while the rings have work a piece is followed by
 * four times its time without one. The whole is written by a thread of its own, and given to some of those who wait in
 * a turn, while the next draft waits. Whoever asks for a document before it is begun gets that one, later ones the
 * next, all the same: so somebody who asks without end makes nobody wait for more than two of each kind. A model that
 * goes away begins the draft anew. The reactor's alone.
 */
#ifndef DAEMON_DRAFTS_H
#define DAEMON_DRAFTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "moe-error.h"

struct document;
struct handout;
struct loop;
struct service;
struct session;

/* Text of a document: by a thread. */
struct scribe {
	pthread_t thread;
	struct loop *loop;
	json_t *document;
	uint32_t what;
	struct handout *handout; /* its own share of it */
	struct moe_error err;    /* where there is none */
	_Atomic bool done;
	bool joined;
	size_t filled;
	char buffer[16384];
};

/* All zero: nothing is wanted. */
struct drafts {
	uint32_t wanted;           /* kinds, a bit each */
	uint32_t what;             /* the kind of the one that is being made, or was last */
	uint32_t turn;             /* the same, of those that are no figures */
	struct document *document; /* being made, or NULL */
	struct scribe *scribe;     /* writing it, or NULL */
	uint64_t rest_ns;          /* no piece before */
	bool gathers;              /* it is begun when the heat of all sessions is there */
	bool ended;
};

/* Who waits is told by peer.h's `asks` and by the bus; the exporter is always given what it wants. */
void drafts_want(struct drafts *drafts, uint32_t what);

/* A piece, or what else there is to do. `busy`: the rings had work just now. False: nothing was to be done. */
bool drafts_turn(struct service *service, bool busy);

/* A session is about to be killed; to be freed; a model is about to be removed. */
void drafts_see_end(struct drafts *drafts, struct session *session);
void drafts_forget(struct drafts *drafts, const struct session *session);
void drafts_restart(struct drafts *drafts);

/* Nobody waits any more. */
void drafts_end(struct drafts *drafts);

#endif
