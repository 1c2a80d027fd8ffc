/* SPDX-License-Identifier: MIT */
/*
 * successor - daemons that take over and cannot start, for one reason or another, and then one that can: it goes on
 * with all models and sessions, the client loses nothing and sees no end of its connection, no weight is read again.
 *
 * What the keeper starts is exchanged as in an upgrade: a script that counts the starts and spoils them. What is
 * refused for want of memory is test-faults-restart's.
 */
#include <sys/syscall.h>

#include "tests/forbid.h"
#include "tests/restart-client.h"

static const char *const options[] = {"--keep", NULL};
static char folder[64], self[PATH_MAX], real[PATH_MAX], model[PATH_MAX];

/* From here on, for this process and what it becomes. */
static int forbid_io_uring(char **argv)
{
	if (forbid_call(SYS_io_uring_setup, EPERM))
		execv(argv[0], argv);
	return 126;
}

/* -- what the keeper starts --------------------------------------------------------------------------------------- */

__attribute__((format(printf, 1, 2))) static void put_program(const char *format, ...)
{
	char path[128], new[128];
	va_list args;
	FILE *file;

	snprintf(path, sizeof path, "%s/daemon/moe-expertd", folder);
	snprintf(new, sizeof new, "%s/daemon/new", folder);
	file = fopen(new, "we");
	require(file != NULL, "a program");
	fprintf(file, "#!/bin/sh\necho >>'%s/starts'\n", folder);
	va_start(args, format);
	vfprintf(file, format, args);
	va_end(args);
	fclose(file);
	require(chmod(new, 0700) == 0 && rename(new, path) == 0, "the program is exchanged");
}

static off_t starts(void)
{
	char path[128];
	struct stat st;

	snprintf(path, sizeof path, "%s/starts", folder);
	return stat(path, &st) < 0 ? 0 : st.st_size;
}

/* A build folder of which the daemon can be exchanged. */
static void make_folder(void)
{
	char command[3 * PATH_MAX];

	tap_tmp(folder, "moe-successor-XXXXXX");
	require(mkdtemp(folder) != NULL && readlink("/proc/self/exe", self, sizeof self - 1) > 0, "a folder");
	snprintf(real, sizeof real, "%s/daemon/moe-expertd", fixture_env("MOE_BUILD"));
	snprintf(command, sizeof command,
		 "cd '%s' && mkdir daemon broken && cp '%s' daemon/ && ln -s '%s/tools' tools && echo x "
		 ">broken/config.json",
		 folder, real, fixture_env("MOE_BUILD"));
	require(system(command) == 0, "a copy of the daemon");
	snprintf(model, sizeof model, "%s%s", folder, strrchr(fixture_sample(), '/'));
	require(symlink(fixture_sample(), model) == 0, "a model's folder");
	setenv("MOE_BUILD", folder, 1);
}

/* -- the tests ---------------------------------------------------------------------------------------------------- */

static bool still_connected(void)
{
	struct pollfd p = {.fd = ring.sock, .events = POLLRDHUP};

	return poll(&p, 1, 0) == 0;
}

/* Until so many daemons were started: all before the last one have failed. */
static bool wait_for_starts(off_t n)
{
	const time_t end = time(NULL) + PATIENCE_S;

	while (starts() < n && time(NULL) < end) {
		drain();
		usleep(1000);
	}
	return starts() >= n;
}

static void post_some(void)
{
	for (uint32_t i = 0; i < ENTRIES / 2 && out < ENTRIES; i++)
		post((enum kind)pick(KINDS));
}

/* The daemon leaves all to others, which fail; the second time the keeper is told when to try again. */
static void test_failing(const char *what, bool told)
{
	const off_t before = starts();
	const long restarts = asked("status", "restarts");

	post_some();
	kill(fixture.pid, SIGUSR2);
	ok(wait_for_starts(before + 2), "%s: the keeper tries again", what);
	post_some();
	ok(still_connected(), "%s: the client waits", what);
	put_program("exec '%s' \"$@\"\n", real);
	if (told)
		kill(fixture.pid, SIGUSR2);
	ok(wait_until(0), "%s: all that was asked for comes", what);
	work(100);
	check_books(what);
	ok(still_connected() && asked("status", "restarts") > restarts && asked("status", "sessions") == 1,
	   "%s: the session goes on", what);
	ok(asked("status", "weight_bytes_read") == 0, "%s: no weight was read again", what);
	ok(asked("models", "leases") == (long)n_leases, "%s: what is lent is lent", what);
}

static void test_all(bool told)
{
	put_program("exec '%s' \"$@\" --no-such-option\n", real);
	test_failing("an option that it does not know", told);
	put_program("exec '%s' \"$@\" --model '%s/nothing'\n", real, folder);
	test_failing("a model that is not there", told);
	put_program("exec '%s' \"$@\" --model '%s/broken' --name broken\n", real, folder);
	test_failing("a model that cannot be loaded", told);
	put_program("exec '%s' \"$@\" --socket '%s/nothing/socket'\n", real, folder);
	test_failing("no folder for its socket", told);
	put_program("exec '%s' forbid '%s' \"$@\"\n", self, real);
	test_failing("io_uring is forbidden", told);
	put_program("exit 127\n");
	test_failing("no program", told);
}

/* Nothing of it is to be read. */
static void test_folder_gone(void)
{
	const long restarts = asked("status", "restarts");
	const off_t before = starts();
	char aside[sizeof model + 8];

	snprintf(aside, sizeof aside, "%s.aside", model);
	require(rename(model, aside) == 0, "the model's folder goes away");
	post_some();
	kill(fixture.pid, SIGUSR2);
	ok(wait_until(0), "its folder is gone: all that was asked for comes");
	work(100);
	check_books("its folder is gone");
	ok(still_connected() && asked("status", "restarts") == restarts + 1 && asked("status", "sessions") == 1 &&
		   starts() == before + 1,
	   "its folder is gone: the session goes on with the next daemon");
	require(rename(aside, model) == 0, "and comes back");
}

int main(int argc, char **argv)
{
	char command[128];

	if (argc > 2 && strcmp(argv[1], "forbid") == 0)
		return forbid_io_uring(argv + 2);
	make_folder();
	fixture_start(&fixture, model, options);
	open_ring();
	learn_records();
	fill_inputs();
	learn();
	post_one(LEND, 0, 1);
	require(wait_until(0) && n_leases > 0, "something is lent");
	for (int told = 0; told < 2; told++)
		test_all(told);
	test_folder_gone();
	ok(fixture_stop(&fixture) == 0, "SIGTERM ends keeper and daemon");
	snprintf(command, sizeof command, "rm -rf '%s'", folder);
	return system(command) != 0 || tap_done();
}
