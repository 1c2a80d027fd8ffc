/* SPDX-License-Identifier: MIT */
/*
 * The one table of figures (metrics/families.h) against all that is made of it: each figure stands in the documents, in
 * Prometheus' text, in moectl's figures and on D-Bus, and none of these has one that the table has not.
 */
#include <jansson.h>
#include <math.h>

#include "base/util.h"
#include "metrics/metrics.h"
#include "moe-expert.h"
#include "tests/bus-fixture.h"
#include "uapi/moe_ring.h"

#define STEPS 300 /* more than the bound of ghost caches lags behind */
#define PATH_BYTES 256

static struct fixture fixture;
static struct bus_fixture bus_daemon;
static json_t *documents[METRICS_DOCUMENTS];
static const char *const document_names[METRICS_DOCUMENTS] = {"status", "stats", "models"};

/* -- a session that uses what there is to be counted -------------------------------------------------------------- */

static void run_steps(struct moe_session *session)
{
	static float x[1024], y[1024];
	struct moe_session_info info;
	struct moe_error err = {0};
	bool good = true;

	moe_session_info(session, &info);
	require(info.hidden <= ARRAY_LEN(x), "a small model");
	for (uint32_t s = 0; s < STEPS && good; s++)
		for (uint32_t l = 0; l < info.n_layers && good; l++) {
			int32_t ids[MOE_TOPK_MAX];
			float weights[MOE_TOPK_MAX];
			struct moe_plan *plan;
			struct moe_step *step;

			for (uint32_t k = 0; k < info.topk; k++) {
				ids[k] = (int32_t)((s % 7 + k * 3) % info.n_experts);
				weights[k] = .25f;
			}
			good = moe_plan(session, l, MOE_MODE_DECODE, 1, info.topk, ids, weights, &plan, &err) == 0 &&
			       moe_submit(session, plan, x, &step, &err) == 0 && moe_wait(step, y, 0, &err) == 0;
		}
	require(good, "%d steps of each layer %s", STEPS, err.text);
}

static void drop_documents(void)
{
	for (int i = 0; i < METRICS_DOCUMENTS; i++) {
		json_decref(documents[i]);
		documents[i] = NULL;
	}
}

static void ask_documents(struct moe_client *client)
{
	static const enum moe_document which[METRICS_DOCUMENTS] = {MOE_DOCUMENT_STATUS, MOE_DOCUMENT_STATS,
								   MOE_DOCUMENT_MODELS};

	for (int i = 0; i < METRICS_DOCUMENTS; i++) {
		char *text;

		require(moe_query(client, which[i], &text, NULL) == 0, "%s", document_names[i]);
		documents[i] = json_loads(text, 0, NULL);
		require(documents[i] != NULL, "is JSON");
		free(text);
	}
}

/* What the daemon does behind the last answer has ended. The answer to a last hint may lie in the ring for good: its
 * client waits for nothing more. */
static bool at_rest(void)
{
	static json_int_t last;
	static int asked;
	const json_t *session = json_array_get(json_object_get(documents[METRICS_STATS], "sessions"), 0);
	const json_t *model = json_array_get(json_object_get(documents[METRICS_MODELS], "models"), 0);
	const json_int_t in_flight = json_integer_value(json_object_get(session, "in_flight"));

	asked = in_flight == last ? asked + 1 : 0;
	last = in_flight;
	return (in_flight == 0 || asked >= 20) &&
	       json_integer_value(json_object_get(json_object_get(model, "tier"), "reading")) == 0;
}

static char *output_of(const char *option)
{
	static char command[2 * PATH_MAX];
	char *text = NULL;
	size_t bytes = 0, n;
	char block[4096];
	FILE *from, *to = open_memstream(&text, &bytes);

	snprintf(command, sizeof command, "%s/tools/moectl --socket %s stats %s", fixture_env("MOE_BUILD"),
		 fixture.socket, option);
	from = popen(command, "r");
	require(from && to, "moectl stats %s", option);
	while ((n = fread(block, 1, sizeof block, from)) > 0)
		fwrite(block, 1, n, to);
	fclose(to);
	require(pclose(from) == 0, "it ends well");
	return text;
}

/* -- each figure in each output ----------------------------------------------------------------------------------- */

struct seen {
	uint32_t n;
	double value; /* of the last */
};

static void count_sample(void *userdata, const struct metrics_sample *sample)
{
	struct seen *seen = userdata;
	char text[METRICS_VALUE_MAX];

	metrics_value_text(sample, text, sizeof text);
	seen->value = strtod(text, NULL);
	seen->n++;
}

static struct seen samples_of(const struct metrics_family *f)
{
	struct seen seen = {0};

	metrics_walk(f, &(struct metrics_documents){{documents[0], documents[1], documents[2]}}, count_sample, &seen);
	return seen;
}

/* The one object that has it: its way's first list says which. */
static void bus_place(const struct metrics_family *f, const char *session, const char **path, const char **interface)
{
	const char *list = metrics_ways[f->scope].step[0].list;

	*path = BUS_ROOT;
	*interface = BUS_NAME ".ManagerFigures1";
	if (list && strcmp(list, "models") == 0) {
		*path = BUS_ROOT "/model/tinymoe";
		*interface = BUS_NAME ".ModelFigures1";
	} else if (list && strcmp(list, "sessions") == 0) {
		*path = session;
		*interface = BUS_NAME ".SessionFigures1";
	}
}

static void bus_name_of(const char *name, char *to)
{
	bool high = true;

	for (name += strlen("moe_expertd_"); *name; high = *name++ == '_')
		if (*name != '_')
			*to++ = (char)(high && *name >= 'a' && *name <= 'z' ? *name - 'a' + 'A' : *name);
	*to = '\0';
}

/* Samples of a figure on the bus, or -1. */
static struct seen bus_samples(sd_bus *bus, const struct metrics_family *f, const char *session)
{
	sd_bus_message *reply = NULL;
	const char *path, *interface, *labels;
	struct seen seen = {0};
	char name[PATH_BYTES];

	bus_place(f, session, &path, &interface);
	bus_name_of(f->name, name);
	if (sd_bus_get_property(bus, BUS_NAME, path, interface, name, NULL, &reply, "d") >= 0) {
		if (sd_bus_message_read(reply, "d", &seen.value) >= 0)
			seen.n = !isnan(seen.value);
	} else if (sd_bus_get_property(bus, BUS_NAME, path, interface, name, NULL, &reply, "a(sd)") >= 0 &&
		   sd_bus_message_enter_container(reply, 'a', "(sd)") >= 0) {
		while (sd_bus_message_read(reply, "(sd)", &labels, &seen.value) > 0)
			seen.n++;
	} else {
		seen.n = UINT32_MAX;
	}
	sd_bus_message_unref(reply);
	return seen;
}

/* What grows by being looked at; and a thread of the pool counts its time when the answer has long been given. */
static bool moves(const struct metrics_family *f)
{
	static const char *const moving[] = {"uptime", "age_seconds", "connections", "_user_", "pool_busy"};
	bool found = false;

	for (size_t i = 0; i < ARRAY_LEN(moving); i++)
		found |= strstr(f->name, moving[i]) != NULL;
	return found;
}

static void test_all_have(sd_bus *bus, const char *session, const char *figures, const char *prometheus)
{
	uint32_t wrong = 0, checked = 0;

	for (size_t i = 0; i < metrics_n_families; i++) {
		const struct metrics_family *f = &metrics_families[i];
		const struct seen json = samples_of(f), there = bus_samples(bus, f, session);
		const bool absent = strstr(f->name, "_loading_") || strstr(f->name, "_replica_");
		char head[2][PATH_BYTES];
		bool good = json.n > 0;

		snprintf(head[0], sizeof head[0], "\n%s (", f->name);
		snprintf(head[1], sizeof head[1], "\n# TYPE %s ", f->name);
		for (int k = 0; k < 2; k++) {
			const char *text = k ? prometheus : figures;

			good &= strstr(text, head[k]) || strncmp(text, head[k] + 1, strlen(head[k]) - 1) == 0;
		}
		if (there.n == UINT32_MAX)
			good = false;
		else if (!moves(f))
			good &= there.n == json.n && (isnan(there.value) || fabs(there.value - json.value) < 1e-6);
		if (absent)
			good = json.n == 0 && there.n == 0;
		if (!good)
			diag("%s: %u samples in the documents (%.9g), %u on the bus (%.9g)", f->name, json.n,
			     json.value, there.n, there.value);
		wrong += !good;
		checked += !absent;
	}
	ok(wrong == 0 && checked > 120, "%u figures, of which %u are not in each of the four outputs", checked, wrong);
}

/* -- no figure beside the table ----------------------------------------------------------------------------------- */

static bool in_table(const char *name, size_t length)
{
	for (size_t i = 0; i < metrics_n_families; i++)
		if (strlen(metrics_families[i].name) == length && strncmp(metrics_families[i].name, name, length) == 0)
			return true;
	return false;
}

/* Lines that begin so name a figure. */
static uint32_t strangers(const char *text, const char *begin, char end)
{
	uint32_t n = 0;

	for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
		const char *name = line + (strncmp(begin, "# ", 2) == 0 ? strlen(begin) : 0);

		if (strncmp(line, begin, strlen(begin)) == 0 && !in_table(name, strcspn(name, (char[]){end, '\0'})))
			n++;
	}
	return n;
}

static uint32_t bus_properties(sd_bus *bus, const char *path, const char *interface)
{
	sd_bus_message *reply = NULL;
	const char *xml = "";
	char begin[PATH_BYTES];
	uint32_t n = 0;

	snprintf(begin, sizeof begin, "<interface name=\"%s\"", interface);
	if (sd_bus_call_method(bus, BUS_NAME, path, "org.freedesktop.DBus.Introspectable", "Introspect", NULL, &reply,
			       NULL) >= 0 &&
	    sd_bus_message_read(reply, "s", &xml) >= 0) {
		const char *at = strstr(xml, begin), *end = at ? strstr(at, "</interface>") : NULL;

		while (at && (at = strstr(at + 1, "<property ")) && at < end)
			n++;
	}
	sd_bus_message_unref(reply);
	return n;
}

/* Numbers that name something, or say what a model or a session is: no figures. */
static const struct {
	enum metrics_document document;
	const char *path;
} words[] = {
	{METRICS_STATUS, "pid"},
	{METRICS_STATUS, "loading"},
	{METRICS_STATUS, "module.version"},
	{METRICS_STATUS, "cpu.nodes"},
	{METRICS_STATUS, "cpu.by_node.node"},
	{METRICS_STATUS, "accounts.users.uid"},
	{METRICS_STATS, "models.layers.layer"},
	{METRICS_STATS, "sessions.id"},
	{METRICS_STATS, "sessions.dp_rank"},
	{METRICS_STATS, "sessions.dp_size"},
	{METRICS_STATS, "sessions.ep_rank"},
	{METRICS_STATS, "sessions.ghosts.bound_slots"},
	{METRICS_STATS, "models.ghosts.caches.slots"},
	{METRICS_STATS, "models.ghosts.bounds.slots"},
	{METRICS_STATS, "sessions.ghosts.caches.slots"},
	{METRICS_MODELS, "loading"}, /* as in the status */
	{METRICS_MODELS, "models.epoch"},
	{METRICS_MODELS, "models.replicas"}, /* null: none are made here */
	{METRICS_MODELS, "models.layers"},
	{METRICS_MODELS, "models.moe_layers"},
	{METRICS_MODELS, "models.hidden"},
	{METRICS_MODELS, "models.inter"},
	{METRICS_MODELS, "models.direct"},
	{METRICS_MODELS, "models.pools.node"},
	{METRICS_MODELS, "models.layouts.layers"},
	{METRICS_MODELS, "models.layouts.tp_max"},
	{METRICS_MODELS, "models.layouts.record_bytes"},
};

/* What a document says again: of another one, or the layers' numbers added up. */
static const struct {
	const char *begin;
	enum metrics_document document;
	const char *instead;
} again[] = {
	{"models.totals.tier.", METRICS_MODELS, "models.tier."},
	{"models.totals.replicas", METRICS_MODELS, "models.replicas"},
	{"models.totals.leases_held", METRICS_MODELS, "models.leases"},
	{"models.totals.", METRICS_STATS, "models.layers."},
	{"accounts.", METRICS_STATUS, "accounts."},
	{"uptime_ns", METRICS_STATUS, "uptime_ns"},
	{"models.experts", METRICS_MODELS, "models.experts"},
	{"models.topk", METRICS_MODELS, "models.topk"},
};

static bool is_word(enum metrics_document document, const char *path)
{
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (words[i].document == document && strcmp(words[i].path, path) == 0)
			return true;
	return false;
}

/* Whether it is the family's value, or with labels in place of keys one of them. Lists have no part in a path, members
 * that are labels are a star. */
static bool is_figure(const struct metrics_family *f, enum metrics_document document, const char *path)
{
	const struct metrics_way *way = &metrics_ways[f->scope];
	char want[PATH_BYTES] = "";
	size_t n;

	if (way->document != document)
		return false;
	for (int i = 0; i < METRICS_STEPS && way->step[i].list; i++) {
		n = strlen(want);
		snprintf(want + n, sizeof want - n, "%s.%s", way->step[i].list, way->step[i].key[0] ? "" : "*.");
	}
	n = strlen(want);
	if (strncmp(path, want, n) != 0)
		return false;
	if (f->unit == METRICS_ONE) {
		const char *at = strstr(f->split, path + n);

		return at && (at == f->split || at[-1] == ',') && strchr(",", at[strlen(path + n)]);
	}
	return strncmp(path + n, f->key, strlen(f->key)) == 0 &&
	       (f->split ? path[n + strlen(f->key)] == '.' : !path[n + strlen(f->key)]);
}

static bool is_known(enum metrics_document document, const char *path)
{
	char instead[2 * PATH_BYTES];

	if (is_word(document, path))
		return true;
	for (size_t i = 0; i < metrics_n_families; i++)
		if (is_figure(&metrics_families[i], document, path))
			return true;
	for (size_t i = 0; i < ARRAY_LEN(again) && document == METRICS_STATS; i++)
		if (strncmp(path, again[i].begin, strlen(again[i].begin)) == 0) {
			snprintf(instead, sizeof instead, "%s%s", again[i].instead, path + strlen(again[i].begin));
			return is_known(again[i].document, instead);
		}
	return false;
}

static void look(enum metrics_document document, const char *path, const json_t *value, uint32_t *n, uint32_t *wrong)
{
	const char *last = strrchr(path, '.') ? strrchr(path, '.') + 1 : path, *key;
	const bool labels = strcmp(last, "modes") == 0 || strcmp(last, "times") == 0;
	char below[PATH_BYTES];
	json_t *member;
	size_t i;

	if (json_is_object(value)) {
		json_object_foreach ((json_t *)value, key, member) {
			snprintf(below, sizeof below, "%s%s%s", path, *path ? "." : "", labels ? "*" : key);
			look(document, below, member, n, wrong);
		}
	} else if (json_is_array(value)) {
		json_array_foreach (value, i, member)
			look(document, path, member, n, wrong);
	} else if (!json_is_string(value)) {
		const bool known = is_known(document, path);

		if (!known)
			diag("%s: %s is not in the table", document_names[document], path);
		*n += 1;
		*wrong += !known;
	}
}

static void test_none_beside(sd_bus *bus, const char *session, const char *figures, const char *prometheus)
{
	uint32_t n = 0, wrong = 0;

	ok(strangers(prometheus, "# TYPE ", ' ') == 0, "Prometheus' text has no other figure");
	ok(strangers(figures, "moe_expertd_", ' ') == 0, "nor have moectl's figures");
	ok(bus_properties(bus, BUS_ROOT, BUS_NAME ".ManagerFigures1") +
			   bus_properties(bus, BUS_ROOT "/model/tinymoe", BUS_NAME ".ModelFigures1") +
			   bus_properties(bus, session, BUS_NAME ".SessionFigures1") ==
		   metrics_n_families,
	   "nor has the bus: %zu", metrics_n_families);
	for (int i = 0; i < METRICS_DOCUMENTS; i++)
		look((enum metrics_document)i, "", documents[i], &n, &wrong);
	ok(wrong == 0 && n > 300, "nor have the documents: %u numbers, %u not in the table", n, wrong);
	wrong = 0;
	look(METRICS_STATUS, "strange", json_object_get(documents[METRICS_STATUS], "pid"), &n, &wrong);
	look(METRICS_STATS, "sessions.step_ns", json_object_get(documents[METRICS_STATUS], "pid"), &n, &wrong);
	look(METRICS_STATS, "models.totals.other", json_object_get(documents[METRICS_STATUS], "pid"), &n, &wrong);
	ok(wrong == 3, "such a one would be found");
}

int main(void)
{
	const char *more[] = {"--bus", bus_daemon.address, "--pool-max", "10M", NULL};
	struct moe_attach_params params = {
		.size = sizeof params, .cache_expert_num = 3, .update_expert_num = 2, .ghost_layers = 6, .predict = 4};
	struct moe_session_info info;
	struct moe_error err = {0};
	struct moe_session *session;
	struct moe_client *client;
	char path[64], *figures, *prometheus;
	bool rest = false;
	uint64_t end = 0;
	sd_bus *bus;

	if (bus_missing()) {
		tap_skip("dbus-daemon is not installed");
		return tap_done();
	}
	bus_start(&bus_daemon);
	fixture_start(&fixture, fixture_sample(), more);
	bus = bus_connect(&bus_daemon);
	require(bus && bus_has(bus, BUS_NAME), "the daemon is on the bus");
	require(moe_open(&client, fixture.socket, NULL) == 0 && moe_attach(client, &session, &params, &err) == 0,
		"attached %s", err.text);
	moe_session_info(session, &info);
	snprintf(path, sizeof path, BUS_ROOT "/session/%llu", (unsigned long long)info.session);
	run_steps(session);
	for (ask_documents(client); !(rest = at_rest()) && tap_wait(&end); ask_documents(client))
		drop_documents();
	require(rest, "the session is at rest");
	figures = output_of("--figures");
	prometheus = output_of("--prometheus");
	test_all_have(bus, path, figures, prometheus);
	test_none_beside(bus, path, figures, prometheus);
	free(figures);
	free(prometheus);
	drop_documents();
	moe_detach(session);
	moe_close(client);
	sd_bus_close_unref(bus);
	ok(fixture_stop(&fixture) == 0, "the daemon ends");
	bus_end(&bus_daemon);
	return tap_done();
}
