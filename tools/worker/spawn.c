/* SPDX-License-Identifier: MIT */
#include "tools/worker/spawn.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "tools/worker/run.h"

#define DAEMON_NAME "moe-expertd"
#define SOCKET_PATH_MAX 107     /* sun_path without its NUL */
#define END_NS 2000000000ull    /* a daemon that is asked to end has this long */
#define DEAD_NS 100000000ull    /* and one that may have died has this long to be collected */
#define LOG_TAIL 2048           /* bytes of its log that are looked at when it fails */
#define READY_FD 3              /* in the daemon */
#define EXIT_CANNOT_RUN_HERE 77 /* of the daemon */
#define EXIT_NOT_STARTED 127    /* execvp failed */

struct spawn {
	pid_t pid;     /* 0: none, or collected */
	bool disowned; /* this process is not the one that started it */
	int status;    /* once collected */
	int input;     /* the write end of its standard input */
	int ready;     /* the read end of its READY pipe */
	bool shown;    /* its messages go to our stderr */
	int log;       /* a memory file: its messages */
	char *dir, *socket;
};

static void cleanup_spawn(struct spawn **spawn)
{
	spawn_free(*spawn);
}

/* The daemon's path: beside this program, else what PATH finds; NULL when there is no memory. The kernel hands each
 * program the path that it was started by, so this works without /proc. */
static char *find_daemon(void)
{
	const char *started = (const char *)(uintptr_t)getauxval(AT_EXECFN);
	_cleanup_free_ char *self = started ? realpath(started, NULL) : NULL;
	char *path, *slash = self ? strrchr(self, '/') : NULL;

	if (slash) {
		*slash = '\0';
		if (asprintf(&path, "%s/../daemon/" DAEMON_NAME, self) < 0)
			return NULL;
		if (access(path, X_OK) == 0)
			return path;
		free(path);
	}
	return strdup(DAEMON_NAME);
}

static int make_dir(struct spawn *s, struct moe_error *err)
{
	const char *base = getenv("TMPDIR");
	char *dir;

	if (!base || base[0] != '/')
		base = "/tmp";
	if (asprintf(&dir, "%s/moe-worker-XXXXXX", base) < 0)
		return moe_error_set(err, -ENOMEM, "no memory to start " DAEMON_NAME);
	if (!mkdtemp(dir)) {
		const int code = -errno;

		free(dir);
		return moe_error_sys(err, code, "cannot make a folder in %s; set TMPDIR to one where files may be made",
				     base);
	}
	s->dir = dir;
	if (asprintf(&s->socket, "%s/socket", dir) < 0) {
		s->socket = NULL;
		return moe_error_set(err, -ENOMEM, "no memory to start " DAEMON_NAME);
	}
	if (strlen(s->socket) > SOCKET_PATH_MAX)
		return moe_error_set(err, -ENAMETOOLONG,
				     "%s: found %zu bytes, a socket's path has at most %d; set TMPDIR", s->socket,
				     strlen(s->socket), SOCKET_PATH_MAX);
	return 0;
}

/* In the child: never returns. */
static void become_daemon(const struct spawn *s, const struct options *o, const char *path, int input, int ready)
{
	char ready_text[16], threads[16];
	const char *argv[24];
	int n = 0;

	setpgid(0, 0); /* the terminal's interrupt is for the worker, which then ends its daemon */
	snprintf(ready_text, sizeof(ready_text), "%d", READY_FD);
	snprintf(threads, sizeof(threads), "%u", o->threads);
	argv[n++] = path;
	argv[n++] = "--socket";
	argv[n++] = s->socket;
	argv[n++] = "--model";
	argv[n++] = options_experts(o);
	argv[n++] = "--name";
	argv[n++] = "private"; /* the folder's own may be no model name */
	argv[n++] = "--private";
	argv[n++] = "--ready-fd";
	argv[n++] = ready_text;
	if (o->threads) {
		argv[n++] = "--threads";
		argv[n++] = threads;
	}
	if (o->pages) {
		argv[n++] = "--pages";
		argv[n++] = o->pages;
	}
	if (o->isa) {
		argv[n++] = "--isa";
		argv[n++] = o->isa;
	}
	if (!options_on_host(o))
		argv[n++] = "--writable-weights";
	if (o->verbose)
		argv[n++] = "-v";
	argv[n] = NULL;
	if (!s->shown)
		dup2(s->log, STDERR_FILENO);
	/* Standard output is the worker's text: whatever the daemon may say belongs to its messages. */
	dup2(STDERR_FILENO, STDOUT_FILENO);
	/* First out of each other's way, then into place; dup2 leaves the copies open across exec. */
	ready = fcntl(ready, F_DUPFD_CLOEXEC, READY_FD + 1);
	if (ready >= 0 && dup2(input, STDIN_FILENO) >= 0 && dup2(ready, READY_FD) >= 0)
		execvp(path, (char *const *)(uintptr_t)argv);
	fprintf(stderr, "%s: %s\n", path, strerror(errno));
	_exit(EXIT_NOT_STARTED);
}

int spawn_new(struct spawn **ret, const struct options *options, struct moe_error *err)
{
	_cleanup_(cleanup_spawn) struct spawn *s = calloc(1, sizeof(*s));
	_cleanup_free_ char *path = find_daemon();
	int input[2], ready[2], r;

	if (!s || !path)
		return moe_error_set(err, -ENOMEM, "no memory to start " DAEMON_NAME);
	s->input = s->ready = -1;
	s->log = memfd_create("moe-expertd log", MFD_CLOEXEC);
	s->shown = options->verbose;
	if (s->log < 0)
		return moe_error_sys(err, -errno, "cannot make a memory file for the messages of " DAEMON_NAME);
	r = make_dir(s, err);
	if (r < 0)
		return r;
	if (pipe2(input, O_CLOEXEC) < 0)
		return moe_error_sys(err, -errno, "cannot make a pipe");
	s->input = input[1];
	if (pipe2(ready, O_CLOEXEC) < 0) {
		r = -errno;
		close_fd(input[0]);
		return moe_error_sys(err, r, "cannot make a pipe");
	}
	s->ready = ready[0];
	fflush(NULL);
	s->pid = fork();
	if (s->pid == 0)
		become_daemon(s, options, path, input[0], ready[1]);
	r = s->pid < 0 ? -errno : 0;
	close_fd(input[0]);
	close_fd(ready[1]);
	if (r < 0) {
		s->pid = 0;
		return moe_error_sys(err, r, "cannot start %s", path);
	}
	*ret = steal_ptr(s);
	return 0;
}

/* Collects the daemon if it has ended, or ends within `ns`. */
static bool collect(struct spawn *s, uint64_t ns)
{
	const uint64_t until = now_ns() + ns;

	while (s->pid > 0) {
		const pid_t pid = waitpid(s->pid, &s->status, WNOHANG);

		if (pid == s->pid || (pid < 0 && errno == ECHILD))
			s->pid = 0;
		else if (now_ns() >= until)
			return false;
		else
			usleep(2000);
	}
	return true;
}

/* The last lines of its log; "" when there are none. */
static void read_tail(const struct spawn *s, char *text, size_t size)
{
	const off_t bytes = s->shown ? 0 : lseek(s->log, 0, SEEK_END);
	ssize_t n;

	n = pread(s->log, text, size - 1, MAX(bytes - (off_t)size + 1, 0));
	while (n > 0 && text[n - 1] == '\n')
		n--;
	n = MAX(n, 0);
	text[n] = '\0';
}

static void describe_end(const struct spawn *s, char *text, size_t size)
{
	if (WIFSIGNALED(s->status))
		snprintf(text, size, "was killed by signal %d", WTERMSIG(s->status));
	else
		snprintf(text, size, "ended with exit code %d", WEXITSTATUS(s->status));
}

bool spawn_dead(struct spawn *s)
{
	char tail[LOG_TAIL], end[48];

	if (!s || s->disowned || !collect(s, DEAD_NS))
		return false;
	describe_end(s, end, sizeof(end));
	read_tail(s, tail, sizeof(tail));
	fprintf(stderr, "moe-worker: the private " DAEMON_NAME " %s%s%s\n", end, tail[0] ? "; its last lines:\n" : "",
		tail);
	return true;
}

/* The daemon closed its pipe without READY: says why as well as can be known. */
static int not_ready(struct spawn *s, struct moe_error *err)
{
	char tail[LOG_TAIL], end[48] = "does not answer", *line;

	if (collect(s, END_NS))
		describe_end(s, end, sizeof(end));
	read_tail(s, tail, sizeof(tail));
	line = strrchr(tail, '\n');
	if (line) { /* all but the last line go to stderr, the last into the error */
		*line++ = '\0';
		fprintf(stderr, "%s\n", tail);
	} else {
		line = tail;
	}
	return moe_error_set(err,
			     s->pid == 0 && WIFEXITED(s->status) && WEXITSTATUS(s->status) == EXIT_CANNOT_RUN_HERE
				     ? -ENOSYS
				     : -ECHILD,
			     "the private " DAEMON_NAME " %s%s%.300s", end, line[0] ? ": " : "", line);
}

int spawn_wait(struct spawn *s, struct moe_error *err)
{
	char text[16] = "";
	size_t n = 0;

	while (!strchr(text, '\n')) {
		struct pollfd poll_ready = {.fd = s->ready, .events = POLLIN};
		ssize_t got;

		if (run_interrupted())
			return moe_error_set(err, -EINTR, "interrupted");
		if (poll(&poll_ready, 1, 200) <= 0)
			continue;
		got = read(s->ready, text + n, sizeof(text) - 1 - n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return not_ready(s, err);
		n += (size_t)got;
		text[n] = '\0';
	}
	if (strcmp(text, "READY\n") != 0)
		return moe_error_set(err, -EPROTO, "the private " DAEMON_NAME " said '%.8s', expected READY", text);
	return 0;
}

const char *spawn_socket(const struct spawn *s)
{
	return s->socket;
}

void spawn_disown(struct spawn *s)
{
	if (!s)
		return;
	s->input = close_fd(s->input);
	s->ready = close_fd(s->ready);
	s->disowned = true;
}

/* With whatever a daemon that was killed has left in it. */
static void remove_dir(const char *path)
{
	DIR *dir = opendir(path);
	const struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
	rmdir(path);
}

struct spawn *spawn_free(struct spawn *s)
{
	if (!s)
		return NULL;
	close_fd(s->input);
	close_fd(s->ready);
	close_fd(s->log);
	if (!s->disowned) {
		if (s->pid > 0)
			kill(s->pid, SIGTERM);
		if (!collect(s, END_NS)) {
			kill(s->pid, SIGKILL);
			waitpid(s->pid, &s->status, 0);
		}
		if (s->dir)
			remove_dir(s->dir);
	}
	free(s->socket);
	free(s->dir);
	free(s);
	return NULL;
}
