/* SPDX-License-Identifier: MIT */
/*
 * A keeper that takes no messages for a while, as a service manager that is busy: sessions begin, work and leave
 * meanwhile, and when it goes on, those that are left outlive their daemon like all others. Where it is busy for less
 * than an answer waits for it (HANDOVER_PATIENCE_NS), who has been answered is kept: a daemon may die right then. Where
 * it is busy for longer, those that it has not taken end with their daemon, and see that.
 */
#include <linux/sockios.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>

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

	while (leaks_fds(fixture.pid) != fds)
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

static bool readable(int sock, int ms)
{
	struct pollfd p = {.fd = sock, .events = POLLIN};

	return poll(&p, 1, ms) > 0;
}

/* Connections ask for sessions, one after the other, until one is not answered; how many. */
static uint32_t attach_until_one_waits(int *socks, uint32_t most)
{
	struct moe_msg_attach m = good_attach();
	uint32_t n = 0;

	begin(&m, sizeof m, MOE_MSG_ATTACH, 0);
	while (n < most) {
		const int sock = socks[n++] = connect_greeted();

		require(sock >= 0 && fdmsg_send(sock, &m, sizeof m, NULL, 0, 0) == 0, "asks for a session");
		while (!readable(sock, 1))
			if (asked("status", "keeper_waits") > 0)
				return n;
	}
	return n;
}

static unsigned int received(int sock)
{
	const long n = fdmsg_recv(sock, answer, sizeof answer, answer_fds, &n_answer_fds, 0);

	return n >= (long)sizeof(struct moe_msg) ? ((struct moe_msg *)answer)->type : 0;
}

/* False: this machine was so slow that the answer waited no more. */
static bool refused_too_early(int before)
{
	const struct moe_msg *said = (const struct moe_msg *)answer;
	struct moe_msg early;
	int socks[SESSIONS];
	bool refused;
	uint32_t n;

	stop_keeper();
	n = attach_until_one_waits(socks, SESSIONS);
	begin(&early, sizeof early, MOE_MSG_REGISTRAR, 0);
	refused = exchange(socks[n - 1], &early, sizeof early, NULL, 0) == MOE_MSG_ERROR && said->status == -EBUSY;
	kill(fixture.pid, SIGCONT);
	if (refused)
		ok(received(socks[n - 1]) == (MOE_MSG_ATTACH | MOE_MSG_REPLY),
		   "the answer comes when the keeper goes on");
	for (uint32_t i = 0; i < n; i++)
		close(socks[i]);
	require(comes_to_hold(before), "all leave");
	return refused;
}

static void speak_too_early(int before)
{
	bool refused = false;
	uint64_t end = 0;

	while (!refused && tap_wait(&end))
		refused = refused_too_early(before);
	ok(refused, "a message before the answer to attach is refused");
}

static uint32_t count_ended(uint32_t n)
{
	uint32_t count = 0;
	char byte;

	for (uint32_t i = 0; i < n; i++)
		count += recv(rings[i].sock, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
	return count;
}

/* The keeper is busy for longer than anybody waits, and the daemon dies before it goes on. */
static void lose_what_was_not_taken(uint32_t n)
{
	long kept;

	stop_keeper();
	begin_sessions(n);
	kill_daemon();
	kill(fixture.pid, SIGCONT);
	kept = asked("status", "sessions");
	ok(kept >= 1 && kept < (long)(n + 1), "a keeper that took nothing for long has %ld of %u sessions", kept,
	   n + 1);
	ok(answers(&first), "the one from before goes on");
	ok(count_ended(n) == n + 1 - (uint32_t)kept, "those that it has not got have ended, and see that");
	for (uint32_t i = 0; i < n; i++)
		ring_close(&rings[i]);
}

/* And has done with it, as one thread takes messages and serves rings. */
static bool has_taken(int sock)
{
	uint64_t end = 0;
	int bytes = 1;

	while (ioctl(sock, SIOCOUTQ, &bytes) == 0 && bytes > 0 && tap_wait(&end))
		;
	return bytes == 0 && answers(&first);
}

/* One that is answered only when it has ended, on a session's own connection. */
static void lose_a_recording(void)
{
	struct moe_msg_trace m = {.max_bytes = 1 << 20};
	const int file = memfd_create("trace", MFD_CLOEXEC); /* which may grow: a recording that fails is answered */
	struct ring r;
	char byte;
	ssize_t n;

	ring_open(&r);
	begin(&m, sizeof m, MOE_MSG_TRACE, 1);
	require(file >= 0 && fdmsg_send(r.sock, &m, sizeof m, &file, 1, 0) == 0, "a recording is asked for");
	require(has_taken(r.sock), "the daemon has heard that");
	kill_daemon();
	do /* it has heard how far the recording is */
		n = readable(r.sock, (int)(TAP_SOON_NS / 1000000)) ? recv(r.sock, &byte, 1, MSG_DONTWAIT) : -1;
	while (n > 0);
	ok(n == 0, "who waits for a recording's end sees that its daemon has died");
	ok(answers(&first), "others go on");
	ring_close(&r);
	close(file);
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
	before = leaks_fds(fixture.pid);

	stop_keeper();
	begin_sessions(n);
	ok(leaks_fds(fixture.pid) == before, "the keeper has taken nothing");
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
	lose_a_recording();
	speak_too_early(before);
	lose_what_was_not_taken(n);
	ring_close(&first);
	ok(fixture_stop(&fixture) == 0, "SIGTERM ends both");
	return tap_done();
}
