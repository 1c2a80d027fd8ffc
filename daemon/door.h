/* SPDX-License-Identifier: MIT */
/*
 * door - who comes in: the connections of the listening socket.
 *
 * Law: a connection that nobody can take in for want of a descriptor is closed, by a descriptor that is kept spare for
 * that: it would make the socket readable for ever. The kernel takes connections in by itself (multishot accept) while
 * few strangers are here, and descriptors: else, where it does not know that, or with MOE_ACCEPT=one-shot in the
 * environment, they are taken in one a turn, and all others wait in the socket's queue. So they are at a socket that
 * another daemon has left: the kernel wakes only one accept for each connection, and a killed daemon's, on its way out,
 * may be that one; ours would not hear of it. A poll always does. The reactor's alone.
 */
#ifndef DAEMON_DOOR_H
#define DAEMON_DOOR_H

#include <stdbool.h>

#include "daemon/loop.h"

/* Connections that have not said HELLO, with those that nobody has looked at yet. */
#define DOOR_STRANGERS_MAX 64

struct door {
	struct source source;
	struct loop *loop;
	void (*enters)(struct door *door, int sock); /* takes the connected socket over */
	int spare_fd;                                /* given up to refuse a connection when no other is left */
	bool open, shedding;                         /* shedding: said so already */
	bool many;                                   /* the kernel takes them in where it may */
	uint32_t strangers;                          /* connections before their HELLO: peer.c counts them */
};

/* Closed, with the spare descriptor. */
void door_init(struct door *door, void (*enters)(struct door *door, int sock));
/* Listens on `sock`, which stays the caller's; `inherited`: another process listened there before. 0 or -errno. */
int door_open(struct door *door, int sock, bool inherited, struct loop *loop, struct moe_error *err);
/* Nobody comes in any more. Takes one that is closed. */
void door_close(struct door *door);
/* When the loop has let go of it. */
void door_free(struct door *door);

#endif
