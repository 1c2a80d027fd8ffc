/* SPDX-License-Identifier: MIT */
#include "tests/faults/talk.h"

#include <fcntl.h>

#include "tests/bus-fixture.h"

#define PATIENCE_MS 30000
/* Of a daemon of which something is refused, until it has its name: it tries again after 100. */
#define NAMELESS_MS 600
#define NAMELESS_EVER_MS 150
#define FORGOTTEN_MS 2000 /* what libsystemd may leave unanswered */

static struct bus_fixture bus_daemon;

bool talk_can(void)
{
	return !bus_missing();
}

const char *talk_begin(void)
{
	bus_start(&bus_daemon);
	return bus_daemon.address;
}

void talk_end(void)
{
	bus_end(&bus_daemon);
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void wrong(struct talk *t, const char *what, const char *found)
{
	if (!t->why[0])
		snprintf(t->why, sizeof t->why, "bus: %s: %.120s", what, found);
}

/* What libsystemd answers by itself it answers in part, or not at all, where it has no memory for more: nothing can be
 * done about that. Of a daemon without a fault all must be right. */
static bool libsystemds_own;

/* What call() has brought: `holds` must be in it; or an error, of this name where one is expected. */
static bool answered(struct talk *t, const char *what, const char *answer, const char *holds, const char *error)
{
	if (*call_error && !*call_words)
		wrong(t, what, call_error);
	if (strcmp(call_error, SD_BUS_ERROR_TIMEOUT) == 0 && !libsystemds_own)
		wrong(t, what, "no answer at all");
	if (error && strcmp(call_error, error) == 0) {
		t->fine++;
		return true;
	}
	if (*call_error) {
		t->refused++;
		return false;
	}
	if (!libsystemds_own && (error || !strstr(answer, holds)))
		wrong(t, what, answer);
	t->fine++;
	return true;
}

/* False: it has not come to have it, which without a fault is wrong. */
static bool has_name(struct talk *t, sd_bus *bus)
{
	const uint64_t end = now_ms() + (t->ever ? NAMELESS_EVER_MS : t->faulted ? NAMELESS_MS : PATIENCE_MS);
	bool has;

	do {
		has = strcmp(call(bus, BUS_ROOT, "org.freedesktop.DBus.Peer", "Ping", NULL), "") == 0 && !*call_error;
		if (!has)
			usleep(5000);
	} while (!has && now_ms() < end);
	if (!has)
		t->refused++;
	return has;
}

/* Until no job is left; its daemon may have lost the bus meanwhile. */
static void await_jobs(struct talk *t, sd_bus *bus)
{
	const uint64_t end = now_ms() + PATIENCE_MS;
	const char *jobs;

	do {
		jobs = property(bus, BUS_ROOT, BUS_MANAGER, "NJobs");
		if (*call_error || strcmp(jobs, "0") == 0)
			return;
		usleep(1000);
	} while (now_ms() < end);
	wrong(t, "a job does not end", jobs);
}

/* By a call that libsystemd answers. */
static void look(struct talk *t, sd_bus *bus, const char *path, const char *interface, const char *holds)
{
	libsystemds_own = t->faulted;
	sd_bus_set_method_call_timeout(bus, (t->faulted ? FORGOTTEN_MS : PATIENCE_MS) * 1000ull);
	answered(t, "properties", call(bus, path, "org.freedesktop.DBus.Properties", "GetAll", "s", interface), holds,
		 NULL);
	answered(t, "introspection", call(bus, path, "org.freedesktop.DBus.Introspectable", "Introspect", NULL),
		 "<node", NULL);
	sd_bus_set_method_call_timeout(bus, PATIENCE_MS * 1000ull);
	libsystemds_own = false;
}

static void ask(struct talk *t, sd_bus *bus)
{
	char path[128];

	answered(t, "GetStatus", manager(bus, "GetStatus", NULL), "{", NULL);
	answered(t, "GetStats", manager(bus, "GetStats", NULL), "{", NULL);
	look(t, bus, BUS_ROOT, BUS_MANAGER, "ready");
	answered(t, "ListSessions", manager(bus, "ListSessions", NULL), "small", NULL);
	answered(t, "GetModel of none", manager(bus, "GetModel", "s", "nemo"), "", BUS_ERROR "NoSuchModel");
	answered(t, "SetPolicy", manager(bus, "SetPolicy", "ss", "small", "lru"), "", BUS_ERROR "NotTiered");
	snprintf(path, sizeof path, "%s", manager(bus, "GetModel", "s", "small"));
	if (answered(t, "GetModel", path, BUS_ROOT, NULL))
		look(t, bus, path, BUS_MODEL, "small");
}

static void load_and_unload(struct talk *t, sd_bus *bus)
{
	answered(t, "LoadModel of no folder", manager(bus, "LoadModel", "sa{sv}", "models/none", 0), "",
		 BUS_ERROR "BadArgument");
	if (answered(t, "LoadModel", manager(bus, "LoadModel", "sa{sv}", t->model_path, 1, "name", "s", "another"),
		     BUS_ROOT, NULL))
		await_jobs(t, bus);
	answered(t, "ListModels", manager(bus, "ListModels", NULL), "small", NULL);
	manager(bus, "UnloadModel", "s", "another"); /* its load may have failed */
	await_jobs(t, bus);
}

static void drain(struct talk *t, sd_bus *bus)
{
	if (!answered(t, "Drain", manager(bus, "Drain", NULL), BUS_ROOT, NULL))
		return;
	if (answered(t, "Resume", manager(bus, "Resume", NULL), "", NULL))
		await_jobs(t, bus);
	else
		manager(bus, "Resume", NULL);
}

void talk(struct talk *t)
{
	sd_bus *bus = bus_connect(&bus_daemon);

	if (!bus) {
		wrong(t, "a connection", "none can be had");
		return;
	}
	sd_bus_set_method_call_timeout(bus, PATIENCE_MS * 1000ull);
	if (has_name(t, bus)) {
		ask(t, bus);
		load_and_unload(t, bus);
		drain(t, bus);
	}
	sd_bus_flush_close_unref(bus);
}
