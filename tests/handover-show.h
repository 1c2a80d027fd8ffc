/* SPDX-License-Identifier: MIT */
/*
 * handover-show - a keeper, or a service manager, with a puppet (handover-puppet.h) for a daemon, and the hands that
 * move it.
 */
#ifndef TESTS_HANDOVER_SHOW_H
#define TESTS_HANDOVER_SHOW_H

#include <fcntl.h>
#include <limits.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/keeper.h"
#include "tests/handover-puppet.h"
#include "tests/leaks.h"
#include "tests/tap.h"

#define ANSWER_MS 60000 /* nothing takes so long: what has not answered then hangs */

/* -- the hands ---------------------------------------------------------------------------------------------------- */

static uint32_t watchdog_ms; /* of the keepers to come */

struct show {
	pid_t keeper, child;
	int to, from; /* the child's standard input and output */
	int log, ready;
	char socket[64]; /* NOTIFY_SOCKET */
	char greeting[1024];
	char program[PATH_MAX]; /* a link to this test, which can be put elsewhere */
};

static char folder[64], self[PATH_MAX];
static bool under_systemd;

static void be_keeper(const struct show *s, const int *to, const int *from, uint32_t fds_max, int ready)
{
	char word[] = "puppet", *argv[] = {word, word, NULL};
	const struct keeper_params params = {.program = s->program,
					     .argv = argv,
					     .fds_max = fds_max,
					     .stop_ms = 200,
					     .watchdog_ms = watchdog_ms,
					     .ready_fd = ready};
	int code = 99;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(to[0], STDIN_FILENO);
	dup2(from[1], STDOUT_FILENO);
	dup2(s->log, STDERR_FILENO);
	log_open("keeper", LOG_LEVEL_DEBUG);
	close(to[0]); /* the child must be the only one that can read and write */
	close(to[1]);
	close(from[0]);
	close(from[1]);
	setenv("PUPPET", "first", 1);
	exit(keeper_run(&params, &code, NULL) < 0 ? 98 : code); /* with LeakSanitizer's look at it */
}

static void write_unit(uint32_t fds_max)
{
	char path[128];
	FILE *out;

	snprintf(path, sizeof path, "%s/puppet.service", folder);
	out = fopen(path, "we");
	fprintf(out,
		"[Unit]\nDefaultDependencies=no\nStartLimitIntervalSec=0\n"
		"[Service]\nExecStart=%s puppet\nStandardInput=file:%s/to\nStandardOutput=file:%s/from\n"
		"StandardError=null\n"
		"NotifyAccess=main\nFileDescriptorStoreMax=%u\nEnvironment=FDSTORE=%u PUPPET=first\n"
		"LimitNOFILE=8192\nRestart=always\nRestartSec=0\n",
		self, folder, folder, fds_max, fds_max);
	fclose(out);
}

/* A service manager whose only unit is the puppet. */
static void be_systemd(const struct show *s)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(s->log, STDERR_FILENO);
	setenv("SYSTEMD_UNIT_PATH", folder, 1);
	setenv("XDG_RUNTIME_DIR", folder, 1);
	execl("/lib/systemd/systemd", "systemd", "--user", "--unit=puppet.service", "--log-target=console", NULL);
	_exit(97);
}

static int open_fifo(const char *name)
{
	char path[128];

	snprintf(path, sizeof path, "%s/%s", folder, name);
	unlink(path);
	return mkfifo(path, 0600) < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
}

static void begin_systemd(struct show *s, uint32_t fds_max)
{
	*s = (struct show){.log = memfd_open("log", 0), .ready = -1, .to = open_fifo("to"), .from = open_fifo("from")};
	require(s->to >= 0 && s->from >= 0, "pipes with names");
	write_unit(fds_max);
	s->keeper = fork();
	if (s->keeper == 0)
		be_systemd(s);
}

/* One line, without its end; false: the other side is gone. */
static bool read_line(int fd, char *ret, size_t size)
{
	struct pollfd pollfd = {.fd = fd, .events = POLLIN};
	size_t n = 0;

	while (n + 1 < size) {
		if (poll(&pollfd, 1, ANSWER_MS) <= 0)
			require(false, "an answer in time");
		if (read(fd, ret + n, 1) != 1)
			return false;
		if (ret[n] == '\n')
			break;
		n++;
	}
	ret[n] = '\0';
	return true;
}

/* Waits for the next child's first words: "PID SOCKET KEEPS WORD NAMES... COUNT". */
static bool meet(struct show *s)
{
	char line[1024];
	int used = 0;

	if (!read_line(s->from, line, sizeof line))
		return false;
	sscanf(line, "%d %63s %n", &s->child, s->socket, &used);
	snprintf(s->greeting, sizeof s->greeting, "%s", line + used);
	return used > 0;
}

static void begin(struct show *s, uint32_t fds_max)
{
	int to[2], from[2], ready[2];

	if (under_systemd) {
		begin_systemd(s, fds_max);
		return;
	}
	*s = (struct show){.log = memfd_open("log", 0)};
	fcntl(s->log, F_SETFL, O_APPEND);
	snprintf(s->program, sizeof s->program, "%s/program", folder);
	unlink(s->program);
	if (symlink(self, s->program) < 0 || pipe2(to, O_CLOEXEC) < 0 || pipe2(from, O_CLOEXEC) < 0 || pipe(ready) < 0)
		require(false, "a link and pipes: %s", strerror(errno));
	s->keeper = fork();
	if (s->keeper == 0)
		be_keeper(s, to, from, fds_max, ready[1]);
	s->to = to[1];
	s->from = from[0];
	s->ready = ready[0];
	close(to[0]);
	close(from[1]);
	close(ready[1]);
	fcntl(s->ready, F_SETFD, FD_CLOEXEC);
}

static void begin_and_meet(struct show *s, uint32_t fds_max)
{
	begin(s, fds_max);
	require(meet(s), "a daemon under a keeper");
}

/* The exit code of the keeper, 128 and more for a signal. */
static int ended(struct show *s)
{
	int status;

	waitpid(s->keeper, &status, 0);
	close_fd(s->to);
	close_fd(s->from);
	close_fd(s->log);
	close_fd(s->ready);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* A service manager that is told to leave by a signal does so at once, and leaves its services. */
static int finish(struct show *s)
{
	kill(s->keeper, under_systemd ? SIGRTMIN + 24 : SIGTERM);
	if (under_systemd)
		kill(s->child, SIGKILL);
	return ended(s);
}

/* The child obeys and answers this. */
static void told(struct show *s, const char *command, const char *answer)
{
	char line[1024] = "";

	if (dprintf(s->to, "%s\n", command) < 0 || !read_line(s->from, line, sizeof line))
		snprintf(line, sizeof line, "(it is gone)");
	if (!ok(strcmp(line, answer) == 0, "%.60s: %s", command, answer))
		diag("it says %s", line);
}

/* The order of names is the keeper's affair. */
static bool same_words(const char *a, const char *b)
{
	char text[1024], *rest = NULL;

	snprintf(text, sizeof text, "%s", a);
	for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
		const char *at = strstr(b, word);
		const size_t n = strlen(word);

		while (at && !((at == b || at[-1] == ' ') && (at[n] == ' ' || !at[n])))
			at = strstr(at + 1, word);
		if (!at)
			return false;
	}
	return strlen(a) == strlen(b);
}

static void greeted(const struct show *s, const char *words)
{
	if (!ok(same_words(s->greeting, words), "it finds %.60s", words))
		diag("it finds %s", s->greeting);
}

/* The child dies as it does in an accident; the next one is there. */
static void kill_child(struct show *s)
{
	kill(s->child, SIGKILL);
	require(meet(s), "killed, and there again");
}

static bool log_has(const struct show *s, const char *words)
{
	static char text[65536];
	const ssize_t n = pread(s->log, text, sizeof text - 1, 0);

	text[MAX(n, 0)] = '\0';
	return strstr(text, words) != NULL;
}

/* systemd closes in the background. */
static bool comes_to_hold(pid_t pid, int fds)
{
	const uint64_t end = now_ns() + ANSWER_MS * 1000000ull;

	while (leaks_fds(pid) != fds) {
		if (now_ns() > end) {
			diag("it holds %d, not %d", leaks_fds(pid), fds);
			return false;
		}
		usleep(20000);
	}
	return true;
}

static int listen_at(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	if (bind(sock, (struct sockaddr *)&address, sizeof address) < 0 || listen(sock, 8) < 0)
		require(false, "%s: %s", path, strerror(errno));
	return sock;
}

#endif
