/* SPDX-License-Identifier: MIT */
/*
 * listener - the daemon's place in the file system: a SOCK_SEQPACKET socket and a lock that says whose it is.
 *
 * Law: the lock file PATH.lock is held (flock) as long as the daemon lives, so a second daemon on the same path is
 * refused and a socket left by a dead one is replaced, without a race between the two.
 */
#ifndef DAEMON_LISTENER_H
#define DAEMON_LISTENER_H

#include <stdbool.h>
#include <stdint.h>

#include "moe-error.h"

struct listener {
	int socket; /* listening, non-blocking */
	int lock;
	bool activated; /* the socket, and its name, are the service manager's */
	char *path, *lock_path;
};

/* `inherited`: the listening socket of the daemon before, which is taken over, or -1. `activated`: that of a socket
 * unit, or -1: it goes before, must be bound to `path`, and stays when the daemon ends. Takes both over. */
int listener_open(struct listener *ret, const char *path, uint32_t mode, int inherited, int activated,
		  struct moe_error *err);

/* Removes the socket and the lock; with `folder` also the folder that they were in, if it is empty now. `leaves`: the
 * files stay for a successor, which the socket's other holder hands it to. */
void listener_close(struct listener *listener, bool leaves, bool folder);

#endif
