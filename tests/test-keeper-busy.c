/* SPDX-License-Identifier: MIT */
/*
 * A keeper that takes no messages for a while, as a service manager that is busy: sessions begin, work and leave
 * meanwhile, and when it goes on, those that are left outlive their daemon like all others. Where it is busy for less
 * than an answer waits for it (HANDOVER_PATIENCE_NS), who has been answered is kept: a daemon may die right then.
 */
#include <signal.h>

#include "base/util.h"
#include "tests/raw-client.h"

#define FILES 7      /* of a session with two arenas, with its connection */
#define SESSIONS 120 /* most */
#define LEAVE 3
#define BUSY_US 300000 /* less than an answer waits */

static struct ring first, rings[SESSIONS];

/* Enough for its socket to be full. */
static uint32_t sessions_wanted(void)
{
	char text[16] = "";
	const int fd = open("/proc/sys/net/unix/max_dgram_qlen", O_RDONLY | O_CLOEXEC);
	const bool good = fd >= 0 && read(fd, text, sizeof text - 1) > 0;

	close(fd);
	return good ? (uint32_t)atoi(text) / FILES + 20 : 0;
}

static bool answers(struct ring *r)
{
	const struct moe_sqe nop = {.op = MOE_OP_NOP};

	return ring_call(r, &nop, NULL) == 0;
}

static uint32_t count_answers(uint32_t from, uint32_t n)
{
	uint32_t count = 0;

	for (uint32_t i = from; i < n; i++)
		count += answers(&rings[i]);
	return count;
}

static void begin_sessions(uint32_t n)
{
	uint64_t longest = 0;

	for (uint32_t i = 0; i < n; i++) {
		const uint64_t begin = now_ns();

		ring_open(&rings[i]);
		longest = MAX(longest, now_ns() - begin);
	}
	diag("%u sessions begin, the slowest in %.1f ms", n, (double)longest / 1e6);
}

static bool comes_to_hold(int fds)
{
	uint64_t end = 0;

	while (fixture_count_fds(fixture.pid) != fds)
		if (!tap_wait(&end))
			return false;
	return true;
}

static void kill_daemon(void)
{
	const int sock = connect_greeted();

	require(sock >= 0 && kill((pid_t)((const struct moe_msg_hello *)answer)->pid, SIGKILL) == 0, "SIGKILL");
	close(sock);
}

static void stop_keeper(void)
{
	int status;

	kill(fixture.pid, SIGSTOP);
	waitpid(fixture.pid, &status, WUNTRACED);
}

static void kill_when_answered(uint32_t n, int before)
{
	pid_t helper;
	bool kept;

	stop_keeper();
	helper = fork();
	if (helper == 0) {
		usleep(BUSY_US);
		_exit(kill(fixture.pid, SIGCONT) < 0);
	}
	begin_sessions(n);
	kill_daemon();
	ok(helper > 0 && waitpid(helper, NULL, 0) == helper, "the keeper was busy for a moment");
	kept = asked("status", "sessions") == (long)(n + 1);
	ok(kept && asked("status", "sessions_unkept") == 0, "all that were answered are kept, though the daemon died");
	ok(kept && answers(&first) && count_answers(0, n) == n, "and go on");
	for (uint32_t i = 0; i < n; i++)
		ring_close(&rings[i]);
	ok(comes_to_hold(before), "their files go with them as well");
}

int main(void)
{
	static const char *const options[] = {"--keep", NULL};
	const uint32_t n = sessions_wanted();
	int before;

	if (n == 0 || n > SESSIONS) {
		tap_skip("/proc/sys/net/unix/max_dgram_qlen is not there, or too large for %d sessions", SESSIONS);
		return tap_done();
	}
	fixture_start(&fixture, fixture_sample(), options);
	ring_open(&first);
	ok(answers(&first), "a session before");
	before = fixture_count_fds(fixture.pid);

	stop_keeper();
	begin_sessions(n);
	ok(fixture_count_fds(fixture.pid) == before, "the keeper has taken nothing");
	ok(answers(&first) && count_answers(0, n) == n, "all sessions are served");
	ok(asked("status", "keeper_waits") > 0, "the daemon says that messages wait");
	for (uint32_t i = 0; i < LEAVE; i++)
		ring_close(&rings[i]);
	ok(asked("status", "sessions") == (long)(n + 1 - LEAVE), "some leave");
	kill(fixture.pid, SIGCONT);
	ok(comes_to_hold(before + (int)(FILES * (n - LEAVE))), "the keeper has what is left when it goes on");
	ok(asked("status", "keeper_waits") == 0 && asked("status", "sessions_unkept") == 0, "and nothing waits");

	kill_daemon();
	ok(answers(&first) && count_answers(LEAVE, n) == n - LEAVE, "all sessions go on with the next daemon");
	ok(asked("status", "restarts") == 1 && asked("status", "sessions") == (long)(n + 1 - LEAVE),
	   "which has taken them over");
	for (uint32_t i = LEAVE; i < n; i++)
		ring_close(&rings[i]);
	ok(comes_to_hold(before), "their files go with them");
	kill_when_answered(n, before);
	ring_close(&first);
	ok(fixture_stop(&fixture) == 0, "SIGTERM ends both");
	return tap_done();
}
