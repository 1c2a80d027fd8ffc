/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "moectl.h"

double get_number(const json_t *object, const char *key)
{
	return json_number_value(json_object_get(object, key));
}

const char *get_text(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

char *show_bytes(char to[SHOW_TEXT], double bytes)
{
	static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
	int unit = 0;

	while (bytes >= 1000 && unit < 4) {
		bytes /= 1000;
		unit++;
	}
	snprintf(to, SHOW_TEXT, unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
	return to;
}

char *show_time(char to[SHOW_TEXT], double ns)
{
	if (ns >= 3600e9)
		snprintf(to, SHOW_TEXT, "%.0f h %02.0f min", ns / 3600e9,
			 (ns - (double)(long)(ns / 3600e9) * 3600e9) / 60e9);
	else if (ns >= 1e9)
		snprintf(to, SHOW_TEXT, "%.2f s", ns / 1e9);
	else if (ns >= 1e6)
		snprintf(to, SHOW_TEXT, "%.2f ms", ns / 1e6);
	else
		snprintf(to, SHOW_TEXT, "%.1f us", ns / 1e3);
	return to;
}

char *show_share(char to[SHOW_TEXT], double part, double whole)
{
	if (whole > 0)
		snprintf(to, SHOW_TEXT, "%.1f %%", 100 * part / whole);
	else
		snprintf(to, SHOW_TEXT, "-");
	return to;
}

char *show_loading(char to[SHOW_LOADING], const json_t *loading)
{
	const double done = get_number(loading, "done_bytes"), total = get_number(loading, "total_bytes");
	char size[SHOW_TEXT], share[SHOW_TEXT], eta[SHOW_TEXT];

	show_bytes(size, total);
	if (total <= 0)
		snprintf(to, SHOW_LOADING, "looking at its files");
	else if (json_is_number(json_object_get(loading, "eta_ns")) && done > 0)
		snprintf(to, SHOW_LOADING, "%s of %s, %s to go", show_share(share, done, total), size,
			 show_time(eta, get_number(loading, "eta_ns")));
	else
		snprintf(to, SHOW_LOADING, "making memory for %s", size);
	return to;
}

void print_tier(const char *indent, const json_t *t)
{
	const double found = get_number(t, "hits"), missed = get_number(t, "misses");
	char share[SHOW_TEXT], bytes[SHOW_TEXT], wait[SHOW_TEXT];

	if (!json_is_object(t))
		return;
	printf("%stiered (--pool-max): %s, frames for %.0f of %.0f records, %.0f ready, %.0f pinned (%.0f leased)\n",
	       indent, get_text(t, "policy"), get_number(t, "frames"), get_number(t, "records"), get_number(t, "ready"),
	       get_number(t, "pinned"), get_number(t, "leased"));
	printf("%s  %s of %.0f records found in memory; %.0f evicted, %.0f reads of %s, %.0f failed\n", indent,
	       show_share(share, found, found + missed), found + missed, get_number(t, "evictions"),
	       get_number(t, "reads"), show_bytes(bytes, get_number(t, "read_bytes")), get_number(t, "failures"));
	printf("%s  %.0f requests waited %s in all; of %.0f records read ahead %.0f were used, %.0f wasted\n", indent,
	       get_number(t, "waits"), show_time(wait, get_number(t, "wait_ns")), get_number(t, "prefetches"),
	       get_number(t, "prefetch_used"), get_number(t, "prefetch_wasted"));
}

void print_replicas(const char *indent, const json_t *r)
{
	char limit[SHOW_TEXT], bytes[SHOW_TEXT], moved[SHOW_TEXT];
	const json_t *after = json_object_get(r, "after"), *node;
	size_t i;

	if (!json_is_object(r))
		return;
	printf("%scopies of hot experts (--replica-max): %s, %s of at most %s; they have %.1f %% of the pairs, the "
	       "busiest "
	       "node %.2f of the mean\n",
	       indent, get_text(r, "state"), show_bytes(bytes, get_number(r, "bytes")),
	       show_bytes(limit, get_number(r, "limit")), 100 * get_number(after, "covered"),
	       get_number(after, "balance"));
	if (*get_text(r, "why"))
		printf("%s  none: %s\n", indent, get_text(r, "why"));
	printf("%s ", indent);
	json_array_foreach (json_object_get(r, "nodes"), i, node)
		printf(" node %.0f has %.0f;", get_number(node, "node"), get_number(node, "copies"));
	printf(" %.0f made (%s), layers moved %.0f times, %.0f put off, %.0f failed\n", get_number(r, "copies_made"),
	       show_bytes(moved, get_number(r, "bytes_moved")), get_number(r, "layers_moved"), get_number(r, "put_off"),
	       get_number(r, "failed"));
}

json_t *text_json(const char *text)
{
	char *copy = text ? strdup(text) : NULL;
	json_t *ret = copy ? json_string(text_to_utf8(copy)) : text ? NULL : json_null();

	free(copy);
	return ret;
}

void print_json(const json_t *document)
{
	if (!document) {
		fputs("moectl: no memory for a document\n", stderr);
		exit(EXIT_FAILED);
	}
	json_dumpf(document, stdout, JSON_INDENT(1));
	putchar('\n');
}

bool colours_wanted(void)
{
	const char *none = getenv("NO_COLOR"), *term = getenv("TERM");

	return isatty(STDOUT_FILENO) && !(none && *none) && term && *term && strcmp(term, "dumb") != 0;
}
