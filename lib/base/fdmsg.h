/* SPDX-License-Identifier: MIT */
/*
 * fdmsg - one message with an exact number of file descriptors over a SOCK_SEQPACKET socket.
 *
 * Law: a message is taken whole or not at all. More fds than the receiver asked for, a cut message or a cut control
 * block is -EPROTO, and every fd that came with it is closed: a peer cannot fill our fd table (CVE-2022-0669's lesson).
 */
#ifndef BASE_FDMSG_H
#define BASE_FDMSG_H

#include <stddef.h>

#define FDMSG_FDS_MAX 32

/* Sends; MSG_NOSIGNAL, and MSG_DONTWAIT if `nonblocking`. The fds stay the caller's. 0 or -errno. */
int fdmsg_send(int sock, const void *message, size_t bytes, const int *fds, size_t n_fds, int nonblocking);

/* Receives one message into `buffer` (bytes at most) and its fds into `fds` (room for FDMSG_FDS_MAX), which become the
 * caller's, close-on-exec. Returns the message's bytes (0: the peer has closed) or -errno. */
long fdmsg_recv(int sock, void *buffer, size_t bytes, int *fds, size_t *ret_n_fds, int nonblocking);

void fdmsg_close_fds(int *fds, size_t n);

#endif
