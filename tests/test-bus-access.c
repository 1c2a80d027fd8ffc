/* SPDX-License-Identifier: MIT */
/* Who may change things by the bus: root and the daemon's user; others what polkit lets them, which is played here. A
 * flood of calls does not keep a worker waiting. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "moe-expert.h"
#include "tests/bus-fixture.h"

#define BACKLOG 400
#define NOBODY 65534
#define POLKIT "org.freedesktop.PolicyKit1"

static struct bus_fixture bus_daemon;
static struct fixture fixture;

/* -- polkit ------------------------------------------------------------------------------------------------------- */

enum answer { YES, NO, PASSWORD, NEVER };

static enum answer answer;
static char asked[256]; /* of the last question: action, subject, flags */

static int on_check(sd_bus_message *m, void *userdata, sd_bus_error *error)
{
	const char *kind, *key, *name, *action, *cancellation;
	uint32_t flags;

	if (sd_bus_message_read(m, "(sa{sv})sa{ss}us", &kind, 1, &key, "s", &name, &action, 0, &flags, &cancellation) <
	    0)
		return sd_bus_reply_method_errorf(m, SD_BUS_ERROR_INVALID_ARGS, "not a question");
	snprintf(asked, sizeof asked, "%s %s=%s flags %u", action, kind, key, flags);
	if (answer == NEVER)
		return 1;
	return sd_bus_reply_method_return(m, "(bba{ss})", answer == YES, answer == PASSWORD, 0);
}

static const sd_bus_vtable polkit_table[] = {
	SD_BUS_VTABLE_START(0),
	SD_BUS_METHOD("CheckAuthorization", "(sa{sv})sa{ss}us", "(bba{ss})", on_check, SD_BUS_VTABLE_UNPRIVILEGED),
	SD_BUS_VTABLE_END,
};

/* -- somebody else ------------------------------------------------------------------------------------------------ */

/* A process of another user calls: its exit says whether the error is this one and its words are there. NULL: none. */
static pid_t nobody_calls(const char *member, bool interactive, const char *error, const char *words)
{
	const pid_t pid = fork();
	sd_bus *bus;
	bool good;

	if (pid != 0)
		return pid;
	if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0)
		_exit(3);
	bus = bus_connect(&bus_daemon);
	if (!bus)
		_exit(4);
	sd_bus_set_allow_interactive_authorization(bus, interactive);
	manager(bus, member, NULL);
	good = strcmp(call_error, error ? error : "") == 0 && (!words || strstr(call_words, words));
	if (!good)
		fprintf(stderr, "found %s: %s\n", call_error, call_words);
	_exit(!good);
}

/* Waits for it, being polkit meanwhile. */
static bool ended_well(sd_bus *polkit, pid_t pid)
{
	uint64_t end = 0;
	int status = -1;

	while (waitpid(pid, &status, WNOHANG) == 0 && tap_wait(&end))
		sd_bus_process(polkit, NULL);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

#define CONNECTIONS 3
#define CALLS 8

struct answers {
	uint32_t n, busy;
};

static int on_leave(sd_bus_message *m, void *userdata, sd_bus_error *error)
{
	struct answers *a = userdata;

	a->n++;
	a->busy += sd_bus_error_has_name(sd_bus_message_get_error(m), BUS_ERROR "Busy");
	return 0;
}

/* Another user asks by some connections for what may take a password; says how many calls were too many. */
static void ask_often(int fd)
{
	sd_bus *buses[CONNECTIONS];
	struct answers a = {0};
	uint64_t end = 0;

	if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0)
		_exit(1);
	for (int i = 0; i < CONNECTIONS; i++) {
		buses[i] = bus_connect(&bus_daemon);
		sd_bus_set_allow_interactive_authorization(buses[i], 1);
		for (int k = 0; k < CALLS; k++)
			sd_bus_call_method_async(buses[i], NULL, BUS_NAME, BUS_ROOT, BUS_MANAGER, "Drain", on_leave, &a,
						 NULL);
		sd_bus_flush(buses[i]);
	}
	while (a.n < (CONNECTIONS - 1) * CALLS && tap_wait(&end))
		for (int i = 0; i < CONNECTIONS; i++)
			while (sd_bus_process(buses[i], NULL) > 0)
				;
	if (write(fd, &a, sizeof a) == sizeof a)
		pause();
	_exit(1);
}

static bool comes(sd_bus *polkit, int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	uint64_t end = 0;

	while (poll(&p, 1, 0) != 1 && tap_wait(&end))
		while (sd_bus_process(polkit, NULL) > 0)
			;
	return poll(&p, 1, 0) == 1 && p.revents & POLLIN;
}

static void test_many(sd_bus *bus, sd_bus *polkit)
{
	struct answers a = {0};
	int fds[2];
	pid_t pid;

	require(pipe(fds) == 0, "a pipe");
	answer = NEVER;
	pid = fork();
	if (pid == 0)
		ask_often(fds[1]);
	require(comes(polkit, fds[0]) && read(fds[0], &a, sizeof a) == sizeof a, "answers");
	/* One of the same user has left, and polkit still has to answer it. */
	ok(a.busy == a.n && a.n >= (CONNECTIONS - 1) * CALLS && a.n < CONNECTIONS * CALLS,
	   "of one user's calls on %d connections at most %d wait for a password, the others are refused: %u of %u",
	   CONNECTIONS, CALLS, a.busy, a.n);
	manager(bus, "Resume", NULL);
	ok(!*call_error, "root is served meanwhile: %s %s", call_error, call_words);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	close(fds[0]);
	close(fds[1]);
}

static void test_nobody(sd_bus *bus)
{
	sd_bus *polkit = bus_connect(&bus_daemon);
	uint64_t end = 0;
	pid_t pid;

	require(polkit != NULL, "polkit is on the bus");
	ok(ended_well(polkit, nobody_calls("ListModels", false, NULL, NULL)), "everybody may ask");
	ok(ended_well(polkit, nobody_calls("Drain", false, BUS_ERROR "NotAuthorized", "polkit is not there")),
	   "without polkit nobody else may drain");
	require(sd_bus_add_object_vtable(polkit, NULL, "/org/freedesktop/PolicyKit1/Authority", POLKIT ".Authority",
					 polkit_table, NULL) >= 0 &&
			sd_bus_request_name(polkit, POLKIT, 0) >= 0,
		"polkit is there");
	answer = NO;
	ok(ended_well(polkit, nobody_calls("Drain", false, BUS_ERROR "NotAuthorized", "you are uid 65534")),
	   "who may not");
	ok(strcmp(asked, "org.moeexpertd.manage-sessions system-bus-name=name flags 0") == 0, "polkit was asked: %s",
	   asked);
	answer = PASSWORD;
	ok(ended_well(polkit, nobody_calls("Drain", false, BUS_ERROR "NotAuthorized", "password")),
	   "who would have to show it");
	ok(strcmp(property(bus, BUS_ROOT, BUS_MANAGER, "Draining"), "no") == 0, "nothing was done");

	answer = NEVER;
	asked[0] = '\0';
	pid = nobody_calls("Drain", true, NULL, NULL);
	while (!*asked && tap_wait(&end))
		sd_bus_process(polkit, NULL);
	ok(strstr(asked, "flags 1") != NULL, "a password may be asked for: %s", asked);
	ok(strcmp(property(bus, BUS_ROOT, BUS_MANAGER, "Draining"), "no") == 0, "meanwhile the daemon answers others");
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);

	answer = YES;
	ok(ended_well(polkit, nobody_calls("Drain", false, NULL, NULL)), "who may");
	ok(strcmp(property(bus, BUS_ROOT, BUS_MANAGER, "Draining"), "yes") == 0, "it is done");
	ok(ended_well(polkit, nobody_calls("Resume", false, NULL, NULL)), "and undone");
	test_many(bus, polkit);
	sd_bus_close_unref(polkit);
}

static void test_large(sd_bus *bus)
{
	static char text[20000];

	memset(text, '/', sizeof text - 1);
	manager(bus, "LoadModel", "sa{sv}", text, 0);
	ok(strcmp(call_error, BUS_ERROR "BadArgument") == 0 && strstr(call_words, "16384"),
	   "a call that is too large: %s %s", call_error, call_words);
	text[16000] = '\0';
	manager(bus, "LoadModel", "sa{sv}", text, 0);
	ok(strcmp(call_error, BUS_ERROR "BadArgument") == 0 && !strstr(call_words, "16384"),
	   "one that is not, and has no such file: %s %s", call_error, call_words);
}

/* -- floods ------------------------------------------------------------------------------------------------------- */

static int on_answer(sd_bus_message *m, void *userdata, sd_bus_error *error)
{
	uint32_t *open = userdata;

	--*open;
	return 0;
}

/* A process that always has many calls under way; it writes a byte for each thousand answers. */
static pid_t flood(const char *member, int fd)
{
	const pid_t pid = fork();
	uint32_t open = 0, made = 0;
	sd_bus *bus;

	if (pid != 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	bus = bus_connect(&bus_daemon);
	while (bus) {
		while (open < 64 && sd_bus_call_method_async(bus, NULL, BUS_NAME, BUS_ROOT, BUS_MANAGER, member,
							     on_answer, &open, NULL) >= 0) {
			open++;
			if (++made % 1000 == 0 && write(fd, ".", 1) != 1)
				_exit(1);
		}
		if (sd_bus_process(bus, NULL) == 0)
			sd_bus_wait(bus, UINT64_MAX);
	}
	_exit(1);
}

static bool worker_works(void)
{
	char command[1024];

	snprintf(command, sizeof command,
		 "'%s/tools/moe-worker' generate --daemon '%s' --model '%s' --prompt NAME --tokens 32 >/dev/null",
		 fixture_env("MOE_BUILD"), fixture.socket, fixture_sample());
	return system(command) == 0;
}

static void test_flood(sd_bus *bus)
{
	int fds[2];
	char byte;
	pid_t pids[2];

	require(pipe(fds) == 0, "a pipe");
	pids[0] = flood("ListModels", fds[1]);
	pids[1] = flood("Resume", fds[1]); /* most of them are refused: 8 may wait for leave */
	require(read(fds[0], &byte, 1) == 1, "calls come by the thousand");
	ok(worker_works(), "a worker ends its work meanwhile");
	ok(read(fds[0], &byte, 1) == 1 && kill(pids[0], 0) == 0, "and calls are answered still");
	for (int i = 0; i < 2; i++) {
		kill(pids[i], SIGKILL);
		waitpid(pids[i], NULL, 0);
	}
	close(fds[0]);
	close(fds[1]);
}

/* -- whose turn it is --------------------------------------------------------------------------------------------- */

static _Atomic bool over;

static void *begin_steps(void *userdata)
{
	for (uint64_t step = 1; !atomic_load(&over); step++)
		moe_phase(userdata, MOE_STEP_DECODE, step, false, NULL);
	return NULL;
}

static uint64_t counts[BACKLOG];
static uint32_t n_counts, unread;

/* Of the session's Step: the one that the daemon had been told of when it made this answer. */
static int on_step(sd_bus_message *m, void *userdata, sd_bus_error *error)
{
	const bool good = sd_bus_message_read(m, "v", "t", &counts[n_counts]) >= 0;

	unread += !good;
	n_counts++;
	return 0;
}

/* A daemon that was stopped finds many calls at once. How often it served the session between two of them. */
static uint32_t between_calls(sd_bus *bus, const char *path)
{
	uint32_t steps = 0;
	uint64_t end = 0;

	n_counts = 0;
	kill(fixture.pid, SIGSTOP);
	for (int i = 0; i < BACKLOG; i++)
		sd_bus_call_method_async(bus, NULL, BUS_NAME, path, "org.freedesktop.DBus.Properties", "Get", on_step,
					 NULL, "ss", BUS_NAME ".Session1", "Step");
	sd_bus_flush(bus);
	kill(fixture.pid, SIGCONT);
	while (n_counts < BACKLOG && tap_wait(&end))
		while (sd_bus_process(bus, NULL) > 0)
			;
	require(n_counts == BACKLOG && unread == 0, "all calls are answered");
	for (uint32_t i = 1; i < n_counts; i++)
		steps += counts[i] > counts[i - 1];
	diag("%u calls at once: the session was served between them %u times", n_counts, steps);
	return steps;
}

/* Without a bound of messages a turn it is once or twice. Its own thread may have no CPU, so it is tried again. */
static void test_backlog(sd_bus *bus)
{
	const struct moe_attach_params params = {.size = sizeof params, .tp_rank = 0, .tp_size = 1};
	struct moe_client *client = NULL;
	struct moe_session *session = NULL;
	struct moe_error err = {0};
	struct moe_session_info info;
	char path[128];
	uint32_t steps = 0;
	pthread_t thread;

	require(moe_open(&client, fixture.socket, &err) == 0 && moe_attach(client, &session, &params, &err) == 0,
		"a session: %s", err.text);
	moe_session_info(session, &info);
	snprintf(path, sizeof path, BUS_ROOT "/session/%llu", (unsigned long long)info.session);
	pthread_create(&thread, NULL, begin_steps, session);
	for (int i = 0; i < 20 && steps < 10; i++)
		steps = between_calls(bus, path);
	atomic_store(&over, true);
	pthread_join(thread, NULL);
	ok(steps >= 10, "rings are served between the calls of a backlog");
	moe_detach(session);
	moe_close(client);
}

static int on_document(sd_bus_message *m, void *userdata, sd_bus_error *error)
{
	uint32_t *n = userdata;
	const char *text;

	if (sd_bus_message_read(m, "s", &text) >= 0 && strstr(text, "\"models\""))
		n[0]++;
	else if (sd_bus_error_has_name(sd_bus_message_get_error(m), BUS_NAME ".Error.Busy"))
		n[1]++;
	else
		n[2]++;
	return 0;
}

/* So many of a connection wait for a document, the others are refused; each hears of it. */
static void test_documents(sd_bus *bus)
{
	uint32_t n[3] = {0}, more[3] = {0}; /* documents, refused, other answers */
	sd_bus *other = bus_connect(&bus_daemon);
	uint64_t end = 0;

	kill(fixture.pid, SIGSTOP);
	for (int i = 0; i < BACKLOG; i++)
		sd_bus_call_method_async(bus, NULL, BUS_NAME, BUS_ROOT, BUS_MANAGER, i % 2 ? "GetStats" : "GetStatus",
					 on_document, n, NULL);
	sd_bus_flush(bus);
	sd_bus_call_method_async(other, NULL, BUS_NAME, BUS_ROOT, BUS_MANAGER, "GetStats", on_document, more, NULL);
	sd_bus_flush(other);
	kill(fixture.pid, SIGCONT);
	while ((n[0] + n[1] + n[2] < BACKLOG || more[0] + more[1] + more[2] == 0) && tap_wait(&end)) {
		sd_bus_process(other, NULL);
		while (sd_bus_process(bus, NULL) > 0)
			;
	}
	ok(n[0] >= 8 && n[1] > 0 && n[2] == 0 && n[0] + n[1] == BACKLOG,
	   "of %u calls at once %u get their documents, %u are refused", BACKLOG, n[0], n[1]);
	ok(more[0] == 1, "another connection's call is not");
	sd_bus_close_unref(other);
}

int main(void)
{
	sd_bus *bus;

	if (bus_missing()) {
		tap_skip("dbus-daemon is not installed");
		return tap_done();
	}
	bus_start(&bus_daemon);
	fixture_start(&fixture, fixture_sample(), (const char *[]){"--bus", bus_daemon.address, NULL});
	bus = bus_connect(&bus_daemon);
	require(bus && bus_has(bus, BUS_NAME), "the daemon is on the bus");
	if (geteuid() == 0)
		test_nobody(bus);
	else
		tap_skip("not root: there is no other user to be");
	test_large(bus);
	test_backlog(bus);
	test_documents(bus);
	test_flood(bus);
	ok(fixture_stop(&fixture) == 0, "the daemon ends well");
	sd_bus_close_unref(bus);
	bus_end(&bus_daemon);
	return tap_done();
}
