/* SPDX-License-Identifier: MIT */
#include "base/fdmsg.h"

#include <assert.h>
#include <errno.h>
#include <stdalign.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/cleanup.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

#define CONTROL_BYTES CMSG_SPACE(sizeof(int) * FDMSG_FDS_MAX)

int fdmsg_send(int sock, const void *message, size_t bytes, const int *fds, size_t n_fds, int nonblocking)
{
	alignas(struct cmsghdr) char control[CONTROL_BYTES] = {0};
	struct iovec iov = {.iov_base = (void *)message, .iov_len = bytes};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	assert(n_fds <= FDMSG_FDS_MAX);
	if (n_fds > 0) {
		struct cmsghdr *c;

		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
	}
	do {
		n = sendmsg(sock, &msg, MSG_NOSIGNAL | (nonblocking ? MSG_DONTWAIT : 0));
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return (size_t)n == bytes ? 0 : -EPROTO;
}

static size_t take_fds(struct msghdr *msg, int *fds, size_t most)
{
	size_t n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t count;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
			if (n < most)
				fds[n++] = fd;
			else
				close_fd(fd);
		}
	}
	return n;
}

long fdmsg_recv(int sock, void *buffer, size_t bytes, int *fds, size_t *ret_n_fds, int nonblocking)
{
	alignas(struct cmsghdr) char control[CONTROL_BYTES];
	struct iovec iov = {.iov_base = buffer, .iov_len = bytes};
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	ssize_t n;

	do {
		n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | (nonblocking ? MSG_DONTWAIT : 0));
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	*ret_n_fds = take_fds(&msg, fds, FDMSG_FDS_MAX);
	/* An empty message is read like the end, but may have brought descriptors. */
	if (n == 0 || msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
		fdmsg_close_fds(fds, *ret_n_fds);
		*ret_n_fds = 0;
		return n == 0 ? 0 : -EPROTO;
	}
	return n;
}

long fdmsg_peek(int sock, void *buffer, size_t bytes, bool *ret_fds)
{
	struct iovec iov = {.iov_base = buffer, .iov_len = bytes};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	do {
		n = recvmsg(sock, &msg, MSG_PEEK | MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	*ret_fds = msg.msg_flags & MSG_CTRUNC;
	return msg.msg_flags & MSG_TRUNC ? -EPROTO : n;
}

long fdmsg_take(int sock, void *buffer, size_t bytes, int *fds, size_t *ret_n_fds)
{
	alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * FDMSG_FDS_ANY)];
	struct iovec iov = {.iov_base = buffer, .iov_len = bytes};
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	ssize_t n;

	*ret_n_fds = 0;
	do {
		n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	*ret_n_fds = take_fds(&msg, fds, FDMSG_FDS_ANY);
	return msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? -EPROTO : n;
}

bool fdmsg_unread(int sock)
{
	const int on = 1;
	bool any = false;
	char byte;
	long n;

	/* So that each message brings something: the end brings nothing. */
	setsockopt(sock, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
	n = fdmsg_peek(sock, &byte, sizeof byte, &any);
	return any || n > 0 || n == -EPROTO;
}

void fdmsg_pass_fds(int sock, bool pass)
{
	const int on = pass;

	setsockopt(sock, SOL_SOCKET, SO_PASSRIGHTS, &on, sizeof on);
}

void fdmsg_close_fds(int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++)
		fds[i] = close_fd(fds[i]);
}
