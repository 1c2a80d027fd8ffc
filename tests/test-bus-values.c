/* SPDX-License-Identifier: MIT */
/*
 * Each property of the daemon's objects has the value that belongs to it: what the daemon was started with, what a
 * session was attached with, and the rest as in the documents. All of them differ, as far as they can.
 */
#include <inttypes.h>
#include <jansson.h>

#include "base/util.h"
#include "moe-expert.h"
#include "tests/bus-fixture.h"
#include "tests/bus-recording.h"

#define MODEL_PATH BUS_ROOT "/model/values"

static struct bus_fixture bus_daemon;
static struct fixture fixture;
static char folder[96];

/* Of a document: the value at a.b.c, a number before a dot being an index, as property() writes it. */
static const char *told(json_t *document, const char *path)
{
	static char text[256];
	char step[64];
	json_t *v = document;

	while (v && *path) {
		const size_t n = strcspn(path, ".");

		snprintf(step, sizeof step, "%.*s", (int)n, path);
		v = json_is_array(v) ? json_array_get(v, strtoul(step, NULL, 10)) : json_object_get(v, step);
		path += n + (path[n] == '.');
	}
	if (json_is_string(v))
		snprintf(text, sizeof text, "%s", json_string_value(v));
	else if (json_is_integer(v))
		snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
	else if (json_is_boolean(v))
		snprintf(text, sizeof text, "%s", json_is_true(v) ? "yes" : "no");
	else
		snprintf(text, sizeof text, "not told");
	return text;
}

static json_t *document(struct moe_client *client, enum moe_document what)
{
	struct moe_error err;
	char *text = NULL;
	json_t *v;

	require(moe_query(client, what, &text, &err) == 0, "a document");
	v = json_loads(text, 0, NULL);
	free(text);
	require(v != NULL, "it is JSON");
	return v;
}

static const char *number(uint64_t n)
{
	static char text[24];

	snprintf(text, sizeof text, "%" PRIu64, n);
	return text;
}

static void is_value(sd_bus *bus, const char *path, const char *interface, const char *name, const char *expected)
{
	const char *found = property(bus, path, interface, name);

	ok(strcmp(found, expected) == 0, "%s: %s", strrchr(interface, '.') + 1, name);
	if (strcmp(found, expected) != 0)
		diag("found '%s' (%s), expected '%s'", found, call_error, expected);
}

struct expected {
	const char *name, *value; /* of a document: where it says so */
};

static void are_values(sd_bus *bus, const char *path, const char *interface, json_t *document,
		       const struct expected *expected, size_t n)
{
	for (size_t i = 0; i < n; i++)
		is_value(bus, path, interface, expected[i].name,
			 document ? told(document, expected[i].value) : expected[i].value);
}

static void test_manager(sd_bus *bus, json_t *status)
{
	static const struct expected told_by[] = {{"Version", "version"},
						  {"PID", "pid"},
						  {"ISA", "cpu.isa"},
						  {"Bytes", "bytes"},
						  {"WeightBytesRead", "weight_bytes_read"},
						  {"Restarts", "restarts"}};
	static const struct expected given[] = {
		{"State", "ready"},        {"Draining", "no"}, {"Threads", "3"},           {"NModels", "1"},
		{"NSessions", "1"},        {"NJobs", "0"},     {"MemoryMax", "268435456"}, {"PoolMax", "262144"},
		{"FillBudget", "2097152"}, {"Kept", "no"}};

	are_values(bus, BUS_ROOT, BUS_MANAGER, status, told_by, ARRAY_LEN(told_by));
	are_values(bus, BUS_ROOT, BUS_MANAGER, NULL, given, ARRAY_LEN(given));
	is_value(bus, BUS_ROOT, BUS_MANAGER, "Socket", fixture.socket);
}

static void test_model(sd_bus *bus, json_t *models)
{
	static const struct expected told_by[] = {{"Digest", "models.0.digest"},
						  {"Bytes", "models.0.bytes"},
						  {"Frames", "models.0.tier.frames"},
						  {"Policy", "models.0.tier.policy"},
						  {"Leases", "models.0.leases"}};
	static const struct expected given[] = {{"Name", "values"}, {"Family", "qwen3_moe"}, {"Layers", "5"},
						{"MoELayers", "4"}, {"Experts", "16"},       {"TopK", "2"},
						{"Hidden", "64"},   {"Intermediate", "32"},  {"Tiered", "yes"},
						{"Sessions", "1"}};

	are_values(bus, MODEL_PATH, BUS_MODEL, models, told_by, ARRAY_LEN(told_by));
	are_values(bus, MODEL_PATH, BUS_MODEL, NULL, given, ARRAY_LEN(given));
	is_value(bus, MODEL_PATH, BUS_MODEL, "Path", folder);
	is_value(bus, MODEL_PATH, BUS_MODEL, "LoadUSec",
		 number(strtoull(told(models, "models.0.load_ns"), NULL, 10) / 1000));
}

static void test_session(sd_bus *bus, json_t *sessions)
{
	static const struct expected told_by[] = {{"Id", "sessions.0.id"},
						  {"InFlight", "sessions.0.in_flight"},
						  {"Leases", "sessions.0.leases"},
						  {"DataBytes", "sessions.0.data_bytes"},
						  {"SlotBytes", "sessions.0.slot_bytes"},
						  {"ChargedBytes", "sessions.0.charged_bytes"},
						  {"Failed", "sessions.0.failed"},
						  {"Cancelled", "sessions.0.cancelled"}};
	static const struct expected given[] = {{"Model", MODEL_PATH}, {"ModelName", "values"}, {"TPRank", "1"},
						{"TPSize", "2"},       {"DPRank", "3"},         {"EPRank", "4"},
						{"Group", "77"},       {"Phase", "prefill"},    {"Step", "12"},
						{"Device", "99"}};
	char path[64];

	snprintf(path, sizeof path, BUS_ROOT "/session/%s", told(sessions, "sessions.0.id"));
	are_values(bus, path, BUS_SESSION, sessions, told_by, ARRAY_LEN(told_by));
	are_values(bus, path, BUS_SESSION, NULL, given, ARRAY_LEN(given));
	is_value(bus, path, BUS_SESSION, "PID", number((uint64_t)getpid()));
	is_value(bus, path, BUS_SESSION, "UID", number(getuid()));
}

/* A recording, which runs until it is stopped. */
static void test_job(sd_bus *bus)
{
	static const struct expected given[] = {{"Kind", "trace"}, {"Target", "values"}, {"State", "running"},
						{"Result", ""},    {"Error", ""},        {"Message", ""}};
	struct recording rec;
	char job[64];

	snprintf(job, sizeof job, "%s", recording_begin(&rec, bus, fixture.socket, "values"));
	are_values(bus, job, BUS_JOB, NULL, given, ARRAY_LEN(given));
	is_value(bus, job, BUS_JOB, "Id", strrchr(job, '/') + 1);
	call(bus, job, BUS_JOB, "Cancel", NULL);
	recording_end(&rec);
}

static void make_model(void)
{
	char command[512];

	snprintf(folder, sizeof folder, "%s/values", bus_daemon.folder);
	snprintf(command, sizeof command,
		 "'%s/tools/moe-mkmodel' --out '%s' --family qwen3_moe --layers 5 --dense-layers 1 --hidden 64 --inter "
		 "32 "
		 "--experts 16 --topk 2 --heads 2 --kv-heads 1 --head-dim 32 --vocab 256 >/dev/null",
		 fixture_env("MOE_BUILD"), folder);
	require(system(command) == 0, "a model");
}

int main(void)
{
	const struct moe_attach_params params = {.size = sizeof params,
						 .tp_rank = 1,
						 .tp_size = 2,
						 .dp_rank = 3,
						 .ep_rank = 4,
						 .group = 77,
						 .device_id = 99,
						 .cache_expert_num = 3};
	struct moe_client *client;
	struct moe_session *session;
	struct moe_error err;
	json_t *documents[3];
	sd_bus *bus;

	if (bus_missing()) {
		tap_skip("dbus-daemon is not installed");
		return tap_done();
	}
	bus_start(&bus_daemon);
	make_model();
	fixture_start(&fixture, folder,
		      (const char *const[]){"--bus", bus_daemon.address, "--threads", "3", "--memory-max", "256M",
					    "--pool-max", "256K", "--fill-budget", "2M", NULL});
	bus = bus_connect(&bus_daemon);
	require(bus && bus_has(bus, BUS_NAME), "the daemon is on the bus");
	require(moe_open(&client, fixture.socket, &err) == 0 && moe_attach(client, &session, &params, &err) == 0,
		"a session: %s", err.text);
	require(moe_phase(session, MOE_STEP_PREFILL, 12, false, &err) == 0, "its phase: %s", err.text);
	documents[0] = document(client, MOE_DOCUMENT_STATUS);
	documents[1] = document(client, MOE_DOCUMENT_MODELS);
	documents[2] = document(client, MOE_DOCUMENT_SESSIONS);
	test_manager(bus, documents[0]);
	test_model(bus, documents[1]);
	test_session(bus, documents[2]);
	test_job(bus);
	for (size_t i = 0; i < ARRAY_LEN(documents); i++)
		json_decref(documents[i]);
	moe_detach(session);
	moe_close(client);
	sd_bus_flush_close_unref(bus);
	ok(fixture_stop(&fixture) == 0, "the daemon ends with 0");
	remove_all(folder);
	bus_end(&bus_daemon);
	return tap_done();
}
