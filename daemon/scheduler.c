/* SPDX-License-Identifier: MIT */
#include "daemon/scheduler.h"

#include <assert.h>
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
	uint32_t window, running; /* the latter of all clients */
	uint64_t fill_budget;
	uint64_t time[POOL_PRIORITIES]; /* virtual */
	_Atomic(struct request *) done; /* a stack: pool threads push, the reactor takes all */
	struct request_list ended;      /* taken, oldest first */
};

void sched_set_fill_budget(struct sched *s, uint64_t bytes)
{
	const uint64_t preset = MIN(pool_threads(s->pool) * SCHED_FILL_BUDGET_THREAD, SCHED_FILL_BUDGET_MAX);

	s->fill_budget = bytes ? bytes : preset;
}

int sched_new(struct sched **ret, struct pool *pool, uint64_t fill_budget, struct moe_error *err)
{
	struct sched *s = calloc(1, sizeof *s);

	if (!s)
		return moe_error_sys(err, -ENOMEM, "scheduler");
	s->pool = pool;
	s->window = MAX(pool_threads(pool), WINDOW_MIN);
	sched_set_fill_budget(s, fill_budget);
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

uint64_t sched_fill_budget(const struct sched *s)
{
	return s->fill_budget;
}

void sched_set_loop(struct sched *s, struct loop *loop)
{
	s->loop = loop;
}

void sched_client_init(struct sched_client *client)
{
	memset(client, 0, sizeof *client);
	for (int i = 0; i < POOL_PRIORITIES * SCHED_KINDS; i++)
		request_list_init(&client->waiting[i / SCHED_KINDS][i % SCHED_KINDS]);
	client->sharer = client;
}

void sched_share(struct sched_client *client, struct sched_client *with)
{
	assert(client->sharer == client);
	client->sharer = with->sharer;
	with->sharer = client;
}

static void start_sharers(struct sched *s, struct sched_client *client, int class);

void sched_part(struct sched *s, struct sched_client *client)
{
	struct sched_client *before = client;

	while (before->sharer != client)
		before = before->sharer;
	before->sharer = client->sharer;
	client->sharer = client;
	for (int i = 0; before != client && i < POOL_PRIORITIES; i++)
		start_sharers(s, before, i);
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

static enum sched_kind kind_of(const struct request *request)
{
	return request->sqe.op == MOE_OP_COMPUTE ? SCHED_COMPUTE : SCHED_FILL;
}

static struct request_list *list_of(const struct request *request)
{
	return &request->client->waiting[request->priority][kind_of(request)];
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
		request->client->filling[request->priority] += request->fill.bytes;
		request->fill.order = request->order;
		request->fill.done = fill_done;
		if (request->start)
			request->start(request);
		else
			pool_submit_copy(s->pool, &request->fill);
	}
}

/* A slice is memory that is there, and sessions have few requests: the sum cannot run over. */
static bool has_room(const struct sched *s, const struct sched_client *client, int class, const struct request *fill)
{
	const struct sched_client *c = client;
	uint64_t bytes = 0;

	do
		for (int i = 0; i <= class; i++)
			bytes += c->filling[i];
	while ((c = c->sharer) != client);
	return bytes == 0 || bytes + fill->fill.bytes <= s->fill_budget;
}

/* Of those that share a budget the lowest virtual end goes first: who asks for small fills must not always find the
 * room that a larger one waits for. Who has no window left is passed over. NULL: none, or there is no room for it. */
static struct request *next_fill(const struct sched *s, const struct sched_client *client, int class)
{
	const struct sched_client *c = client;
	struct request *first = NULL;

	do {
		struct request *fill = c->waiting[class][SCHED_FILL].head;

		if (fill && c->running[class] < s->window && (!first || fill->order < first->order))
			first = fill;
	} while ((c = c->sharer) != client);
	return first && has_room(s, client, class, first) ? first : NULL;
}

/* The client's next one of a class, or NULL. */
static struct request *next_waiting(const struct sched *s, const struct sched_client *client, int class)
{
	struct request *compute = client->waiting[class][SCHED_COMPUTE].head;
	struct request *fill = client->waiting[class][SCHED_FILL].head;

	if (!fill || (compute && compute->order < fill->order) || next_fill(s, client, class) != fill)
		return compute;
	return fill;
}

/* What the client's window and budget have room for. */
static void start_waiting(struct sched *s, struct sched_client *client, int class)
{
	struct request *request;

	while (client->running[class] < s->window && (request = next_waiting(s, client, class))) {
		request_list_pop(list_of(request));
		start(s, request);
	}
}

/* Then of those that share its budget: the others wait for its room alone. The ring is walked once for each fill. */
static void start_sharers(struct sched *s, struct sched_client *client, int class)
{
	struct request *fill;

	start_waiting(s, client, class);
	while (client->sharer != client && (fill = next_fill(s, client, class)))
		start_waiting(s, fill->client, class); /* at least one: that, or what is before it */
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
	request->charged = cost;
	request->order = client->end[class] = MAX(client->end[class], s->time[class]) + cost;
	request_list_push(list_of(request), request);
	start_waiting(s, client, class);
}

static void end(struct sched *s, struct request *request)
{
	struct sched_client *client = request->client;
	const int class = request->priority;

	s->running--;
	client->running[class]--;
	leave(client, class);
	s->time[class] = MAX(s->time[class], request->order);
	if (kind_of(request) == SCHED_FILL)
		client->filling[class] -= request->fill.bytes;
	/* The budget's room is for the less urgent classes, too. */
	for (int i = class; i < POOL_PRIORITIES; i++)
		start_sharers(s, client, i);
}

struct request *sched_next_done(struct sched *s)
{
	struct request *request;

	if (!s->ended.head && atomic_load_explicit(&s->done, memory_order_relaxed)) {
		struct request *stack = atomic_exchange_explicit(&s->done, NULL, memory_order_acquire);
		struct request *oldest = NULL;

		loop_found(s->loop, stack->claim_ns + stack->cqe.wait_ns + stack->cqe.work_ns);
		while (stack) { /* newest first: turn it round */
			struct request *next = stack->next;

			stack->next = oldest;
			oldest = stack;
			stack = next;
		}
		while (oldest) {
			struct request *next = oldest->next;

			request_list_push(&s->ended, oldest);
			oldest = next;
		}
	}
	request = request_list_pop(&s->ended);
	if (request)
		end(s, request);
	return request;
}

/* Those of the class that were claimed after it had its cost before them. */
static void give_back(struct sched_client *client, const struct request *request)
{
	for (int kind = 0; kind < SCHED_KINDS; kind++)
		for (struct request *r = client->waiting[request->priority][kind].head; r; r = r->next)
			if (r->order > request->order)
				r->order -= request->charged;
	client->end[request->priority] -= request->charged;
}

static void cancel(struct sched_client *client, struct request *request)
{
	leave(client, request->priority);
	request->cqe.status = -ECANCELED;
	request_move(request, MOE_REQUEST_DONE);
}

void sched_cancel(struct sched *s, struct request *request)
{
	struct sched_client *client = request->client;

	request_list_remove(list_of(request), request);
	give_back(client, request);
	cancel(client, request);
	start_sharers(s, client, request->priority); /* what waited behind a large fill may be smaller */
}

void sched_cancel_all(struct sched *s, struct sched_client *client, void (*cancelled)(struct request *))
{
	for (int i = 0; i < POOL_PRIORITIES * SCHED_KINDS; i++) {
		struct request_list *list = &client->waiting[i / SCHED_KINDS][i % SCHED_KINDS];
		struct request *request;

		while ((request = request_list_pop(list))) {
			cancel(client, request);
			cancelled(request);
		}
	}
	for (int i = 0; i < POOL_PRIORITIES; i++)
		start_sharers(s, client, i);
}
