/* SPDX-License-Identifier: MIT */
/* Random calls on every method of every object, and on methods that are none: each has an answer or an error with a
 * name, and the daemon lives on. */
#include <unistd.h>

#include "moe-expert.h"
#include "tests/bus-fixture.h"

#define ROUNDS 60 /* of calls on each method */

static const char *const paths[] = {BUS_ROOT,
				    BUS_ROOT "/model/tinymoe",
				    BUS_ROOT "/session/1",
				    BUS_ROOT "/job/1",
				    BUS_ROOT "/model",
				    BUS_ROOT "/session/00",
				    BUS_ROOT "/nemo",
				    BUS_ROOT "/model/_zz",
				    "/",
				    BUS_ROOT "/job/99999999999999999999999999"};
static const char *const interfaces[] = {BUS_MANAGER,
					 BUS_MODEL,
					 BUS_SESSION,
					 BUS_JOB,
					 "org.freedesktop.DBus.Properties",
					 "org.freedesktop.DBus.Introspectable",
					 "org.freedesktop.DBus.ObjectManager",
					 "org.freedesktop.DBus.Peer",
					 "org.moeexpertd.Nemo1",
					 NULL};
/* Every method that there is, and two that are not. */
static const struct method {
	const char *path, *interface, *member, *types;
} methods[] = {
	{BUS_ROOT, BUS_MANAGER, "LoadModel", "sa{sv}"},
	{BUS_ROOT, BUS_MANAGER, "UnloadModel", "s"},
	{BUS_ROOT, BUS_MANAGER, "SetPolicy", "ss"},
	{BUS_ROOT, BUS_MANAGER, "Drain", ""},
	{BUS_ROOT, BUS_MANAGER, "Resume", ""},
	{BUS_ROOT, BUS_MANAGER, "ListModels", ""},
	{BUS_ROOT, BUS_MANAGER, "ListSessions", ""},
	{BUS_ROOT, BUS_MANAGER, "ListJobs", ""},
	{BUS_ROOT, BUS_MANAGER, "GetModel", "s"},
	{BUS_ROOT, BUS_MANAGER, "GetStatus", ""},
	{BUS_ROOT, BUS_MANAGER, "GetStats", ""},
	{BUS_ROOT, BUS_MANAGER, "JobNew", "uo"},
	{BUS_ROOT, BUS_MANAGER, "Nemo", "s"},
	{BUS_ROOT "/model/tinymoe", BUS_MODEL, "Unload", ""},
	{BUS_ROOT "/job/1", BUS_JOB, "Cancel", ""},
	{BUS_ROOT, "org.freedesktop.DBus.ObjectManager", "GetManagedObjects", ""},
	{BUS_ROOT "/session/1", "org.freedesktop.DBus.Properties", "GetAll", "s"},
	{BUS_ROOT, "org.freedesktop.DBus.Properties", "Get", "ss"},
	{BUS_ROOT, "org.freedesktop.DBus.Properties", "Set", "ssv"},
	{BUS_ROOT, "org.freedesktop.DBus.Introspectable", "Introspect", ""},
	{BUS_ROOT, "org.freedesktop.DBus.Peer", "Ping", ""},
	{BUS_ROOT, "org.freedesktop.DBus.Peer", "GetMachineId", ""},
};
static const char *const texts[] = {"",     "tinymoe", "name",  "/nonexistent", "\xc3\xa9",
				    "%s%n", "/",       "State", BUS_MANAGER,    BUS_JOB};
/* Those that methods have, and those that they have not. */
static const char *const signatures[] = {"",   "s",    "ss",  "sa{sv}", "ssv", "u",   "o", "a{sv}",  "v",
					 "as", "(sv)", "aay", "b",      "d",   "sss", "h", "sha{st}"};

static unsigned long long seed;
static char long_text[8192];

#define PICK(list) (list)[tap_random(&seed) % (sizeof(list) / sizeof *(list))]

static const char *some_text(void)
{
	return tap_random(&seed) % 16 ? PICK(texts) : long_text;
}

static int append_random(sd_bus_message *m, const char *types);

static int append_container(sd_bus_message *m, char type, const char *contents, uint32_t n)
{
	int r = sd_bus_message_open_container(m, type, contents);

	for (uint32_t i = 0; i < n && r >= 0; i++)
		r = append_random(m, contents);
	return r < 0 ? r : sd_bus_message_close_container(m);
}

/* The bus refuses it. */
static int append_file(sd_bus_message *m)
{
	const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	const int r = fd < 0 ? -errno : sd_bus_message_append_basic(m, 'h', &fd);

	if (fd >= 0)
		close(fd);
	return r;
}

/* One complete type of the signature: how many characters it has. */
static size_t complete(const char *types)
{
	size_t n = 0;
	int depth = 0;

	while (types[n] == 'a')
		n++;
	do {
		depth += (types[n] == '(' || types[n] == '{') - (types[n] == ')' || types[n] == '}');
		n++;
	} while (depth > 0);
	return n;
}

static int append_random(sd_bus_message *m, const char *types)
{
	static const char *const inside[] = {"s", "u", "b", "t", "as", "a{sv}"};
	int r = 0;

	for (size_t n; *types && r >= 0; types += n) {
		const uint64_t number = tap_random(&seed);
		const double real = (double)number;
		const int yes = number & 1;
		char contents[32];

		n = complete(types);
		snprintf(contents, sizeof contents, "%.*s", (int)n - (*types == 'a' ? 1 : 2), types + 1);
		if (*types == 'a')
			r = append_container(m, 'a', contents, (uint32_t)(number % 4));
		else if (*types == '(')
			r = append_container(m, 'r', contents, 1);
		else if (*types == '{')
			r = append_container(m, 'e', contents, 1);
		else if (*types == 'v')
			r = append_container(m, 'v', PICK(inside), 1);
		else if (*types == 's')
			r = sd_bus_message_append_basic(m, 's', some_text());
		else if (*types == 'o')
			r = sd_bus_message_append_basic(m, 'o', PICK(paths));
		else if (*types == 'h')
			r = append_file(m);
		else
			r = sd_bus_message_append_basic(m, *types,
							*types == 'd'   ? (const void *)&real
							: *types == 'b' ? (const void *)&yes
									: (const void *)&number);
	}
	return r;
}

/* 1: an answer; 0: an error with a name; -1: neither, and what it was is said. */
static int call_once(sd_bus *bus, const struct method *method)
{
	const char *path = tap_random(&seed) % 4 ? method->path : PICK(paths), *member = method->member;
	const char *interface = tap_random(&seed) % 8 ? method->interface : PICK(interfaces);
	const char *types = tap_random(&seed) % 4 ? method->types : PICK(signatures);
	sd_bus_error error = SD_BUS_ERROR_NULL;
	sd_bus_message *m = NULL, *reply = NULL;
	int r = sd_bus_message_new_method_call(bus, &m, BUS_NAME, path, interface, member);

	if (r >= 0)
		r = append_random(m, types);
	if (r < 0) {
		ok(false, "a random call can be made: %s of %s", types, member);
		exit(tap_done());
	}
	r = sd_bus_call(bus, m, 0, &error, &reply);
	sd_bus_message_unref(m);
	sd_bus_message_unref(reply);
	if (r >= 0)
		return 1;
	r = error.name && strchr(error.name, '.') && strncmp(error.name, "System.Error", 12) != 0 &&
			    !sd_bus_error_has_name(&error, SD_BUS_ERROR_NO_REPLY) &&
			    !sd_bus_error_has_name(&error, SD_BUS_ERROR_SERVICE_UNKNOWN)
		    ? 0
		    : -1;
	if (r < 0)
		diag("%s %s.%s(%s): %s: %s", path, interface ? interface : "", member, types, error.name,
		     error.message);
	sd_bus_error_free(&error);
	return r;
}

int main(void)
{
	const struct moe_attach_params params = {.size = sizeof params, .tp_rank = 0, .tp_size = 1};
	uint32_t answers = 0, errors = 0, nameless = 0;
	struct bus_fixture bus_daemon;
	struct moe_client *client = NULL;
	struct moe_session *session = NULL;
	struct fixture fixture;
	struct moe_error err = {0};
	sd_bus *bus;

	if (bus_missing()) {
		tap_skip("dbus-daemon is not installed");
		return tap_done();
	}
	seed = tap_seed();
	memset(long_text, 'x', sizeof long_text - 1);
	bus_start(&bus_daemon);
	fixture_start(&fixture, fixture_sample(), (const char *[]){"--bus", bus_daemon.address, NULL});
	bus = bus_connect(&bus_daemon);
	require(bus && bus_has(bus, BUS_NAME), "the daemon is on the bus");
	/* It stays, so that the model does as well. */
	require(moe_open(&client, fixture.socket, &err) == 0 && moe_attach(client, &session, &params, &err) == 0,
		"a session: %s", err.text);
	for (uint32_t i = 0; i < ROUNDS * sizeof methods / sizeof *methods; i++) {
		const int r = call_once(bus, &PICK(methods));

		answers += r > 0;
		errors += r == 0;
		nameless += r < 0;
	}
	ok(nameless == 0, "every error has a name");
	ok(answers > ROUNDS && errors > ROUNDS, "%u answers, %u errors", answers, errors);
	ok(kill(fixture.pid, 0) == 0 && moe_nop(session, NULL) == 0, "the daemon serves on");
	ok(strstr(manager(bus, "ListModels", NULL), "tinymoe") != NULL, "and answers");
	moe_detach(session);
	moe_close(client);
	ok(fixture_stop(&fixture) == 0, "and ends well");
	sd_bus_close_unref(bus);
	bus_end(&bus_daemon);
	return tap_done();
}
