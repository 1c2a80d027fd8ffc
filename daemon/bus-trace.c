/* SPDX-License-Identifier: MIT */
/*
 * StartTrace and StopTrace. The file comes as a descriptor, so that the daemon writes where its caller may and nowhere
 * else. A recording lasts as long as its caller is on the bus, at most; when the link is lost nobody knows that, and it
 * ends.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "daemon/bus-internal.h"

#define TRACES_ACTION BUS_NAME ".record-traces"

/* a{sv}: "max-bytes", "max-steps", "max-msec", all t. */
static int read_limits(sd_bus_message *m, struct trace_params *ret, struct moe_error *err)
{
	const struct {
		const char *key;
		uint64_t *to;
	} limits[] = {{"max-bytes", &ret->max_bytes}, {"max-steps", &ret->max_steps}, {"max-msec", &ret->max_ms}};
	const char *key;
	int r = sd_bus_message_enter_container(m, 'a', "{sv}");

	while (r >= 0 && (r = sd_bus_message_enter_container(m, 'e', "sv")) > 0) {
		size_t i = 0;

		r = sd_bus_message_read(m, "s", &key);
		while (r >= 0 && i < 3 && strcmp(key, limits[i].key) != 0)
			i++;
		if (r >= 0 && i == 3)
			return moe_error_set(err, -EINVAL,
					     "StartTrace: option '%.100s' found, max-bytes, max-steps or max-msec "
					     "expected",
					     key);
		if (r >= 0 && sd_bus_message_read(m, "v", "t", limits[i].to) < 0)
			return moe_error_set(err, -EINVAL, "StartTrace: option %s: a number (t) expected",
					     limits[i].key);
		if (r >= 0)
			r = sd_bus_message_exit_container(m);
	}
	return r < 0 ? moe_error_sys(err, r, "StartTrace") : 0;
}

static void stop_its_trace(struct bus *b)
{
	if (b->service->trace && b->trace_job == b->service->trace_job->id)
		service_stop_trace(b->service, NULL);
}

static void forget_caller(struct bus *b)
{
	b->trace_watch = sd_bus_slot_unref(b->trace_watch);
	b->trace_question = sd_bus_slot_unref(b->trace_question);
}

void bus_forget_trace(struct bus *b)
{
	if (b->trace_watch)
		stop_its_trace(b);
	forget_caller(b);
}

static int on_owner_changed(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	const char *name, *before, *now;

	if (sd_bus_message_read(m, "sss", &name, &before, &now) >= 0 && !*now)
		stop_its_trace(userdata);
	return 0;
}

static int on_has_owner(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	int has = 0;

	if (sd_bus_message_is_method_error(m, NULL) || sd_bus_message_read(m, "b", &has) < 0 || !has)
		stop_its_trace(userdata);
	return 0;
}

/* The signal for a caller that leaves, and a question for one that has left before the bus knew that we want it: both
 * are answered later. sd_bus_track would wait for the bus. */
static int watch_caller(struct bus *b, const char *sender)
{
	char match[BUS_PATH_MAX];
	int r;

	forget_caller(b);
	snprintf(match, sizeof match,
		 "type='signal',sender='org.freedesktop.DBus',interface='org.freedesktop.DBus',"
		 "member='NameOwnerChanged',arg0='%.100s'",
		 sender);
	r = sd_bus_add_match_async(b->link, &b->trace_watch, match, on_owner_changed, NULL, b);
	if (r < 0)
		return r;
	return sd_bus_call_method_async(b->link, &b->trace_question, "org.freedesktop.DBus", "/org/freedesktop/DBus",
					"org.freedesktop.DBus", "NameHasOwner", on_has_owner, b, "s", sender);
}

static int start_trace(struct bus *b, sd_bus_message *call, sd_bus_error *ret_error)
{
	struct trace_params params = {.uid = geteuid()}; /* whom polkit lets acts for it */
	struct moe_error err = {0};
	char path[BUS_PATH_MAX];
	int fd, r = sd_bus_message_read(call, "sh", &params.model, &fd);

	if (r < 0)
		return r;
	r = read_limits(call, &params, &err);
	if (r == 0)
		r = service_start_trace(b->service, NULL, fd, &params, &err);
	if (r < 0)
		return bus_error(ret_error, r, &err);
	b->trace_job = b->service->trace_job->id;
	r = watch_caller(b, sd_bus_message_get_sender(call));
	if (r < 0) {
		service_stop_trace(b->service, NULL);
		return r;
	}
	bus_job_path(path, b->trace_job);
	return bus_gave(b, sd_bus_reply_method_return(call, "o", path));
}

int bus_on_start_trace(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	return bus_ask(userdata, m, TRACES_ACTION, start_trace, ret_error);
}

static int stop_trace(struct bus *b, sd_bus_message *call, sd_bus_error *ret_error)
{
	struct moe_error err;
	int r = service_stop_trace(b->service, &err);

	return r < 0 ? bus_error(ret_error, r, &err) : sd_bus_reply_method_return(call, NULL);
}

int bus_on_stop_trace(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	return bus_ask(userdata, m, TRACES_ACTION, stop_trace, ret_error);
}
