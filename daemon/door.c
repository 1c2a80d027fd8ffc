/* SPDX-License-Identifier: MIT */
#include "daemon/door.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/util.h"

/* Out of descriptors: the spare one takes the connection in, to close it, so that it does not wake us for ever. */
static void shed_connection(struct door *d)
{
	close_fd(d->spare_fd);
	close_fd(accept4(d->source.fd, NULL, NULL, SOCK_CLOEXEC));
	d->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (!d->shedding)
		log_warning(
			"refused a connection: no file descriptor is left (ulimit -n, or LimitNOFILE= of the unit)");
	d->shedding = true;
}

static void socket_ready(struct source *source, uint32_t events)
{
	struct door *d = container_of(source, struct door, source);
	int sock = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (sock < 0) {
		if (errno == EMFILE || errno == ENFILE)
			shed_connection(d);
		else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			log_warning("accept: %s", strerror(errno));
		return;
	}
	d->shedding = false;
	d->enters(d, sock);
}

void door_init(struct door *d, void (*enters)(struct door *door, int sock))
{
	*d = (struct door){.source.fd = -1, .enters = enters, .spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC)};
}

int door_open(struct door *d, int sock, struct loop *loop, struct moe_error *err)
{
	d->source = (struct source){.fd = sock, .ready = socket_ready};
	d->loop = loop;
	d->open = true;
	return loop_add(loop, &d->source, err);
}

void door_close(struct door *d)
{
	if (d->open)
		loop_remove(d->loop, &d->source);
	d->open = false;
}

void door_free(struct door *d)
{
	d->spare_fd = close_fd(d->spare_fd);
}
