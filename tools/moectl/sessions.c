/* SPDX-License-Identifier: MIT */
#include <stdio.h>

#include "moectl.h"

int verb_sessions(const struct arguments *arg)
{
	json_t *document = ask(arg, MOE_DOCUMENT_SESSIONS);
	const json_t *sessions = json_object_get(document, "sessions"), *s;
	size_t i;

	if (!document)
		return EXIT_FAILED;
	if (arg->json) {
		print_json(document);
		json_decref(document);
		return EXIT_DONE;
	}
	if (json_array_size(sessions) == 0)
		printf("no session\n");
	else
		printf("session      pid    uid  model             group             rank   asks  phase     in flight  "
		       "attached\n");
	json_array_foreach (sessions, i, s) {
		char time[SHOW_TEXT];

		printf("%7.0f  %7.0f  %5.0f  %-16s  %-16s  %2.0f/%-2.0f  %-4s  %-8s  %9.0f  %s\n", get_number(s, "id"),
		       get_number(s, "pid"), get_number(s, "uid"), get_text(s, "model"), get_text(s, "group"),
		       get_number(s, "tp_rank"), get_number(s, "tp_size"), get_text(s, "transport"),
		       get_text(s, "phase"), get_number(s, "in_flight"), show_time(time, get_number(s, "attached_ns")));
	}
	json_decref(document);
	return EXIT_DONE;
}
