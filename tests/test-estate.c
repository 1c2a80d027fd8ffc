/* SPDX-License-Identifier: MIT */
/*
 * What a daemon finds with its keeper beside the page that counts: numbers of models and sessions that are kept are not
 * given away once more, whatever is left of them; and a model of which only some is left is kept again.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memfd.h"
#include "daemon/estate.h"
#include "daemon/handover.h"
#include "tests/tap.h"

#define KEPT_MAX 4

static char folder[TAP_TMP];

static int keeper(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof address.sun_path, "%s/notify", folder);
	unlink(address.sun_path);
	require(bind(sock, (struct sockaddr *)&address, sizeof address) == 0, "a keeper");
	setenv("NOTIFY_SOCKET", address.sun_path, 1);
	setenv("FDSTORE", "64", 1);
	return sock;
}

/* Of the process that the keeper starts. */
static struct handover *succeed(const char *names, uint32_t n)
{
	struct handover *h;
	struct moe_error err;
	char number[16];
	int fds[KEPT_MAX];

	for (uint32_t i = 0; i < n; i++)
		fds[i] = fcntl(memfd_new("kept", 4096, NULL), F_DUPFD_CLOEXEC, 100);
	for (uint32_t i = 0; i < n; i++)
		dup2(fds[i], 3 + (int)i);
	snprintf(number, sizeof number, "%d", (int)getpid());
	setenv("LISTEN_PID", number, 1);
	snprintf(number, sizeof number, "%u", n);
	setenv("LISTEN_FDS", number, 1);
	setenv("LISTEN_FDNAMES", names, 1);
	if (handover_new(&h, &err) < 0)
		_exit(2);
	return h;
}

static bool ends_well(pid_t pid)
{
	int status = -1;

	waitpid(pid, &status, 0);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool numbers(const char *names, uint32_t n, uint64_t next_epoch, uint64_t next_session)
{
	const pid_t pid = fork();

	if (pid == 0) {
		struct moe_error err;
		const struct estate_page *page = estate_open(succeed(names, n), &err);

		_exit(page && page->next_epoch == next_epoch && page->next_session == next_session ? 0 : 1);
	}
	return ends_well(pid);
}

/* A model of epoch 5 that another place than the keeper had, where the keeper has some of its files. */
static bool keeps_late(const char *names, uint32_t n)
{
	const pid_t pid = fork();

	if (pid == 0) {
		struct handover *h = succeed(names, n);
		struct moe_manifest manifest = {.epoch = 5};
		struct resident model = {
			.manifest = &manifest, .manifest_fd = memfd_new("manifest", 4096, NULL), .n_pools = 1};
		struct entry entry = {.model = &model,
				      .books_fd = memfd_new("books", 4096, NULL),
				      .tally_fd = memfd_new("tally", 4096, NULL)};
		struct registry registry = {.head = &entry, .n = 1};
		bool good;

		model.pools[0].fd = memfd_new("pool", 4096, NULL);
		handover_hold(h);
		good = estate_keep_model(h, &entry) == -EEXIST && !entry.kept;
		handover_discard_rest(h);
		estate_keep_late(h, &registry);
		good &= !entry.kept;
		handover_settle(h);
		estate_keep_late(h, &registry);
		_exit(good && entry.kept ? 0 : 1);
	}
	return ends_well(pid);
}

int main(void)
{
	char command[96];
	int sock;

	require(mkdtemp(tap_tmp(folder, "moe-estate.XXXXXX")), "a folder");
	sock = keeper();
	ok(numbers("", 0, 1, 1), "with nothing kept both begin at 1");
	ok(numbers("m7.manifest:m12.books:m3.pool0", 3, 13, 1),
	   "models outlive the page of a daemon that ended in order: the next is above all that is left of any");
	ok(numbers("s5.bell:m1.manifest:s2.sock", 3, 2, 6), "and so is the next session");
	ok(numbers("s18446744073709551615.sock:mx.books:m.pool0", 3, 1, 1), "what is no number counts for nothing");
	ok(keeps_late("m5.books:m5.pool0", 2), "what is left of a model is in its way until the next daemon stays");
	close(sock);
	snprintf(command, sizeof command, "rm -r %s", folder);
	ok(system(command) == 0, "the folder is there");
	return tap_done();
}
