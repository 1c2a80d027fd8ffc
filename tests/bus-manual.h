/* SPDX-License-Identifier: MIT */
/*
 * bus-manual - the daemon's objects against its manual page: each member that introspection shows is on the page, and
 * the page has no other.
 */
#ifndef TESTS_BUS_MANUAL_H
#define TESTS_BUS_MANUAL_H

#include "tests/bus-fixture.h"

static const char *attribute(char *to, size_t size, const char *line, const char *name)
{
	char begin[64];
	const char *at;

	snprintf(begin, sizeof begin, " %s=\"", name);
	at = strstr(line, begin);
	snprintf(to, size, "%.*s", at ? (int)strcspn(at + strlen(begin), "\"") : 0, at ? at + strlen(begin) : "");
	return to;
}

/* The text of a file, with a newline before and after each line. */
static char *read_text(const char *path)
{
	FILE *f = fopen(path, "re");
	char *text = calloc(1, 1 << 20);

	require(f && text && (text[0] = '\n') && fread(text + 1, 1, (1 << 20) - 3, f) > 0, "%s is there", path);
	fclose(f);
	return text;
}

static char *page;
static uint32_t n_members;

/* One member in the words of the manual, which must have it below the interface's head. */
static void check_member(const char *interface, const char *member)
{
	char head[128], item[1100];
	const char *section, *next, *at;

	snprintf(head, sizeof head, "\n.Ss %s\n", interface);
	snprintf(item, sizeof item, "\n.It %s\n", member);
	section = strstr(page, head);
	next = section ? strstr(section + 1, "\n.S") : NULL;
	at = section ? strstr(section, item) : NULL;
	n_members++;
	if (!at || (next && at > next))
		ok(false, "the manual has, below %s: %s", interface, member);
}

/* Of libsystemd's XML, which has one element a line. What a property's annotation does not say is that it emits. */
static void read_line(const char *interface, const char *line)
{
	static char name[64], type[32], access[16], in[256], out[256];
	char member[1024], argument[64], value[64];
	char *list = strcmp(attribute(value, sizeof value, line, "direction"), "out") == 0 ? out : in;

	if (strstr(line, "<method ") || strstr(line, "<signal ") || strstr(line, "<property ")) {
		attribute(name, sizeof name, line, "name");
		attribute(type, sizeof type, line, "type");
		snprintf(access, sizeof access, " emits");
		in[0] = out[0] = '\0';
	} else if (strstr(line, "EmitsChangedSignal")) {
		attribute(value, sizeof value, line, "value");
		snprintf(access, sizeof access, "%s", strcmp(value, "const") == 0 ? " const" : "");
	} else if (strstr(line, "<arg ")) {
		attribute(argument, sizeof argument, line, "name");
		attribute(value, sizeof value, line, "type");
		snprintf(list + strlen(list), sizeof in - strlen(list), "%s%s %s", *list ? ", " : "", value, argument);
	} else if (strstr(line, "</property")) {
		snprintf(member, sizeof member, "%s %s%s", name, type, access);
		check_member(interface, member);
	} else if (strstr(line, "</method") || strstr(line, "</signal")) {
		snprintf(member, sizeof member, "%s(%s)%s%s", name, in, *out ? " -> " : "", out);
		check_member(interface, member);
	}
}

static void check_interface(sd_bus *bus, const char *path, const char *interface)
{
	sd_bus_message *reply = NULL;
	char now[128] = "", *copy;
	const char *xml;

	if (sd_bus_call_method(bus, BUS_NAME, path, "org.freedesktop.DBus.Introspectable", "Introspect", NULL, &reply,
			       NULL) < 0 ||
	    sd_bus_message_read(reply, "s", &xml) < 0) {
		ok(false, "%s can be introspected", path);
		return;
	}
	copy = strdup(xml);
	for (const char *line = strtok(copy, "\n"); line; line = strtok(NULL, "\n")) {
		if (strstr(line, "<interface "))
			attribute(now, sizeof now, line, "name");
		if (strcmp(now, interface) == 0)
			read_line(interface, line);
	}
	free(copy);
	sd_bus_message_unref(reply);
}

/* The page's items: none is about something that is not there. */
static void test_manual(sd_bus *bus, const char *session, const char *job)
{
	uint32_t items = 0;

	check_interface(bus, BUS_ROOT, BUS_MANAGER);
	check_interface(bus, BUS_ROOT "/model/tinymoe", BUS_MODEL);
	check_interface(bus, session, BUS_SESSION);
	check_interface(bus, job, BUS_JOB);
	for (const char *at = strstr(page, "\n.Ss " BUS_MANAGER), *end = strstr(page, "\n.Sh ERROR NAMES");
	     at && (at = strstr(at, "\n.It ")) && at < end; at++)
		items++;
	ok(n_members == items && items > 60, "the %u members of the objects are the %u of the manual", n_members,
	   items);
}

#endif
