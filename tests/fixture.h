/* SPDX-License-Identifier: MIT */
/*
 * fixture - a real moe-expertd for tests: started from the build folder on a socket of its own, ready, and gone at the
 * end, with its folder, however the test ends but by a signal.
 *
 * Paths come from the environment that the build gives to tests: MOE_BUILD (the build folder) and MOE_SOURCE (the
 * tree).
 */
#ifndef TESTS_FIXTURE_H
#define TESTS_FIXTURE_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/remove.h"
#include "tests/tap.h"

#define FIXTURE_READY_MS 120000

struct fixture {
	pid_t pid;
	char folder[64], socket[96];
	bool made; /* its folder, before it is started */
};

static char fixture_left[64]; /* the folder of the last one */
static pid_t fixture_owner;

static const char *fixture_env(const char *name)
{
	const char *value = getenv(name);

	if (!value) {
		fprintf(stderr, "%s is not set: run this test by ./check or meson test\n", name);
		exit(2);
	}
	return value;
}

__attribute__((unused)) static const char *fixture_sample(void)
{
	static char path[PATH_MAX];

	snprintf(path, sizeof path, "%s/models/tinymoe", fixture_env("MOE_SOURCE"));
	return path;
}

static void fixture_clean(void)
{
	if (fixture_left[0] && fixture_owner == getpid())
		remove_all(fixture_left);
}

/* Where a test has files that the daemon is told of before it starts. */
static void fixture_make_folder(struct fixture *f)
{
	tap_tmp(f->folder, "moe-test-XXXXXX");
	if (!mkdtemp(f->folder))
		exit(2);
	if (!fixture_owner)
		atexit(fixture_clean);
	fixture_owner = getpid();
	snprintf(fixture_left, sizeof fixture_left, "%s", f->folder);
	f->made = true;
}

/* A daemon begins to start; returns where it says that it is ready (fixture_await). `more`: further options,
 * NULL-terminated, may be NULL. */
__attribute__((unused)) static int fixture_begin(struct fixture *f, const char *model, const char *const *more)
{
	char program[PATH_MAX], fd[16];
	const char *argv[32] = {program, "--socket", f->socket, "--ready-fd", fd};
	int pipe_fds[2], n = 5;

	if (!f->made)
		fixture_make_folder(f);
	f->made = false;
	snprintf(program, sizeof program, "%s/daemon/moe-expertd", fixture_env("MOE_BUILD"));
	if (pipe(pipe_fds) < 0)
		exit(2);
	snprintf(f->socket, sizeof f->socket, "%s/socket", f->folder);
	snprintf(fd, sizeof fd, "%d", pipe_fds[1]);
	if (model) {
		argv[n++] = "--model";
		argv[n++] = model;
	}
	for (; more && *more; more++)
		argv[n++] = *more;
	f->pid = fork();
	if (f->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that crashes leaves no daemon behind */
		close(pipe_fds[0]);
		execv(program, (char **)argv);
		_exit(127);
	}
	close(pipe_fds[1]);
	return pipe_fds[0];
}

/* Ends the test when the daemon does not get ready. */
__attribute__((unused)) static void fixture_await(int ready_fd)
{
	struct pollfd p = {.fd = ready_fd, .events = POLLIN};
	char answer[16] = "";

	require(poll(&p, 1, FIXTURE_READY_MS) == 1 && read(ready_fd, answer, sizeof answer - 1) == 6 &&
			strcmp(answer, "READY\n") == 0,
		"the daemon is ready");
	close(ready_fd);
}

__attribute__((unused)) static void fixture_start(struct fixture *f, const char *model, const char *const *more)
{
	fixture_await(fixture_begin(f, model, more));
}

/* Exit status of the daemon after SIGTERM. */
__attribute__((unused)) static int fixture_stop(struct fixture *f)
{
	int status = -1;

	kill(f->pid, SIGTERM);
	waitpid(f->pid, &status, 0);
	remove_all(f->folder);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#endif
