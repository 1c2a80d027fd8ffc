/* SPDX-License-Identifier: MIT */
/*
 * wire - one request on the daemon's socket and its reply (moe_proto.h).
 *
 * A reply is taken only if type, size and number of fds are exactly what was asked for; fds of a refused reply are
 * closed.
 */
#ifndef LIB_WIRE_H
#define LIB_WIRE_H

#include <stddef.h>
#include <sys/types.h>

#include "moe-expert.h"
#include "uapi/moe_proto.h"

/* A daemon that dies while it is asked may be there again at once: its keeper holds the listening socket. So often what
 * fails with -EPIPE is begun anew; without a keeper connecting fails, and that is the answer. */
#define WIRE_TRIES 5

/* Connects and says HELLO; returns the socket (close-on-exec) or -errno. `path` NULL: the default. */
int wire_connect(const char *path, const struct moe_patience *patience, struct moe_msg_hello *ret_hello,
		 struct moe_error *err);

/* The connection's end, also where a child of `pid`, which connected, has its descriptor: the daemon hears of it now.
 * In the child itself it is only the descriptor that is closed. */
void wire_close(int sock, pid_t pid);

/* Fills the header. */
void wire_begin(void *message, size_t bytes, enum moe_msg_type type, unsigned int fds);

/* Sends `request` with `fds`. */
int wire_send(int sock, const void *request, const int *fds, struct moe_error *err);

/* How a reply is waited for. */
struct wire_wait {
	const struct moe_patience *patience; /* NULL: as long as the daemon takes, as where its silent_ms is 0 */
	void (*progress)(const struct moe_msg_progress *, void *userdata); /* NULL: nobody wants to know */
	void *userdata;
};

/*
 * Receives one message: its type must be `type` | MOE_MSG_REPLY, its size `bytes`. With n_fds < 0 any number of fds is
 * allowed and returned in *ret_n_fds. A MOE_MSG_ERROR becomes its status and text. MOE_MSG_PROGRESS calls `progress`.
 * `wait` NULL: as long as the daemon takes, and without progress. -ETIMEDOUT: the patience is at its end. The reply may
 * come yet, so that the socket is of no use any more.
 */
int wire_recv(int sock, enum moe_msg_type type, void *reply, size_t bytes, int *fds, int n_fds, size_t *ret_n_fds,
	      const struct wire_wait *wait, struct moe_error *err);

#endif
