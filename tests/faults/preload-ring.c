/* SPDX-License-Identifier: MIT */
/*
 * preload-ring - the part of preload.c that stands before liburing: the program sees the end of a completion queue only
 * as far as this file has gone through it, and what it meets may have failed meanwhile.
 */
#include <errno.h>
#include <liburing.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/faults/preload.h"

#define RINGS 8
#define NAMED 1024

struct view {
	struct io_uring *ring;
	unsigned *kernels; /* where the kernel writes the queue's end */
	unsigned tail;     /* as far as the program may look */
};

static struct view views[RINGS];

/* What was asked for, by user_data, 0: nothing yet: a place of its own among completions. */
static struct asked {
	uint64_t user_data, place;
	bool read, accept;
} asked[NAMED];

/* Of it, or where it is to be; NULL: all are taken. None is lost to another: what is not known to be a connection would
 * be left open. */
static struct asked *asked_of(uint64_t user_data)
{
	const size_t first = mix(user_data, 1) % NAMED;

	for (size_t i = 0; i < NAMED; i++) {
		struct asked *a = &asked[(first + i) % NAMED];

		if (a->user_data == user_data || a->user_data == 0)
			return a;
	}
	return NULL;
}

static struct view *view_of(const struct io_uring *ring)
{
	for (size_t i = 0; i < RINGS; i++)
		if (views[i].ring == ring)
			return &views[i];
	return NULL;
}

/* What is asked of which kind of file: "socket:[17]" and "socket:[18]" are one. */
static uint64_t place_of(const struct io_uring_sqe *sqe)
{
	char path[64], target[256];
	uint64_t place = sqe->opcode + 1;
	ssize_t n;

	snprintf(path, sizeof path, "/proc/self/fd/%d", sqe->fd);
	n = readlink(path, target, sizeof target);
	for (ssize_t i = 0; i < n; i++)
		if (target[i] < '0' || target[i] > '9')
			place = mix(place, (unsigned char)target[i]);
	return place;
}

static void note_asked(const struct io_uring *ring)
{
	const struct io_uring_sq *sq = &ring->sq;

	for (unsigned i = sq->sqe_head; i != sq->sqe_tail; i++) {
		const struct io_uring_sqe *sqe = &sq->sqes[i & sq->ring_mask];
		struct asked *a;

		if (sqe->user_data == 0)
			continue;
		take_lock();
		a = asked_of(sqe->user_data);
		if (a)
			*a = (struct asked){
				.user_data = sqe->user_data,
				.place = place_of(sqe),
				.read = sqe->opcode == IORING_OP_READ || sqe->opcode == IORING_OP_READ_FIXED,
				.accept = sqe->opcode == IORING_OP_ACCEPT,
			};
		give_lock();
	}
}

static void pass_over(struct io_uring_cqe *cqe)
{
	const struct asked *known;
	struct asked a = {0};

	if (!preload_runs() || cqe->user_data == 0 || cqe->user_data == LIBURING_UDATA_TIMEOUT)
		return;
	take_lock();
	known = asked_of(cqe->user_data);
	if (known)
		a = *known;
	give_lock();
	if (strikes(COMPLETION, a.place)) {
		if (a.accept && cqe->res >= 0)
			close(cqe->res); /* the program will not hear of it */
		cqe->res = -preload_value();
	}
	if (a.read && cqe->res > 0 && strikes(SHORT, a.place))
		cqe->res /= 2;
}

/* Around each call of the library that may look at the queue. */
static struct view *open_view(struct io_uring *ring)
{
	struct view *v = view_of(ring);

	if (v) {
		note_asked(ring);
		ring->cq.ktail = v->kernels;
	}
	return v;
}

static int close_view(struct view *v, int r)
{
	unsigned tail;

	if (!v)
		return r;
	tail = __atomic_load_n(v->kernels, __ATOMIC_ACQUIRE);
	for (; v->tail != tail; v->tail++)
		pass_over(&v->ring->cq.cqes[v->tail & v->ring->cq.ring_mask]);
	v->ring->cq.ktail = &v->tail;
	return r;
}

int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
	struct view *v;
	int r;

	if (fails(RING, ENOMEM))
		return -ENOMEM;
	r = REAL(io_uring_queue_init)(entries, ring, flags);
	if (r < 0)
		return r;
	take_lock();
	v = view_of(NULL);
	if (v) {
		*v = (struct view){.ring = ring, .kernels = ring->cq.ktail, .tail = *ring->cq.ktail};
		ring->cq.ktail = &v->tail;
	}
	give_lock();
	return r;
}

void io_uring_queue_exit(struct io_uring *ring)
{
	struct view *v = view_of(ring);

	if (v) {
		ring->cq.ktail = v->kernels;
		v->ring = NULL;
	}
	REAL(io_uring_queue_exit)(ring);
}

int io_uring_register_buffers(struct io_uring *ring, const struct iovec *iovecs, unsigned n)
{
	return fails(RING, ENOMEM) ? -ENOMEM : REAL(io_uring_register_buffers)(ring, iovecs, n);
}

int io_uring_submit(struct io_uring *ring)
{
	struct view *v = open_view(ring);

	return close_view(v, fails(RING, ENOMEM) ? -preload_value() : REAL(io_uring_submit)(ring));
}

int io_uring_submit_and_wait(struct io_uring *ring, unsigned n)
{
	struct view *v = open_view(ring);

	return close_view(v, fails(RING, ENOMEM) ? -preload_value() : REAL(io_uring_submit_and_wait)(ring, n));
}

int io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **ret, unsigned n,
				     struct __kernel_timespec *timeout, sigset_t *mask)
{
	struct view *v = open_view(ring);

	return close_view(v, fails(RING, ENOMEM) ? -preload_value()
						 : REAL(io_uring_submit_and_wait_timeout)(ring, ret, n, timeout, mask));
}

int io_uring_wait_cqe_timeout(struct io_uring *ring, struct io_uring_cqe **ret, struct __kernel_timespec *timeout)
{
	struct view *v = open_view(ring);

	return close_view(v,
			  fails(RING, ENOMEM) ? -preload_value() : REAL(io_uring_wait_cqe_timeout)(ring, ret, timeout));
}

/* What liburing's inline functions call when they find the queue empty. */
int __io_uring_get_cqe(struct io_uring *ring, struct io_uring_cqe **ret, unsigned submit, unsigned wait, sigset_t *mask)
{
	struct view *v = open_view(ring);

	return close_view(v, REAL(__io_uring_get_cqe)(ring, ret, submit, wait, mask));
}
