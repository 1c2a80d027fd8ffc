/* SPDX-License-Identifier: MIT */
/* Queues by io_uring: round trips, what mixes with ioctls, what is refused, and what is taken back. */
#include "tests/kmod/rings.h"

#include <pthread.h>
#include <sys/utsname.h>

bool rings_there(int dev)
{
	struct moe_kmod_features f = {0};

	return ioctl(dev, MOE_KMOD_FEATURES, &f) == 0 && f.features & MOE_KMOD_HAS_URING;
}

bool ring_new(struct io_uring *ring, unsigned flags)
{
	return io_uring_queue_init(RING_ENTRIES, ring, flags | IORING_SETUP_SQE128 | IORING_SETUP_CQE32) == 0;
}

struct io_uring_sqe *ring_entry(struct io_uring *ring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	if (!sqe)
		_exit(98);
	memset(sqe, 0, ring->flags & IORING_SETUP_SQE128 ? 2 * sizeof *sqe : sizeof *sqe);
	return sqe;
}

struct io_uring_sqe *ring_prepare(struct io_uring *ring, int dev, uint32_t op, const void *command, uint64_t user_data)
{
	struct io_uring_sqe *sqe = ring_entry(ring);

	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = dev;
	sqe->off = op;
	sqe->user_data = user_data;
	memcpy((char *)sqe + 48, command, ring->flags & IORING_SETUP_SQE128 ? 80 : 16);
	return sqe;
}

void ring_fetch(struct io_uring *ring, int dev, uint32_t queue, uint32_t tag, struct moe_kmod_fetched *to)
{
	const struct moe_kmod_tag t = {.queue = queue, .tag = tag, .to = (uintptr_t)to};

	ring_prepare(ring, dev, MOE_KMOD_FETCH, &t, tag);
	io_uring_submit(ring);
}

void ring_submit(struct io_uring *ring, int dev, uint32_t queue, uint64_t user_data, struct moe_kmod_answer *to)
{
	const struct moe_kmod_request r = request_of(queue, MOE_OP_NOP, user_data, 0);

	ring_prepare(ring, dev, MOE_KMOD_SUBMIT, &r, user_data)->addr = (uintptr_t)to;
	io_uring_submit(ring);
}

void ring_commit_and_fetch(struct io_uring *ring, int dev, uint32_t queue, const struct moe_kmod_fetched *of,
			   struct moe_kmod_fetched *to)
{
	const struct moe_kmod_tag t = {.queue = queue,
				       .tag = of->tag,
				       .seq = of->seq,
				       .to = (uintptr_t)to,
				       .answer = {.bytes = of->seq, .pairs = 5}};

	ring_prepare(ring, dev, MOE_KMOD_COMMIT_AND_FETCH, &t, of->tag);
	io_uring_submit(ring);
}

int32_t ring_next(struct io_uring *ring, uint64_t *user_data, uint64_t *word)
{
	struct __kernel_timespec limit = {.tv_sec = 20};
	struct io_uring_cqe *cqe;
	int32_t res;

	if (io_uring_wait_cqe_timeout(ring, &cqe, &limit) < 0)
		return INT32_MIN;
	res = cqe->res;
	if (user_data)
		*user_data = cqe->user_data;
	if (word)
		*word = ring->flags & IORING_SETUP_CQE32 ? cqe->big_cqe[0] : 0;
	io_uring_cqe_seen(ring, cqe);
	return res;
}

bool ring_is_quiet(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;

	return io_uring_peek_cqe(ring, &cqe) == -EAGAIN;
}

/* Rings end by work of the kernel, soon after they were closed. */
static bool becomes_free(int daemon, uint32_t q, uint32_t tag)
{
	struct moe_kmod_fetched f;
	uint64_t end = 0;

	while (fetch(daemon, q, tag, &f) < 0 && errno == EBUSY)
		if (!tap_wait(&end))
			break;
	return errno == EAGAIN;
}

static void test_round_trips(int daemon, int client, uint32_t q, unsigned flags, const char *name)
{
	struct io_uring d, c;
	struct moe_kmod_fetched f = {0}, next = {0};
	struct moe_kmod_answer answer = {0};
	uint64_t data = 0, word = 0;

	if (!ring_new(&d, flags) || !ring_new(&c, flags)) {
		ok(false, "%s: two rings", name);
		return;
	}
	ring_fetch(&d, daemon, q, 0, &f);
	ok(ring_is_quiet(&d), "%s: a fetch waits", name);
	ring_submit(&c, client, q, 42, &answer);
	ok(ring_next(&d, NULL, NULL) == 0 && f.tag == 0 && f.sqe[0] == 42, "%s: a request completes it", name);
	ring_submit(&c, client, q, 43, &answer);
	ok(ring_is_quiet(&c), "%s: it is not answered yet", name);
	ring_commit_and_fetch(&d, daemon, q, &f, &next);
	ok(ring_next(&c, &data, &word) == 0 && data == 42 && word == f.seq && answer.bytes == f.seq &&
		   answer.pairs == 5,
	   "%s: the answer comes with its words", name);
	ok(ring_next(&d, NULL, NULL) == 0 && next.sqe[0] == 43, "%s: the tag has the next one", name);
	ring_commit_and_fetch(&d, daemon, q, &next, &f);
	ok(ring_next(&c, &data, NULL) == 0 && data == 43, "%s: which is answered, too", name);
	io_uring_queue_exit(&c);
	io_uring_queue_exit(&d);
	ok(becomes_free(daemon, q, 0), "%s: a fetch is taken back with its ring", name);
}

static void test_mixed(int daemon, int client, uint32_t q)
{
	struct io_uring ring;
	struct moe_kmod_fetched f;
	struct moe_kmod_reap r;
	uint64_t data;

	if (!ring_new(&ring, 0))
		return;
	ring_submit(&ring, client, q, 1, NULL);
	ok(fetch(daemon, q, 0, &f) == 0 && commit(daemon, q, 0, f.seq, -EIO) == 0 &&
		   ring_next(&ring, &data, NULL) == -EIO && data == 1,
	   "a daemon with ioctls answers a client with a ring");
	ring_fetch(&ring, daemon, q, 2, &f);
	submit(client, q, 2);
	ok(ring_next(&ring, NULL, NULL) == 0 && f.sqe[0] == 2, "a daemon with a ring fetches from one with ioctls");
	ring_prepare(&ring, daemon, MOE_KMOD_COMMIT, &(struct moe_kmod_tag){.queue = q, .tag = 2, .seq = f.seq}, 9);
	io_uring_submit(&ring);
	ok(ring_next(&ring, &data, NULL) == 0 && data == 9 && reap(client, &r) == 0 && r.user_data == 2, "and answers");
	io_uring_queue_exit(&ring);
}

static int32_t sent(struct io_uring *ring, int dev, uint32_t op, const void *command, uint8_t flags, uint32_t len)
{
	struct io_uring_sqe *sqe = ring_prepare(ring, dev, op, command, 0);

	sqe->flags = flags;
	sqe->len = len;
	io_uring_submit(ring);
	return ring_next(ring, NULL, NULL);
}

static void test_refused(int daemon, int client, uint32_t q)
{
	const struct moe_kmod_request r = request_of(q, MOE_OP_NOP, 0, 0);
	const struct moe_kmod_tag t = {.queue = q};
	struct moe_kmod_request wrong = r;
	struct io_uring ring, small;
	struct moe_kmod_fetched f;

	if (!ring_new(&ring, 0) || io_uring_queue_init(8, &small, 0) < 0)
		return;
	ok(sent(&small, client, MOE_KMOD_SUBMIT, &r, 0, 0) == -EINVAL, "a ring without SQE128");
	ok(sent(&ring, client, MOE_KMOD_SUBMIT, &r, IOSQE_ASYNC, 0) == -EOPNOTSUPP, "a thread of io-wq");
	ok(sent(&ring, client, MOE_KMOD_SUBMIT, &r, 0, 1) == -EINVAL, "an entry with a length");
	ok(sent(&ring, client, MOE_KMOD_LEASE, &r, 0, 0) == -ENOTTY, "a command that is an ioctl only");
	wrong.sqe[7] = 1;
	ok(sent(&ring, client, MOE_KMOD_SUBMIT, &wrong, 0, 0) == -EINVAL, "a reserved field");
	wrong = r;
	wrong.lease = 99999;
	ok(sent(&ring, client, MOE_KMOD_SUBMIT, &wrong, 0, 0) == -ENOENT, "a lease that is none");
	ok(sent(&ring, client, MOE_KMOD_FETCH, &t, 0, 0) == -EPERM, "FETCH of a client");
	ok(sent(&ring, daemon, MOE_KMOD_COMMIT, &t, 0, 0) == -ESTALE, "COMMIT of nothing");
	ok(sent(&ring, daemon, MOE_KMOD_COMMIT_AND_FETCH, &t, 0, 0) == -ESTALE, "and nothing is fetched then");
	submit(client, q, 3);
	ok(sent(&ring, daemon, MOE_KMOD_FETCH, &t, 0, 0) == -EFAULT, "a request that cannot be told");
	ok(fetch(daemon, q, 0, &f) == 0 && f.sqe[0] == 3 && commit(daemon, q, 0, f.seq, 0) == 0, "is not lost");
	reap(client, &(struct moe_kmod_reap){0});
	ring_submit(&ring, client, q, 4, (void *)1);
	serve_all(daemon, q);
	ok(ring_next(&ring, NULL, NULL) == -EFAULT, "an answer that cannot be written says so");
	io_uring_queue_exit(&small);
	io_uring_queue_exit(&ring);
}

/* A child that has inherited a ring posts a SUBMIT; where the ring has a thread that is its parent's. */
static int32_t by_a_child(int client, uint32_t q, unsigned flags)
{
	struct io_uring ring;
	int32_t res;
	pid_t pid;

	if (!ring_new(&ring, flags))
		return INT32_MIN;
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		ring_submit(&ring, client, q, 1, NULL);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	res = ring_next(&ring, NULL, NULL);
	io_uring_queue_exit(&ring);
	return res;
}

static void test_inherited(int client, uint32_t q)
{
	const struct moe_kmod_request r = request_of(q, MOE_OP_NOP, 0, 0);
	struct io_uring ring;

	ok(by_a_child(client, q, 0) == -EPERM, "a child that has inherited a ring is refused");
	ok(by_a_child(client, q, IORING_SETUP_SQPOLL) == -EOPNOTSUPP, "though the ring's thread is its parent's");
	if (!ring_new(&ring, IORING_SETUP_SQPOLL))
		return;
	ok(sent(&ring, client, MOE_KMOD_SUBMIT, &r, 0, 0) == -EOPNOTSUPP && counter("requests") == 0,
	   "for whose commands nobody is heard");
	io_uring_queue_exit(&ring);
}

/* A ring's end, with commands of each state in it. */
static void test_ring_ends(int daemon, int client, uint32_t q)
{
	struct io_uring d, c;
	struct moe_kmod_fetched f[2] = {0};
	struct moe_kmod_answer answer;

	if (!ring_new(&d, 0) || !ring_new(&c, 0))
		return;
	for (uint32_t i = 0; i < 2; i++)
		ring_fetch(&d, daemon, q, i, &f[i]);
	for (uint64_t i = 0; i < 4; i++)
		ring_submit(&c, client, q, i, &answer);
	ok(ring_next(&d, NULL, NULL) == 0 && ring_next(&d, NULL, NULL) == 0, "two of four requests are fetched");
	io_uring_queue_exit(&c);
	ok(counter_becomes("requests", 2) && queue_state(daemon, q).waiting == 0 && queue_state(daemon, q).fetched == 2,
	   "the client's ring ends with all of them");
	ok(commit(daemon, q, 0, f[0].seq, 0) == 0 && commit(daemon, q, 1, f[1].seq, 0) == 0,
	   "what was fetched is committed into nothing");
	ok(queue_state(daemon, q).fetched == 0 && counter("requests") == 0, "nothing is left of it");
	ring_fetch(&d, daemon, q, 0, &f[0]);
	ring_fetch(&d, daemon, q, 1, &f[1]);
	submit(client, q, 7);
	ok(ring_next(&d, NULL, NULL) == 0, "the daemon fetches one more");
	io_uring_queue_exit(&d);
	ok(queue_state(daemon, q).fetched == 1 && queue_state(daemon, q).served == 1,
	   "its ring ends: it goes on serving, and has it");
	ok(becomes_free(daemon, q, 1) && commit(daemon, q, 0, f[0].seq, 0) == 0, "by ioctls");
	reap(client, &(struct moe_kmod_reap){0});
}

/* The res of IORING_OP_ASYNC_CANCEL; what it cancels may complete before and after. */
static int32_t asked_back(struct io_uring *ring, uint64_t user_data, uint32_t flags, int fd)
{
	struct io_uring_sqe *sqe = ring_entry(ring);
	int32_t res;
	uint64_t data;

	sqe->opcode = IORING_OP_ASYNC_CANCEL;
	sqe->fd = fd;
	sqe->addr = user_data;
	sqe->cancel_flags = flags;
	sqe->user_data = 1000;
	io_uring_submit(ring);
	do
		res = ring_next(ring, &data, NULL);
	while (res != INT32_MIN && data != 1000);
	return res;
}

/*
 * Up to Linux 6.12 IORING_OP_ASYNC_CANCEL finds no command of a file, by whichever key: that is asserted, and that the
 * command goes on as if nothing had been asked. Its ring's end takes it back (test_ring_ends).
 */
static void test_cancel(int daemon, int client, uint32_t q)
{
	struct moe_kmod_fetched f = {0};
	struct io_uring c, d;
	uint64_t data = 0;

	if (!ring_new(&c, 0) || !ring_new(&d, 0))
		return;
	ring_submit(&c, client, q, 5, NULL);
	ok(asked_back(&c, 5, 0, -1) == -ENOENT, "ASYNC_CANCEL of a SUBMIT that waits: ENOENT");
	ok(asked_back(&c, 0, IORING_ASYNC_CANCEL_FD, client) == -ENOENT, "by its file: ENOENT");
	ok(asked_back(&c, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL, -1) <= 0, "all there are: none");
	ok(ring_is_quiet(&c) && counter("requests") == 1 && queue_state(daemon, q).waiting == 1, "it waits on");
	ring_fetch(&d, daemon, q, 0, &f);
	ok(ring_next(&d, NULL, NULL) == 0 && f.sqe[0] == 5, "it is fetched");
	ok(asked_back(&c, 5, 0, -1) == -ENOENT && counter("requests") == 1, "ASYNC_CANCEL when it is: ENOENT");
	ring_commit_and_fetch(&d, daemon, q, &f, &f);
	ok(ring_next(&c, &data, NULL) == 0 && data == 5 && ring_is_quiet(&c), "and answered, once");
	ok(asked_back(&d, 0, 0, -1) == -ENOENT && ring_is_quiet(&d),
	   "ASYNC_CANCEL of a COMMIT_AND_FETCH that waits: ENOENT");
	ring_submit(&c, client, q, 6, NULL);
	ok(ring_next(&d, NULL, NULL) == 0 && f.sqe[0] == 6, "it has the next request");
	io_uring_queue_exit(&c);
	ok(commit(daemon, q, 0, f.seq, 0) == 0 && counter_becomes("requests", 0), "which goes with its ring");
	io_uring_queue_exit(&d);
}

/* -- a thread that submits and ends ------------------------------------------------------------------------------- */

struct leaver {
	struct io_uring *ring;
	int client;
	struct moe_kmod_request request;
	struct moe_kmod_answer *to;
	pthread_barrier_t *ends; /* NULL: at once */
};

static void *submits(void *arg)
{
	struct leaver *l = arg;

	ring_prepare(l->ring, l->client, MOE_KMOD_SUBMIT, &l->request, l->request.sqe[0])->addr = (uintptr_t)l->to;
	io_uring_submit(l->ring);
	if (l->ends) {
		pthread_barrier_wait(l->ends); /* it has submitted */
		pthread_barrier_wait(l->ends);
	}
	return NULL;
}

/* Its SUBMIT says ECANCELED, and its answer is there to be reaped. */
static bool goes_on(int client, struct io_uring *ring, uint64_t user_data, int32_t status)
{
	struct moe_kmod_reap r = {0};
	uint64_t data = 0;

	return ring_next(ring, &data, NULL) == -ECANCELED && data == user_data && reap(client, &r) == 0 &&
	       r.user_data == user_data && r.answer.status == status && counter_becomes("requests", 0);
}

static void test_thread_ends(int daemon, int client, uint32_t q)
{
	struct io_uring ring;
	struct moe_kmod_answer to = {.status = 1};
	struct moe_kmod_fetched f;
	struct leaver l = {.ring = &ring, .client = client, .request = request_of(q, MOE_OP_NOP, 51, 0), .to = &to};
	pthread_barrier_t ends;
	pthread_t thread;

	l.request.flags = MOE_KMOD_REQUEST_STAYS;
	if (!ring_new(&ring, 0) || pthread_barrier_init(&ends, NULL, 2) != 0)
		return;
	pthread_create(&thread, NULL, submits, &l);
	pthread_join(thread, NULL);
	ok(fetch(daemon, q, 0, &f) == 0 && f.sqe[0] == 51 && commit(daemon, q, 0, f.seq, -EIO) == 0,
	   "a thread submits and ends: what stays is fetched");
	ok(goes_on(client, &ring, 51, -EIO) && to.status == 1, "and its answer is reaped");
	l.request.sqe[0] = 52;
	l.ends = &ends;
	pthread_create(&thread, NULL, submits, &l);
	pthread_barrier_wait(&ends);
	ok(fetch(daemon, q, 0, &f) == 0 && f.sqe[0] == 52, "one that is fetched when its thread ends");
	pthread_barrier_wait(&ends);
	pthread_join(thread, NULL);
	ok(commit(daemon, q, 0, f.seq, 0) == 0 && goes_on(client, &ring, 52, 0) && to.status == 1, "goes on, too");
	l.request.sqe[0] = 53;
	pthread_create(&thread, NULL, submits, &l);
	pthread_barrier_wait(&ends);
	fetch(daemon, q, 0, &f);
	commit(daemon, q, 0, f.seq, 0);
	ok(ring_next(&ring, NULL, NULL) == 0 && to.status == 0,
	   "one that is answered before its thread ends: by the ring");
	pthread_barrier_wait(&ends);
	pthread_join(thread, NULL);
	ok(counter("requests") == 0 && reap(client, &(struct moe_kmod_reap){0}) < 0, "and by it alone");
	ok(ioctl(client, MOE_KMOD_SUBMIT, &l.request) < 0 && errno == EINVAL,
	   "by ioctl nothing else is there to be said");
	l.ends = NULL;
	submits(&l);
	io_uring_queue_exit(&ring);
	ok(counter_becomes("requests", 0), "the end of its ring takes it back");
	pthread_barrier_destroy(&ends);
}

/* It serves a queue, and gives its rights up while its FETCHes wait. */
static void gives_up(void *queue)
{
	struct io_uring ring;
	struct moe_kmod_fetched f[2] = {0};
	const int dev = device_open();

	*(uint32_t *)queue = queue_new(dev, 2, 0);
	if (!ring_new(&ring, 0))
		_exit(2);
	for (uint32_t i = 0; i < 2; i++)
		ring_fetch(&ring, dev, *(uint32_t *)queue, i, &f[i]);
	if (setresgid(SOMEBODY, SOMEBODY, SOMEBODY) < 0 || setresuid(SOMEBODY, SOMEBODY, SOMEBODY) < 0)
		_exit(3);
	child_ready();
	_exit(ring_next(&ring, NULL, NULL) == -EPERM && ring_next(&ring, NULL, NULL) == -EPERM && f[0].seq == 0 &&
			      f[1].seq == 0
		      ? 0
		      : 1);
}

static void test_rights_given_up(int client)
{
	uint32_t *queue = mmap(NULL, sizeof *queue, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct child c = child_start(gives_up, queue);

	child_wait_ready(&c);
	submit(client, *queue, 7);
	child_go(&c);
	ok(child_end(&c, 0) == 0, "who is the keeper no more is told of no request, though its FETCHes wait");
	ok(queue_state(client, *queue).waiting == 1 && queue_state(client, *queue).fetched == 0,
	   "which waits for the next one that serves");
	queue_end(client, *queue);
	reap(client, &(struct moe_kmod_reap){0});
	munmap(queue, sizeof *queue);
}

/* The device is closed while commands of rings wait on it. */
static void test_closes(void)
{
	int daemon = device_open(), client = device_open();
	uint32_t q = queue_new(daemon, 2, 0);
	struct io_uring d, c;
	struct moe_kmod_fetched f;

	if (!ring_new(&d, 0) || !ring_new(&c, 0))
		return;
	ring_submit(&c, client, q, 1, NULL);
	close(client);
	ok(ring_next(&c, NULL, NULL) == -ECANCELED, "who closes the device has its requests back");
	ring_fetch(&d, daemon, q, 0, &f);
	close(daemon);
	ok(ring_next(&d, NULL, NULL) == -ECANCELED, "and the daemon its fetches");
	daemon = device_open();
	ok(queue_end(daemon, q) == 0, "the queue is there, until it is ended");
	q = queue_new(daemon, 2, 0);
	client = device_open();
	ring_fetch(&d, daemon, q, 0, &f);
	ring_submit(&c, client, q, 1, NULL);
	ring_submit(&c, client, q, 2, NULL);
	ok(ring_next(&d, NULL, NULL) == 0, "one of two is fetched");
	ring_fetch(&d, daemon, q, 1, &f);
	ring_next(&d, NULL, NULL);
	ring_submit(&c, client, q, 3, NULL);
	queue_end(daemon, q);
	ok(ring_next(&c, NULL, NULL) == -ESHUTDOWN && ring_next(&c, NULL, NULL) == -ESHUTDOWN &&
		   ring_next(&c, NULL, NULL) == -ESHUTDOWN,
	   "a queue's end answers those that are fetched, and those that wait");
	close(client);
	close(daemon);
	io_uring_queue_exit(&c);
	io_uring_queue_exit(&d);
}

void test_rings(void)
{
	int daemon = device_open(), client = device_open();
	uint32_t q = queue_new(daemon, 4, 0);
	struct utsname name;
	int major = 0, minor = 0;

	uname(&name);
	sscanf(name.release, "%d.%d", &major, &minor);
	ok(rings_there(daemon) == (major > 6 || (major == 6 && minor >= 7)), "io_uring is spoken since Linux 6.7");
	if (rings_there(daemon)) {
		test_round_trips(daemon, client, q, 0, "rings");
		test_round_trips(daemon, client, q, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
				 "DEFER_TASKRUN");
		test_mixed(daemon, client, q);
		test_refused(daemon, client, q);
		test_inherited(client, q);
		test_ring_ends(daemon, client, q);
		test_cancel(daemon, client, q);
		test_thread_ends(daemon, client, q);
		queue_end(daemon, q);
		test_rights_given_up(client);
		test_closes();
	} else {
		struct io_uring ring;
		const struct moe_kmod_request r = request_of(q, MOE_OP_NOP, 0, 0);

		ok(ring_new(&ring, 0) && sent(&ring, client, MOE_KMOD_SUBMIT, &r, 0, 0) == -EOPNOTSUPP,
		   "it is refused before, where nothing would cancel it");
		io_uring_queue_exit(&ring);
		queue_end(daemon, q);
	}
	close(client);
	close(daemon);
}
