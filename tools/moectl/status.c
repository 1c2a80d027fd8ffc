/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "moectl.h"

static void print_loading(const json_t *loading)
{
	char state[SHOW_LOADING];

	printf("  loading   %s: %s\n", get_text(loading, "path"), show_loading(state, loading));
}

/* Who holds something: what, and how often more was refused. */
static void print_users(const json_t *accounts)
{
	const json_t *user, *count;
	const char *resource;
	size_t i;

	json_array_foreach (json_object_get(accounts, "users"), i, user) {
		json_t *refused = json_object_get(user, "refused");
		char bytes[SHOW_TEXT], time[SHOW_TEXT];

		printf("  user      uid %.0f: %.0f connections, %.0f sessions, %s, pool %s\n", get_number(user, "uid"),
		       get_number(user, "connections"), get_number(user, "sessions"),
		       show_bytes(bytes, get_number(user, "bytes")), show_time(time, get_number(user, "pool_ns")));
		json_object_foreach (refused, resource, count)
			if (json_number_value(count) > 0)
				printf("  NOTE      uid %.0f was refused %s %.0f times: at most %.0f for one user "
				       "(--uid-limit %s=)\n",
				       get_number(user, "uid"), resource, json_number_value(count),
				       get_number(json_object_get(accounts, "limits"), resource), resource);
	}
}

static void print_bus(const json_t *bus)
{
	const char *state = get_text(bus, "state"), *why = get_text(bus, "why");

	if (strcmp(state, "off") == 0)
		printf("  bus       off%s%s\n", *why ? ": " : "", why);
	else
		printf("  bus       %s: %s%s%s\n", get_text(bus, "name"), state, *why ? ": " : "", why);
}

static void print_keeper(json_t *status)
{
	const double unkept = get_number(status, "sessions_unkept"), waits = get_number(status, "keeper_waits");

	if (!json_is_true(json_object_get(status, "kept"))) {
		printf("  keeper    none: sessions end with this daemon\n");
		return;
	}
	printf("  keeper    models and sessions outlive this daemon");
	if (unkept > 0)
		printf(", but for %.0f session%s", unkept, unkept == 1 ? "" : "s");
	printf("\n");
	if (waits > 0)
		printf("  NOTE      the keeper takes no messages: %.0f wait; sessions that have just begun do not "
		       "outlive "
		       "this daemon yet\n",
		       waits);
}

/* What outlives the daemon, and with whom. */
static void print_keepers(json_t *status)
{
	json_t *module = json_object_get(status, "module");
	const json_t *queue = json_object_get(module, "queue");
	const char *state = get_text(module, "state");

	print_keeper(status);
	if (strcmp(state, "used") != 0) {
		printf("  module    %s: %s\n", state, get_text(module, "why"));
		return;
	}
	printf("  module    version %.0f keeps %.0f pools with %.0f leases; %.0f models came from it, %.0f leases "
	       "ended "
	       "with their holder\n",
	       get_number(module, "version"), get_number(module, "pools"), get_number(module, "leases"),
	       get_number(module, "models_taken"), get_number(module, "leases_dropped"));
	if (strcmp(get_text(queue, "way"), "none") == 0)
		printf("            serves no queue of requests\n");
	else
		printf("            serves a queue by %s: %.0f requests fetched, %.0f of them again\n",
		       get_text(queue, "way"), get_number(queue, "fetched"), get_number(queue, "reissued"));
	if (get_number(module, "pools") == 0 && get_number(status, "models") > 0)
		printf("  NOTE      no model lies with the module: only hugetlb pages do (--pages 2m), and no tiered "
		       "model\n");
}

int verb_status(const struct arguments *arg)
{
	json_t *s = ask(arg, MOE_DOCUMENT_STATUS);
	const json_t *cpu, *loading;
	char a[SHOW_TEXT], b[SHOW_TEXT];

	if (!s)
		return EXIT_FAILED;
	if (arg->json) {
		print_json(s);
		json_decref(s);
		return EXIT_DONE;
	}
	cpu = json_object_get(s, "cpu");
	loading = json_object_get(s, "loading");
	printf("moe-expertd %s: %s, pid %.0f, up %s\n", get_text(s, "version"), get_text(s, "state"),
	       get_number(s, "pid"), show_time(a, get_number(s, "uptime_ns")));
	printf("  socket    %s\n", get_text(s, "socket"));
	printf("  models    %.0f, %s resident\n", get_number(s, "models"), show_bytes(a, get_number(s, "bytes")));
	printf("  sessions  %.0f\n", get_number(s, "sessions"));
	printf("  cpu pool  %.0f threads on %.0f nodes, %s (%s)\n", get_number(cpu, "threads"),
	       get_number(cpu, "nodes"), get_text(cpu, "isa"), get_text(cpu, "isa_why"));
	printf("  computed  %.0f pairs in %.0f jobs, %s busy; %s copied\n", get_number(cpu, "pairs"),
	       get_number(cpu, "jobs"), show_time(a, get_number(cpu, "busy_ns")),
	       show_bytes(b, get_number(cpu, "copy_bytes")));
	print_bus(json_object_get(s, "bus"));
	print_keepers(s);
	print_users(json_object_get(s, "accounts"));
	if (get_number(s, "tiered") > 0)
		printf("  NOTE      %.0f of the models are tiered: larger than --pool-max, read from disk as they are "
		       "used (moectl models)\n",
		       get_number(s, "tiered"));
	if (json_is_true(json_object_get(s, "draining")))
		printf("  NOTE      the daemon is being drained: no session is taken in (Resume on the bus)\n");
	if (json_is_false(json_object_get(s, "weights_sealed")))
		printf("  NOTE      weights are writable by clients (--writable-weights)\n");
	if (json_is_false(json_object_get(s, "queues_readonly")))
		printf("  NOTE      clients can write their own completion queues: /proc is not mounted\n");
	if (json_is_object(loading))
		print_loading(loading);
	json_decref(s);
	return EXIT_DONE;
}
