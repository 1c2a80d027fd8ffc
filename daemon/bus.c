/* SPDX-License-Identifier: MIT */
/*
 * The link: opened without waiting, served a few messages at a time, and opened again when it has broken.
 *
 * What libsystemd waits for changes between the reactor's turns, and a poll of io_uring that is under way does not
 * change with it: so the reactor watches an epoll, and the link's socket and a clock stand in that
 * (docs/decisions/0035).
 */
#include "daemon/bus.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/bus-internal.h"
#include "daemon/rest.h"

#define MESSAGES_TURN 4  /* of the bus, before the rings have their turn again */
#define BRIEF_NS 500000u /* a turn that long or shorter is followed by the reactor's own rest */
#define PAUSE_FIRST_NS 100000000u
#define PAUSE_MAX_NS 10000000000u
#define SYSTEM_BUS "unix:path=/run/dbus/system_bus_socket"

/* -- what is waited for -------------------------------------------------------------------------------------------- */

/* 0: never; the time is of CLOCK_MONOTONIC. */
static void set_clock(struct bus *b, uint64_t ns)
{
	const struct itimerspec t = {
		.it_value = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)}};

	timerfd_settime(b->clock, TFD_TIMER_ABSTIME, &t, NULL);
}

static void unwatch(struct bus *b)
{
	if (b->watched >= 0)
		epoll_ctl(b->source.fd, EPOLL_CTL_DEL, b->watched, NULL);
	b->watched = -1;
}

static int watch_link(struct bus *b)
{
	const int fd = sd_bus_get_fd(b->link), events = sd_bus_get_events(b->link);
	struct epoll_event event = {.events = (uint32_t)MAX(events, 0)}; /* of poll(2): the same bits */
	uint64_t usec;
	int r;

	if (fd < 0 || events < 0)
		return fd < 0 ? fd : events;
	if (b->rest_ns > 0) {
		unwatch(b);
		set_clock(b, b->rest_ns);
		return 0;
	}
	if (fd != b->watched)
		unwatch(b);
	if (b->watched < 0 || b->watched_events != event.events) {
		if (epoll_ctl(b->source.fd, b->watched < 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event) < 0)
			return -errno;
		b->watched = fd;
		b->watched_events = event.events;
	}
	r = sd_bus_get_timeout(b->link, &usec);
	if (r < 0)
		return r;
	if (b->ask_ns > 0)
		usec = MIN(usec, b->ask_ns / 1000);
	/* 0: messages wait in the link itself, and are for the next turn. */
	set_clock(b, usec == UINT64_MAX ? 0 : MAX(usec, 1u) * 1000);
	return 0;
}

/* -- coming and going ---------------------------------------------------------------------------------------------- */

static void complain(struct bus *b, const char *state, const char *why)
{
	b->state = state;
	bus_text(b->why, sizeof b->why, why);
	if (!b->complained)
		log_warning("bus %s: %s; the daemon goes on without it, and tries again", b->address, why);
	b->complained = true;
}

static void unlink_bus(struct bus *b)
{
	bus_forget_asks(b);
	bus_forget_readers(b);
	unwatch(b);
	jobs_unheard(&b->service->jobs);
	b->up = false;
	b->ask_ns = b->rest_ns = 0;
	b->broken = 0;
	if (b->unfreeable) {
		sd_bus_close(b->link);
		b->link = NULL;
	}
	b->unfreeable = false;
	b->link = sd_bus_close_unref(b->link);
	documents_free(&b->figures);
	free(b->told);
	b->told = NULL;
	b->n_told = 0;
}

static void lose(struct bus *b, int r)
{
	char text[128];

	snprintf(text, sizeof text, "%s",
		 r == -ECONNRESET || r == -ENOTCONN ? "it has closed the connection" : strerror(-r));
	b->complained &= !b->up;
	complain(b, "lost", text);
	unlink_bus(b);
	set_clock(b, now_ns() + b->pause_ns);
	b->pause_ns = MIN(b->pause_ns * 2, (uint64_t)PAUSE_MAX_NS);
}

/* A bus takes a policy that has just been installed in its own time: the name is asked for again. */
static void remain_nameless(struct bus *b, const sd_bus_error *error)
{
	snprintf(b->why, sizeof b->why, "%s", error->message ? error->message : error->name);
	if (strcmp(b->state, "nameless") != 0)
		log_warning("bus %s: the name %s is refused, and is asked for again: %s%s", b->address,
			    b->service->config->bus_name, b->why,
			    sd_bus_error_has_name(error, SD_BUS_ERROR_ACCESS_DENIED)
				    ? "; org.moeexpertd.conf belongs into /usr/share/dbus-1/system.d"
				    : "");
	b->state = "nameless";
	b->ask_ns = now_ns() + b->pause_ns;
	b->pause_ns = MIN(b->pause_ns * 2, (uint64_t)PAUSE_MAX_NS);
}

static int on_named(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	struct bus *b = userdata;
	const char *name = b->service->config->bus_name;
	const sd_bus_error *error = sd_bus_message_get_error(m);
	uint32_t answer = 0;

	/* What ends the link is handled there; a bus that was too slow, or is too full, is asked again. */
	if (error ? sd_bus_is_open(b->link) <= 0 : sd_bus_message_read(m, "u", &answer) < 0)
		return 0;
	b->up = true;
	if (error) {
		remain_nameless(b, error);
		return 0;
	}
	b->pause_ns = PAUSE_FIRST_NS;
	b->state = answer == 2 ? "waiting" : "named";
	snprintf(b->why, sizeof b->why, "%s",
		 answer == 2 ? "another process has the name; it is ours when that leaves (--bus-name for another)"
			     : "");
	if (answer == 2)
		log_warning("bus %s: %s: %s", b->address, name, b->why);
	else
		log_notice("bus %s: %s%s", b->address, name, b->complained ? ": there again" : "");
	b->complained = false;
	return 0;
}

static int on_acquired(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	struct bus *b = userdata;
	const char *name;

	if (sd_bus_message_read(m, "s", &name) < 0 || strcmp(name, b->service->config->bus_name) != 0 ||
	    strcmp(b->state, "waiting") != 0)
		return 0;
	b->state = "named";
	b->why[0] = '\0';
	log_notice("bus %s: %s is ours now", b->address, name);
	return 0;
}

static int ask_for_name(struct bus *b)
{
	b->ask_ns = 0;
	return sd_bus_request_name_async(b->link, NULL, b->service->config->bus_name, SD_BUS_NAME_QUEUE, on_named, b);
}

static int open_link(struct bus *b)
{
	int r = sd_bus_new(&b->link);

	if (r >= 0)
		r = sd_bus_set_address(b->link, b->address);
	if (r >= 0)
		r = sd_bus_set_bus_client(b->link, 1);
	if (r >= 0)
		r = sd_bus_set_description(b->link, "moe-expertd");
	/* Whoever calls could send one whose last close waits, and libsystemd closes it in this thread. */
	if (r >= 0)
		r = sd_bus_negotiate_fds(b->link, 0);
	if (r >= 0)
		r = sd_bus_start(b->link);
	if (r >= 0)
		r = bus_add_objects(b);
	if (r >= 0)
		r = sd_bus_match_signal_async(b->link, NULL, "org.freedesktop.DBus", "/org/freedesktop/DBus",
					      "org.freedesktop.DBus", "NameAcquired", on_acquired, NULL, b);
	if (r >= 0)
		r = ask_for_name(b);
	if (r >= 0)
		r = bus_begin_telling(b);
	return r;
}

static void try_link(struct bus *b)
{
	int r;

	b->state = "connecting";
	b->service->jobs.heard = true;
	r = open_link(b);
	if (r >= 0)
		r = watch_link(b);
	if (r < 0)
		lose(b, r);
}

void bus_watch(struct bus *b)
{
	const int r = b->broken ? b->broken : b->link ? watch_link(b) : 0;

	if (r < 0)
		lose(b, r);
}

int bus_gave(struct bus *b, int r)
{
	if (r >= 0)
		return r;
	b->broken = r;
	return 1;
}

int bus_refuse(struct bus *b, sd_bus_message *call, int r, sd_bus_error *error)
{
	r = bus_gave(b, sd_bus_reply_method_errno(call, r, error));
	sd_bus_error_free(error);
	return r;
}

static bool resting(struct bus *b)
{
	if (b->rest_ns > 0 && now_ns() >= b->rest_ns)
		b->rest_ns = 0;
	return b->rest_ns > 0;
}

static void rest_from(struct bus *b, uint64_t begun)
{
	if (now_ns() - begun > BRIEF_NS)
		b->rest_ns = rest_after(begun);
}

static void ready(struct source *source, uint32_t events)
{
	struct bus *b = container_of(source, struct bus, source);
	const uint64_t begun = now_ns();
	uint64_t times;
	int r = 1;

	if (read(b->clock, &times, sizeof times) < 0 && !b->link)
		return; /* the pause is not over */
	if (!b->link) {
		try_link(b);
		return;
	}
	if (resting(b)) {
		bus_watch(b);
		return;
	}
	for (int i = 0; i < MESSAGES_TURN && r > 0; i++) {
		r = sd_bus_process(b->link, NULL);
		r = b->broken ? b->broken : r;
	}
	if (r >= 0 && b->ask_ns > 0 && now_ns() >= b->ask_ns)
		r = ask_for_name(b);
	rest_from(b, begun);
	if (r < 0)
		lose(b, r);
	else
		bus_watch(b);
}

/* -- life ---------------------------------------------------------------------------------------------------------- */

/* Of "user" what systemd and the environment say. */
static int find_address(char **ret, const char *asked, struct moe_error *err)
{
	const char *given = NULL, *runtime = getenv("XDG_RUNTIME_DIR");
	int r = 0;

	if (strcmp(asked, "system") == 0) {
		given = getenv("DBUS_SYSTEM_BUS_ADDRESS");
		asked = given ? given : SYSTEM_BUS;
	} else if (strcmp(asked, "user") == 0) {
		given = getenv("DBUS_SESSION_BUS_ADDRESS");
		if (!given && !runtime)
			return moe_error_set(err, -EINVAL,
					     "--bus user: neither DBUS_SESSION_BUS_ADDRESS nor XDG_RUNTIME_DIR is set; "
					     "give the address itself: --bus unix:path=...");
		asked = given;
	}
	/* Others would have libsystemd start programs or ask for names, and wait for them. */
	if (asked && strncmp(asked, "unix:", 5) != 0)
		return moe_error_set(err, -EINVAL, "--bus: address '%s' found, unix:path=... expected", asked);
	if (asked)
		*ret = strdup(asked);
	else
		r = asprintf(ret, "unix:path=%s/bus", runtime);
	return r < 0 || !*ret ? moe_error_sys(err, -ENOMEM, "--bus") : 0;
}

static int open_sources(struct bus *b, struct moe_error *err)
{
	struct epoll_event event = {.events = EPOLLIN};

	b->source.ready = ready;
	b->source.fd = epoll_create1(EPOLL_CLOEXEC);
	b->clock = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (b->source.fd < 0 || b->clock < 0 || epoll_ctl(b->source.fd, EPOLL_CTL_ADD, b->clock, &event) < 0)
		return moe_error_sys(err, -errno, "--bus");
	return loop_add(b->service->loop, &b->source, err);
}

static void gone(struct source *source)
{
	struct bus *b = container_of(source, struct bus, source);

	close_fd(b->clock);
	close_fd(b->source.fd);
	free(b->address);
	free(b);
}

int bus_new(struct bus **ret, struct service *service, struct moe_error *err)
{
	struct bus *b = calloc(1, sizeof *b);
	int r;

	if (!b)
		return moe_error_sys(err, -ENOMEM, "--bus");
	b->service = service;
	b->clock = b->watched = b->source.fd = -1;
	b->pause_ns = PAUSE_FIRST_NS;
	r = find_address(&b->address, service->config->bus, err);
	if (r == 0)
		r = open_sources(b, err);
	if (r < 0) {
		gone(&b->source);
		return r;
	}
	b->source.gone = gone;
	try_link(b);
	*ret = b;
	return 0;
}

struct bus *bus_free(struct bus *b)
{
	if (b) {
		unlink_bus(b);
		loop_remove(b->service->loop, &b->source);
	}
	return NULL;
}

void bus_note(struct bus *b)
{
	if (b)
		b->changed = true;
}

bool bus_turn(struct bus *b)
{
	const uint64_t begun = now_ns();
	bool did = false;

	if (!b || !b->up || resting(b))
		return false;
	if (b->changed || b->service->load_job)
		did = bus_tell(b);
	did |= bus_hand_document(b);
	if (did) {
		rest_from(b, begun);
		bus_watch(b);
	}
	return did;
}

void bus_state(const struct service *service, const char **ret_state, const char **ret_why)
{
	*ret_state = service->bus ? service->bus->state : "off";
	*ret_why = service->bus ? service->bus->why : "";
}
