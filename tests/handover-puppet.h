/* SPDX-License-Identifier: MIT */
/*
 * handover-puppet - a daemon that does with its handover what it is told: one line in, one line out.
 *
 * It is started by a real keeper, greets with its process number and the names that it got back, and reads commands
 * from standard input. Its answers go to standard output; numbers are what the calls returned.
 */
#ifndef TESTS_HANDOVER_PUPPET_H
#define TESTS_HANDOVER_PUPPET_H

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fdmsg.h"
#include "base/memfd.h"
#include "daemon/handover.h"

#define LINE_BYTES (256 * 1024)

static inline int puppet_connect(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	return connect(sock, (struct sockaddr *)&address, sizeof address) < 0 ? -errno : sock;
}

/* What there is to put: memory with text in it, an eventfd with a count, a socket that is connected to a path. */
static inline int puppet_make(const char *kind, const char *with)
{
	const size_t bytes = strlen(with);
	int fd;

	if (strcmp(kind, "event") == 0)
		return eventfd((unsigned)atoi(with), EFD_CLOEXEC | EFD_NONBLOCK);
	if (strcmp(kind, "socket") == 0)
		return puppet_connect(with);
	fd = memfd_open("puppet", 0);
	return write(fd, with, bytes) == (ssize_t)bytes ? fd : -EIO;
}

static inline void puppet_put(struct handover *h, const char *kind, const char *name, const char *with)
{
	const int fd = puppet_make(kind, with);

	printf("%d\n", fd < 0 ? fd : handover_put(h, fd, "%s", name));
	close(fd);
}

/* Says what is in it; a socket says something into itself. */
static inline void puppet_take(struct handover *h, const char *kind, const char *name)
{
	const int fd = handover_take(h, "%s", name);
	char text[256] = "";
	uint64_t count;

	if (fd < 0)
		printf("%d\n", fd);
	else if (strcmp(kind, "event") == 0)
		printf("%d\n", read(fd, &count, sizeof count) == sizeof count ? (int)count : -1);
	else if (strcmp(kind, "socket") == 0)
		printf("%d\n", (int)send(fd, name, strlen(name), MSG_NOSIGNAL));
	else
		printf("%s\n", pread(fd, text, sizeof text - 1, 0) >= 0 ? text : "nothing");
	close(fd);
}

/* As a daemon that does not count: past the handover, straight to the keeper. */
static inline void puppet_send(const char *fields, int fd)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	char message[512];
	size_t n = 0;

	for (; fields[n] && n < sizeof message; n++)
		message[n] = fields[n] == ' ' ? '\n' : fields[n];
	snprintf(address.sun_path, sizeof address.sun_path, "%s", getenv("NOTIFY_SOCKET"));
	if (connect(sock, (struct sockaddr *)&address, sizeof address) < 0)
		printf("%d\n", -errno);
	else
		printf("%d\n", fdmsg_send(sock, message, n, &fd, 1, 0));
	close(sock);
	close(fd);
}

/* Puts memory until it has done so `n` times or is refused; each name has `length` characters. */
static inline void puppet_fill(struct handover *h, int n, int length)
{
	int i, r = 0;

	for (i = 0; i < n && r == 0; i++) {
		const int fd = puppet_make("memory", "x");

		r = fd < 0 ? fd : handover_put(h, fd, "%0*d", length, i);
		close(fd);
	}
	printf("%d %d\n", r == 0 ? i : i - 1, r);
}

/* Memory under a name, and that same open file under another one. */
static inline void puppet_twice(struct handover *h, const char *a, const char *b)
{
	const int fd = puppet_make("memory", a), r = handover_put(h, fd, "%s", a);

	printf("%d %d\n", r, handover_put(h, fd, "%s", b));
	close(fd);
}

/* The barrier's end as a reactor sees it, and then by waiting: 0 not yet, 1 passed. */
static inline void puppet_barrier(struct handover *h, int barrier)
{
	struct pollfd pollfd = {.fd = barrier, .events = POLLIN};
	const int at_once = poll(&pollfd, 1, 0), timed_out = handover_sync(h, 50000000);

	printf("%d %d\n", at_once, timed_out);
	fflush(stdout);
	poll(&pollfd, 1, -1);
	printf("%d\n", (pollfd.revents & POLLHUP) != 0);
	close(barrier);
}

static inline void puppet_names(struct handover *h, const char *prefix)
{
	uint32_t cursor = 0, n = 0;

	for (const char *name; (name = handover_next(h, prefix, &cursor)); n++)
		if (n < 8)
			printf("%s ", name);
	printf("%u\n", n);
}

static inline void puppet_obey(struct handover *h, const char *verb, const char *a, const char *b, const char *c)
{
	if (strcmp(verb, "put") == 0)
		puppet_put(h, a, b, c);
	else if (strcmp(verb, "take") == 0)
		puppet_take(h, a, b);
	else if (strcmp(verb, "drop") == 0)
		printf("%d\n", handover_drop(h, "%s", a));
	else if (strcmp(verb, "fill") == 0)
		puppet_fill(h, atoi(a), atoi(b));
	else if (strcmp(verb, "twice") == 0)
		puppet_twice(h, a, b);
	else if (strcmp(verb, "names") == 0)
		puppet_names(h, a);
	else if (strcmp(verb, "sync") == 0)
		printf("%d\n", handover_sync(h, 20000000000u));
	else if (strcmp(verb, "post") == 0)
		printf("%s\n", handover_post(h) ? "some wait" : "none waits");
	else if (strcmp(verb, "barrier") == 0)
		puppet_barrier(h, handover_barrier(h));
	else if (strcmp(verb, "discard") == 0)
		printf("%d\n", (handover_discard_rest(h), 0));
	else if (strcmp(verb, "lives") == 0)
		printf("%d\n", handover_notify(h, "WATCHDOG=1"));
	else if (strcmp(verb, "watched") == 0)
		printf("%llu\n", (unsigned long long)handover_watchdog_us(h));
	else if (strcmp(verb, "ready") == 0)
		printf("%d\n", handover_notify(h, "READY=1\nSTATUS=a puppet"));
	else if (strcmp(verb, "deaf") == 0)
		printf("%d\n", signal(SIGTERM, SIG_IGN) == SIG_ERR || signal(SIGUSR2, SIG_IGN) == SIG_ERR);
	else if (strcmp(verb, "exit") == 0)
		exit(atoi(a));
	else
		printf("what is %s?\n", verb);
}

static inline int puppet_main(void)
{
	static char line[LINE_BYTES];
	struct handover *h;
	int r = handover_new(&h, NULL);

	if (r < 0)
		return 99;
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("%d %s %d %s ", getpid(), getenv("NOTIFY_SOCKET"), handover_keeps(h), getenv("PUPPET"));
	puppet_names(h, "");
	while (fgets(line, sizeof line, stdin)) {
		const char *word[4];
		char *rest = NULL;

		for (int i = 0; i < 4; i++) {
			char *next = strtok_r(i ? NULL : line, i < 3 ? " \n" : "\n", &rest);

			word[i] = next ? next : "";
		}
		if (strcmp(word[0], "send") == 0) /* send KIND WITH FIELDS... */
			puppet_send(word[3], puppet_make(word[1], word[2]));
		else
			puppet_obey(h, word[0], word[1], word[2], word[3]);
	}
	handover_free(h);
	return 0;
}

#endif
