/* SPDX-License-Identifier: MIT */
/*
 * What a client may send and what not: a raw socket against a real daemon. Each broken message is refused with an error
 * or costs the connection, never the daemon; nothing leaks.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "base/futex.h"
#include "base/util.h"
#include "tests/raw-client.h"

static bool refused(int status, const char *word)
{
	const struct moe_msg_error *e = (const struct moe_msg_error *)answer;
	bool good = e->msg.type == MOE_MSG_ERROR && e->msg.status == status && strstr(e->text, word);

	if (!good)
		diag("type %u status %d: %s", e->msg.type, e->msg.status, e->msg.type == MOE_MSG_ERROR ? e->text : "");
	return good;
}

static void test_broken_messages(void)
{
	struct moe_msg_hello h = {.features = MOE_FEATURES_ALL};
	struct moe_msg_query q = {.what = MOE_QUERY_STATUS};
	char longer[sizeof h + 8] = {0};
	int fd = memfd_new("extra", 4096, NULL), sock;

	sock = connect_raw();
	begin(&q, sizeof q, MOE_MSG_QUERY, 0);
	ok(exchange(sock, &q, sizeof q, NULL, 0) == 0, "a message before HELLO costs the connection");
	close(sock);
	sock = connect_raw();
	begin(&h, sizeof h, MOE_MSG_HELLO, 0);
	h.msg.magic++;
	ok(exchange(sock, &h, sizeof h, NULL, 0) == 0, "wrong magic");
	close(sock);
	sock = connect_raw();
	begin(&h, sizeof h, MOE_MSG_HELLO, 0);
	ok(exchange(sock, &h, 8, NULL, 0) == 0, "a message shorter than its header");
	close(sock);
	sock = connect_raw();
	begin(longer, sizeof longer, MOE_MSG_HELLO, 0);
	ok(exchange(sock, longer, sizeof longer, NULL, 0) == 0, "a message longer than its type");
	close(sock);
	sock = connect_raw();
	begin(&h, sizeof h, MOE_MSG_HELLO, 0);
	ok(exchange(sock, &h, sizeof h, &fd, 1) == 0, "a descriptor that was not announced");
	close(sock);
	sock = connect_raw();
	begin(&h, sizeof h, MOE_MSG_HELLO, 1);
	ok(exchange(sock, &h, sizeof h, &fd, 1) == 0, "a descriptor that does not belong to the type");
	close(sock);
	for (unsigned int type = 7; type < 400; type += 13) {
		struct moe_msg m;

		sock = connect_raw();
		hello(sock);
		begin(&m, sizeof m, type, 0);
		if (exchange(sock, &m, sizeof m, NULL, 0) != 0)
			ok(false, "message type %u", type);
		close(sock);
	}
	sock = connect_raw();
	h.reserved = 1;
	begin(&h, sizeof h, MOE_MSG_HELLO, 0);
	ok(exchange(sock, &h, sizeof h, NULL, 0) == MOE_MSG_ERROR && refused(-EINVAL, "reserved"), "a reserved field");
	close(sock);
	close(fd);
	ok(alive(), "the daemon is alive");
}

static void test_attach(void)
{
	struct moe_msg_attach a = good_attach();
	int sock = connect_raw(), second;

	hello(sock);
	a.layout = 99;
	ok(attach(sock, &a) == MOE_MSG_ERROR && refused(-EPROTO, "layout 99"), "wrong layout");
	a = good_attach();
	strcpy(a.name, "nemo");
	ok(attach(sock, &a) == MOE_MSG_ERROR && refused(-ENOENT, "tinymoe"),
	   "unknown name; the text lists what is loaded");
	a = good_attach();
	a.digest[3] = 7;
	ok(attach(sock, &a) == MOE_MSG_ERROR && refused(-ENOENT, "digest"), "unknown digest");
	strcpy(a.name, "tinymoe");
	ok(attach(sock, &a) == MOE_MSG_ERROR && refused(-ESTALE, "other weights"), "right name, wrong digest");
	a = good_attach();
	a.tp_size = 129;
	ok(attach(sock, &a) == MOE_MSG_ERROR && refused(-EINVAL, "at most 128 expected"), "tp_size 129 of 128");
	ok(attach(sock, &a) == MOE_MSG_ERROR && refused(-EINVAL, "format bf16"), "and the format that sets the limit");
	a.tp_size = 2;
	a.tp_rank = 2;
	ok(attach(sock, &a) == MOE_MSG_ERROR && refused(-EINVAL, "tp_rank 2"), "tp_rank beyond tp_size");
	a = good_attach();
	a.entries = 12;
	ok(attach(sock, &a) == MOE_MSG_ERROR && refused(-EINVAL, "power of two"), "queue entries");
	a = good_attach();
	a.group = 77;
	a.dp_size = 2;
	a.agree_ms = MOE_AGREE_MS_MAX + 1;
	ok(attach(sock, &a) == MOE_MSG_ERROR && refused(-EINVAL, "agree_ms 600001 found, 1 to 600000 expected"),
	   "a rank that would wait for ever for another");
	a.agree_ms = 0;
	ok(attach(sock, &a) == MOE_MSG_ERROR && refused(-EINVAL, "agree_ms of at least 1"), "or not at all");
	a = good_attach();
	a.client = 1;
	ok(attach(sock, &a) == MOE_MSG_ERROR && refused(-EOPNOTSUPP, "kernel module"),
	   "an open device, where no queue is served");
	a = good_attach();
	a.group = 77;
	a.tp_size = 2;
	ok(attach(sock, &a) == (MOE_MSG_ATTACH | MOE_MSG_REPLY), "after all that the connection can attach");
	ok(attach(sock, &a) == MOE_MSG_ERROR && refused(-EISCONN, "already"), "once");
	second = connect_raw();
	hello(second);
	ok(attach(second, &a) == MOE_MSG_ERROR && refused(-EEXIST, "rank 0"), "the same rank of the same group twice");
	a.tp_size = 4;
	a.tp_rank = 1;
	ok(attach(second, &a) == MOE_MSG_ERROR && refused(-EINVAL, "tp_size 2"), "another tp_size in the same group");
	close(second);
	close(sock);
}

static void test_arenas(void)
{
	struct moe_msg_attach a = good_attach();
	int sock = connect_raw(), good = memfd_new("arena", 8192, NULL), bare = memfd_create("bare", 0);
	int file = open("/proc/self/exe", O_RDONLY);

	hello(sock);
	ok(arena(sock, good, 8192, MOE_ARENA_DATA) == MOE_MSG_ERROR && refused(-ENOTCONN, "attach"),
	   "an arena before ATTACH");
	attach(sock, &a);
	ok(ftruncate(bare, 8192) == 0 && arena(sock, bare, 8192, MOE_ARENA_DATA) == MOE_MSG_ERROR &&
		   refused(-EINVAL, "seals"),
	   "a memfd that could still shrink");
	if (file >= 0)
		ok(arena(sock, file, 8192, MOE_ARENA_DATA) == MOE_MSG_ERROR && refused(-EINVAL, "not a memfd"),
		   "a file");
	ok(arena(sock, good, 4096, MOE_ARENA_DATA) == MOE_MSG_ERROR && refused(-EINVAL, "announced"),
	   "less than the memfd has");
	ok(arena(sock, good, 16384, MOE_ARENA_DATA) == MOE_MSG_ERROR && refused(-EINVAL, "expected"),
	   "more than it has");
	ok(arena(sock, good, 100, MOE_ARENA_DATA) == MOE_MSG_ERROR && refused(-EINVAL, "multiple"), "not whole pages");
	ok(arena(sock, good, 8192, 3) == MOE_MSG_ERROR && refused(-EINVAL, "kind"), "unknown kind");
	ok(arena(sock, good, 8192, MOE_ARENA_DATA) == (MOE_MSG_ARENA | MOE_MSG_REPLY), "a good one");
	ok(arena(sock, good, 8192, MOE_ARENA_DATA) == MOE_MSG_ERROR && refused(-EEXIST, "already"), "each kind once");
	close(sock);
	close(good);
	close(bare);
	if (file >= 0)
		close(file);
}

/* -- the ring, entry by entry ------------------------------------------------------------------------------------- */

static struct moe_sqe compute_entry(void)
{
	/* 128 hidden values of one token at 0, ids at 4096, weights at 8192, y at 12288 */
	return (struct moe_sqe){
		.user_data = 5,
		.op = MOE_OP_COMPUTE,
		.count = 1,
		.compute = {.topk = 4, .ids = 4096, .weights = 8192, .y = 12288},
	};
}

static void test_fill_ranges(struct ring *r)
{
	const uint64_t all = 3 * 128 * 128 * 2;
	const struct {
		uint64_t from, bytes;
		int status;
	} cases[] = {
		{0, all, 0},
		{0, 1, 0},
		{all - 1, 1, 0},
		{12345, 54321, 0},
		{1, 0, -EINVAL},
		{UINT64_MAX, 0, -EINVAL},
		{0, all + 1, -EINVAL},
		{all, 1, -EINVAL},
		{1, all, -EINVAL},
		{UINT64_MAX, 1, -EINVAL},
		{UINT64_MAX, 2, -EINVAL},
		{1, UINT64_MAX, -EINVAL},
		{UINT64_MAX - all, all + 2, -EINVAL},
	};
	struct moe_sqe e = {.user_data = 3, .op = MOE_OP_FILL, .fill = {.expert = 3}};
	struct moe_cqe c;
	bool good = true;

	for (size_t i = 0; i < ARRAY_LEN(cases) && good; i++) {
		e.flags = i % 2 ? MOE_SQE_PREFETCH : 0;
		e.fill.from = cases[i].from;
		e.fill.bytes = cases[i].bytes;
		good = ring_call(r, &e, &c) == cases[i].status && (c.status || c.bytes == cases[i].bytes);
		if (!good)
			diag("%llu bytes from %llu: %d", (unsigned long long)cases[i].bytes,
			     (unsigned long long)cases[i].from, c.status);
	}
	ok(good, "FILL of ranges, those beyond the slice and empty ones are refused");
	e = (struct moe_sqe){.user_data = 3, .op = MOE_OP_FILL, .fill = {.expert = 3, .bytes = 64, .reserved2 = 1}};
	ok(ring_call(r, &e, NULL) == -EINVAL, "FILL with a reserved field set");
	e = (struct moe_sqe){.user_data = 3, .op = MOE_OP_FILL, .fill = {.expert = 3, .bytes = 64, .reserved1 = 1}};
	ok(ring_call(r, &e, NULL) == -EINVAL, "FILL with the other one set");
	e = (struct moe_sqe){.user_data = 3, .op = MOE_OP_FILL, .fill = {.expert = 3, .signal = 1}};
	ok(ring_call(r, &e, NULL) == -EINVAL, "FILL with a number that its flags do not name");
	e.flags = MOE_SQE_SIGNAL;
	ok(ring_call(r, &e, NULL) == -EINVAL, "FILL with a number, where there is no timeline");
	e = (struct moe_sqe){
		.user_data = 3, .op = MOE_OP_FILL, .fill = {.expert = 3, .dst = DATA_BYTES - 64, .bytes = 64}};
	ok(ring_call(r, &e, NULL) == -EFAULT, "FILL of a range whose slot leaves the arena");
	e = (struct moe_sqe){.user_data = 3, .op = MOE_OP_FILL, .flags = MOE_SQE_LEASE, .fill = {.bytes = 64}};
	ok(ring_call(r, &e, NULL) == -EINVAL, "a lease of a range");
	e = (struct moe_sqe){.user_data = 3, .op = MOE_OP_FILL, .flags = MOE_SQE_LEASE | MOE_SQE_PREFETCH};
	ok(ring_call(r, &e, NULL) == -EINVAL, "a speculative lease");
}

static void test_cancel_entries(struct ring *r)
{
	struct moe_sqe e = {.user_data = 77, .op = MOE_OP_CANCEL, .cancel = {.user_data = 77}};

	ok(ring_call(r, &e, NULL) == -ENOENT, "CANCEL of itself, or of what is not there");
	e.layer = 1;
	ok(ring_call(r, &e, NULL) == -EINVAL, "CANCEL with a layer");
	e.layer = 0;
	e.flags = MOE_SQE_PREFETCH;
	ok(ring_call(r, &e, NULL) == -EINVAL, "CANCEL with a flag");
	e.flags = 0;
	e.cancel.reserved[4] = 1;
	ok(ring_call(r, &e, NULL) == -EINVAL, "CANCEL with a reserved field set");
}

static void test_entries(struct ring *r)
{
	struct moe_sqe e = {.user_data = 1, .op = MOE_OP_NOP};
	struct moe_cqe c;
	int32_t *ids = (int32_t *)(r->data + 4096);

	ok(ring_call(r, &e, NULL) == 0, "NOP");
	e.payload[5] = 1;
	ok(ring_call(r, &e, NULL) == -EINVAL, "NOP with a reserved byte set");
	e = (struct moe_sqe){.user_data = 2, .op = MOE_OP_COUNT};
	ok(ring_call(r, &e, NULL) == -EOPNOTSUPP, "an unknown operation");
	e = (struct moe_sqe){.user_data = 3, .op = MOE_OP_FILL, .fill = {.expert = 31}};
	ok(ring_call(r, &e, &c) == 0 && c.bytes == 3 * 128 * 128 * 2, "FILL");
	e.fill.expert = 32;
	ok(ring_call(r, &e, NULL) == -ENOENT, "FILL of an expert that does not exist");
	e.fill.expert = 0;
	e.layer = 6;
	ok(ring_call(r, &e, NULL) == -ENOENT, "FILL of a layer that does not exist");
	e.layer = 0;
	e.fill.dst = DATA_BYTES - 64;
	ok(ring_call(r, &e, NULL) == -EFAULT, "FILL over the arena's end");
	e.fill.dst = UINT64_MAX - 63;
	ok(ring_call(r, &e, NULL) == -EFAULT, "FILL with an offset that would wrap");
	e.fill.dst = 8;
	ok(ring_call(r, &e, NULL) == -EFAULT, "FILL to an unaligned offset");
	test_fill_ranges(r);
	e = (struct moe_sqe){.user_data = 4, .op = MOE_OP_FILL, .flags = MOE_SQE_LEASE, .fill = {.expert = 3}};
	ok(ring_call(r, &e, &c) == 0 && c.lease != 0, "a lease");
	e = (struct moe_sqe){.user_data = 4, .op = MOE_OP_RELEASE, .release = {.lease = c.lease + 1}};
	ok(ring_call(r, &e, NULL) == -ENOENT, "RELEASE of a lease that is not held");
	e.release.lease = c.lease;
	ok(ring_call(r, &e, NULL) == 0, "RELEASE");
	ok(ring_call(r, &e, NULL) == -ENOENT, "RELEASE twice");
	e = compute_entry();
	ok(ring_call(r, &e, &c) == 0 && c.pairs == 4, "COMPUTE, expert 0 four times");
	ids[2] = -1;
	ok(ring_call(r, &e, &c) == 0 && c.pairs == 3, "COMPUTE skips -1");
	ids[2] = 32;
	ok(ring_call(r, &e, NULL) == -EINVAL, "COMPUTE with an id beyond the last expert");
	ids[2] = INT32_MIN;
	ok(ring_call(r, &e, NULL) == -EINVAL, "COMPUTE with a negative id other than -1");
	ids[2] = 0;
	e.compute.topk = 65;
	ok(ring_call(r, &e, NULL) == -EINVAL, "COMPUTE with top-k 65");
	e = compute_entry();
	e.count = 0;
	ok(ring_call(r, &e, NULL) == -EINVAL, "COMPUTE of no token");
	e.count = UINT32_MAX;
	ok(ring_call(r, &e, NULL) == -EINVAL, "COMPUTE of 4 G tokens");
	e = compute_entry();
	e.compute.y = DATA_BYTES - 256;
	ok(ring_call(r, &e, NULL) == -EFAULT, "COMPUTE whose y leaves the arena");
	e = compute_entry();
	e.compute.x_type = 7;
	ok(ring_call(r, &e, NULL) == -EINVAL, "COMPUTE of an unknown type");
	e = compute_entry();
	e.compute.reserved1 = 1;
	ok(ring_call(r, &e, NULL) == -EINVAL, "COMPUTE with a reserved field set");
	e = (struct moe_sqe){.user_data = 6, .op = MOE_OP_HINT, .count = 33, .hint = {.ids = 4096}};
	ok(ring_call(r, &e, NULL) == -EINVAL, "HINT of more ids than experts");
	e.count = 4;
	ok(ring_call(r, &e, NULL) == 0, "HINT");
	e = (struct moe_sqe){.user_data = 7, .op = MOE_OP_PHASE, .phase = {.phase = 3}};
	ok(ring_call(r, &e, NULL) == -EINVAL, "an unknown PHASE");
	e.phase.phase = MOE_PHASE_DECODE;
	ok(ring_call(r, &e, NULL) == 0, "PHASE");
	test_cancel_entries(r);
}

static bool closed_soon(int sock)
{
	struct pollfd p = {.fd = sock, .events = POLLRDHUP};

	return poll(&p, 1, TAP_PATIENCE_S * 1000) == 1 && p.revents & (POLLHUP | POLLRDHUP);
}

/* Whether a line of `moectl OPTIONS` has these words, with any number of spaces between them. */
static bool says(const char *options, const char *words)
{
	char command[512];

	snprintf(command, sizeof command, "%s/tools/moectl --socket %s %s | tr -s ' ' | grep -q -e '%s'",
		 fixture_env("MOE_BUILD"), fixture.socket, options, words);
	return system(command) == 0;
}

/* What a client counts by mode, and what is made of it: the figures of the report that the words come from, in which
 * half of the gain was had; and any numbers at all. */
static void test_modes(struct ring *r)
{
	struct moe_mode_stats *m = r->client->modes;

	m[MOE_STATS_DECODE] = (struct moe_mode_stats){.steps = 3,
						      .hidden = 4,
						      .copy_ns = 10258800000,
						      .device_ns = 237300000,
						      .taken_ns = 10377450000,
						      .reads = 5,
						      .read_bytes = 6};
	m[MOE_STATS_FULL] = (struct moe_mode_stats){
		.steps = 1, .copy_ns = 700, .device_ns = 500, .cpu_ns = 900, .taken_ns = 2640};
	ok(says("stats", " decode 3 4 5 6 B 10.26 s 237.30 ms 10.26 s 237.30 ms 10.38 s 50.0%$"),
	   "two parts: the gain is the shorter one, and half of it was had");
	ok(says("stats", " full 1 0 0 0 B 0.7 us 1.4 us 0.9 us 1.2 us 2.6 us -45.0%$"),
	   "three parts, and a step that took longer than all of them");
	ok(!says("stats", " dual_batch "), "a mode that was not used has no row");
	ok(says("stats --json", "\"t_ideal_ns\": 10258800000,") && says("stats --json", "\"gain_ns\": 237300000,") &&
		   says("stats --json", "\"hidden_steps\": 4,") &&
		   says("stats --json", "\"overlap_efficiency\": 0.5$") &&
		   says("stats --json", "\"overlap_efficiency\": null$"),
	   "the same for scripts");
	memset(m, 0xff, MOE_STATS_MODES * sizeof *m);
	ok(says("stats --json", "\"gain_ns\": 9000000000000000000,") && alive(),
	   "numbers that no clock has do no harm");
	memset(m, 0, MOE_STATS_MODES * sizeof *m);
}

/* The file that clients lock: with a session only, for all the same, and nobody writes into it. */
static void test_registrar(struct ring *r)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	struct stat first, second;
	struct moe_msg m;
	int sock = connect_raw();
	bool good;

	hello(sock);
	begin(&m, sizeof m, MOE_MSG_REGISTRAR, 0);
	ok(exchange(sock, &m, sizeof m, NULL, 0) == MOE_MSG_ERROR && refused(-ENOTCONN, "attach"),
	   "the registrar's file is for sessions");
	close(sock);
	require(exchange(r->sock, &m, sizeof m, NULL, 0) == (MOE_MSG_REGISTRAR | MOE_MSG_REPLY) && n_answer_fds == 1,
		"the registrar's file");
	good = fcntl(answer_fds[0], F_SETLK, &lock) == 0 && pwrite(answer_fds[0], "x", 1, 0) < 0 &&
	       ftruncate(answer_fds[0], 0) < 0 && ftruncate(answer_fds[0], 1 << 30) < 0;
	ok(good && fstat(answer_fds[0], &first) == 0, "it can be locked, and not be changed");
	require(exchange(r->sock, &m, sizeof m, NULL, 0) == (MOE_MSG_REGISTRAR | MOE_MSG_REPLY) && n_answer_fds == 1,
		"once more");
	ok(fstat(answer_fds[0], &second) == 0 && first.st_ino == second.st_ino && first.st_dev == second.st_dev,
	   "it is the same one each time");
}

/* Of a daemon that was not told to push into GPUs. */
static void test_no_device(struct ring *r)
{
	struct moe_msg_hello h = {.features = ~0ull};
	struct moe_msg_device m = {.bytes = 4096};
	int fd = memfd_new("no GPU's", 4096, NULL), sock = connect_raw();

	begin(&h, sizeof h, MOE_MSG_HELLO, 0);
	ok(exchange(sock, &h, sizeof h, NULL, 0) == (MOE_MSG_HELLO | MOE_MSG_REPLY) &&
		   ((const struct moe_msg_hello *)answer)->features ==
			   (MOE_FEATURES_ALL & ~MOE_FEATURE_DEVICE & ~MOE_FEATURE_MODULE),
	   "HELLO promises neither to push into GPUs nor a queue of the kernel module");
	close(sock);
	begin(&m, sizeof m, MOE_MSG_DEVICE, 1);
	ok(exchange(r->sock, &m, sizeof m, &fd, 1) == MOE_MSG_ERROR && refused(-EOPNOTSUPP, "--push-cuda"),
	   "slots in a GPU are refused");
	close(fd);
}

static void test_broken_rings(void)
{
	struct ring r;

	ring_open(&r);
	__atomic_store_n(&r.client->sq_tail, 1000, __ATOMIC_RELEASE);
	ring_bell(&r);
	ok(closed_soon(r.sock), "a tail beyond the queue costs the connection");
	ring_close(&r);
	ring_open(&r);
	__atomic_store_n(&r.client->cq_head, 3, __ATOMIC_RELEASE);
	ring_bell(&r);
	ok(closed_soon(r.sock), "a head beyond the tail costs the connection");
	ring_close(&r);
	ring_open(&r);
	for (uint32_t i = 0; i < 17; i++) { /* 16 entries: nothing is ever retired */
		__atomic_store_n(&r.client->sq_tail, i + 1, __ATOMIC_RELEASE);
		ring_bell(&r);
		usleep(2000);
	}
	ok(closed_soon(r.sock), "more requests than completions have room for costs the connection");
	ring_close(&r);
	ok(alive(), "the daemon is alive");
}

#define SLEEPERS 16
#define SLEEPERS_WOKEN 4 /* by a completion, as moe-ring(7) has it */

struct sleepers {
	const struct ring *ring;
	_Atomic int began, woken, over;
};

static void *sleep_on_tail(void *arg)
{
	struct sleepers *all = arg;
	const uint32_t seen = all->ring->head;

	atomic_fetch_add(&all->began, 1);
	if (syscall(SYS_futex, &all->ring->daemon->cq_tail, FUTEX_WAIT, seen, NULL, NULL, 0) == 0)
		atomic_fetch_add(&all->woken, 1);
	atomic_fetch_add(&all->over, 1);
	return NULL;
}

/* Each wake-up takes the reactor microseconds: a client with a thousand threads must not make others wait for them. */
static void test_sleepers(void)
{
	const struct moe_sqe nop = {.op = MOE_OP_NOP};
	pthread_t threads[SLEEPERS];
	struct ring r;
	struct sleepers all = {.ring = &r};
	int woken = 0, rounds = 0;
	bool few = true;
	uint64_t end = 0;

	ring_open_bare(&r);
	for (int i = 0; i < SLEEPERS; i++)
		require(pthread_create(&threads[i], NULL, sleep_on_tail, &all) == 0, "a thread");
	while (atomic_load(&all.began) < SLEEPERS && tap_wait(&end))
		;
	usleep(50000);
	__atomic_store_n(&r.client->cq_wait, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < SLEEPERS && atomic_load(&all.over) < SLEEPERS; i++) {
		require(ring_call(&r, &nop, NULL) == 0, "a NOP");
		rounds++;
		usleep(20000);
		woken = atomic_load(&all.woken); /* one that was woken may be late, and is never early */
		few = few && woken <= SLEEPERS_WOKEN * rounds;
	}
	end = 0;
	while (atomic_load(&all.over) < SLEEPERS && tap_wait(&end))
		;
	woken = atomic_load(&all.woken);
	ok(few && woken >= 1, "a completion wakes four of many sleepers at most: %d in %d", woken, rounds);
	ok(woken > SLEEPERS_WOKEN && atomic_load(&all.over) == SLEEPERS, "the next ones wake the others");
	futex_wake(&r.daemon->cq_tail, FUTEX_ALL);
	for (int i = 0; i < SLEEPERS; i++)
		pthread_join(threads[i], NULL);
	ring_close(&r);
}

static void test_readonly_region(void)
{
	struct moe_msg_attach a = good_attach();
	int sock = connect_raw();

	hello(sock);
	attach(sock, &a);
	if (access("/proc/self/fd", R_OK) != 0)
		tap_skip("/proc is not mounted: the daemon region stays writable, as its status says");
	else
		ok(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, answer_fds[2], 0) == MAP_FAILED,
		   "the daemon region cannot be mapped writable");
	ok(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, answer_fds[4], 0) == MAP_FAILED,
	   "the weights cannot be mapped writable");
	ok((fcntl(answer_fds[4], F_GET_SEALS) & F_SEAL_WRITE) != 0, "they carry F_SEAL_WRITE");
	close(sock);
}

int main(void)
{
	struct ring ring;
	int before, after;

	fixture_start(&fixture, fixture_sample(), (const char *const[]){"--threads", "2", NULL});
	alive();
	before = quiet_fds(-1);
	test_broken_messages();
	test_attach();
	test_arenas();
	test_readonly_region();
	ring_open(&ring);
	test_entries(&ring);
	test_modes(&ring);
	test_registrar(&ring);
	test_no_device(&ring);
	ring_close(&ring);
	test_broken_rings();
	test_sleepers();
	fdmsg_close_fds(answer_fds, n_answer_fds);
	after = quiet_fds(before);
	if (before < 0)
		tap_skip("/proc is not mounted: descriptors cannot be counted");
	else
		ok(after <= before, "no descriptor leaked: %d before, %d after", before, after);
	ok(fixture_stop(&fixture) == 0, "the daemon ends cleanly on SIGTERM");
	return tap_done();
}
