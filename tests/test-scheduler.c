/* SPDX-License-Identifier: MIT */
/*
 * The scheduler's order, with a pool that only writes down what it is given: decode before prefill before background,
 * sessions take turns, a session's own requests keep their order, never more than the window at once, and cancelling
 * takes exactly one session's waiting requests.
 */
#include <errno.h>
#include <string.h>

#include "daemon/scheduler.h"
#include "tests/tap.h"

#define THREADS 2 /* so the window is its minimum, 4 */
#define WINDOW 4
#define MANY 64

static struct request *given[1024];
static int n_given, wakes, n_cancelled;

uint32_t pool_threads(const struct pool *pool)
{
	return THREADS;
}

void pool_submit_compute(struct pool *pool, struct pool_compute *job)
{
	given[n_given++] = (struct request *)((char *)job - offsetof(struct request, compute));
}

void pool_submit_copy(struct pool *pool, struct pool_copy *job)
{
	given[n_given++] = (struct request *)((char *)job - offsetof(struct request, fill));
}

void loop_wake(struct loop *loop)
{
	wakes++;
}

static struct request make(enum moe_op op, enum pool_priority priority, uint64_t name)
{
	return (struct request){
		.state = MOE_REQUEST_CLAIMED, .sqe = {.op = (__u8)op, .user_data = name}, .priority = priority};
}

static void end(struct request *request)
{
	const struct pool_result result = {.start_ns = 10, .end_ns = 30, .pairs = 7, .bytes = 9};

	if (request->sqe.op == MOE_OP_COMPUTE)
		request->compute.done(&request->compute, &result);
	else
		request->fill.done(&request->fill, &result);
}

/* Runs everything that is queued, one at a time, and returns the names in the order in which they were started. */
static int run_all(struct sched *sched, uint64_t *names)
{
	int n = 0;

	n_given = 0;
	for (;;) {
		struct request *request;

		sched_dispatch(sched);
		if (n == n_given)
			return n;
		names[n] = given[n]->sqe.user_data;
		end(given[n++]);
		while ((request = sched_next_done(sched)))
			request_move(request, MOE_REQUEST_REAPED);
	}
}

static void test_window(struct sched *sched)
{
	struct request requests[MANY];
	struct sched_client client;
	struct request *done;

	sched_client_init(&client);
	n_given = wakes = 0;
	for (int i = 0; i < MANY; i++) {
		requests[i] = make(i % 2 ? MOE_OP_COMPUTE : MOE_OP_FILL, POOL_PREFILL, (uint64_t)i);
		sched_queue(sched, &client, &requests[i]);
	}
	sched_dispatch(sched);
	ok(n_given == WINDOW, "%d of %d run: the window", n_given, MANY);
	ok(requests[0].state == MOE_REQUEST_RUNNING && requests[WINDOW].state == MOE_REQUEST_QUEUED,
	   "the others are QUEUED");
	end(given[1]);
	end(given[0]);
	ok(wakes == 2, "an end wakes the loop");
	done = sched_next_done(sched);
	ok(done == given[1] && done->state == MOE_REQUEST_DONE && done->cqe.pairs == 7 && done->cqe.work_ns == 20,
	   "ended requests come back in the order of their ends, with their figures");
	ok(sched_next_done(sched) == given[0] && !sched_next_done(sched), "each once");
	sched_dispatch(sched);
	ok(n_given == WINDOW + 2, "as many follow");
	for (int i = 2; i < n_given; i++) {
		end(given[i]);
		while (sched_next_done(sched))
			;
		sched_dispatch(sched);
	}
	ok(n_given == MANY && given[MANY - 1] == &requests[MANY - 1], "in the order of their claim");
}

static void test_order(struct sched *sched)
{
	enum { A = 100, B = 200 };
	struct sched_client a, b;
	struct request requests[8];
	uint64_t names[8];
	int n = 0, count;
	const uint64_t expected[] = {A + 2, B + 2, A + 3, B + 3, A + 0, B + 0,
				     A + 1, B + 1, A + 4, A + 5, B + 4, B + 5};
	const enum pool_priority classes[] = {POOL_PREFILL, POOL_PREFILL, POOL_DECODE, POOL_DECODE};
	bool good = true;

	sched_client_init(&a);
	sched_client_init(&b);
	for (int i = 0; i < 4; i++) {
		requests[n] = make(MOE_OP_COMPUTE, classes[i], (uint64_t)(A + i));
		sched_queue(sched, &a, &requests[n++]);
	}
	for (int i = 0; i < 4; i++) {
		requests[n] = make(MOE_OP_COMPUTE, classes[i], (uint64_t)(B + i));
		sched_queue(sched, &b, &requests[n++]);
	}
	count = run_all(sched, names);
	for (int i = 0; i < 8; i++)
		good &= names[i] == expected[i];
	ok(count == 8 && good, "decode first; within a class the sessions take turns");
}

static void cancelled(struct request *request)
{
	n_cancelled += request->cqe.status == -ECANCELED && request->state == MOE_REQUEST_DONE;
	request_move(request, MOE_REQUEST_REAPED);
}

static void test_cancel(struct sched *sched)
{
	struct sched_client a, b;
	struct request requests[30];
	uint64_t names[30];
	int count;
	bool only_b = true;

	sched_client_init(&a);
	sched_client_init(&b);
	for (int i = 0; i < 30; i++) {
		requests[i] = make(MOE_OP_FILL, (enum pool_priority)(i / 2 % 3), (uint64_t)i);
		sched_queue(sched, i % 2 ? &b : &a, &requests[i]);
	}
	sched_cancel(sched, &a, cancelled);
	ok(n_cancelled == 15, "all waiting requests of the session are cancelled");
	count = run_all(sched, names);
	for (int i = 0; i < count; i++)
		only_b &= names[i] % 2 == 1;
	ok(count == 15 && only_b, "and those of the other one all run");
}

int main(void)
{
	struct sched *sched;

	require(sched_new(&sched, NULL, NULL) == 0, "a scheduler");
	test_window(sched);
	test_order(sched);
	test_cancel(sched);
	ok(sched_free(sched) == NULL, "nothing runs at the end");
	return tap_done();
}
