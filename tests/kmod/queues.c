/* SPDX-License-Identifier: MIT */
/* Queues by ioctls and poll: round trips, what is refused, order, turns and bounds. */
#include "tests/kmod/queues.h"

#include <linux/aio_abi.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>

uint32_t queue_new(int dev, uint32_t depth, uint32_t recover_ms)
{
	struct moe_kmod_queue_new n = {.depth = depth, .recover_ms = recover_ms, .name = "queue"};

	return ioctl(dev, MOE_KMOD_QUEUE_NEW, &n) < 0 ? 0 : n.id;
}

int queue_end(int dev, uint32_t queue)
{
	return ioctl(dev, MOE_KMOD_QUEUE_END, &(struct moe_kmod_queue_end){.id = queue});
}

int queue_recover(int dev, uint32_t queue, uint32_t *reissued)
{
	struct moe_kmod_recover r = {.id = queue};
	const int rc = ioctl(dev, MOE_KMOD_RECOVER, &r);

	*reissued = r.reissued;
	return rc;
}

struct moe_kmod_queue queue_state(int dev, uint32_t queue)
{
	struct moe_kmod_queue q = {.id = queue - 1};

	if (ioctl(dev, MOE_KMOD_QUEUE, &q) < 0 || q.id != queue)
		q.id = 0;
	return q;
}

struct moe_kmod_request request_of(uint32_t queue, uint8_t op, uint64_t user_data, uint64_t lease)
{
	struct moe_kmod_request r = {.queue = queue, .lease = lease};
	struct moe_sqe sqe = {.user_data = user_data, .op = op};

	if (op == MOE_OP_FILL) {
		sqe.layer = 3;
		sqe.fill.expert = 17;
		sqe.fill.dst = 4096;
	}
	memcpy(r.sqe, &sqe, sizeof r.sqe);
	return r;
}

int submit(int dev, uint32_t queue, uint64_t user_data)
{
	struct moe_kmod_request r = request_of(queue, MOE_OP_NOP, user_data, 0);

	return ioctl(dev, MOE_KMOD_SUBMIT, &r);
}

int fetch(int dev, uint32_t queue, uint32_t tag, struct moe_kmod_fetched *to)
{
	struct moe_kmod_tag t = {.queue = queue, .tag = tag, .to = (uintptr_t)to};

	return ioctl(dev, MOE_KMOD_FETCH, &t);
}

int commit(int dev, uint32_t queue, uint32_t tag, uint64_t seq, int status)
{
	struct moe_kmod_tag t = {.queue = queue, .tag = tag, .seq = seq, .answer = {.status = status, .bytes = seq}};

	return ioctl(dev, MOE_KMOD_COMMIT, &t);
}

int reap(int dev, struct moe_kmod_reap *to)
{
	*to = (struct moe_kmod_reap){0};
	return ioctl(dev, MOE_KMOD_REAP, to);
}

bool polls_pri(int dev)
{
	struct pollfd p = {.fd = dev, .events = POLLPRI};

	return poll(&p, 1, 0) == 1 && p.revents == POLLPRI;
}

int serve_all(int dev, uint32_t queue)
{
	struct moe_kmod_fetched f;
	int n = 0;

	while (fetch(dev, queue, 0, &f) == 0 && commit(dev, queue, 0, f.seq, 0) == 0)
		n++;
	return n;
}

static uint64_t user_data_of(const struct moe_kmod_fetched *f)
{
	return f->sqe[0];
}

static void test_round_trip(int daemon, int client, uint32_t q)
{
	struct moe_kmod_fetched f;
	struct moe_kmod_reap r;
	struct moe_kmod_request sent = request_of(q, MOE_OP_FILL, 42, 0);

	fails(fetch(daemon, q, 0, &f), EAGAIN, "an empty queue has nothing to fetch");
	fails(reap(client, &r), EAGAIN, "nor has its client anything to reap");
	ok(!polls_pri(daemon) && !polls_pri(client), "poll says so");
	ok(ioctl(client, MOE_KMOD_SUBMIT, &sent) == 0, "a client submits");
	ok(polls_pri(daemon), "the daemon's poll tells");
	ok(fetch(daemon, q, 1, &f) == 0, "the daemon fetches");
	ok(memcmp(f.sqe, sent.sqe, sizeof f.sqe) == 0 && f.tag == 1 && f.flags == 0 && f.lease == 0 && f.bytes == 0,
	   "the entry, as it was");
	ok(f.pid == (uint32_t)getpid() && f.uid == 0 && f.client != 0, "and who asks");
	fails(fetch(daemon, q, 1, &f), EBUSY, "the tag is taken");
	fails(commit(daemon, q, 0, f.seq, 0), ESTALE, "another tag has it not");
	fails(commit(daemon, q, 1, f.seq + 1, 0), ESTALE, "nor has it another request");
	ok(!polls_pri(client), "nothing is answered yet");
	ok(commit(daemon, q, 1, f.seq, -EIO) == 0, "it is answered");
	fails(commit(daemon, q, 1, f.seq, 0), ESTALE, "once");
	ok(polls_pri(client) && reap(client, &r) == 0, "the client reaps");
	ok(r.user_data == 42 && r.answer.status == -EIO && r.answer.bytes == f.seq, "its answer");
	fails(reap(client, &r), EAGAIN, "once");
}

/* What has two queues of waiters, of events and of requests, is more than aio takes. */
static void test_aio(int dev)
{
	struct iocb poll = {.aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = (uint32_t)dev, .aio_buf = POLLPRI};
	struct iocb *one = &poll;
	aio_context_t ctx = 0;

	require(syscall(SYS_io_setup, 1, &ctx) == 0, "a context of aio");
	fails(syscall(SYS_io_submit, ctx, 1, &one), EINVAL, "aio does not poll the device");
	syscall(SYS_io_destroy, ctx);
}

static void test_lease(int daemon, int client, uint32_t q)
{
	const uint64_t pool = pool_new(daemon, 1, 0, 5), lease = lease_new(client, pool, 5);
	struct moe_kmod_request r = request_of(q, MOE_OP_FILL, 1, lease);
	struct moe_kmod_fetched f;

	ok(ioctl(client, MOE_KMOD_SUBMIT, &r) == 0 && fetch(daemon, q, 0, &f) == 0, "a request stands on a lease");
	ok(f.lease == lease && f.pool == pool && f.epoch == 5 && f.offset == 0 && f.bytes == 4096,
	   "the daemon is told which range of which pool");
	commit(daemon, q, 0, f.seq, 0);
	fails(ioctl(daemon, MOE_KMOD_SUBMIT, &r), ENOENT, "another's lease is none");
	ioctl(daemon, MOE_KMOD_EPOCH, &(struct moe_kmod_epoch){.id = pool, .epoch = 6});
	fails(ioctl(client, MOE_KMOD_SUBMIT, &r), ESTALE, "nor one of an epoch that has passed");
	pool_release(daemon, pool);
	fails(ioctl(client, MOE_KMOD_SUBMIT, &r), ESTALE, "nor one of a pool that was released");
	ioctl(client, MOE_KMOD_DROP, &(struct moe_kmod_drop){.id = lease});
	fails(ioctl(client, MOE_KMOD_SUBMIT, &r), ENOENT, "nor one that was dropped");
	reap(client, &(struct moe_kmod_reap){0});
}

/* Each word of an entry is set in turn: those that are reserved are refused. */
static void test_entries(int client, int daemon, uint32_t q)
{
	/* Of each operation, whether word 1 with a count, and each word of the payload, may be set whole. */
	static const char *const may[MOE_OP_COUNT] = {"0000000", "0011100", "1011110", "0100000",
						      "1110000", "0110000", "0100000", "0110000"};
	int wrong = 0;

	for (unsigned op = 0; op < MOE_OP_COUNT; op++)
		for (unsigned w = 0; w < 7; w++) {
			struct moe_kmod_request r = request_of(q, MOE_OP_NOP, 1, 0);
			bool good;

			/* COMPUTE's and HINT's words 1 have a count. */
			r.sqe[1] = op | (w == 0 ? 1ull << 32 : 0);
			if (w)
				r.sqe[1 + w] = ~0ull;
			good = ioctl(client, MOE_KMOD_SUBMIT, &r) == 0;
			if (good != (may[op][w] == '1')) {
				diag("operation %u, word %u: %s", op, w, good ? "taken" : strerror(errno));
				wrong++;
			}
		}
	ok(wrong == 0, "what an entry has reserved is refused, and nothing else");
	serve_all(daemon, q);
	while (reap(client, &(struct moe_kmod_reap){0}) == 0)
		;
}

static int sends(int client, struct moe_kmod_request r, unsigned word, uint64_t value)
{
	r.sqe[word] = value;
	return ioctl(client, MOE_KMOD_SUBMIT, &r);
}

static void test_refused(int daemon, int client, uint32_t q)
{
	const struct moe_kmod_request nop = request_of(q, MOE_OP_NOP, 0, 0);
	struct moe_kmod_request r = nop;
	struct moe_kmod_tag t = {.queue = q, .answer = {.status = 1}};
	struct moe_kmod_fetched f;
	uint32_t n;

	fails(sends(client, nop, 1, MOE_OP_COUNT), EOPNOTSUPP, "an operation that nobody knows");
	fails(sends(client, nop, 1, MOE_OP_FILL | 0x1000), EINVAL, "a flag that nobody knows");
	r.flags = 1;
	fails(ioctl(client, MOE_KMOD_SUBMIT, &r), EINVAL, "a flag of the command");
	fails(submit(client, q + 1, 0), ENOENT, "a queue that never was");
	fails(fetch(client, q, 0, &f), EPERM, "who does not serve it fetches nothing");
	fails(fetch(daemon, q, 4, &f), ENOENT, "a tag that it has not");
	fails(ioctl(daemon, MOE_KMOD_COMMIT, &t), EINVAL, "a status that is no error");
	t = (struct moe_kmod_tag){.queue = q, .seq = 1};
	fails(ioctl(daemon, MOE_KMOD_FETCH, &t), EINVAL, "FETCH with a seq");
	fails(ioctl(daemon, MOE_KMOD_COMMIT_AND_FETCH, &t), EOPNOTSUPP, "COMMIT_AND_FETCH is for io_uring");
	ok(queue_new(daemon, 1, 0) == 0 && errno == EBUSY, "a device serves one queue");
	ok(queue_new(client, 1, 0) == 0 && errno == EEXIST, "a user has one queue");
	ok(queue_new(client, 0, 0) == 0 && errno == EINVAL, "a queue without tags");
	ok(queue_new(client, MOE_KMOD_DEPTH_MAX + 1, 0) == 0 && errno == EINVAL, "a queue with too many");
	ok(queue_new(client, 1, MOE_KMOD_RECOVER_MS_MAX + 1) == 0 && errno == EINVAL, "one that waits for too long");
	fails(queue_recover(client, q, &n), EBUSY, "a queue that is served is not recovered");
	submit(client, q, 7);
	fails(fetch(daemon, q, 0, NULL), EFAULT, "a request that cannot be told");
	ok(fetch(daemon, q, 2, &f) == 0 && user_data_of(&f) == 7 && f.flags == 0, "is fetched again");
	commit(daemon, q, 2, f.seq, 0);
	reap(client, &(struct moe_kmod_reap){0});
}

/* One client has many requests, others few: none waits for more than one of each other's. */
static void test_turns(int daemon, int client, uint32_t q)
{
	enum { GREEDY = 20, OTHERS = 3 };
	struct moe_kmod_fetched f;
	int other[OTHERS], good = 0, last = 0;

	for (int i = 0; i < GREEDY; i++)
		submit(client, q, 100 + (uint64_t)i);
	for (int i = 0; i < OTHERS; i++) {
		other[i] = device_open();
		for (int k = 0; k < 2; k++)
			submit(other[i], q, (uint64_t)(10 * i + k));
	}
	/* 100, 0, 10, 20, 101, 1, 11, 21, 102, 103 ... */
	for (int i = 0; i < GREEDY + 2 * OTHERS; i++) {
		const uint64_t turn = (uint64_t)i / (OTHERS + 1), who = (uint64_t)i % (OTHERS + 1);
		const uint64_t expected = i >= 2 * (OTHERS + 1) ? 100u + (uint64_t)(i - 2 * OTHERS)
					  : who == 0            ? 100 + turn
								: 10 * (who - 1) + turn;

		if (fetch(daemon, q, 0, &f) < 0)
			break;
		last = (int)user_data_of(&f);
		good += user_data_of(&f) == expected;
		commit(daemon, q, 0, f.seq, 0);
	}
	ok(good == GREEDY + 2 * OTHERS, "clients take turns, each in its own order (%d, last %d)", good, last);
	for (int i = 0; i < OTHERS; i++)
		close(other[i]);
	while (reap(client, &(struct moe_kmod_reap){0}) == 0)
		;
}

static void test_bounds(int daemon, int client, uint32_t q)
{
	enum { DEVICES = MOE_KMOD_USER_REQUESTS_MAX / MOE_KMOD_REQUESTS_MAX };
	struct moe_kmod_reap r;
	int devices[DEVICES], n = 0, total = 0;

	while (submit(client, q, (uint64_t)n) == 0)
		n++;
	ok(n == MOE_KMOD_REQUESTS_MAX && errno == EBUSY, "a client has at most %d requests in flight", n);
	ok(serve_all(daemon, q) == n, "all of them are answered");
	fails(submit(client, q, 0), EBUSY, "what it has not reaped counts");
	ok(reap(client, &r) == 0 && r.user_data == 0 && submit(client, q, 0) == 0, "until it does");
	for (int i = 0; i < DEVICES; i++) {
		devices[i] = device_open();
		while (submit(devices[i], q, 0) == 0)
			total++;
	}
	ok(total == MOE_KMOD_USER_REQUESTS_MAX - n && errno == EDQUOT, "a user has at most %d", total + n);
	for (int i = 0; i < DEVICES; i++)
		close(devices[i]);
	ok(serve_all(daemon, q) == 1, "who closes the device takes back what it asked");
	while (reap(client, &r) == 0)
		;
	ok(submit(client, q, 0) == 0 && serve_all(daemon, q) == 1 && reap(client, &r) == 0, "then there is room");
}

static void test_end(int daemon, int client, uint32_t q)
{
	struct moe_kmod_fetched f;
	struct moe_kmod_reap r;
	int seen = 0;

	for (int i = 0; i < 3; i++)
		submit(client, q, (uint64_t)i);
	fetch(daemon, q, 0, &f);
	ok(queue_state(daemon, q).waiting == 2 && queue_state(daemon, q).fetched == 1, "one is fetched, two wait");
	ok(queue_end(daemon, q) == 0, "the queue ends");
	while (reap(client, &r) == 0)
		seen += r.answer.status == -ESHUTDOWN;
	ok(seen == 3, "all that waited get ESHUTDOWN");
	fails(submit(client, q, 0), ESTALE, "who comes later gets ESTALE");
	fails(commit(daemon, q, 0, f.seq, 0), ESTALE, "and so does the daemon");
}

/* Who serves waits, and another open device of its user ends the queue. */
static void test_end_by_another(int daemon, int other)
{
	const uint32_t q = queue_new(daemon, 4, 0);
	struct epoll_event pri = {.events = EPOLLPRI}, heard;
	const int hears = epoll_create1(EPOLL_CLOEXEC);
	struct moe_kmod_fetched f;

	require(hears >= 0 && epoll_ctl(hears, EPOLL_CTL_ADD, daemon, &pri) == 0 &&
			epoll_wait(hears, &heard, 1, 0) == 0,
		"a daemon waits for requests");
	ok(queue_end(other, q) == 0, "another ends its queue");
	ok(epoll_wait(hears, &heard, 1, 0) == 1 && heard.events == EPOLLPRI, "it hears of that");
	fails(fetch(daemon, q, 0, &f), ESTALE, "and is told what it is");
	ok(!polls_pri(daemon), "once");
	close(hears);
}

static void test_of_user(void *arg)
{
	const uint32_t q = *(uint32_t *)arg;
	int dev;
	uint32_t n;

	if (setresgid(SOMEBODY, SOMEBODY, SOMEBODY) < 0 || setresuid(SOMEBODY, SOMEBODY, SOMEBODY) < 0)
		_exit(2);
	dev = device_open();
	_exit(queue_new(dev, 1, 0) == 0 && errno == EPERM && queue_end(dev, q) < 0 && errno == EPERM &&
			      queue_recover(dev, q, &n) < 0 && errno == EPERM &&
			      fetch(dev, q, 0, &(struct moe_kmod_fetched){0}) < 0 && errno == EPERM &&
			      queue_state(dev, q).id == q && submit(dev, q, 9) == 0
		      ? 0
		      : 1);
}

static void test_rights(uint32_t q)
{
	struct child c;

	chmod(MOE_KMOD_DEVICE, 0666);
	c = child_start(test_of_user, &q);
	ok(child_end(&c, 0) == 0, "a client submits, and does nothing that the keeper may");
	chmod(MOE_KMOD_DEVICE, 0600);
}

void test_queues(void)
{
	int daemon = device_open(), client = device_open();
	struct moe_kmod_features f = {0};
	const uint32_t q = queue_new(daemon, 4, 0);
	struct moe_kmod_queue state = queue_state(client, q);

	ok(ioctl(client, MOE_KMOD_FEATURES, &f) == 0 && f.features & MOE_KMOD_HAS_QUEUE, "the module has queues");
	ok(q != 0 && state.id == q && state.depth == 4 && state.served == 1 && !strcmp(state.name, "queue"),
	   "a queue is made and listed");
	test_round_trip(daemon, client, q);
	test_aio(daemon);
	test_lease(daemon, client, q);
	test_entries(client, daemon, q);
	test_refused(daemon, client, q);
	test_turns(daemon, client, q);
	test_bounds(daemon, client, q);
	test_rights(q);
	test_end(daemon, client, q);
	test_end_by_another(daemon, client);
	close(client);
	close(daemon);
}
