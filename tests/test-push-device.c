/* SPDX-License-Identifier: MIT */
/*
 * What a careless or hostile client may give as slots in a GPU's memory, to a daemon that pushes, with the simulated
 * driver, for which a memory file of whole granules is memory of a GPU: each is refused or does what it says, and
 * nothing stays behind.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>

#include "base/util.h"
#include "tests/cuda-sim/cuda-sim.h"
#include "tests/leaks.h"
#include "tests/raw-client.h"

#define GRANULE (2u << 20)

static const struct moe_msg_device good = {.bytes = GRANULE, .uuid = {'s', 'i', 'm'}};

static unsigned int device(int sock, struct moe_msg_device m, int fd)
{
	begin(&m, sizeof m, MOE_MSG_DEVICE, 1);
	return exchange(sock, &m, sizeof m, &fd, 1);
}

static bool refused(int status)
{
	const struct moe_msg_error *e = (const struct moe_msg_error *)answer;

	diag("%s", e->msg.type == MOE_MSG_ERROR ? e->text : "no error");
	return e->msg.type == MOE_MSG_ERROR && e->msg.status == status;
}

/* A session without slots. */
static int attach_bare(void)
{
	struct moe_msg_attach m = good_attach();
	int sock = connect_raw();

	hello(sock);
	require(attach(sock, &m) == (MOE_MSG_ATTACH | MOE_MSG_REPLY), "attached");
	return sock;
}

static void test_refused(int memory)
{
	static const struct {
		const char *what;
		uint64_t bytes, timeline;
		char uuid;
		int status;
	} cases[] = {
		{"a timeline at an odd place", GRANULE, 4, 's', -EINVAL},
		{"a timeline behind the memory", GRANULE, GRANULE, 's', -EINVAL},
		{"no bytes", 0, 0, 's', -EINVAL},
		{"no whole pages", 100, 0, 's', -EINVAL},
		{"a GPU that is not there", GRANULE, 0, 'x', -ENODEV},
		{"no whole granules", 4096, 0, 's', -EINVAL},
		{"more than the memory has", 2 * GRANULE, 0, 's', -EINVAL},
		{"more than any memory has", 1ull << 60, 0, 's', -EINVAL},
	};
	int pipes[2], sock = connect_raw();

	hello(sock);
	ok(device(sock, good, memory) == MOE_MSG_ERROR && refused(-ENOTCONN), "slots before ATTACH");
	close(sock);
	sock = attach_bare();
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct moe_msg_device m = {
			.bytes = cases[i].bytes, .timeline = cases[i].timeline, .uuid = {cases[i].uuid, 'i', 'm'}};

		ok(device(sock, m, memory) == MOE_MSG_ERROR && refused(cases[i].status), "%s", cases[i].what);
	}
	require(pipe(pipes) == 0, "a pipe");
	ok(device(sock, good, pipes[0]) == MOE_MSG_ERROR && refused(-EINVAL), "a pipe is no memory of a GPU");
	close(pipes[0]);
	close(pipes[1]);
	ok(device(sock, good, memory) == (MOE_MSG_DEVICE | MOE_MSG_REPLY), "after all that: good slots");
	ok(device(sock, good, memory) == MOE_MSG_ERROR && refused(-EEXIST), "slots twice");
	ok(arena(sock, memory, GRANULE, MOE_ARENA_SLOTS) == MOE_MSG_ERROR && refused(-EEXIST), "an arena beside them");
	close(sock);
}

/* What a FILL brings to where, and how far it may reach. */
static void test_fills(int memory)
{
	struct moe_sqe sqe = {.op = MOE_OP_FILL, .layer = 1};
	struct moe_cqe cqe;
	struct ring ring;
	uint8_t *slots = mmap(NULL, GRANULE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0), *packed;
	bool same;

	require(slots != MAP_FAILED, "the slots are mapped here as well");
	ring_open(&ring); /* which has a slot arena */
	require(ring_call(&ring, &sqe, &cqe) == 0 && cqe.bytes < GRANULE / 2, "a fill of memory of the host");
	packed = malloc(cqe.bytes);
	memcpy(packed, ring.slots, cqe.bytes);
	ok(device(ring.sock, good, memory) == MOE_MSG_ERROR && refused(-EEXIST), "slots beside an arena");
	ring_close(&ring);

	ring_open_bare(&ring);
	ok(ring_call(&ring, &sqe, &cqe) == -EFAULT, "a fill before there are slots");
	ok(device(ring.sock, good, memory) == (MOE_MSG_DEVICE | MOE_MSG_REPLY), "slots");
	memset(slots, 0xa5, GRANULE);
	sqe.fill.dst = 4096;
	same = ring_call(&ring, &sqe, &cqe) == 0 && memcmp(slots + 4096, packed, cqe.bytes) == 0;
	ok(same && slots[4095] == 0xa5 && slots[4096 + cqe.bytes] == 0xa5, "a fill brings the same, and nothing else");
	memset(slots, 0xa5, GRANULE);
	sqe.fill.from = 129;
	sqe.fill.bytes = 1000;
	same = ring_call(&ring, &sqe, &cqe) == 0 && cqe.bytes == 1000 &&
	       memcmp(slots + 4096 + 129, packed + 129, 1000) == 0;
	ok(same && slots[4096 + 128] == 0xa5 && slots[4096 + 1129] == 0xa5, "a range of it: these bytes");
	sqe.fill.from = sqe.fill.bytes = 0;
	sqe.fill.dst = GRANULE - 4096;
	ok(ring_call(&ring, &sqe, &cqe) == -EFAULT, "a fill that reaches out of the slots");
	sqe.fill.dst = 4097;
	ok(ring_call(&ring, &sqe, &cqe) == -EFAULT, "a fill to an odd place");
	sqe.fill.dst = UINT64_MAX - 63;
	ok(ring_call(&ring, &sqe, &cqe) == -EFAULT, "a fill beyond all");
	ring_close(&ring);
	free(packed);
	munmap(slots, GRANULE);
}

/* -- the timeline ------------------------------------------------------------------------------------------------- */

#define TIMELINE (GRANULE - 64)

static int signal_fill(struct ring *ring, uint32_t number, uint64_t dst)
{
	const struct moe_sqe sqe = {
		.op = MOE_OP_FILL, .flags = MOE_SQE_SIGNAL, .layer = 1, .fill = {.dst = dst, .signal = number}};

	return ring_call(ring, &sqe, NULL);
}

/* Each FILL has ended when ring_call returns, and what its stream wrote with it is there. */
static void test_numbers(struct ring *ring, const uint32_t *word)
{
	ok(signal_fill(ring, 1, 0) == 0 && *word == 1, "the first number is written");
	ok(signal_fill(ring, 3, 0) == 0 && *word == 1, "one that comes before its turn is not");
	ok(signal_fill(ring, 3, 0) == -EINVAL && *word == 1, "nor may it come twice");
	ok(signal_fill(ring, 2, 0) == 0 && *word == 3, "until the one before it has come");
	ok(signal_fill(ring, 3, 0) == -EINVAL && signal_fill(ring, 0, 0) == -EINVAL, "numbers that have been there");
	ok(signal_fill(ring, 3 + MOE_TIMELINE_WINDOW + 1, 0) == -EINVAL, "a number from too far ahead");
	ok(signal_fill(ring, 3 + MOE_TIMELINE_WINDOW, 0) == 0 && *word == 3, "the farthest");
	ok(signal_fill(ring, 4, GRANULE) == -EFAULT && *word == 3, "a FILL that fails does not count");
	ok(signal_fill(ring, 5, 0) == 0 && *word == 3, "and holds all that come after it");
	ok(signal_fill(ring, 4, 0) == 0 && *word == 5, "as long as its number does not come");
}

static void test_flags(struct ring *ring, const uint32_t *word)
{
	struct moe_sqe sqe = {.op = MOE_OP_FILL, .layer = 1, .fill = {.signal = 6}};
	static const uint8_t flags[] = {0, MOE_SQE_LEASE, MOE_SQE_PREFETCH, MOE_SQE_SIGNAL | MOE_SQE_LEASE,
					MOE_SQE_SIGNAL | MOE_SQE_PREFETCH};
	bool refuses = true;

	for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
		sqe.flags = flags[i];
		refuses = refuses && ring_call(ring, &sqe, NULL) == -EINVAL;
	}
	ok(refuses && *word == 5, "a number with flags that it does not go with");
	sqe.flags = 0;
	sqe.fill.signal = 0;
	ok(ring_call(ring, &sqe, NULL) == 0 && *word == 5, "a FILL without a number leaves the timeline alone");
}

static void test_timeline(int memory)
{
	struct moe_msg_device with = good;
	struct ring ring;
	uint8_t *slots = mmap(NULL, GRANULE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	const uint32_t *word = (const uint32_t *)(slots + TIMELINE);

	require(slots != MAP_FAILED, "the slots are mapped here as well");
	memset(slots + TIMELINE, 0, 64);
	ring_open_bare(&ring);
	with.timeline = TIMELINE;
	ok(device(ring.sock, with, memory) == (MOE_MSG_DEVICE | MOE_MSG_REPLY), "slots with a timeline");
	test_numbers(&ring, word);
	test_flags(&ring, word);
	ring_close(&ring);
	ring_open_bare(&ring);
	ok(device(ring.sock, good, memory) == (MOE_MSG_DEVICE | MOE_MSG_REPLY), "slots without one");
	ok(signal_fill(&ring, 1, 0) == -EINVAL, "have no numbers");
	ring_close(&ring);
	munmap(slots, GRANULE);
}

/* Who leaves while its slots are imported leaves nothing. */
static void test_leave(int memory)
{
	for (int i = 0; i < 50; i++) {
		struct moe_msg_device m = good;
		int sock = attach_bare();

		begin(&m, sizeof m, MOE_MSG_DEVICE, 1);
		fdmsg_send(sock, &m, sizeof m, &memory, 1, 0);
		usleep((useconds_t)i * 100);
		close(sock);
	}
	ok(alive(), "clients that leave while their slots are imported");
}

/* -- what the driver refuses while it copies ---------------------------------------------------------------------- */

/* Of two FILLs the driver refuses one call of the second; each of its commands takes a while. Then the timeline is at
 * `reached`, and the FILL of the number behind that ends with `next`. */
static void test_refused_call(int memory, const char *call, int status, uint32_t reached, int next)
{
	const uint64_t to = GRANULE / 2;
	struct moe_msg_device with = good;
	struct moe_sqe sqe = {.op = MOE_OP_FILL, .flags = MOE_SQE_SIGNAL, .layer = 1};
	struct moe_cqe cqe;
	struct ring ring;
	uint8_t *slots = mmap(NULL, GRANULE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	const uint32_t *word = (const uint32_t *)(slots + TIMELINE);
	bool whole;
	int r;

	setenv("CUSIM_FAIL", call, 1);
	setenv("CUSIM_DELAY", "100000", 1);
	fixture_start(&fixture, fixture_sample(),
		      (const char *const[]){"--threads", "2", "--writable-weights", "--push-cuda", NULL});
	unsetenv("CUSIM_FAIL");
	setenv("CUSIM_DELAY", "0", 1);
	require(slots != MAP_FAILED, "the slots are mapped here as well");
	memset(slots, 0xa5, GRANULE);
	memset(slots + TIMELINE, 0, 64);
	with.timeline = TIMELINE;
	ring_open_bare(&ring);
	require(device(ring.sock, with, memory) == (MOE_MSG_DEVICE | MOE_MSG_REPLY), "slots with a timeline");
	sqe.fill.signal = 1;
	require(ring_call(&ring, &sqe, &cqe) == 0 && cqe.bytes < to, "a FILL");
	sqe.fill.signal = 2;
	sqe.fill.dst = to;
	r = ring_call(&ring, &sqe, NULL);
	whole = memcmp(slots, slots + to, cqe.bytes) == 0;
	ok(r == status && whole, "%s: the FILL ends with %d, and nobody writes behind its end", call, r);
	ok(*word == reached, "the timeline is at %u", *word);
	sqe.fill.signal = reached + 1;
	r = ring_call(&ring, &sqe, NULL);
	ok(r == next && *word == reached + (next == 0), "the next one: %d", r);
	ring_close(&ring);
	ok(fixture_stop(&fixture) == 0, "the daemon ends with 0");
	munmap(slots, GRANULE);
}

/* -- a keeper that stands still ----------------------------------------------------------------------------------- */

/* While one opening waits for its turn at the registrar, those of clients that have left wait for nothing. */
static void test_left_waiting(int memory)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	struct moe_msg ask = {0};
	struct moe_msg_device m = good;
	int held = attach_bare(), registrar, base;
	uint64_t began;

	begin(&ask, sizeof ask, MOE_MSG_REGISTRAR, 0);
	require(exchange(held, &ask, sizeof ask, NULL, 0) == (MOE_MSG_REGISTRAR | MOE_MSG_REPLY) && n_answer_fds == 1,
		"the registrar's file");
	registrar = dup(answer_fds[0]);
	require(fcntl(registrar, F_SETLK, &lock) == 0, "is locked");
	begin(&m, sizeof m, MOE_MSG_DEVICE, 1);
	require(fdmsg_send(held, &m, sizeof m, &memory, 1, 0) == 0, "slots, for which the daemon waits");
	usleep(100000);
	base = leaks_fds(fixture.pid);
	for (int i = 0; i < 20; i++) {
		const int sock = attach_bare();

		require(fdmsg_send(sock, &m, sizeof m, &memory, 1, 0) == 0, "slots of who leaves");
		close(sock);
	}
	began = now_ns();
	while (leaks_fds(fixture.pid) > base && now_ns() - began < TAP_SOON_NS)
		usleep(1000);
	ok(leaks_fds(fixture.pid) <= base, "nothing is left of them, while the first one waits");
	lock.l_type = F_UNLCK;
	fcntl(registrar, F_SETLK, &lock);
	close(registrar);
	ok(next_answer(held) == (MOE_MSG_DEVICE | MOE_MSG_REPLY), "which then is answered");
	close(held);
}

#define CROWD 120

/* Sessions that nobody waits for, until messages to the keeper wait; how many. */
static int crowd(int *socks)
{
	struct moe_msg_attach m = good_attach();
	int n = 0;

	begin(&m, sizeof m, MOE_MSG_ATTACH, 0);
	while (n < CROWD && asked("status", "keeper_waits") <= 0) {
		socks[n] = connect_raw();
		hello(socks[n]);
		fdmsg_send(socks[n++], &m, sizeof m, NULL, 0, 0);
	}
	return n;
}

static bool hangs_up(int sock)
{
	struct pollfd p = {.fd = sock, .events = POLLIN};
	char byte;

	return poll(&p, 1, (int)(TAP_SOON_NS / 1000000)) == 1 && recv(sock, &byte, 1, MSG_DONTWAIT) <= 0;
}

/* A session with slots in a GPU ends with its daemon, also where the keeper has not heard that it need not be kept. */
static void test_unkept(int memory)
{
	const struct moe_sqe nop = {.op = MOE_OP_NOP};
	struct ring with, without;
	int socks[CROWD], n;
	pid_t daemon;

	fixture_start(&fixture, fixture_sample(),
		      (const char *const[]){"--threads", "1", "--writable-weights", "--push-cuda", "--keep", NULL});
	ring_open_bare(&with);
	ring_open_bare(&without);
	daemon = (pid_t)asked("status", "pid");
	kill(fixture.pid, SIGSTOP);
	n = crowd(socks);
	require(n < CROWD && daemon > 0, "the keeper stands still, and messages to it wait");
	require(device(with.sock, good, memory) == (MOE_MSG_DEVICE | MOE_MSG_REPLY), "slots");
	kill(daemon, SIGKILL);
	kill(fixture.pid, SIGCONT);
	ok(ring_call(&without, &nop, NULL) == 0 && asked("status", "restarts") == 1, "others go on");
	ok(hangs_up(with.sock), "a session with slots in a GPU has ended, though the keeper had it");
	while (n-- > 0)
		close(socks[n]);
	ring_close(&with);
	ring_close(&without);
	ok(fixture_stop(&fixture) == 0, "SIGTERM ends keeper and daemon");
}

int main(void)
{
	struct cuda_sim sim;
	int memory, before, after;

	if (!cuda_sim_find(&sim)) {
		tap_skip("this driver is not simulated: its memory is no memfd");
		return tap_done();
	}
	fixture_start(&fixture, fixture_sample(),
		      (const char *const[]){"--threads", "2", "--writable-weights", "--push-cuda", NULL});
	alive();
	memory = memfd_new("gpu", GRANULE, NULL);
	before = quiet_fds(-1);
	test_refused(memory);
	test_fills(memory);
	test_timeline(memory);
	test_leave(memory);
	test_left_waiting(memory);
	fdmsg_close_fds(answer_fds, n_answer_fds);
	after = quiet_fds(before);
	ok(after <= before, "no descriptor is left: %d before, %d after", before, after);
	ok(fixture_stop(&fixture) == 0, "the daemon ends with 0");
	test_refused_call(memory, "cuStreamWriteValue32:2", -ENOMEM, 1, 0);
	test_refused_call(memory, "cuEventRecord:4", -EREMOTEIO, 2, -EREMOTEIO);
	test_refused_call(memory, "cuEventQuery:1", 0, 2, 0);
	test_unkept(memory);
	close(memory);
	return tap_done();
}
