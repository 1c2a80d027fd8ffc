/* SPDX-License-Identifier: MIT */
/*
 * service-trace - the recording that a service makes of what its clients route: one at a time, for a peer, whose
 * leaving ends it.
 */
#include <errno.h>

#include "base/error.h"
#include "base/util.h"
#include "daemon/events.h"
#include "daemon/peer-messages.h"
#include "daemon/service.h"

#define PROGRESS_NS 250000000u

int service_start_trace(struct service *s, struct peer *peer, int fd, const struct trace_params *params,
			struct moe_error *err)
{
	struct entry *entry;
	int r = 0;

	if (s->trace)
		return moe_error_set(err, -EBUSY, "trace: one is being recorded; one at a time");
	if (*params->model)
		r = registry_find(&s->registry, params->model, NULL, &entry, err);
	if (r < 0)
		return r;
	s->trace_job = jobs_start(&s->jobs, JOB_TRACE, params->model);
	if (!s->trace_job)
		return moe_error_sys(err, -ENOMEM, "trace");
	r = trace_start(&s->trace, &s->taps, fd, params, err);
	if (r < 0) {
		jobs_forget(&s->jobs, s->trace_job);
		s->trace_job = NULL;
		return r;
	}
	s->trace_peer = peer;
	s->trace_told_ns = now_ns();
	event_log(EVENT_TRACE_BEGAN, FACTS(.model = params->model), "recording what the routers of %s choose",
		  *params->model ? params->model : "all models");
	bus_note(s->bus);
	return 0;
}

int service_stop_trace(struct service *s, struct moe_error *err)
{
	if (!s->trace)
		return moe_error_set(err, -ESRCH, "trace: none is being recorded");
	taps_look(&s->taps);
	trace_stop(s->trace, MOE_TRACE_STOPPED);
	return 0;
}

void service_trace_left(struct service *s, const struct peer *peer)
{
	if (s->trace_peer != peer)
		return;
	s->trace_peer = NULL;
	service_stop_trace(s, NULL);
}

static const char *reason_of(const struct moe_msg_traced *t)
{
	static const char *const words[] = {"it was stopped", "it has its steps", "its time is over",
					    "the file is full"};

	return words[t->reason];
}

static void finish(struct service *s)
{
	struct moe_error err = {0};
	struct peer *peer = s->trace_peer;
	struct moe_msg_traced traced;
	const int r = trace_result(s->trace, &traced, &err);

	event_log(EVENT_TRACE_ENDED,
		  FACTS(.model = s->trace_job->target, .bytes = traced.bytes, .count = traced.routes,
			.reason = r < 0 ? err.text : reason_of(&traced)),
		  "recorded %llu routes in %llu bytes, %llu lost: %s", (unsigned long long)traced.routes,
		  (unsigned long long)traced.bytes, (unsigned long long)traced.lost,
		  r < 0 ? err.text : reason_of(&traced));
	s->trace_peer = NULL;
	if (peer && r < 0)
		peer_send_error(peer, r, err.text);
	else if (peer)
		peer_send_traced(peer, &traced);
	if (peer)
		peer_asking(peer, false);
	jobs_end(&s->jobs, s->trace_job, r, &err);
	s->trace_job = NULL;
	s->trace = trace_free(s->trace);
	bus_note(s->bus);
}

bool service_trace_turn(struct service *s)
{
	struct moe_msg_traced now;

	if (trace_is_over(s->trace)) {
		finish(s);
		return true;
	}
	if (now_ns() - s->trace_told_ns < PROGRESS_NS)
		return false;
	s->trace_told_ns = now_ns();
	bus_note(s->bus);
	trace_result(s->trace, &now, NULL);
	if (s->trace_peer)
		peer_send_progress(s->trace_peer, now.bytes, trace_max_bytes(s->trace), trace_elapsed_ns(s->trace), 0);
	return true;
}

void service_end_trace(struct service *s)
{
	if (!s->trace)
		return;
	service_stop_trace(s, NULL);
	s->trace = trace_free(s->trace);
	s->trace_job = NULL;
	s->trace_peer = NULL;
}
