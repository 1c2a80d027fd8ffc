/* SPDX-License-Identifier: MIT */
/*
 * Telling: what there is now is laid beside what was told, and the difference is what listeners hear, at most so much
 * of it a turn, and nothing while the bus is slow to take what it was given. What came and went in between nobody
 * hears of, but for jobs: their ends wait to be told.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/util.h"
#include "daemon/bus-internal.h"

#define SIGNALS_TURN 16
#define QUEUED_MAX 256 /* messages that the bus has not taken */
#define PROGRESS_NS 250000000u

int bus_begin_telling(struct bus *b)
{
	bus_count(b, &b->counts);
	b->changed = false;
	return bus_list_objects(b, &b->told, &b->n_told);
}

static int tell_new(struct bus *b, const struct bus_object *o)
{
	int r = sd_bus_emit_object_added(b->link, o->path);

	if (r >= 0 && o->kind == BUS_KIND_JOB)
		r = sd_bus_emit_signal(b->link, BUS_ROOT, BUS_MANAGER, "JobNew", "uo", (uint32_t)o->key, o->path);
	return r;
}

/* By name: what is not there any more has no tables. */
static int tell_gone(struct bus *b, const struct bus_object *o)
{
	return sd_bus_emit_interfaces_removed(b->link, o->path, "org.freedesktop.DBus.Peer",
					      "org.freedesktop.DBus.Introspectable", "org.freedesktop.DBus.Properties",
					      bus_interface(o->kind), bus_figures_interface(o->kind), NULL);
}

static int tell_value(struct bus *b, const struct bus_object *o)
{
	if (o->kind == BUS_KIND_MODEL)
		return sd_bus_emit_properties_changed(b->link, o->path, BUS_MODEL, "Sessions", "Policy", NULL);
	return sd_bus_emit_properties_changed(b->link, o->path, bus_interface(o->kind), "Progress", NULL);
}

static int tell_ended(struct bus *b, struct job *job)
{
	const char *error = job->code < 0 ? bus_error_name(job->code, job->kind == JOB_LOAD) : "";
	char path[BUS_PATH_MAX], text[MOE_ERROR_TEXT_MAX];
	int r;

	bus_job_path(path, job->id);
	r = sd_bus_emit_properties_changed(b->link, path, BUS_JOB, "State", "Progress", "Result", "Error", "Message",
					   NULL);
	if (r >= 0)
		r = sd_bus_emit_signal(b->link, BUS_ROOT, BUS_MANAGER, "JobRemoved", "uosss", job->id, path,
				       bus_job_result(job), error, bus_text(text, sizeof text, job->error.text));
	return r;
}

static int tell_counts(struct bus *b)
{
	const char *names[7];
	struct bus_counts now;
	size_t n = 0;
	int r;

	bus_count(b, &now);
	if (strcmp(now.state, b->counts.state) != 0) {
		names[n++] = "State";
		names[n++] = "Draining";
	}
	if (now.models != b->counts.models)
		names[n++] = "NModels";
	if (now.sessions != b->counts.sessions)
		names[n++] = "NSessions";
	if (now.jobs != b->counts.jobs)
		names[n++] = "NJobs";
	if (now.bytes != b->counts.bytes)
		names[n++] = "Bytes";
	names[n] = NULL;
	if (n == 0)
		return 0;
	r = sd_bus_emit_properties_changed_strv(b->link, BUS_ROOT, BUS_MANAGER, (char **)names);
	if (r < 0)
		return r;
	b->counts = now;
	return 1;
}

static bool slow(const struct bus *b)
{
	uint64_t queued = 0;

	return sd_bus_get_n_queued_write(b->link, &queued) < 0 || queued > QUEUED_MAX;
}

/*
 * Both lists are in the same order. What cannot be told now stays as it was in what was told: a new one is left out,
 * one that is gone is left in. `list` has room for both. How many were told; *ret_all: no other is to be.
 */
static uint32_t tell_objects(struct bus *b, const struct bus_object *now, uint32_t n_now, struct bus_object *list,
			     uint32_t *ret_n, bool *ret_all)
{
	uint32_t i = 0, j = 0, n = 0, tried = 0, told = 0;
	bool all = true;

	while (i < n_now || j < b->n_told) {
		const struct bus_object *new = i < n_now ? &now[i] : NULL, *old = j < b->n_told ? &b->told[j] : NULL;
		const int side = !old ? -1 : !new ? 1 : bus_order(new, old);
		const bool differs = side != 0 || new->value != old->value;
		bool good = !differs;

		if (differs && tried++ < SIGNALS_TURN && !slow(b)) {
			good = (side < 0 ? tell_new(b, new) : side > 0 ? tell_gone(b, old) : tell_value(b, new)) >= 0;
			told += good;
		}
		all &= good;
		if (side < 0 && good)
			list[n++] = *new;
		else if (side > 0 && !good)
			list[n++] = *old;
		else if (side == 0)
			list[n++] = good ? *new : *old;
		i += side <= 0;
		j += side >= 0;
	}
	*ret_n = n;
	*ret_all = all;
	return told;
}

/* Those whose beginning was told. *ret_left: some end is still to be told. */
static bool tell_ends(struct bus *b, bool *ret_left)
{
	bool any = false;

	*ret_left = false;
	for (uint32_t i = 0; i < b->n_told; i++) {
		struct job *job = b->told[i].kind == BUS_KIND_JOB ? bus_find_job(b, b->told[i].path) : NULL;

		if (!job || !job->ended)
			continue;
		if (slow(b) || tell_ended(b, job) < 0) {
			*ret_left = true;
			continue;
		}
		jobs_forget(&b->service->jobs, job);
		any = true;
	}
	return any;
}

bool bus_tell(struct bus *b)
{
	_cleanup_free_ struct bus_object *now = NULL, *list = NULL;
	const uint64_t time = now_ns();
	uint32_t n_now, n, told;
	bool all, ends, left;
	int r;

	if ((!b->changed && time - b->progress_ns < PROGRESS_NS) || slow(b) || bus_list_objects(b, &now, &n_now) < 0)
		return false;
	list = calloc((size_t)n_now + b->n_told + 1, sizeof *list);
	if (!list)
		return false;
	b->progress_ns = time;
	told = tell_objects(b, now, n_now, list, &n, &all);
	free(b->told);
	b->told = steal_ptr(list);
	b->n_told = n;
	ends = tell_ends(b, &left);
	r = tell_counts(b);
	b->changed = !all || left || ends || r < 0; /* ends: then the objects are gone */
	return told > 0 || ends || r > 0;
}
