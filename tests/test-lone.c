/* SPDX-License-Identifier: MIT */
/*
 * lone - the client's half of the law of the lone request (moe_ring.h): which entries lie beside the tail, and where
 * their completions are taken.
 *
 * The daemon is a thread that follows sq_tail and answers each entry with where it lay, beside the queue or in its
 * place. It looks at the sessions' words as the ring server does; the ring server's half is tested by fuzz-ring and
 * test-restart.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util.h"
#include "queue.h"
#include "tests/tap.h"

#define ENTRIES 8
#define PATIENCE_NS 60000000000ull

enum { BESIDE = 1, IN_PLACE = 2 };

/* One of each page's life. */
static struct {
	struct moe_client_page page;
	struct moe_sqe sqes[ENTRIES];
} client;
static struct {
	struct moe_daemon_page page;
	struct moe_cqe cqes[ENTRIES];
} daemon_region;

static struct queue queue;
static int ends[2];
static _Atomic bool over, held; /* held: nothing is answered now */
static bool answers_beside;     /* as a daemon does that has claimed the entry itself */

static void give_out(struct moe_cqe *to, const struct moe_cqe *from, uint32_t seq)
{
	struct moe_cqe cqe = *from;

	cqe.seq = to->seq;
	*to = cqe;
	__atomic_store_n(&to->seq, seq, __ATOMIC_RELEASE);
}

static void answer(uint32_t index)
{
	const bool lone = index + 1 != 0 && client.page.sq_alone == index + 1;
	struct moe_sqe sqe = {0};
	struct moe_cqe cqe = {0};

	if (lone)
		memcpy(&sqe, client.page.alone, sizeof client.page.alone);
	else
		sqe = client.sqes[index % ENTRIES];
	cqe.user_data = sqe.user_data;
	cqe.op = sqe.op;
	cqe.lease = sqe.release.lease;
	cqe.bytes = lone ? BESIDE : IN_PLACE;
	if (lone && answers_beside)
		give_out(&daemon_region.page.alone, &cqe, index + 1);
	/* Who looked beside the queue does not look here: what it says would be found wrong. */
	cqe.lease += lone && answers_beside;
	give_out(&daemon_region.cqes[index % ENTRIES], &cqe, index + 1);
	__atomic_store_n(&daemon_region.page.cq_tail, index + 1, __ATOMIC_RELEASE);
}

static void *serve(void *userdata)
{
	uint32_t head = daemon_region.page.sq_head;

	while (!atomic_load(&over)) {
		if (!atomic_load(&held) && __atomic_load_n(&client.page.sq_tail, __ATOMIC_ACQUIRE) != head)
			answer(head++);
		else
			sched_yield();
	}
	return userdata;
}

/* A session whose next request has this index. */
static pthread_t begin(uint32_t index, bool able)
{
	pthread_t thread;

	memset(&client, 0, sizeof client);
	memset(&daemon_region, 0, sizeof daemon_region);
	daemon_region.page = (struct moe_daemon_page){.sq_entries = ENTRIES,
						      .cq_entries = ENTRIES,
						      .alone_able = able,
						      .sqe_offset = sizeof client.page,
						      .cqe_offset = sizeof daemon_region.page,
						      .sq_head = index,
						      .cq_tail = index};
	client.page.sq_tail = client.page.cq_head = index;
	for (uint32_t i = index - ENTRIES; i != index; i++) /* as if there had been others */
		daemon_region.cqes[i % ENTRIES].seq = daemon_region.page.alone.seq = i + 1;
	atomic_store(&over, false);
	require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0 &&
			queue_init(&queue, &client.page, &daemon_region.page, -1, ends[0]) == 0 &&
			pthread_create(&thread, NULL, serve, NULL) == 0,
		"a session");
	queue.sq_tail = queue.cq_head = index;
	queue.patience_ns = PATIENCE_NS;
	return thread;
}

static void end(pthread_t thread)
{
	atomic_store(&over, true);
	pthread_join(thread, NULL);
	queue_fini(&queue);
	close(ends[0]);
	close(ends[1]);
}

/* Where its entry lay, or 0: another's completion was taken. */
static uint64_t call(void)
{
	static uint64_t number;
	const struct moe_sqe sqe = {.op = MOE_OP_RELEASE, .release.lease = number += 16};
	struct moe_cqe cqe = {0};
	const int r = queue_call(&queue, &sqe, &cqe);

	return r == 0 && cqe.op == MOE_OP_RELEASE && cqe.lease - number < 2 ? cqe.bytes : 0;
}

static void test_alone(void)
{
	const pthread_t thread = begin(0, true);
	uint32_t beside = 0;

	answers_beside = true;
	for (int i = 0; i < 5 * ENTRIES; i++)
		beside += call() == BESIDE;
	ok(beside == 5 * ENTRIES, "%u of %u requests that are alone lie beside the tail", beside, 5 * ENTRIES);
	answers_beside = false;
	ok(call() == BESIDE && call() == BESIDE, "one that another daemon answers, in its place only, is found there");
	end(thread);
}

static void test_not_alone(void)
{
	const struct moe_sqe compute = {.op = MOE_OP_COMPUTE};
	const pthread_t thread = begin(0, true);
	struct queue_op first = {0}, second = {0};

	answers_beside = true;
	ok(call() == BESIDE, "a request that is alone");
	atomic_store(&held, true);
	ok(queue_submit(&queue, &compute, &first) == 0 && queue_submit(&queue, &compute, &second) == 0,
	   "two that are not waited for at once");
	atomic_store(&held, false);
	ok(call() == IN_PLACE, "and a third one beside them lies in its place");
	ok(queue_wait(&queue, &first, 0) == 0 && first.cqe.bytes == IN_PLACE, "as the first one ...");
	ok(queue_wait(&queue, &second, 0) == 0 && second.cqe.bytes == IN_PLACE, "... and the second");
	ok(call() == BESIDE, "then one is alone again");
	end(thread);
}

static void test_not_able(void)
{
	const pthread_t thread = begin(0, false);

	ok(call() == IN_PLACE && call() == IN_PLACE && client.page.sq_alone == 0,
	   "of a daemon that does not know of lone requests all lie in their places");
	end(thread);
}

static void test_wrap(void)
{
	const pthread_t thread = begin(UINT32_MAX - 2, true);

	answers_beside = true;
	ok(call() == BESIDE && call() == BESIDE, "the last but one of 2^32 lies beside the tail");
	ok(call() == IN_PLACE && queue.sq_tail == 0, "the last one, whose number would name none, in its place");
	ok(call() == BESIDE, "the first one after it beside the tail again");
	end(thread);
}

/* 2^32 requests ago the one with this index lay beside the tail, and none since. */
static void test_left(void)
{
	const struct moe_sqe compute = {.op = MOE_OP_COMPUTE};
	const pthread_t thread = begin(41, true);
	struct queue_op op = {0};

	queue.sq_alone = client.page.sq_alone = 42;
	client.page.alone[0] = 0xbad;
	ok(queue_submit(&queue, &compute, &op) == 0 && queue_wait(&queue, &op, 0) == 0 && op.cqe.bytes == IN_PLACE,
	   "a sq_alone that was left does not name an entry that lies in its place");
	end(thread);
}

int main(void)
{
	test_alone();
	test_not_alone();
	test_not_able();
	test_wrap();
	test_left();
	return tap_done();
}
