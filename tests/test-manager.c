/* SPDX-License-Identifier: MIT */
/*
 * manager - what a daemon tells the service manager that started it: how loading goes, that it is ready, that it lives
 * as long as it works, that it reloads and ends; and the socket that a socket unit has made for it.
 *
 * The manager is this test: it listens at NOTIFY_SOCKET. A thread of the pool is stopped with ptrace(2), alone.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "tests/raw-client.h"

static char folder[64], text[2048];
static int notify;

static int listen_at(const char *path, int type)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const int sock = socket(AF_UNIX, type, 0);

	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	require(bind(sock, (struct sockaddr *)&address, sizeof address) == 0, "a socket at %s", path);
	if (type != SOCK_DGRAM)
		require(listen(sock, 8) == 0, "it listens");
	return sock;
}

/* -- what the daemon says ----------------------------------------------------------------------------------------- */

/* The next message, for as long as it takes. */
static void hear(void)
{
	struct pollfd p = {.fd = notify, .events = POLLIN};
	ssize_t n;

	if (poll(&p, 1, FIXTURE_READY_MS) != 1)
		require(false, "the daemon says something");
	n = recv(notify, text, sizeof text - 1, MSG_CMSG_CLOEXEC);
	text[n > 0 ? n : 0] = '\0';
}

/* The message in one line. */
static const char *heard(void)
{
	static char line[sizeof text];

	strcpy(line, text);
	for (char *p = line; (p = strchr(p, '\n')); *p = ' ')
		;
	return line;
}

/* One of the message's lines begins with this. */
static bool says(const char *field)
{
	for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
		if (strncmp(line, field, strlen(field)) == 0)
			return true;
	return false;
}

/* Until a message has this line. *ret_other: whether one before it had that other line. */
static void hear_until(const char *field, const char *other, bool *ret_other)
{
	if (other)
		*ret_other = false;
	for (;;) {
		hear();
		if (says(field))
			return;
		if (other && says(other))
			*ret_other = true;
	}
}

/* -- a thread of the pool ----------------------------------------------------------------------------------------- */

static pid_t find_thread(pid_t pid, const char *name)
{
	char path[128], comm[32];
	struct dirent *entry;
	pid_t found = 0;
	DIR *dir;

	snprintf(path, sizeof path, "/proc/%d/task", pid);
	dir = opendir(path);
	while (dir && !found && (entry = readdir(dir))) {
		FILE *f;

		snprintf(path, sizeof path, "/proc/%d/task/%.20s/comm", pid, entry->d_name);
		f = fopen(path, "r");
		if (f && fscanf(f, "%31s", comm) == 1 && strcmp(comm, name) == 0)
			found = (pid_t)atoi(entry->d_name);
		if (f)
			fclose(f);
	}
	if (dir)
		closedir(dir);
	return found;
}

static bool stop_thread(pid_t thread)
{
	int status;

	return thread && ptrace(PTRACE_SEIZE, thread, NULL, NULL) == 0 &&
	       ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) == 0 && waitpid(thread, &status, __WALL) == thread;
}

/* One token of the sample: computed by the pool. */
static pid_t start_worker(const struct fixture *f)
{
	char program[PATH_MAX];
	const pid_t pid = fork();

	if (pid)
		return pid;
	snprintf(program, sizeof program, "%s/tools/moe-worker", fixture_env("MOE_BUILD"));
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	freopen("/dev/null", "w", stdout);
	execl(program, program, "generate", "--daemon", f->socket, "--model", fixture_sample(), "--prompt", "NAME",
	      "--tokens", "1", NULL);
	_exit(127);
}

static void test_stuck(const struct fixture *f)
{
	const pid_t thread = find_thread(f->pid, "moe-pool/0.0");
	int status = -1;
	bool alive;
	pid_t worker;

	if (!stop_thread(thread)) {
		tap_skip("ptrace(2) is forbidden here: %s", strerror(errno));
		return;
	}
	worker = start_worker(f);
	hear_until("STATUS=stuck: ", NULL, NULL);
	ok(true, "the pool's only thread is stopped, and a request comes: %s", heard());
	for (int i = 0; i < 10; i++) {
		hear_until("STATUS=stuck: ", "WATCHDOG=1", &alive);
		if (alive)
			break;
	}
	ok(!alive, "from then on there is no WATCHDOG=1");
	ok(ptrace(PTRACE_DETACH, thread, NULL, NULL) == 0, "the thread goes on");
	hear_until("WATCHDOG=1", NULL, NULL);
	hear_until("STATUS=serving 1 model", NULL, NULL);
	ok(waitpid(worker, &status, 0) == worker && status == 0, "so does the request, and WATCHDOG=1 comes again");
}

/* -- a life ------------------------------------------------------------------------------------------------------- */

/* Until it is ready. A daemon that had no CPU while the sample was loaded has nothing to tell of it. */
static void hear_of_load(void)
{
	bool asks = false, whole = false;

	do {
		hear();
		asks |= says("EXTEND_TIMEOUT_USEC=") && says("STATUS=loading tinymoe: ");
		whole |= says("STATUS=loading tinymoe: 100 %");
	} while (!says("READY=1"));
	if (asks)
		ok(whole, "then it asks for time, when something has moved, and says how far it is, up to the end");
	else
		tap_skip("the load was over before the reactor looked at it");
}

static void test_life(void)
{
	const char *const options[] = {"--threads", "1", NULL};
	struct fixture f = {0};
	bool other;
	int ready;

	setenv("WATCHDOG_USEC", "500000", 1);
	ready = fixture_begin(&f, fixture_sample(), options);
	hear();
	ok(says("STATUS=loading tinymoe: preparing memory"), "first it says what it loads: %s", heard());
	hear_of_load();
	fixture_await(ready);
	ok(says("STATUS=serving 1 model with 1 CPU thread"), "then that it is ready: %s", heard());
	for (int i = 0; i < 5; i++)
		hear_until("WATCHDOG=1", "STATUS=stuck", &other);
	ok(!other, "an idle one lives");
	kill(f.pid, SIGHUP);
	hear_until("RELOADING=1", NULL, NULL);
	ok(says("MONOTONIC_USEC="), "SIGHUP: it reloads, and says when: %s", heard());
	hear_until("READY=1", NULL, NULL);
	ok(true, "and is ready again");
	test_stuck(&f);
	kill(f.pid, SIGTERM);
	hear_until("STOPPING=1", NULL, NULL);
	ok(true, "SIGTERM: it says that it ends");
	ok(fixture_stop(&f) == 0, "and does");
	unsetenv("WATCHDOG_USEC");
}

/* What the daemon before has still said. */
static void forget_heard(void)
{
	while (recv(notify, text, sizeof text - 1, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) >= 0)
		;
}

/* Somebody else is to be watched: the watchdog of a parent concerns no child. */
static void test_not_ours(void)
{
	struct fixture f = {0};
	bool other;

	setenv("WATCHDOG_USEC", "1000", 1);
	setenv("WATCHDOG_PID", "1", 1);
	forget_heard();
	fixture_start(&f, NULL, NULL);
	hear_until("READY=1", "WATCHDOG=1", &other);
	for (int i = 0; i < 20 && !other; i++) {
		kill(f.pid, SIGHUP);
		hear_until("RELOADING=1", "WATCHDOG=1", &other);
	}
	ok(!other, "a watchdog for another process is none");
	ok(fixture_stop(&f) == 0, "it ends");
	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
	while (recv(notify, text, sizeof text, MSG_DONTWAIT) >= 0)
		;
}

/* A manager that takes nothing for a while: the daemon serves meanwhile, and says that it is ready when it can. */
static void test_no_room(void)
{
	const int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	const struct moe_sqe nop = {.op = MOE_OP_NOP};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	bool ready = false, alive = false;
	struct ring r;

	snprintf(address.sun_path, sizeof address.sun_path, "%s", getenv("NOTIFY_SOCKET"));
	while (sendto(sock, "X=1", 3, 0, (struct sockaddr *)&address, sizeof address) == 3)
		;
	ok(errno == EAGAIN, "the manager's socket is full");
	setenv("FDSTORE", "0", 1); /* what comes with descriptors is waited with */
	setenv("WATCHDOG_USEC", "100000", 1);
	fixture_start(&fixture, fixture_sample(), (const char *const[]){"--threads", "1", NULL});
	ring_open_bare(&r);
	ok(ring_call(&r, &nop, NULL) == 0, "a daemon that it does not hear serves");
	ring_close(&r);
	for (int i = 0; i < 1000 && !ready; i++) {
		hear();
		ready = says("READY=1");
		alive |= says("WATCHDOG=1");
	}
	ok(ready && !alive, "READY=1 is said again until there is room for it, and before all else");
	hear_until("WATCHDOG=1", NULL, NULL);
	ok(fixture_stop(&fixture) == 0, "it ends");
	unsetenv("FDSTORE");
	unsetenv("WATCHDOG_USEC");
	close(sock);
	forget_heard();
}

/* -- a socket unit ------------------------------------------------------------------------------------------------ */

/* As a service manager starts it for a socket. */
static pid_t start_activated(const char *path, int sock)
{
	char program[PATH_MAX], pid_text[16];
	const pid_t pid = fork();

	if (pid)
		return pid;
	snprintf(program, sizeof program, "%s/daemon/moe-expertd", fixture_env("MOE_BUILD"));
	snprintf(pid_text, sizeof pid_text, "%d", getpid());
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setenv("LISTEN_PID", pid_text, 1);
	setenv("LISTEN_FDS", "1", 1);
	setenv("LISTEN_FDNAMES", "moe-expertd.socket", 1);
	dup2(sock, 3);
	execl(program, program, "--socket", path, NULL);
	_exit(127);
}

static int connect_to(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const int sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	return connect(sock, (struct sockaddr *)&address, sizeof address) == 0 ? sock : -1;
}

static int code_of(pid_t pid)
{
	int status = -1;

	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_activated(void)
{
	char path[128], moectl[PATH_MAX + 256];
	struct stat before, after;
	int sock, early, other = -1;
	pid_t pid;

	snprintf(path, sizeof path, "%s/unit", folder);
	sock = listen_at(path, SOCK_SEQPACKET);
	stat(path, &before);
	early = connect_to(path);
	for (int i = 0; i < 2; i++) {
		pid = start_activated(path, sock);
		hear_until("READY=1", NULL, NULL);
		snprintf(moectl, sizeof moectl, "%s/tools/moectl --socket %s status >/dev/null",
			 fixture_env("MOE_BUILD"), path);
		ok(system(moectl) == 0, "a daemon that was started for a socket serves it");
		kill(pid, SIGTERM);
		ok(code_of(pid) == 0, "and ends");
		ok(stat(path, &after) == 0 && before.st_ino == after.st_ino && (other = connect_to(path)) >= 0,
		   "the socket stays the manager's: who comes now waits for the next daemon");
		close(other);
		hear_until("STOPPING=1", NULL, NULL);
	}
	close(early);
	ok(code_of(start_activated("/tmp/another", sock)) == 1,
	   "a socket at another place than the settings say is refused");
	close(sock);
	unlink(path);
	sock = listen_at(path, SOCK_STREAM);
	ok(code_of(start_activated(path, sock)) == 1, "and one of another kind");
	close(sock);
	unlink(path);
}

/* -- a store with little room ------------------------------------------------------------------------------------- */

static _Atomic uint32_t stored, removed; /* descriptors, of any daemon; removed: of sessions */
static atomic_bool listening;

static void *count_stored(void *arg)
{
	while (atomic_load(&listening)) {
		struct pollfd p = {.fd = notify, .events = POLLIN};
		char message[2048];
		ssize_t n;

		if (poll(&p, 1, 10) != 1)
			continue;
		n = recv(notify, message, sizeof message - 1, MSG_CMSG_CLOEXEC); /* descriptors are closed at once */
		message[n > 0 ? n : 0] = '\0';
		atomic_fetch_add(&stored, strncmp(message, "FDSTORE=1", 9) == 0);
		atomic_fetch_add(&removed, strstr(message, "FDSTOREREMOVE=1") && strstr(message, "FDNAME=s"));
	}
	return NULL;
}

/* All that has been said is counted. */
static void settle(void)
{
	struct pollfd p = {.fd = notify, .events = POLLIN};

	while (poll(&p, 1, 0) == 1)
		usleep(1000);
	usleep(20000);
}

struct seen {
	uint32_t at_start, by_attach, by_arena; /* stored */
	uint32_t removed;
	bool served;
};

/* A life with so much room: a session comes, and registers an arena. */
static struct seen see_life(uint32_t room)
{
	const int data = memfd_new("data", DATA_BYTES, NULL);
	const struct moe_sqe nop = {.op = MOE_OP_NOP};
	struct seen seen;
	struct ring r;
	char number[16];

	snprintf(number, sizeof number, "%u", room);
	setenv("FDSTORE", number, 1);
	settle(); /* of what the life before has said */
	atomic_store(&stored, 0);
	atomic_store(&removed, 0);
	fixture_start(&fixture, fixture_sample(), (const char *const[]){"--threads", "1", NULL});
	settle();
	seen.at_start = atomic_load(&stored);
	ring_open_bare(&r);
	settle();
	seen.by_attach = atomic_load(&stored) - seen.at_start;
	require(arena(r.sock, data, DATA_BYTES, MOE_ARENA_DATA) == (MOE_MSG_ARENA | MOE_MSG_REPLY), "an arena");
	settle();
	seen.by_arena = atomic_load(&stored) - seen.at_start - seen.by_attach;
	seen.removed = atomic_load(&removed);
	seen.served = ring_call(&r, &nop, NULL) == 0;
	ring_close(&r);
	close(data);
	require(fixture_stop(&fixture) == 0, "it ends");
	unsetenv("FDSTORE");
	return seen;
}

/* A session of which not all is kept is not kept at all, and goes on until this daemon ends. */
static void test_little_room(void)
{
	struct seen wide, arena_out, attach_out;
	pthread_t thread;

	atomic_store(&listening, true);
	require(pthread_create(&thread, NULL, count_stored, NULL) == 0, "a thread that listens");
	wide = see_life(4096);
	ok(wide.by_attach == 5 && wide.by_arena == 1 && wide.removed == 0 && wide.served,
	   "with room a session is stored, with its arena (%u, %u and %u)", wide.at_start, wide.by_attach,
	   wide.by_arena);
	arena_out = see_life(wide.at_start + wide.by_attach);
	ok(arena_out.by_attach == 5 && arena_out.by_arena == 0 && arena_out.removed == 5,
	   "without room for its arena it is taken out again (%u)", arena_out.removed);
	ok(arena_out.served, "and is served");
	attach_out = see_life(wide.at_start + wide.by_attach - 1);
	ok(attach_out.by_attach == 4 && attach_out.by_arena == 0 && attach_out.removed == 4,
	   "without room for all of it as well (%u), and its arena is not stored (%u)", attach_out.removed,
	   attach_out.by_arena);
	ok(attach_out.served, "and is served");
	atomic_store(&listening, false);
	pthread_join(thread, NULL);
}

int main(void)
{
	char path[128];

	tap_tmp(folder, "moe-manager-XXXXXX");
	require(mkdtemp(folder), "a folder");
	snprintf(path, sizeof path, "%s/notify", folder);
	notify = listen_at(path, SOCK_DGRAM);
	fcntl(notify, F_SETFD, FD_CLOEXEC);
	setenv("NOTIFY_SOCKET", path, 1);
	setenv("MOE_EXPERTD_CONFIG", "/dev/null", 1);
	test_life();
	test_not_ours();
	test_no_room();
	test_activated();
	test_little_room();
	unlink(path);
	snprintf(text, sizeof text, "rm -r %s", folder);
	return system(text) == 0 ? tap_done() : 1;
}
