/* SPDX-License-Identifier: MIT */
/*
 * faults/run - a daemon of which one call, or all from then on, is refused; and how it ended.
 *
 * With `restarts` it runs under a keeper, kills itself in the middle of its work (MOE_CRASH_PLAN), and the calls are
 * those of its successor alone: keeper and first life go unharmed, and so does a third one, when the successor has
 * ended of its fault. With `pushes` the driver is the simulated one, of which nothing is refused here.
 */
#ifndef TESTS_FAULTS_RUN_H
#define TESTS_FAULTS_RUN_H

#include <signal.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/util.h"
#include "tests/raw-client.h"
#include "tests/remove.h"

#define PATIENCE_MS 30000 /* a hang is a hang: nothing here is a measurement */
#define WHY_BYTES 512
/* The first life ends while a COMPUTE runs, a lease is out, and another request waits. */
#define CRASH_PLAN "running 3\n"

struct fault {
	const char *kind;
	int value; /* errno value, 0: the kind's own */
	uint32_t at;
	bool ever;
};

enum outcome { REFUSED_START, ENDED, REFUSED_SOME, NO_CHANGE, BAD, OUTCOMES };

struct run {
	const struct fault *fault; /* NULL: none */
	struct fixture f;
	int ready_fd;
	bool ended; /* the daemon, by itself or not: waited for */
	int status;
	bool closed;                         /* a connection was closed under the client */
	bool lost;                           /* the session of the daemon before, with its connection */
	bool refused_start, successor_ended; /* of the life that took over */
	uint32_t refused, fine;
	char why[WHY_BYTES]; /* what is wrong, "": nothing */
};
static char model_path[PATH_MAX];
static bool restarts;
static bool tiered;             /* a model with fewer frames than records */
static bool watched;            /* by a scraper and a trace; its heat lasts */
static bool pushes;             /* on the simulated driver */
static bool moves;              /* copies of hot experts, on two NUMA nodes that are none (e2e/pretend-nodes.c) */
static const char *bus_address; /* NULL: it is on no bus */
/* Of 8 records of 12 KiB: a layer's 4 experts and a token's 2. */
#define TIER_BYTES "73728"
#define REPLICA_BYTES "8388608"

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

__attribute__((format(printf, 2, 3))) static bool wrong(struct run *run, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (!run->why[0])
		vsnprintf(run->why, sizeof run->why, format, args);
	va_end(args);
	return false;
}

/* -- the daemon --------------------------------------------------------------------------------------------------- */

static void path_in(char ret[static PATH_MAX], const struct run *run, const char *name)
{
	snprintf(ret, PATH_MAX, "%s/%s", run->f.folder, name);
}

static void set_number(const char *name, uint32_t n)
{
	char text[16];

	snprintf(text, sizeof text, "%u", n);
	setenv(name, text, 1);
}

static void plan_crash(const struct run *run)
{
	char path[PATH_MAX];
	FILE *f;

	path_in(path, run, "plan");
	f = fopen(path, "we");
	if (!f || fputs(CRASH_PLAN, f) < 0 || fclose(f) != 0)
		_exit(126);
	setenv("MOE_CRASH_PLAN", path, 1);
	setenv("FAULTS_SUCCESSOR", "1", 1);
}

/* In the environment of the program that is run next. */
static void set_faults(const struct run *run)
{
	char preload[2 * PATH_MAX], path[PATH_MAX];
	const char *build = fixture_env("MOE_BUILD");

	snprintf(preload, sizeof preload, "%s/tests/faults-preload.so%s%s%s", build, moves ? ":" : "",
		 moves ? build : "", moves ? "/tests/pretend-nodes.so" : "");
	path_in(path, run, "report");
	setenv("FAULTS_REPORT", path, 1);
	setenv("LD_PRELOAD", preload, 1);
	if (!run->fault)
		return;
	setenv("FAULTS_KIND", run->fault->kind, 1);
	set_number("FAULTS_AT", run->fault->at);
	if (run->fault->value)
		set_number("FAULTS_VALUE", (uint32_t)run->fault->value);
	if (run->fault->ever)
		setenv("FAULTS_EVER", "1", 1);
}

static void become_daemon(const struct run *run, int ready_fd)
{
	const char *more = tiered        ? "--pool-max"
			   : watched     ? "--metrics"
			   : pushes      ? "--push-cuda"
			   : moves       ? "--replica-max"
			   : bus_address ? "--bus"
					 : NULL;
	const char *value = tiered ? TIER_BYTES : pushes ? "--writable-weights" : moves ? REPLICA_BYTES : bus_address;
	char metrics[PATH_MAX], program[PATH_MAX], path[PATH_MAX], fd[16];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(program, sizeof program, "%s/daemon/moe-expertd", fixture_env("MOE_BUILD"));
	snprintf(fd, sizeof fd, "%d", ready_fd);
	path_in(path, run, "words");
	dup2(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
	set_faults(run);
	if (restarts)
		plan_crash(run);
	if (watched) {
		path_in(path, run, "state");
		mkdir(path, 0700);
		setenv("STATE_DIRECTORY", path, 1);
		path_in(metrics, run, "metrics");
		value = metrics;
	}
	if (pushes) {
		snprintf(path, sizeof path, "%s/tests/cuda-sim", fixture_env("MOE_BUILD"));
		setenv("LD_LIBRARY_PATH", path, 1);
		setenv("FAULTS_SPARES", "libcuda", 1);
		setenv("CUSIM_DELAY", "0", 1);
	}
	if (moves)
		setenv("PRETEND_NODES", "2", 1);
	execl(program, program, "--socket", run->f.socket, "--ready-fd", fd, "--threads", moves ? "2" : "1", "--model",
	      model_path, "--name", "small", restarts ? "--keep" : more, restarts ? more : value,
	      restarts ? value : NULL, (char *)NULL);
	_exit(127);
}

static bool start(struct run *run)
{
	int fds[2];

	tap_tmp(run->f.folder, "moe-test-XXXXXX");
	if (!mkdtemp(run->f.folder) || pipe2(fds, O_CLOEXEC) < 0)
		return wrong(run, "no folder or pipe for a run");
	snprintf(run->f.socket, sizeof run->f.socket, "%s/socket", run->f.folder);
	fixture = run->f;
	run->f.pid = fork();
	if (run->f.pid == 0) {
		fcntl(fds[1], F_SETFD, 0);
		become_daemon(run, fds[1]);
	}
	close(fds[1]);
	run->ready_fd = fds[0];
	return true;
}

/* False: it has ended instead, or is stuck. */
static bool get_ready(struct run *run)
{
	struct pollfd p = {.fd = run->ready_fd, .events = POLLIN};
	char word[16];

	if (poll(&p, 1, PATIENCE_MS) != 1)
		return wrong(run, "neither ready nor ended after %d s", PATIENCE_MS / 1000);
	return read(run->ready_fd, word, sizeof word) == 6;
}

static bool has_ended(struct run *run, int wait_ms)
{
	const uint64_t end = now_ms() + (uint64_t)wait_ms;

	while (!run->ended) {
		run->ended = waitpid(run->f.pid, &run->status, WNOHANG) == run->f.pid;
		if (now_ms() >= end)
			break;
		if (!run->ended)
			usleep(500);
	}
	return run->ended;
}

static void copy_line(struct run *run, const char *name, const char *begin)
{
	char path[PATH_MAX], line[256];
	FILE *f;

	path_in(path, run, name);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof line, f)) {
		line[strcspn(line, "\n")] = '\0';
		if (strncmp(line, begin, strlen(begin)) == 0)
			wrong(run, "%s: %s", name, line);
	}
	if (f)
		fclose(f);
}

/* Lines with these words. */
static uint32_t says(const struct run *run, const char *words)
{
	char path[PATH_MAX], line[256];
	uint32_t n = 0;
	FILE *f;

	path_in(path, run, "words");
	f = fopen(path, "re");
	while (f && fgets(line, sizeof line, f))
		n += strstr(line, words) != NULL;
	if (f)
		fclose(f);
	return n;
}

static bool is_empty(const struct run *run, const char *name)
{
	struct stat st;
	char path[PATH_MAX];

	path_in(path, run, name);
	return stat(path, &st) < 0 || st.st_size == 0;
}

/* The first life ends by the plan; the second one may end of its fault, in its own words; the third one must live. */
static void check_lives(struct run *run)
{
	const uint32_t killed = says(run, "the daemon died by signal"),
		       died = says(run, "the daemon died by exit") + says(run, "the daemon could not start");

	if (killed != 1 || says(run, "the daemon died by signal 9") != 1)
		wrong(run, "%u daemons were killed by signals, one by its plan expected", killed);
	if (died > 1 || (died && !run->fault)) {
		copy_line(run, "words", "moe-expertd: error");
		wrong(run, "%u daemons that took over ended", died);
	}
	/* Each life that gets so far says so. */
	run->refused_start = died && says(run, ": ready: ") < 3;
	run->successor_ended = died && !run->refused_start;
	if (run->refused_start && run->lost)
		wrong(run, "a daemon that could not start took the session with it");
	if (!run->fault && says(run, "went on with 1 models and 1 sessions") != 1)
		wrong(run, "no daemon went on with the model and the session of the one before");
}

/* However it ended: by itself, with words when something was wrong, and with all given back. */
static void check_end(struct run *run, bool ready)
{
	if (!run->ended)
		kill(run->f.pid, SIGTERM);
	if (!has_ended(run, PATIENCE_MS)) {
		wrong(run, "does not end");
		kill(run->f.pid, SIGKILL);
		waitpid(run->f.pid, &run->status, 0);
		return;
	}
	if (WIFSIGNALED(run->status)) {
		wrong(run, "killed by signal %d (%s)", WTERMSIG(run->status), strsignal(WTERMSIG(run->status)));
		return;
	}
	if (WEXITSTATUS(run->status) > 1)
		wrong(run, "exit status %d", WEXITSTATUS(run->status));
	if (WEXITSTATUS(run->status) && is_empty(run, "words"))
		wrong(run, "exit status %d without a word", WEXITSTATUS(run->status));
	if (WEXITSTATUS(run->status) == 0 && !ready)
		wrong(run, "ended before it was ready, but with exit status 0");
	if (ready && restarts)
		check_lives(run);
	if (is_empty(run, "report"))
		wrong(run, "no report");
	copy_line(run, "report", "left ");
}

/* Where the call was made, for addr2line. */
static void add_callers(struct run *run)
{
	char path[PATH_MAX], line[256];
	const size_t begin = strlen(run->why);
	size_t n = begin;
	FILE *f;

	path_in(path, run, "report");
	f = n > 0 ? fopen(path, "re") : NULL;
	while (f && n < sizeof run->why && fgets(line, sizeof line, f)) {
		line[strcspn(line, "\n")] = '\0';
		if (strncmp(line, "struck ", 7) == 0)
			n += (size_t)snprintf(run->why + n, sizeof run->why - n, "%s%s",
					      n == begin ? "; refused to" : "", line + 6);
	}
	if (f)
		fclose(f);
}

/* A daemon that fails leaves the socket to the next one; there is none when the keeper is told to end just then. */
static bool left_to_the_next(const struct run *run)
{
	return restarts && (run->refused_start || run->successor_ended || WEXITSTATUS(run->status));
}

static void clean_up(struct run *run)
{
	static const char *const its_own[] = {"socket", "socket.lock"};
	char path[PATH_MAX];

	close_fd(run->ready_fd);
	for (size_t i = 0; i < sizeof its_own / sizeof *its_own; i++) {
		path_in(path, run, its_own[i]);
		if (access(path, F_OK) == 0 && !run->why[0] && !left_to_the_next(run))
			wrong(run, "%s is left", its_own[i]);
	}
	if (remove_all(run->f.folder) < 0)
		wrong(run, "%s cannot be removed", run->f.folder);
}

#endif
