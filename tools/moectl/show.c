/* SPDX-License-Identifier: MIT */
#include <stdio.h>

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

void print_json(const json_t *document)
{
	json_dumpf(document, stdout, JSON_INDENT(1));
	putchar('\n');
}
