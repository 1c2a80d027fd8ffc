/* SPDX-License-Identifier: MIT */
/* The ways of queues: their commands as ioctls, and those that io_uring brings. */
#include "tests/kmod/fails.h"

#define DEPTH 4

static void queue_first(struct scene *s)
{
	s->queue = queue_new(s->dev, DEPTH, 0);
}

static void end_always(struct scene *s, bool done)
{
	(void)done;
	queue_end(s->dev, s->queue);
}

static bool make(struct scene *s)
{
	queue_first(s);
	return s->queue;
}

static void end_if_done(struct scene *s, bool done)
{
	if (done)
		queue_end(s->dev, s->queue);
}

static void end_if_not(struct scene *s, bool done)
{
	if (!done)
		queue_end(s->dev, s->queue);
}

static bool next(struct scene *s)
{
	return queue_state(s->dev, s->queue).id == s->queue;
}

static bool finish(struct scene *s)
{
	return queue_end(s->dev, s->queue) == 0;
}

/* Its daemon has gone. */
static void parked_first(struct scene *s)
{
	s->other = device_open();
	s->queue = queue_new(s->other, DEPTH, 0);
	close(s->other);
}

/* One that is refused when it tells of it has recovered all the same, and says EBUSY the second time. */
static bool recover(struct scene *s)
{
	uint32_t reissued;

	return queue_recover(s->dev, s->queue, &reissued) == 0;
}

/* -- requests ----------------------------------------------------------------------------------------------------- */

static void client_first(struct scene *s)
{
	queue_first(s);
	s->other = device_open();
}

static bool ask(struct scene *s)
{
	return submit(s->other, s->queue, 1) == 0;
}

static void request_first(struct scene *s)
{
	client_first(s);
	ask(s);
}

static bool take(struct scene *s)
{
	return fetch(s->dev, s->queue, 0, &s->fetched) == 0;
}

static void fetched_first(struct scene *s)
{
	request_first(s);
	take(s);
}

static bool give(struct scene *s)
{
	return commit(s->dev, s->queue, 0, s->fetched.seq, 0) == 0;
}

static void answered_first(struct scene *s)
{
	fetched_first(s);
	give(s);
}

static bool get(struct scene *s)
{
	return reap(s->other, &(struct moe_kmod_reap){0}) == 0;
}

static void leave(struct scene *s, bool done)
{
	close(s->other);
	end_always(s, done);
}

/* -- by io_uring -------------------------------------------------------------------------------------------------- */

static void ring_first(struct scene *s)
{
	client_first(s);
	ring_new(&s->ring, 0);
}

/* Pending: what is refused completes at once, or is not taken from the queue of submissions. */
static bool pends(struct scene *s)
{
	return *s->ring.sq.khead == *s->ring.sq.ktail && ring_is_quiet(&s->ring);
}

static bool ring_ask(struct scene *s)
{
	ring_submit(&s->ring, s->other, s->queue, 1, &s->answer);
	return pends(s);
}

static bool ring_take(struct scene *s)
{
	ring_fetch(&s->ring, s->dev, s->queue, 0, &s->fetched);
	return pends(s);
}

/* A FETCH waits; its request comes, and the daemon is told of it by work of its own task. */
static void waits_first(struct scene *s)
{
	ring_first(s);
	ring_take(s);
}

static bool ask_and_take(struct scene *s)
{
	return ask(s) && ring_next(&s->ring, NULL, NULL) == 0;
}

static void ring_fetched_first(struct scene *s)
{
	ring_first(s);
	ask(s);
	take(s);
}

static bool ring_give(struct scene *s)
{
	const struct moe_kmod_fetched of = s->fetched;

	ring_commit_and_fetch(&s->ring, s->dev, s->queue, &of, &s->fetched);
	return pends(s);
}

static void ring_leave(struct scene *s, bool done)
{
	io_uring_queue_exit(&s->ring);
	leave(s, done);
}

const struct way queue_ways[] = {
	{"QUEUE_NEW", 1, NULL, make, end_if_done, .takes = false},
	{"QUEUE", 0, queue_first, next, end_always, .takes = false},
	{"QUEUE_END", 0, queue_first, finish, end_if_not, .takes = false},
	{"RECOVER", 0, parked_first, recover, end_always, .takes = false},
	{"SUBMIT", 2, client_first, ask, leave, .takes = false},
	{"FETCH", 1, request_first, take, leave, .takes = false},
	{"COMMIT", 0, fetched_first, give, leave, .takes = false},
	{"REAP", 0, answered_first, get, leave, .takes = true},
	{"SUBMIT by io_uring", 2, ring_first, ring_ask, ring_leave, .ring = true},
	{"FETCH by io_uring", 0, ring_first, ring_take, ring_leave, .ring = true},
	{"a FETCH that waits", 1, waits_first, ask_and_take, ring_leave, .takes = true, .ring = true},
	{"COMMIT_AND_FETCH by io_uring", 0, ring_fetched_first, ring_give, ring_leave, .takes = true, .ring = true},
};
const size_t n_queue_ways = sizeof queue_ways / sizeof *queue_ways;
