/* SPDX-License-Identifier: MIT */
#include "daemon/outbox.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/fdmsg.h"
#include "base/log.h"
#include "base/util.h"

#define MESSAGE_BYTES 1024

static bool is_socket(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode);
}

static int deliver(const struct outbox *o, const char *verb, const char *name, int fd)
{
	char message[MESSAGE_BYTES];
	int n = snprintf(message, sizeof message, "%s=1", verb);

	if (*name) /* Only a socket has another end whose leaving means something. */
		n += snprintf(message + n, sizeof message - (size_t)n, "\nFDNAME=%s%s", name,
			      fd >= 0 && !is_socket(fd) ? "\nFDPOLL=0" : "");

	return fdmsg_send(o->sock, message, (size_t)n, &fd, fd >= 0, 1);
}

static void complain(struct outbox *o, uint64_t now)
{
	if (o->late || now - o->first->since_ns < OUTBOX_LATE_NS)
		return;
	o->late = true;
	log_warning("the keeper of descriptors (the service manager, or --keep) takes no messages: %u wait, the first "
		    "for %.0f s; until it does, sessions that began since do not outlive this process",
		    o->n, (double)(now - o->first->since_ns) / 1e9);
}

static int wait_behind(struct outbox *o, const char *verb, const char *name, int fd, struct letter **ret)
{
	_cleanup_free_ struct letter *letter = calloc(1, sizeof *letter + strlen(name) + 1);

	if (!letter)
		return -ENOMEM;
	strcpy(letter->name, name);
	letter->fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (fd >= 0 && letter->fd < 0)
		return -errno;
	letter->verb = verb;
	letter->ret = ret;
	letter->since_ns = now_ns();
	letter->prev = o->last;
	*(o->last ? &o->last->next : &o->first) = letter;
	o->last = letter;
	o->n++;
	if (ret)
		*ret = letter;
	steal_ptr(letter);
	complain(o, o->last->since_ns);
	if (o->waits)
		o->waits(o->userdata);
	return 0;
}

int outbox_tell(struct outbox *o, const char *verb, const char *name, int fd, struct letter **ret)
{
	const int r = outbox_post(o) == 0 ? deliver(o, verb, name, fd) : -EAGAIN;

	return r == -EAGAIN ? wait_behind(o, verb, name, fd, ret) : r;
}

void outbox_take_back(struct outbox *o, struct letter *letter)
{
	*(letter->prev ? &letter->prev->next : &o->first) = letter->next;
	*(letter->next ? &letter->next->prev : &o->last) = letter->prev;
	o->n--;
	if (letter->ret)
		*letter->ret = NULL;
	close_fd(letter->fd);
	free(letter);
}

uint32_t outbox_post(struct outbox *o)
{
	while (o->first) {
		const struct letter *letter = o->first;
		const int r = deliver(o, letter->verb, letter->name, letter->fd);

		if (r == -EAGAIN)
			return o->n;
		if (r < 0)
			log_warning("the keeper of descriptors cannot be told %s of %s: %s", letter->verb, letter->name,
				    strerror(-r));
		outbox_take_back(o, o->first);
	}
	if (o->late)
		log_notice("the keeper of descriptors takes messages again, and has all that waited");
	o->late = false;
	return 0;
}

int outbox_flush(struct outbox *o, uint64_t timeout_ns)
{
	const uint64_t end = now_ns() + timeout_ns;

	while (outbox_post(o) > 0) {
		struct pollfd pollfd = {.fd = o->sock, .events = POLLOUT};
		const uint64_t now = now_ns(), left = end > now ? end - now : 0;
		const struct timespec wait = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};

		if (left == 0)
			return -ETIMEDOUT;
		ppoll(&pollfd, 1, &wait, NULL);
	}
	return 0;
}

void outbox_clear(struct outbox *o)
{
	while (o->first)
		outbox_take_back(o, o->first);
}
