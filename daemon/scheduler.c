/* SPDX-License-Identifier: MIT */
#include "daemon/scheduler.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"

/* Enough to keep every pool thread busy over the hand-over from one request to the next. */
#define WINDOW_MIN 4

struct sched {
	struct pool *pool;
	struct loop *loop;
	uint32_t window, running;       /* the latter of all clients */
	uint64_t time[POOL_PRIORITIES]; /* virtual */
	_Atomic(struct request *) done; /* a stack: pool threads push, the reactor takes all */
	struct request_list ended;      /* taken, oldest first */
};

int sched_new(struct sched **ret, struct pool *pool, struct moe_error *err)
{
	struct sched *s = calloc(1, sizeof *s);

	if (!s)
		return moe_error_sys(err, -ENOMEM, "scheduler");
	s->pool = pool;
	s->window = MAX(pool_threads(pool), WINDOW_MIN);
	request_list_init(&s->ended);
	*ret = s;
	return 0;
}

struct sched *sched_free(struct sched *s)
{
	assert(!s || s->running == 0);
	free(s);
	return NULL;
}

void sched_set_loop(struct sched *s, struct loop *loop)
{
	s->loop = loop;
}

void sched_client_init(struct sched_client *client)
{
	memset(client, 0, sizeof *client);
	for (int i = 0; i < POOL_PRIORITIES; i++)
		request_list_init(&client->waiting[i]);
}

/* On a pool thread. The reactor owns the request again once it is on the stack. */
static void push_done(struct sched *s, struct request *request, const struct pool_result *result)
{
	struct request *top;

	request->cqe.status = result->status;
	request->cqe.wait_ns = result->start_ns > request->claim_ns ? result->start_ns - request->claim_ns : 0;
	request->cqe.work_ns = result->end_ns - result->start_ns;
	request->cqe.pairs = (__u32)result->pairs;
	request->cqe.bytes = result->bytes;
	request_move(request, MOE_REQUEST_DONE);
	top = atomic_load_explicit(&s->done, memory_order_relaxed);
	do {
		request->next = top;
	} while (!atomic_compare_exchange_weak_explicit(&s->done, &top, request, memory_order_release,
							memory_order_relaxed));
	loop_wake(s->loop);
}

static void compute_done(struct pool_compute *job, const struct pool_result *result)
{
	struct request *request = container_of(job, struct request, compute);

	push_done(request->sched, request, result);
}

static void fill_done(struct pool_copy *job, const struct pool_result *result)
{
	struct request *request = container_of(job, struct request, fill);

	push_done(request->sched, request, result);
}

static void start(struct sched *s, struct request *request)
{
	request_move(request, MOE_REQUEST_RUNNING);
	s->running++;
	request->client->running[request->priority]++;
	if (request->sqe.op == MOE_OP_COMPUTE) {
		request->compute.order = request->order;
		request->compute.done = compute_done;
		pool_submit_compute(s->pool, &request->compute);
	} else {
		request->fill.order = request->order;
		request->fill.done = fill_done;
		pool_submit_copy(s->pool, &request->fill);
	}
}

/* What the client's window has room for. */
static void start_waiting(struct sched *s, struct sched_client *client, int class)
{
	while (client->running[class] < s->window && client->waiting[class].head)
		start(s, request_list_pop(&client->waiting[class]));
}

/* The request joins those of its client; returns what its cost counts for. */
static uint64_t join(struct sched_client *client, const struct request *request)
{
	const int class = request->priority;

	if (client->pending[class]++ == 0 && client->user)
		client->user->busy[class]++;
	return MAX(request->cost, 1) * (client->user ? client->user->busy[class] : 1);
}

static void leave(struct sched_client *client, int class)
{
	if (--client->pending[class] == 0 && client->user)
		client->user->busy[class]--;
}

void sched_queue(struct sched *s, struct sched_client *client, struct request *request)
{
	const int class = request->priority;
	const uint64_t cost = join(client, request);

	request_move(request, MOE_REQUEST_QUEUED);
	request->sched = s;
	request->client = client;
	request->order = client->end[class] = MAX(client->end[class], s->time[class]) + cost;
	request_list_push(&client->waiting[class], request);
	start_waiting(s, client, class);
}

static void end(struct sched *s, struct request *request)
{
	const int class = request->priority;

	s->running--;
	request->client->running[class]--;
	leave(request->client, class);
	s->time[class] = MAX(s->time[class], request->order);
	start_waiting(s, request->client, class);
}

struct request *sched_next_done(struct sched *s)
{
	if (!s->ended.head && atomic_load_explicit(&s->done, memory_order_relaxed)) {
		struct request *stack = atomic_exchange_explicit(&s->done, NULL, memory_order_acquire);
		struct request *oldest = NULL;

		while (stack) { /* newest first: turn it round */
			struct request *next = stack->next;

			stack->next = oldest;
			oldest = stack;
			stack = next;
		}
		while (oldest) {
			struct request *next = oldest->next;

			request_list_push(&s->ended, oldest);
			end(s, oldest);
			oldest = next;
		}
	}
	return request_list_pop(&s->ended);
}

void sched_cancel(struct sched *s, struct sched_client *client, void (*cancelled)(struct request *))
{
	for (int class = 0; class < POOL_PRIORITIES; class ++) {
		struct request *request;

		while ((request = request_list_pop(&client->waiting[class]))) {
			leave(client, class);
			request->cqe.status = -ECANCELED;
			request_move(request, MOE_REQUEST_DONE);
			cancelled(request);
		}
	}
}
