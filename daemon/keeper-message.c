/* SPDX-License-Identifier: MIT */
#include "daemon/keeper-message.h"

#include <errno.h>
#include <stdalign.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/util.h"

static void take_control(struct keeper_message *m, struct msghdr *msg)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		const size_t bytes = c->cmsg_len - CMSG_LEN(0);
		struct ucred credentials;

		if (c->cmsg_level != SOL_SOCKET)
			continue;
		if (c->cmsg_type == SCM_CREDENTIALS && bytes == sizeof credentials) {
			memcpy(&credentials, CMSG_DATA(c), sizeof credentials);
			m->sender = credentials.pid;
		} else if (c->cmsg_type == SCM_RIGHTS && bytes <= sizeof m->fds) {
			memcpy(m->fds, CMSG_DATA(c), bytes);
			m->n_fds = (uint32_t)(bytes / sizeof(int));
		}
	}
}

bool keeper_message_receive(struct keeper_message *m, int sock)
{
	alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof m->fds) + CMSG_SPACE(sizeof(struct ucred))];
	struct iovec iov = {m->text, sizeof m->text - 1};
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	const ssize_t n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	m->sender = 0;
	m->n_fds = 0;
	m->text[MAX(n, 0)] = '\0';
	if (n < 0)
		return errno == EINTR;
	take_control(m, &msg);
	if (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		m->sender = 0;
	return true;
}

unsigned keeper_message_obey(struct keeper_message *m, struct keeper_store *s)
{
	const char *name = NULL;
	bool store = false, drop = false, watched = true;
	unsigned said = 0;
	char *rest = NULL;

	for (char *line = strtok_r(m->text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		store |= strcmp(line, "FDSTORE=1") == 0;
		drop |= strcmp(line, "FDSTOREREMOVE=1") == 0;
		watched &= strcmp(line, "FDPOLL=0") != 0;
		said |= strcmp(line, "READY=1") == 0 ? KEEPER_READY : 0;
		said |= strcmp(line, "WATCHDOG=1") == 0 ? KEEPER_WATCHDOG : 0;
		if (strncmp(line, "FDNAME=", 7) == 0)
			name = line + 7;
	}
	if (drop && name)
		keeper_store_drop(s, name);
	for (uint32_t i = 0; store && i < m->n_fds; i++)
		keeper_store_put(s, m->fds[i], name ? name : "stored", watched);
	return said;
}

void keeper_message_close(struct keeper_message *m)
{
	for (uint32_t i = 0; i < m->n_fds; i++)
		close_fd(m->fds[i]);
	m->n_fds = 0;
}
