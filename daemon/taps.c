/* SPDX-License-Identifier: MIT */
#include "daemon/taps.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "daemon/ringsrv.h"
#include "daemon/service.h"

#define LOOK_NS 4000000         /* between two looks */
#define LOOK_BYTES (512u << 10) /* of all sessions in one look: some 50 microseconds of copying ... */
#define TURN_BYTES (256u << 10) /* ... and of one of them, before the next one has its turn */
#define OPEN_LOOK 8             /* taps that are opened in one look: each may need its pages made */

void taps_init(struct taps *t, struct service *service)
{
	*t = (struct taps){.service = service, .clock.fd = -1};
}

void taps_free(struct taps *t)
{
	close_fd(t->clock.fd);
	t->clock.fd = -1;
	free(t->record);
	t->record = NULL;
}

static bool wanted(const struct taps *t, const struct session *s)
{
	for (struct tap_sink *sink = t->sinks; sink; sink = sink->next)
		if (sink->wants(sink, s))
			return true;
	return false;
}

static void tell_route(const struct taps *t, const struct session *s)
{
	for (struct tap_sink *sink = t->sinks; sink; sink = sink->next)
		if (sink->wants(sink, s))
			sink->route(sink, s, t->record);
}

static void tell_lost(const struct taps *t, const struct session *s, uint64_t lost)
{
	for (struct tap_sink *sink = t->sinks; sink && lost; sink = sink->next)
		if (sink->lost && sink->wants(sink, s))
			sink->lost(sink, s, lost);
}

/* Returns how many bytes there were, `most` or a little more at most. */
static uint32_t drain(const struct taps *t, struct session *s, uint32_t most)
{
	const uint32_t from = s->tap_head;

	while (s->tap_head - from < most && ringsrv_tap_take(s, t->record))
		tell_route(t, s);
	tell_lost(t, s, ringsrv_tap_lost(s));
	return s->tap_head - from;
}

/* Opens and closes; one that cannot be opened is tried again at the next look. */
static void set_taps(const struct taps *t)
{
	int opened = 0;

	for (struct session *s = t->service->sessions; s; s = s->next) {
		const bool want = !s->dead && wanted(t, s);

		if (s->tapped && !want)
			ringsrv_tap_close(s);
		else if (want && !s->tapped && opened < OPEN_LOOK)
			opened += ringsrv_tap_open(s, false) == 0;
	}
}

static void cut_off_broken(const struct taps *t)
{
	for (struct session *s = t->service->sessions; s; s = s->next)
		if (!s->dead && s->tapped && s->broken)
			service_cut_off(t->service, s, s->broken);
}

/* From the session on where the last look has stopped, each a part. */
void taps_look(struct taps *t)
{
	const uint32_t first = t->turn;
	uint32_t left = LOOK_BYTES;

	t->turn = 0;
	for (int round = 0; round < 2; round++) {
		uint32_t place = 0;

		for (struct session *s = t->service->sessions; s && left; s = s->next, place++) {
			if ((place < first) == (round == 0) || s->dead || !s->tapped)
				continue;
			left -= MIN(left, drain(t, s, TURN_BYTES));
			t->turn = left ? 0 : place + 1;
		}
	}
}

static void clock_ready(struct source *source, uint32_t events)
{
	struct taps *t = container_of(source, struct taps, clock);
	struct tap_sink *next;
	uint64_t count;

	if (read(source->fd, &count, sizeof count) < 0)
		return;
	set_taps(t);
	taps_look(t);
	cut_off_broken(t);
	for (struct tap_sink *sink = t->sinks; sink; sink = next) {
		next = sink->next;
		if (sink->tick)
			sink->tick(sink);
	}
}

static void set_clock(const struct taps *t, long ns)
{
	const struct itimerspec timer = {.it_interval.tv_nsec = ns, .it_value.tv_nsec = ns};

	timerfd_settime(t->clock.fd, 0, &timer, NULL);
}

static int open_clock(struct taps *t, struct moe_error *err)
{
	int r;

	t->clock = (struct source){.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
				   .ready = clock_ready};
	if (t->clock.fd < 0)
		return moe_error_sys(err, -errno, "taps: timerfd");
	r = loop_add(t->service->loop, &t->clock, err);
	if (r < 0)
		t->clock.fd = close_fd(t->clock.fd);
	return r;
}

int taps_add(struct taps *t, struct tap_sink *sink, struct moe_error *err)
{
	int r = 0;

	if (!t->record)
		t->record = malloc(SESSION_TAP_BYTES);
	if (!t->record)
		return moe_error_sys(err, -ENOMEM, "taps");
	if (t->clock.fd < 0)
		r = open_clock(t, err);
	if (r < 0)
		return r;
	sink->next = t->sinks;
	t->sinks = sink;
	set_clock(t, LOOK_NS);
	set_taps(t);
	return 0;
}

void taps_remove(struct taps *t, struct tap_sink *sink)
{
	struct tap_sink **at = &t->sinks;

	while (*at != sink)
		at = &(*at)->next;
	*at = sink->next;
	set_taps(t);
	if (!t->sinks)
		set_clock(t, 0);
}

void taps_join(struct taps *t, struct session *s)
{
	if (wanted(t, s))
		ringsrv_tap_open(s, true);
}

void taps_leave(struct taps *t, struct session *s)
{
	if (!s->tapped)
		return;
	drain(t, s, SESSION_TAP_BYTES);
	for (struct tap_sink *sink = t->sinks; sink; sink = sink->next)
		if (sink->left && sink->wants(sink, s))
			sink->left(sink, s);
	ringsrv_tap_close(s);
}
