/* SPDX-License-Identifier: MIT */
/*
 * bus-fixture - a private dbus-daemon, a client of it, and what that client has heard.
 *
 * The bus lets every user in, so that a test that is root can also be somebody else, and is otherwise as strict as a
 * system's. It can be killed and started again
 * at the same address.
 */
#ifndef TESTS_BUS_FIXTURE_H
#define TESTS_BUS_FIXTURE_H

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-bus.h>

#include "tests/fixture.h"

#define BUS_NAME "org.moeexpertd"
#define BUS_ROOT "/org/moeexpertd"
#define BUS_MANAGER BUS_NAME ".Manager1"
#define BUS_MODEL BUS_NAME ".Model1"
#define BUS_SESSION BUS_NAME ".Session1"
#define BUS_JOB BUS_NAME ".Job1"
#define BUS_ERROR BUS_NAME ".Error."
#define HEARD_MAX 1024

struct bus_fixture {
	pid_t pid;
	char folder[64], config[96], socket[96], address[128];
};

/* A signal: "MEMBER ARGUMENT...", the first arguments that are text, numbers or booleans. */
struct heard {
	char path[128], text[4096];
};

static struct heard heard[HEARD_MAX];
static uint32_t n_heard;

__attribute__((unused)) static bool bus_missing(void)
{
	return system("dbus-daemon --version >/dev/null 2>&1") != 0;
}

static bool bus_listens(const struct bus_fixture *f)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool good;

	snprintf(a.sun_path, sizeof a.sun_path, "%s", f->socket);
	good = connect(fd, (struct sockaddr *)&a, sizeof a) == 0;
	close(fd);
	return good;
}

static void bus_run(struct bus_fixture *f)
{
	char argument[128];
	uint64_t end = 0;

	snprintf(argument, sizeof argument, "--config-file=%s", f->config);
	f->pid = fork();
	if (f->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execlp("dbus-daemon", "dbus-daemon", argument, "--nofork", NULL);
		_exit(127);
	}
	while (!bus_listens(f) && tap_wait(&end))
		;
	require(bus_listens(f), "a bus listens");
}

static void bus_start(struct bus_fixture *f)
{
	FILE *config;

	tap_tmp(f->folder, "moe-bus-XXXXXX");
	if (!mkdtemp(f->folder) || chmod(f->folder, 0755) < 0)
		exit(2);
	snprintf(f->config, sizeof f->config, "%s/conf", f->folder);
	snprintf(f->socket, sizeof f->socket, "%s/bus", f->folder);
	snprintf(f->address, sizeof f->address, "unix:path=%s", f->socket);
	config = fopen(f->config, "we");
	if (!config)
		exit(2);
	/* As strict as a system bus: what is allowed beyond that is what org.moeexpertd.conf allows. */
	fprintf(config,
		"<busconfig><listen>%s</listen><auth>EXTERNAL</auth><limit "
		"name='max_replies_per_connection'>5000</limit><policy context='default'><allow user='*'/>"
		"<deny own='*'/><deny send_type='method_call'/><allow send_type='signal'/>"
		"<allow send_requested_reply='true' send_type='method_return'/>"
		"<allow send_requested_reply='true' send_type='error'/><allow receive_type='method_call'/>"
		"<allow receive_type='method_return'/><allow receive_type='error'/><allow receive_type='signal'/>"
		"<allow send_destination='org.freedesktop.DBus'/>"
		"<allow send_destination='org.freedesktop.PolicyKit1'/></policy>"
		"<policy user='root'><allow own='org.freedesktop.PolicyKit1'/></policy>"
		"<policy user='%u'><allow own_prefix='" BUS_NAME "'/></policy>"
		"<include>%s/dbus/org.moeexpertd.conf</include>"
		"<include ignore_missing='yes'>%s/more</include></busconfig>\n",
		f->address, geteuid(), fixture_env("MOE_SOURCE"), f->folder);
	fclose(config);
	bus_run(f);
}

static void bus_kill(struct bus_fixture *f)
{
	kill(f->pid, SIGKILL);
	waitpid(f->pid, NULL, 0);
	unlink(f->socket);
}

__attribute__((unused)) static void bus_end(struct bus_fixture *f)
{
	bus_kill(f);
	unlink(f->config);
	rmdir(f->folder);
}

/* NULL: this user is not let in. */
__attribute__((unused)) static sd_bus *bus_connect(const struct bus_fixture *f)
{
	sd_bus *bus = NULL;

	if (sd_bus_new(&bus) < 0 || sd_bus_set_address(bus, f->address) < 0 || sd_bus_set_bus_client(bus, 1) < 0 ||
	    sd_bus_start(bus) < 0)
		return sd_bus_unref(bus);
	sd_bus_set_method_call_timeout(bus, TAP_PATIENCE_S * 1000000ull);
	return bus;
}

/* -- signals ------------------------------------------------------------------------------------------------------ */

static void add_text(struct heard *h, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add_text(struct heard *h, const char *format, ...)
{
	const size_t used = strlen(h->text);
	va_list args;

	va_start(args, format);
	vsnprintf(h->text + used, sizeof h->text - used, format, args);
	va_end(args);
}

static void add_basic(struct heard *h, sd_bus_message *m, char type)
{
	union {
		const char *text;
		uint32_t u;
		uint64_t t;
		double d;
		int b;
	} value = {0};

	sd_bus_message_read_basic(m, type, &value);
	if (type == 's' || type == 'o')
		add_text(h, " %s", value.text);
	else if (type == 'u')
		add_text(h, " %u", value.u);
	else if (type == 't')
		add_text(h, " %llu", (unsigned long long)value.t);
	else if (type == 'd')
		add_text(h, " %.3f", value.d);
	else if (type == 'b')
		add_text(h, " %s", value.b ? "yes" : "no");
}

/* Everything in it, containers as if they were not there. */
static void add_all(struct heard *h, sd_bus_message *m)
{
	const char *contents;
	char type;

	while (sd_bus_message_peek_type(m, &type, &contents) > 0)
		if (strchr("avre", type)) {
			sd_bus_message_enter_container(m, type, contents);
			add_all(h, m);
			sd_bus_message_exit_container(m);
		} else {
			add_basic(h, m, type);
		}
}

static int on_signal(sd_bus_message *m, void *userdata, sd_bus_error *error)
{
	struct heard *h = &heard[n_heard % HEARD_MAX];

	snprintf(h->path, sizeof h->path, "%s", sd_bus_message_get_path(m));
	snprintf(h->text, sizeof h->text, "%s", sd_bus_message_get_member(m));
	add_all(h, m);
	n_heard++;
	return 0;
}

/* From now on all signals of the daemon are heard. */
__attribute__((unused)) static void bus_listen(sd_bus *bus)
{
	n_heard = 0;
	if (sd_bus_match_signal(bus, NULL, NULL, NULL, NULL, NULL, on_signal, NULL) < 0)
		exit(2);
}

/* What of `from` and later is a signal of this path (NULL: any) whose text begins so and holds `part`; -1: none. */
__attribute__((unused)) static int64_t heard_at(uint32_t from, const char *path, const char *text, const char *part)
{
	for (uint32_t i = from; i < n_heard; i++)
		if ((!path || strcmp(heard[i].path, path) == 0) && strncmp(heard[i].text, text, strlen(text)) == 0 &&
		    strstr(heard[i].text, part))
			return i;
	return -1;
}

/* The same, waiting for it. */
__attribute__((unused)) static int64_t hear(sd_bus *bus, uint32_t from, const char *path, const char *text,
					    const char *part)
{
	uint64_t end = 0;
	int64_t at;

	while ((at = heard_at(from, path, text, part)) < 0 && tap_wait(&end))
		if (sd_bus_process(bus, NULL) == 0)
			sd_bus_wait(bus, 100000);
	if (at < 0)
		for (uint32_t i = from; i < n_heard; i++)
			diag("heard %s: %s", heard[i].path, heard[i].text);
	return at;
}

/* -- calls -------------------------------------------------------------------------------------------------------- */

static char call_error[128], call_words[512]; /* of the last call: name and text, or "" */

/* A call of the interface; its answer's text as in `heard`, "?" after an error. */
__attribute__((unused)) static const char *call(sd_bus *bus, const char *path, const char *interface,
						const char *member, const char *types, ...)
{
	static struct heard answer;
	sd_bus_message *m = NULL, *reply = NULL;
	sd_bus_error error = SD_BUS_ERROR_NULL;
	va_list args;
	int r = sd_bus_message_new_method_call(bus, &m, BUS_NAME, path, interface, member);

	va_start(args, types);
	if (r >= 0 && types)
		r = sd_bus_message_appendv(m, types, args);
	va_end(args);
	if (r >= 0)
		r = sd_bus_call(bus, m, 0, &error, &reply);
	snprintf(call_error, sizeof call_error, "%s", r < 0 ? error.name ? error.name : strerror(-r) : "");
	snprintf(call_words, sizeof call_words, "%s", error.message ? error.message : "");
	answer = (struct heard){0};
	if (r >= 0)
		add_all(&answer, reply);
	sd_bus_error_free(&error);
	sd_bus_message_unref(reply);
	sd_bus_message_unref(m);
	return r < 0 ? "?" : *answer.text ? answer.text + 1 : "";
}

#define manager(bus, member, ...) call(bus, BUS_ROOT, BUS_MANAGER, member, __VA_ARGS__)

__attribute__((unused)) static const char *property(sd_bus *bus, const char *path, const char *interface,
						    const char *name)
{
	return call(bus, path, "org.freedesktop.DBus.Properties", "Get", "ss", interface, name);
}

/* Waits until somebody has the name. */
__attribute__((unused)) static bool bus_has(sd_bus *bus, const char *name)
{
	sd_bus_message *reply = NULL;
	uint64_t end = 0;
	int has = 0;

	while (!has && tap_wait(&end)) {
		if (sd_bus_call_method(bus, "org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus",
				       "NameHasOwner", NULL, &reply, "s", name) < 0)
			return false;
		sd_bus_message_read(reply, "b", &has);
		reply = sd_bus_message_unref(reply);
	}
	return has;
}

#endif
