/* SPDX-License-Identifier: MIT */
/*
 * service-drain - a daemon that lets its sessions leave and takes no new ones in: before a machine is taken out of use.
 *
 * It is so until it is told otherwise, or another daemon begins: a drain is not for the successor.
 */
#include <errno.h>

#include "base/error.h"
#include "base/log.h"
#include "daemon/events.h"
#include "daemon/service.h"

int service_drain(struct service *s, struct job **ret, struct moe_error *err)
{
	struct job *job;

	if (s->draining)
		return moe_error_set(err, -EBUSY, "drain: the daemon is being drained, or has been");
	job = jobs_start(&s->jobs, JOB_DRAIN, "");
	if (!job)
		return moe_error_sys(err, -ENOMEM, "drain");
	s->draining = true;
	s->drain_job = job;
	*ret = job;
	event_log(EVENT_DRAINING, FACTS(.count = 0), "draining: no session is taken in");
	bus_note(s->bus);
	if (!s->sessions)
		service_drained(s);
	return 0;
}

void service_drained(struct service *s)
{
	if (!s->drain_job)
		return;
	jobs_end(&s->jobs, s->drain_job, 0, NULL);
	s->drain_job = NULL;
	event_log(EVENT_DRAINED, FACTS(.count = 0), "drained: the last session has left");
}

void service_resume(struct service *s)
{
	struct moe_error err;

	if (!s->draining)
		return;
	s->draining = false;
	moe_error_set(&err, -ECANCELED, "drain: sessions are taken in again");
	jobs_end(&s->jobs, s->drain_job, -ECANCELED, &err);
	s->drain_job = NULL;
	log_notice("sessions are taken in again");
	bus_note(s->bus);
}
