/* SPDX-License-Identifier: MIT */
#include "daemon/door.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/error.h"
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

/* Those that came and have not said who they are, and those that are still to be looked at. */
static bool crowded(const struct door *d)
{
	return d->strangers + loop_waiting(d->loop) >= DOOR_STRANGERS_MAX;
}

/* Both ways look at once whether somebody waits, so that readiness is a level. */
static void listen_on(struct door *d)
{
	const bool many = d->many && !d->shedding && !crowded(d);
	const int r = many ? loop_take(d->loop, &d->source) : loop_again(d->loop, &d->source);

	if (r < 0) {
		log_err("reactor: cannot listen: %s", strerror(-r));
		loop_stop(d->loop, r);
	}
}

static void enter(struct door *d, int sock)
{
	if (sock >= 0) {
		d->shedding = false;
		d->enters(d, sock);
	} else if (sock == -EMFILE || sock == -ENFILE) {
		shed_connection(d);
	} else if (sock != -EAGAIN && sock != -EINTR && sock != -ECONNABORTED && sock != -ECANCELED) {
		log_warning("accept: %s", strerror(-sock));
	}
}

static void socket_ready(struct source *source, uint32_t events)
{
	struct door *d = container_of(source, struct door, source);
	const int sock = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	enter(d, sock < 0 ? -errno : sock);
	if (d->open)
		listen_on(d);
}

static void socket_taken(struct source *source, int sock)
{
	struct door *d = container_of(source, struct door, source);

	if (sock == -EINVAL) { /* before Linux 5.19 */
		d->many = false;
		loop_take_missing(d->loop);
	} else {
		enter(d, sock);
	}
	if (source->armed && crowded(d))
		loop_take_end(d->loop, source);
	if (!source->armed && d->open)
		listen_on(d);
}

void door_init(struct door *d, void (*enters)(struct door *door, int sock))
{
	const char *way = getenv("MOE_ACCEPT");

	*d = (struct door){.source.fd = -1,
			   .enters = enters,
			   .spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC),
			   .many = !way || strcmp(way, "one-shot") != 0};
}

int door_open(struct door *d, int sock, bool inherited, struct loop *loop, struct moe_error *err)
{
	int r;

	d->source = (struct source){.fd = sock, .ready = socket_ready, .taken = socket_taken, .once = true};
	d->loop = loop;
	d->many &= !inherited;
	r = d->many ? loop_take(loop, &d->source) : loop_add(loop, &d->source, err);
	if (r < 0 && d->many)
		return moe_error_sys(err, r, "reactor: cannot listen");
	d->open = r == 0;
	return r;
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
