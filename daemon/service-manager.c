/* SPDX-License-Identifier: MIT */
/*
 * service-manager - what a service and the manager that started it (systemd) say to each other besides descriptors.
 *
 * Law: what is said is true at that moment. WATCHDOG=1 comes from the reactor when its loop turns, and only when the
 * pool has moved as far as it had to: a reactor that hangs, or a thread that hangs in a request, is silent. A start
 * gets more time only for bytes that have moved since it last did. A load that stands still after READY stops no
 * WATCHDOG=1: the sessions go on, and no restart mends a disk.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "daemon/allowance.h"
#include "daemon/events.h"
#include "daemon/handover.h"
#include "daemon/service.h"

#define TICKS 5 /* looks in the time in which one WATCHDOG=1 must have come */
#define STATUS_NS 1000000000u
#define EXTEND_US 60000000u /* as long may nothing move */
#define TEXT_BYTES 512

/* A message's lines are its fields: a name may not add one. */
static const char *one_line(char *text)
{
	for (char *p = text; *p; p++)
		if ((unsigned char)*p < ' ')
			*p = '?';
	return text;
}

/* -- status ------------------------------------------------------------------------------------------------------- */

static void describe(const struct service *s, char *to)
{
	snprintf(to, TEXT_BYTES, "serving %u model%s with %u CPU threads (%s)", s->registry.n,
		 s->registry.n == 1 ? "" : "s", pool_threads(s->pool), isa_name(s->config->isa));
}

void service_tell_status(struct service *s)
{
	char text[TEXT_BYTES];

	describe(s, text);
	handover_notify(s->handover, "STATUS=%s", text);
}

int service_tell_ready(struct service *s)
{
	char text[TEXT_BYTES];

	describe(s, text);
	return handover_notify(s->handover, "READY=1\nSTATUS=%s", text);
}

void service_tell_end(struct service *s)
{
	handover_notify(s->handover, "STOPPING=1\nSTATUS=ending");
}

void service_tell_load(struct service *s)
{
	const struct load *load = s->load;
	const uint64_t done = atomic_load(&load->done_bytes), total = atomic_load(&load->total_bytes);
	const uint64_t elapsed = atomic_load(&load->elapsed_ns), moved = atomic_load(&load->moved), now = now_ns();
	char text[TEXT_BYTES], extend[64] = "";

	if (now - s->manager.status_ns < STATUS_NS && !atomic_load(&load->finished))
		return;
	if (done == 0)
		snprintf(text, sizeof text, "loading %s: preparing memory", load->name);
	else
		snprintf(text, sizeof text, "loading %s: %.0f %% of %.2f GB, %.2f GB/s", load->name,
			 100.0 * (double)done / (double)total, (double)total / 1e9,
			 elapsed ? (double)done / (double)elapsed : 0.0);
	if (!s->ready && moved != s->manager.moved)
		snprintf(extend, sizeof extend, "\nEXTEND_TIMEOUT_USEC=%u", EXTEND_US);
	s->manager.status_ns = now;
	s->manager.moved = moved;
	handover_notify(s->handover, "STATUS=%s%s", one_line(text), extend);
}

/* -- watchdog ----------------------------------------------------------------------------------------------------- */

static void watchdog_ready(struct source *source, uint32_t events)
{
	struct service *s = container_of(source, struct service, manager.watchdog);
	char why[TEXT_BYTES];
	uint64_t times;

	if (read(source->fd, &times, sizeof times) != sizeof times)
		return;
	if (pool_look(s->pool, why, sizeof why)) {
		handover_notify(s->handover, "WATCHDOG=1");
		if (s->manager.stuck)
			service_tell_status(s);
		s->manager.stuck = false;
		return;
	}
	if (!s->manager.stuck)
		event_log(EVENT_STUCK, FACTS(.reason = why),
			  "watchdog: %s; the service manager hears nothing until that ends", why);
	s->manager.stuck = true;
	handover_notify(s->handover, "STATUS=stuck: %s", why);
}

int service_watchdog(struct service *s, struct moe_error *err)
{
	const uint64_t tick = handover_watchdog_us(s->handover) * 1000 / TICKS;
	const struct timespec at = {(time_t)(tick / 1000000000u), (long)(tick % 1000000000u)};
	const struct itimerspec timer = {.it_interval = at, .it_value = at};
	struct source *w = &s->manager.watchdog;

	if (!tick)
		return 0;
	*w = (struct source){.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
			     .ready = watchdog_ready};
	if (w->fd < 0 || timerfd_settime(w->fd, 0, &timer, NULL) < 0)
		return moe_error_sys(err, -errno, "watchdog: timerfd");
	return loop_add(s->loop, w, err);
}

/* -- reloading ---------------------------------------------------------------------------------------------------- */

/* What has copies of settings is told; the rest looks into config when it needs them. */
static void spread(struct service *s)
{
	uint64_t limits[ACCOUNT_RESOURCES];

	config_open_log(s->config);
	allowance_limits(limits, s->config, s->host);
	accounts_set_limits(s->accounts, limits);
	sched_set_fill_budget(s->sched, s->config->fill_budget);
}

void service_reload(struct service *s)
{
	struct moe_error err = {0};
	uint32_t changed;
	int r;

	/* Before READY there is nothing to come back to. */
	if (s->ready)
		handover_notify(s->handover, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(now_ns() / 1000));
	r = config_reload(s->config, &changed, &err);
	if (r < 0) {
		event_log(EVENT_RELOAD_FAILED, FACTS(.reason = err.text), "reloading: %s; everything stays as it was",
			  err.text);
	} else {
		spread(s);
		event_log(EVENT_RELOADED, FACTS(.count = changed), "reloaded the configuration: %u settings changed",
			  changed);
	}
	if (s->ready)
		service_tell_ready(s);
}
