/* SPDX-License-Identifier: MIT */
/*
 * io_uring: what is there agrees with what the daemon uses; and where it is forbidden, by a filter or by the system's
 * settings, the daemon and moectl doctor say by whom and how to allow it. And a ring for a device's commands is not had
 * where they do not come to the device.
 */
#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/cmdring.h"
#include "base/uring.h"
#include "tests/fixture.h"
#include "tests/forbid.h"
#include "tests/remove.h"

#define TEXT 8192

/* Runs a program of the build with io_uring forbidden by `code` (0: allowed): its exit status, what it printed. */
static int run(int code, const char *const *argv, char *text)
{
	char program[PATH_MAX];
	int out[2], status = -1;
	size_t n = 0;
	ssize_t got;
	pid_t pid;

	snprintf(program, sizeof program, "%s/%s", fixture_env("MOE_BUILD"), argv[0]);
	require(pipe(out) == 0, "a pipe");
	pid = fork();
	if (pid == 0) {
		dup2(out[1], STDOUT_FILENO);
		dup2(out[1], STDERR_FILENO);
		close(out[0]);
		if (code && !forbid_call(SYS_io_uring_setup, code))
			_exit(126);
		execv(program, (char **)argv);
		_exit(127);
	}
	close(out[1]);
	while (n < TEXT - 1 && (got = read(out[0], text + n, TEXT - 1 - n)) > 0)
		n += (size_t)got;
	text[n] = '\0';
	close(out[0]);
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 200 + WTERMSIG(status);
}

static bool has(const char *text, const char *const *words)
{
	for (; *words; words++)
		if (!strstr(text, *words)) {
			diag("'%s' is not in: %s", *words, text);
			return false;
		}
	return true;
}

static void test_forbidden(void)
{
	char socket[TAP_TMP];
	const char *const daemon[] = {"daemon/moe-expertd", "--socket", socket, NULL};
	const char *const doctor[] = {"tools/moectl", "--socket", socket, "doctor", NULL};
	char text[TEXT];
	int r;

	tap_tmp(socket, "moe-test-uring-socket");
	r = run(EPERM, daemon, text);

	if (r == 126) {
		tap_skip("no seccomp filters here: what is said of them was not tested");
		return;
	}
	ok(r == 77 && has(text, (const char *const[]){"seccomp filter", "--security-opt seccomp=", "io_uring_register",
						      "SystemCallFilter=@aio", NULL}),
	   "the daemon names the filter, and what changes it for containers and units (%d)", r);
	ok(access(socket, F_OK) < 0, "and leaves no socket");
	r = run(ENOSYS, daemon, text);
	ok(r == 77 && has(text, (const char *const[]){"ENOSYS", "CONFIG_IO_URING", NULL}),
	   "a kernel without it, or so it seems, is told from that (%d)", r);
	r = run(EPERM, doctor, text);
	ok(r == 1 && has(text,
			 (const char *const[]){"problem  io_uring", "seccomp filter", "--security-opt seccomp=", NULL}),
	   "doctor says the same (%d)", r);
	r = run(0, doctor, text);
	ok(has(text, (const char *const[]){"ok       io_uring", "poll_add", NULL}), "and what is there, where it is");
}

/* -- the system's settings, in a made-up root --------------------------------------------------------------------- */

static bool write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");
	const bool good = file && fputs(text, file) >= 0;

	return file && fclose(file) == 0 && good;
}

static const char *root_disabled, *root_group, *root_status;
static char root[TAP_TMP];

static int in_root(void)
{
	char found[192];

	if (chdir(root) < 0 || (chroot(".") < 0 && (unshare(CLONE_NEWUSER) < 0 || chroot(".") < 0)))
		return 77;
	mkdir("/proc", 0700);
	mkdir("/proc/sys", 0700);
	mkdir("/proc/sys/kernel", 0700);
	mkdir("/proc/self", 0700);
	if ((root_disabled && !write_file("/proc/sys/kernel/io_uring_disabled", root_disabled)) ||
	    !write_file("/proc/sys/kernel/io_uring_group", root_group) || !write_file("/proc/self/status", root_status))
		return 78;
	return (int)uring_cause(-EPERM, found, sizeof found);
}

static void check_cause(const char *disabled, const char *group, const char *status, enum uring_cause cause,
			const char *what)
{
	int result;
	pid_t pid;

	root_disabled = disabled;
	root_group = group;
	root_status = status;
	require(mkdtemp(tap_tmp(root, "moe-test-XXXXXX")) != NULL, "a folder");
	pid = fork();
	if (pid == 0)
		_exit(in_root());
	require(pid > 0 && waitpid(pid, &result, 0) == pid && WIFEXITED(result), "a child");
	require(remove_all(root) == 0, "it goes");
	if (WEXITSTATUS(result) == 77)
		tap_skip("%s: no root of its own can be had", what);
	else
		ok(WEXITSTATUS(result) == (int)cause && *uring_fix(cause), "%s (%d)", what, WEXITSTATUS(result));
}

static void test_causes(void)
{
	static const char plain[] = "Name:\tx\nCapEff:\t0000000000000000\nSeccomp:\t0\n";
	static const char admin[] = "Name:\tx\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n";
	static const char filtered[] = "Name:\tx\nCapEff:\t0000000000000000\nSeccomp:\t2\n";
	char group[32];

	snprintf(group, sizeof group, "%u\n", getegid());
	check_cause("2\n", "-1\n", filtered, URING_CAUSE_SYSCTL,
		    "2: the setting forbids it, whatever filters there are");
	check_cause("1\n", "-1\n", plain, URING_CAUSE_GROUP, "1: for a group that is not set");
	check_cause("1\n", "4294967\n", filtered, URING_CAUSE_GROUP, "1: for a group that is not ours");
	check_cause("1\n", group, filtered, URING_CAUSE_SECCOMP, "1, and the group is ours: a filter, then");
	check_cause("1\n", "-1\n", admin, URING_CAUSE_MODULE, "1, and CAP_SYS_ADMIN: a security module, then");
	check_cause("0\n", "-1\n", plain, URING_CAUSE_MODULE, "0 and no filter: a security module");
	check_cause(NULL, "-1\n", filtered, URING_CAUSE_SECCOMP, "before there was a setting: the filter");
}

/* -- what is there ------------------------------------------------------------------------------------------------ */

/* Which list of the status a feature is in: 'u', 'a' or 'm', 0 for none or several. */
static char list_of(const char *text, const char *feature)
{
	char quoted[64], list = 0;
	const char *at = text;
	int n = 0;

	snprintf(quoted, sizeof quoted, "\"%s\"", feature);
	while ((at = strstr(at, quoted))) {
		const char *begin = at++;

		while (begin > text && *begin != '[')
			begin--;
		while (begin > text && (*begin == '[' || *begin == ' ' || *begin == ':' || *begin == '"'))
			begin--;
		while (begin > text && *begin != '"')
			begin--;
		list = begin[1];
		n++;
	}
	return n == 1 ? list : 0;
}

static void test_status(void)
{
	const int64_t there = uring_probe();
	static struct fixture fixture;
	const char *argv[] = {"tools/moectl", "--socket", fixture.socket, "status", "--json", NULL};
	char text[TEXT];
	int wrong = 0, used = 0;

	fixture_start(&fixture, NULL, NULL);
	require(run(0, argv, text) == 0 && strstr(text, "\"io_uring\""), "moectl status has io_uring");
	for (int i = 0; i < URING_FEATURES; i++) {
		const char list = list_of(strstr(text, "\"io_uring\""), uring_facts[i].name);

		used += list == 'u';
		if (list == (there >> i & 1 ? 'm' : 'a') || (list == 'u' && !(there >> i & 1)) || !list) {
			diag("%s: in list '%c', found %d", uring_facts[i].name, list ? list : '-',
			     (int)(there >> i & 1));
			wrong++;
		}
	}
	ok(wrong == 0 && used >= 2, "each feature is used, available or missing, as it is found here");
	ok(list_of(strstr(text, "\"io_uring\""), "poll_add") == 'u', "polls are used");
	ok(!(there >> URING_DEFER_TASKRUN & 1) || list_of(strstr(text, "\"io_uring\""), "defer_taskrun") == 'u',
	   "deferred completions are used where they are there");
	ok(!(there >> URING_ACCEPT_MULTISHOT & 1) || list_of(strstr(text, "\"io_uring\""), "accept_multishot") == 'u',
	   "the kernel takes connections in where it can");
	ok(fixture_stop(&fixture) == 0, "the daemon ends");
	setenv("MOE_ACCEPT", "one-shot", 1);
	fixture_start(&fixture, NULL, NULL);
	require(run(0, argv, text) == 0, "moectl status of a daemon that takes them in one a turn");
	ok(list_of(strstr(text, "\"io_uring\""), "accept_multishot") ==
		   (there >> URING_ACCEPT_MULTISHOT & 1 ? 'a' : 'm'),
	   "which it says");
	unsetenv("MOE_ACCEPT");
	ok(fixture_stop(&fixture) == 0, "the daemon ends");
}

/* -- commands of a device ----------------------------------------------------------------------------------------- */

static const char *commands_of;

/* How a ring for its commands is refused: 0, it is not; 255, there is a ring all the same. */
static int open_ring(void)
{
	struct cmdring ring;
	const int device = commands_of ? open(commands_of, O_RDWR | O_CLOEXEC) : -1;
	const int r = cmdring_open(&ring, device, 8, false);

	return r < 0 && ring.fd >= 0 ? 255 : -r;
}

static int open_ring_without_enter(void)
{
	return forbid_call(SYS_io_uring_enter, EPERM) ? open_ring() : 126;
}

static int in_child(int (*what)(void))
{
	int status = -1;
	const pid_t pid = fork();

	if (pid == 0)
		_exit(what());
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 200 + WTERMSIG(status);
}

static void test_commands(void)
{
	int r;

	r = in_child(open_ring);
	if (r == EINVAL) {
		tap_skip("no rings with SQE128 here: the device's answer was not tested");
		return;
	}
	ok(r == EBADF, "a command that the kernel refuses: no ring (%d)", r);
	commands_of = "/dev/zero";
	r = in_child(open_ring);
	ok(r == EOPNOTSUPP, "a device without commands: no ring (%d)", r);
	commands_of = "/dev/null"; /* which takes every command */
	r = in_child(open_ring);
	ok(r == EOPNOTSUPP, "nor for one that does not know what it knows (%d)", r);
	r = in_child(open_ring_without_enter);
	ok(r == EPERM || r == 126, "nor where rings are made and commands are forbidden (%d)", r);
}

int main(void)
{
	if (uring_probe() < 0) {
		tap_skip("io_uring is not permitted here");
		return tap_done();
	}
	test_forbidden();
	test_causes();
	test_status();
	test_commands();
	return tap_done();
}
