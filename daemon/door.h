/* SPDX-License-Identifier: MIT */
/*
 * door - who comes in: the connections of the listening socket.
 *
 * Law: a connection that nobody can take in for want of a descriptor is closed, by a descriptor that is kept spare for
 * that: it would make the socket readable for ever. The reactor's alone.
 */
#ifndef DAEMON_DOOR_H
#define DAEMON_DOOR_H

#include <stdbool.h>

#include "daemon/loop.h"

struct door {
	struct source source;
	struct loop *loop;
	void (*enters)(struct door *door, int sock); /* takes the connected socket over */
	int spare_fd;                                /* given up to refuse a connection when no other is left */
	bool open, shedding;                         /* shedding: said so already */
};

/* Closed, with the spare descriptor. */
void door_init(struct door *door, void (*enters)(struct door *door, int sock));
/* Listens on `sock`, which stays the caller's. 0 or -errno. */
int door_open(struct door *door, int sock, struct loop *loop, struct moe_error *err);
/* Nobody comes in any more. Takes one that is closed. */
void door_close(struct door *door);
/* When the loop has let go of it. */
void door_free(struct door *door);

#endif
