/* SPDX-License-Identifier: MIT */
/*
 * lingering - a TCP connection whose last close waits for a minute, or for a signal.
 */
#ifndef TESTS_LINGERING_H
#define TESTS_LINGERING_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/cleanup.h"

/* Its last close waits: nobody reads what it has still to send. */
static int lingering(int listening)
{
	static const char junk[65536];
	const struct linger minute = {.l_onoff = 1, .l_linger = 60};
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof at;
	int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (getsockname(listening, (struct sockaddr *)&at, &size) < 0 ||
	    connect(sock, (struct sockaddr *)&at, sizeof at) < 0)
		return close_fd(sock);
	setsockopt(sock, SOL_SOCKET, SO_LINGER, &minute, sizeof minute);
	while (send(sock, junk, sizeof junk, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		;
	return sock;
}

/* -1: there is no TCP here. */
static int listen_tcp(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (bind(listening, (struct sockaddr *)&at, sizeof at) == 0 && listen(listening, 8) == 0)
		return listening;
	return close_fd(listening);
}

#endif
