/* SPDX-License-Identifier: MIT */
/*
 * What one client leaves behind or owns does not make another one wait: large memory that the daemon holds last, and
 * many groups of ranks. Measured beside what the same costs this process, in the same run.
 */
#include <sys/resource.h>

#include "base/util.h"
#include "tests/raw-client.h"

#define LARGE_BYTES (512ull << 20)
#define ROUNDS 24
#define PAUSE_NS 1000000000u
#define GROUPS 800
#define GROUP_FIRST 100
#define TRIPS 400
/* Of the best rounds. A daemon that gives back memory itself is at 1, and one that looks at all groups at 10. */
#define SHARE_MAX 0.7
#define FACTOR_MAX 5.0

static int large_memory(void)
{
	int fd = memfd_new("large", LARGE_BYTES, NULL);

	require(fd >= 0, "a large memfd");
	return fd;
}

/* How long this process takes to give it back. */
static uint64_t own_close_ns(void)
{
	int fd = large_memory();
	const uint64_t begin = now_ns();

	close(fd);
	return now_ns() - begin;
}

/* The longest wait of a NOP in the time in which the memory goes. */
static uint64_t longest_nop(struct ring *other)
{
	const struct moe_sqe nop = {.op = MOE_OP_NOP};
	const uint64_t end = now_ns() + PAUSE_NS;
	uint64_t longest = 0;
	bool good = true;

	while (now_ns() < end) {
		const uint64_t begin = now_ns();

		good &= ring_call(other, &nop, NULL) == 0;
		longest = MAX(longest, now_ns() - begin);
	}
	require(good, "NOPs");
	return longest;
}

/* Sent and closed while the daemon stands still: it is the last to have it. */
static void send_refused(struct ring *r)
{
	struct moe_msg_arena m = {.bytes = LARGE_BYTES + MOE_RING_PAGE, .kind = MOE_ARENA_SLOTS};
	int fd = large_memory();

	ring_open_bare(r);
	begin(&m, sizeof m, MOE_MSG_ARENA, 1);
	kill(fixture.pid, SIGSTOP);
	require(fdmsg_send(r->sock, &m, sizeof m, &fd, 1, 0) == 0, "an arena that is refused");
	close(fd);
	kill(fixture.pid, SIGCONT);
}

static void leave_arena(struct ring *r)
{
	int fd = large_memory();

	ring_open_bare(r);
	require(arena(r->sock, fd, LARGE_BYTES, MOE_ARENA_SLOTS) == (MOE_MSG_ARENA | MOE_MSG_REPLY), "a large arena");
	close(fd);
	shutdown(r->sock, SHUT_RDWR);
}

static void test_large(struct ring *other, void (*leave)(struct ring *r), const char *what)
{
	uint64_t own = UINT64_MAX, longest = UINT64_MAX;
	double share = 1e9;

	for (int i = 0; i < ROUNDS && share > SHARE_MAX; i++) {
		const uint64_t its_own = own_close_ns();
		uint64_t its_longest;
		struct ring r;

		leave(&r);
		its_longest = longest_nop(other);
		ring_close(&r);
		own = MIN(own, its_own);
		longest = MIN(longest, its_longest);
		share = (double)longest / (double)own;
	}
	diag("%s: the longest NOP takes %.2f of the time that giving the memory back takes", what, share);
	ok(share <= SHARE_MAX, "%s: others do not wait until it is given back", what);
}

static struct moe_msg_attach member_of(uint64_t group)
{
	struct moe_msg_attach m = good_attach();

	m.group = group;
	m.dp_size = 1;
	m.agree_ms = 1000;
	return m;
}

/* The mean of the best round. */
static double agree_ns(struct ring *r)
{
	const struct moe_sqe agree = {.op = MOE_OP_AGREE};
	double best = 1e18;
	bool good = true;

	for (int i = 0; i < ROUNDS; i++) {
		const uint64_t begin = now_ns();

		for (int j = 0; j < TRIPS; j++)
			good &= ring_call(r, &agree, NULL) == 0;
		best = MIN(best, (double)(now_ns() - begin) / TRIPS);
	}
	require(good, "AGREEs");
	return best;
}

static void test_groups(void)
{
	static struct ring groups[GROUPS];
	struct ring r;
	double alone, beside;

	ring_open_bare_as(&r, member_of(1));
	alone = agree_ns(&r);
	for (uint64_t i = 0; i < GROUPS; i++)
		ring_open_bare_as(&groups[i], member_of(GROUP_FIRST + i));
	beside = agree_ns(&r);
	diag("%d other groups: an AGREE takes %.2f times as long", GROUPS, beside / alone);
	ok(beside / alone < FACTOR_MAX, "%d other groups cost an AGREE less than %.0f times as much", GROUPS,
	   FACTOR_MAX);
	for (int i = 0; i < GROUPS; i++)
		ring_close(&groups[i]);
	ring_close(&r);
}

int main(void)
{
	struct rlimit files;
	struct ring other;

	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	fixture_start(&fixture, fixture_sample(),
		      (const char *const[]){"--threads", "1", "--uid-limit", "sessions=1000", "--uid-limit",
					    "requests=100000", NULL});
	ring_open(&other);
	test_large(&other, send_refused, "a large memfd that is refused");
	test_large(&other, leave_arena, "the large arena of a client that has left");
	ring_close(&other);
	test_groups();
	fdmsg_close_fds(answer_fds, n_answer_fds);
	ok(alive() && fixture_stop(&fixture) == 0, "the books balance");
	return tap_done();
}
