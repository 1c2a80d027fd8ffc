/* SPDX-License-Identifier: MIT */
/*
 * service-manager - what a service and the manager that started it (systemd) say to each other besides descriptors.
 *
 * Law: what is said is true at that moment. WATCHDOG=1 comes from the reactor when its loop turns, and only when the
 * pool has moved as far as it had to: a reactor that hangs, or a thread that hangs in a request, is silent. A start
 * gets more time only for bytes that have moved since it last did. A load that stands still after READY stops no
 * WATCHDOG=1: the sessions go on, and no restart mends a disk. And nobody waits for a manager: a message that it has no
 * room for is left out, but READY=1, which is said again, and descriptors (service-keeper.c).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/allowance.h"
#include "daemon/events.h"
#include "daemon/handover.h"
#include "daemon/service.h"

#define AGAIN_NS 100000000u /* from one try to say READY=1 to the next */
#define TICKS 5             /* looks in the time in which one WATCHDOG=1 must have come */
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

static void set_tick(struct service *s)
{
	const struct service_manager *m = &s->manager;
	const uint64_t ns = m->unheard ? AGAIN_NS : m->watchdog_ns;
	const struct timespec at = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
	const struct itimerspec timer = {.it_interval = at, .it_value = at};

	timerfd_settime(m->tick.fd, 0, &timer, NULL);
}

/* A manager that misses it would end this process for being late. */
void service_tell_ready(struct service *s)
{
	const bool unheard = s->manager.unheard;
	char text[TEXT_BYTES];
	int r;

	describe(s, text);
	r = handover_notify(s->handover, "READY=1\nSTATUS=%s", text);
	s->manager.unheard = r == -EAGAIN;
	if (r < 0 && !unheard)
		log_warning("the service manager cannot be told READY=1: %s%s", strerror(-r),
			    r == -EAGAIN ? "; it is told again until it has room for it" : "");
	if (s->manager.unheard != unheard)
		set_tick(s);
}

void service_tell_end(struct service *s)
{
	s->manager.unheard = false;
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

/* -- looks -------------------------------------------------------------------------------------------------------- */

static void look(struct service *s)
{
	char why[TEXT_BYTES];

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

static void tick_ready(struct source *source, uint32_t events)
{
	struct service *s = container_of(source, struct service, manager.tick);
	uint64_t times;

	if (read(source->fd, &times, sizeof times) != sizeof times)
		return;
	/* Looks are as far apart as the manager wants them. */
	if (s->manager.unheard)
		service_tell_ready(s);
	else if (s->manager.watchdog_ns)
		look(s);
}

int service_manager_open(struct service *s, struct moe_error *err)
{
	struct service_manager *m = &s->manager;

	m->watchdog_ns = handover_watchdog_us(s->handover) * 1000 / TICKS;
	m->tick = (struct source){.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
				  .ready = tick_ready};
	if (m->tick.fd < 0)
		return moe_error_sys(err, -errno, "the service manager's timer");
	set_tick(s);
	return loop_add(s->loop, &m->tick, err);
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
