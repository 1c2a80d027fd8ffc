/* SPDX-License-Identifier: MIT */
/*
 * sched-pool - in place of the pool: what the scheduler hands over is done one at a time, always the job that goes
 * first.
 */
#ifndef TESTS_SCHED_POOL_H
#define TESTS_SCHED_POOL_H

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/util.h"
#include "daemon/scheduler.h"
#include "tests/tap.h"

#define THREADS 2 /* so the window is its minimum, 4 */

static struct request *given[1024];
static int n_given, wakes, strange;

uint32_t pool_threads(const struct pool *pool)
{
	return THREADS;
}

static void give(struct request *request, uint64_t order)
{
	strange += order != request->order;
	given[n_given++] = request;
}

void pool_submit_compute(struct pool *pool, struct pool_compute *job)
{
	struct request *request = container_of(job, struct request, compute);

	give(request, job->order);
}

void pool_submit_copy(struct pool *pool, struct pool_copy *job)
{
	struct request *request = container_of(job, struct request, fill);

	give(request, job->order);
}

void loop_wake(struct loop *loop)
{
	wakes++;
}

void loop_found(struct loop *loop, uint64_t since_ns)
{
}

static struct request make(enum moe_op op, enum pool_priority priority, uint64_t name, uint64_t cost)
{
	return (struct request){.state = MOE_REQUEST_CLAIMED,
				.sqe = {.op = (__u8)op, .user_data = name},
				.priority = priority,
				.cost = cost};
}

static void end(struct request *request)
{
	const struct pool_result result = {.start_ns = 10, .end_ns = 30, .pairs = 7, .bytes = 9};

	if (request->sqe.op == MOE_OP_COMPUTE)
		request->compute.done(&request->compute, &result);
	else
		request->fill.done(&request->fill, &result);
}

/* What the pool works on next, as pool.h says; takes it out when `take`. NULL: nothing. */
static struct request *first_given(bool take)
{
	int best = 0;

	for (int i = 1; i < n_given; i++)
		if (given[i]->priority != given[best]->priority ? given[i]->priority < given[best]->priority
								: given[i]->order < given[best]->order)
			best = i;
	if (n_given == 0)
		return NULL;

	struct request *request = given[best];

	if (take)
		memmove(&given[best], &given[best + 1], (size_t)(--n_given - best) * sizeof(given[0]));
	return request;
}

/* Runs everything that is queued, one at a time, and returns the names in the order of their ends. */
static int run_all(struct sched *sched, uint64_t *names)
{
	struct request *request;
	int n = 0;

	while ((request = first_given(true))) {
		names[n++] = request->sqe.user_data;
		end(request);
		while ((request = sched_next_done(sched)))
			request_move(request, MOE_REQUEST_REAPED);
	}
	return n;
}

static unsigned long long seed;

static uint64_t pick(uint64_t n)
{
	return (tap_random(&seed) >> 20) % n;
}

#endif
