/* SPDX-License-Identifier: MIT */
/*
 * fdmsg - one message with an exact number of file descriptors over a SOCK_SEQPACKET socket.
 *
 * Law: a message is taken whole or not at all. More fds than the receiver asked for, a cut message or a cut control
 * block is -EPROTO, and every fd that came with it is closed: a peer cannot fill our fd table (CVE-2022-0669's lesson).
 * To close a stranger's file may take for ever (FUSE). Who cannot wait looks at a message first (fdmsg_peek), leaves
 * what is wrong in the socket, takes the rest with all of its fds (fdmsg_take), and has others close them.
 */
#ifndef BASE_FDMSG_H
#define BASE_FDMSG_H

#include <stdbool.h>
#include <stddef.h>

#define FDMSG_FDS_MAX 32
/* The kernel's own limit (SCM_MAX_FD): what a stranger may send. */
#define FDMSG_FDS_ANY 253

/* Sends; MSG_NOSIGNAL, and MSG_DONTWAIT if `nonblocking`. The fds stay the caller's. 0 or -errno. */
int fdmsg_send(int sock, const void *message, size_t bytes, const int *fds, size_t n_fds, int nonblocking);

/* Receives one message into `buffer` (bytes at most) and its fds into `fds` (room for FDMSG_FDS_MAX), which become the
 * caller's, close-on-exec. Returns the message's bytes (0: the peer has closed) or -errno. */
long fdmsg_recv(int sock, void *buffer, size_t bytes, int *fds, size_t *ret_n_fds, int nonblocking);

/* Of the next message what fdmsg_recv would return, not waiting, and whether fds come with it. It stays where it is; no
 * fd is made. */
long fdmsg_peek(int sock, void *buffer, size_t bytes, bool *ret_fds);

/* As fdmsg_recv, not waiting, but closes nothing: all fds (room for FDMSG_FDS_ANY) are the caller's, also with -EPROTO.
 */
long fdmsg_take(int sock, void *buffer, size_t bytes, int *fds, size_t *ret_n_fds);

/* For the end, after shutdown: whether messages were left in it, whose fds go with the socket's last close. */
bool fdmsg_unread(int sock);

/* Whether a peer may send fds at all (its send fails with EPERM), also before it is accepted: of a listening socket it
 * is what connections begin with. Before Linux 6.16 they always may. */
void fdmsg_pass_fds(int sock, bool pass);

void fdmsg_close_fds(int *fds, size_t n);

#endif
