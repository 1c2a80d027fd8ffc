/* SPDX-License-Identifier: MIT */
#include <stdio.h>

#include "moectl.h"

static void print_loading(const json_t *loading)
{
	const double done = get_number(loading, "done_bytes"), total = get_number(loading, "total_bytes");
	char size[SHOW_TEXT], share[SHOW_TEXT], eta[SHOW_TEXT];

	printf("  loading   %s: %s of %s, %s to go\n", get_text(loading, "path"), show_share(share, done, total),
	       show_bytes(size, total), show_time(eta, get_number(loading, "eta_ns")));
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
	if (json_is_false(json_object_get(s, "weights_sealed")))
		printf("  NOTE      weights are writable by clients (--writable-weights)\n");
	if (json_is_false(json_object_get(s, "queues_readonly")))
		printf("  NOTE      clients can write their own completion queues: /proc is not mounted\n");
	if (json_is_object(loading))
		print_loading(loading);
	json_decref(s);
	return EXIT_DONE;
}
