/* SPDX-License-Identifier: MIT */
/*
 * peer - one connection: who is there (SO_PEERCRED, pidfd), and whose session it is.
 *
 * Law: messages are taken one after the other (peer-messages.h); a peer that breaks the protocol is closed. One that
 * has died (its socket hangs up, or its process ends while a child holds the socket) takes its session with it at once.
 * Descriptors in an answer that it has not read count against the kernel's limit for all of this daemon (unix(7),
 * ETOOMANYREFS), also when the connection is closed: the socket stays open then, and on its user's account, until the
 * answer was read or dropped. So all users together have no more of them in flight than their accounts allow.
 * What it sends may be a file whose closing never ends: the closer has that, and nothing is asked of a descriptor but
 * its seals until it is known to be a memfd.
 * Everybody who may connect may attach and ask; loading and unloading is for root and the daemon's own user.
 */
#ifndef DAEMON_PEER_H
#define DAEMON_PEER_H

#include <stdbool.h>
#include <sys/types.h>

#include "daemon/accounts.h"
#include "daemon/loop.h"
#include "uapi/moe_proto.h"

struct handout;
struct service;
struct session;

struct peer {
	struct source source; /* the socket */
	struct source pidfd;  /* fd -1: none */
	struct service *service;
	struct session *session; /* NULL until ATTACH */
	pid_t pid;
	uid_t uid;
	struct charge charge;  /* the connection and its descriptors; the session has its own */
	uint64_t device_bytes; /* of the slots that it has given */
	uint64_t features;     /* MOE_FEATURE_*: of the client */
	uint64_t kept_ns; /* when its session last gave something to the keeper, which an answer waits for; 0: none */
	int region;       /* that goes with the answer to ATTACH; -1: it is ARENA's */
	bool hello, closed;
	bool unread;              /* closed with messages in its socket */
	uint32_t in_flight;       /* descriptors in answers that it may not have read */
	uint32_t asks;            /* the document that it waits for (enum moe_query), 0: none, ... */
	bool drafted;             /* ... and will get what is being made now */
	struct handout *document; /* that it was given last; NULL: none */
	int sources;              /* that the kernel still holds */
	struct peer *next;
	struct peer *next_waiting; /* for the keeper */
};

/* Takes the connected socket over. -EDQUOT: the peer was told why, and it is in the log; -ENOMEM. */
int peer_new(struct service *service, int sock);

/* A connection of the daemon before with the session that it had. Both are taken over, also on failure (-ENOMEM,
 * -EBUSY): then the session is one without a peer. */
int peer_revive(struct service *service, int sock, struct session *session, struct moe_error *err);

/* From before a message is taken (`takes`) until it is answered, which may be much later: whether one is not answered
 * yet goes into the session's journal. A successor could not know whether it was. A session that ends with this daemon
 * waits for good: the keeper may be slow to hear that it need not be kept. */
void peer_asking(struct peer *peer, bool takes);

/* Ends the connection and the session. The struct is freed when the kernel has let go of its sources. */
void peer_close(struct peer *peer, const char *why);

/* Lets go of a connection and a session that stay with the keeper: the client sees nothing. A connection without a
 * session ends. */
void peer_leave(struct peer *peer);

/* Those who were closed before they had read their answers: frees who has read them, or all. */
void peers_look(struct service *service, bool all);

#endif
