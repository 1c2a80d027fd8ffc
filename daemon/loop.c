/* SPDX-License-Identifier: MIT */
#include "daemon/loop.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/uring.h"
#include "base/util.h"
#include "base/crowd.h"
#include "daemon/seat.h"

#define RING_ENTRIES 256
#define SPINS_TURN 64 /* polls between two yields: a pool thread may need this core */
#define LOOKS_TURN 4  /* polls between two pauses, each of which is as long as several polls */
#define EVENTS_TURN 8 /* polls between two looks at io_uring: rings are hurried, events are not */
/* Events handled before the rings have a turn: so many, or for so long. While the rings have work, events then rest for
 * some times as long, at most REST_MAX_NS: doorbells without end take a fifth of the time, messages half of it. */
#define EVENTS_MAX 32
#define EVENTS_NS 50000u
#define REST_SHARE 4
#define REST_MAX_NS 250000u
#define REFUSALS_MAX 16
#define REFUSED_NS 1000000000u

struct loop {
	struct io_uring ring;
	uint64_t uses; /* of enum uring_feature, bits */
	struct loop_hooks hooks;
	struct source waker;    /* eventfd */
	_Atomic bool sleeping;  /* a waker must write the eventfd */
	struct source *leaving; /* removed, not yet gone */
	uint64_t refused_ns;    /* since when the kernel takes nothing, 0: it does */
	uint64_t rest_ns;       /* events have to wait until then, 0: they have not */
	struct seat seat;
	struct crowd crowd;
	bool look; /* at io_uring after this poll */
	bool stopped;
	int code;
};

static void waker_ready(struct source *source, uint32_t events)
{
	uint64_t count;

	while (read(source->fd, &count, sizeof count) == sizeof count)
		;
}

/* The best way that this kernel knows: completions are looked for when the loop looks, and interrupt nothing. */
static int open_ring(struct loop *loop)
{
	static const struct {
		unsigned int flags;
		uint64_t uses;
	} setups[] = {
		{IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
		 1u << URING_SINGLE_ISSUER | 1u << URING_DEFER_TASKRUN},
		{IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 1u << URING_COOP_TASKRUN},
		{0, 0},
	};
	int r = -EINVAL;

	for (size_t i = 0; i < ARRAY_LEN(setups) && r == -EINVAL; i++) {
		loop->uses = setups[i].uses | 1u << URING_POLL_ADD | 1u << URING_POLL_REMOVE;
		r = io_uring_queue_init(RING_ENTRIES, &loop->ring, IORING_SETUP_CLAMP | setups[i].flags);
	}
	if (r == 0 && io_uring_register_ring_fd(&loop->ring) == 1)
		loop->uses |= 1u << URING_REGISTERED_RING;
	return r;
}

uint64_t loop_uses(const struct loop *loop)
{
	return loop->uses;
}

int loop_new(struct loop **ret, const struct loop_hooks *hooks, struct moe_error *err)
{
	_cleanup_free_ struct loop *loop = calloc(1, sizeof *loop);
	int r;

	if (!loop)
		return moe_error_sys(err, -ENOMEM, "reactor");
	loop->hooks = *hooks;
	r = open_ring(loop);
	if (r < 0)
		return uring_refused(err, r);
	loop->waker = (struct source){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .ready = waker_ready};
	r = loop->waker.fd < 0 ? moe_error_sys(err, -errno, "eventfd") : loop_add(loop, &loop->waker, err);
	if (r < 0) {
		close_fd(loop->waker.fd);
		io_uring_queue_exit(&loop->ring);
		return r;
	}
	*ret = steal_ptr(loop);
	return 0;
}

static void let_go(struct loop *loop, bool all)
{
	struct source **at = &loop->leaving;

	while (*at) {
		struct source *source = *at;

		if (source->armed && !all) {
			at = &source->next_leaving;
			continue;
		}
		*at = source->next_leaving;
		if (source->gone)
			source->gone(source);
	}
}

struct loop *loop_free(struct loop *loop)
{
	if (loop) {
		io_uring_queue_exit(&loop->ring);
		let_go(loop, true);
		close_fd(loop->waker.fd);
		free(loop);
	}
	return NULL;
}

/* What was refused stays queued and goes with the next call: 0, unless that has been so for too long. */
static int submitted(struct loop *loop, int result)
{
	if (result >= 0 || result == -EINTR || result == -ETIME) {
		loop->refused_ns = 0;
		return 0;
	}
	if (!loop->refused_ns)
		loop->refused_ns = now_ns();
	if ((result == -EAGAIN || result == -EBUSY || result == -ENOMEM) && now_ns() - loop->refused_ns < REFUSED_NS) {
		usleep(100);
		return 0;
	}
	log_err("reactor: io_uring takes nothing any more: %s", strerror(-result));
	return result;
}

static void submit(struct loop *loop)
{
	const int r = submitted(loop, io_uring_submit(&loop->ring));

	if (r < 0)
		loop_stop(loop, r);
}

static struct io_uring_sqe *get_sqe(struct loop *loop)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&loop->ring);

	if (!sqe) {
		submit(loop);
		sqe = io_uring_get_sqe(&loop->ring);
	}
	return sqe;
}

/* One-shot, armed again after each event: then readiness is a level, and a handler may leave work for its next turn. */
static int arm(struct loop *loop, struct source *source)
{
	struct io_uring_sqe *sqe = get_sqe(loop);

	if (!sqe)
		return -EBUSY;
	io_uring_prep_poll_add(sqe, source->fd, POLLIN | POLLRDHUP | source->also);
	io_uring_sqe_set_data(sqe, source);
	source->armed = true;
	return 0;
}

int loop_add(struct loop *loop, struct source *source, struct moe_error *err)
{
	int r;

	source->armed = source->removed = source->takes = false;
	source->refusals = 0;
	r = arm(loop, source);
	if (r < 0)
		return moe_error_sys(err, r, "reactor: cannot watch fd %d", source->fd);
	return 0;
}

int loop_again(struct loop *loop, struct source *source)
{
	return source->armed ? 0 : arm(loop, source);
}

int loop_take(struct loop *loop, struct source *source)
{
	struct io_uring_sqe *sqe = get_sqe(loop);

	if (!sqe)
		return -EBUSY;
	io_uring_prep_multishot_accept(sqe, source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	io_uring_sqe_set_data(sqe, source);
	source->armed = source->takes = true;
	loop->uses |= 1u << URING_ACCEPT | 1u << URING_ACCEPT_MULTISHOT;
	return 0;
}

void loop_take_missing(struct loop *loop)
{
	loop->uses &= ~(uint64_t)(1u << URING_ACCEPT | 1u << URING_ACCEPT_MULTISHOT);
}

uint32_t loop_waiting(const struct loop *loop)
{
	return io_uring_cq_ready(&loop->ring);
}

/* Its last completion comes by itself. Where there is no room for it, whoever is taken in next asks again. */
void loop_take_end(struct loop *loop, struct source *source)
{
	struct io_uring_sqe *sqe = get_sqe(loop);

	if (!sqe)
		return;
	io_uring_prep_cancel64(sqe, (__u64)(uintptr_t)source, 0);
	io_uring_sqe_set_data(sqe, NULL);
}

void loop_remove(struct loop *loop, struct source *source)
{
	struct io_uring_sqe *sqe;

	if (source->removed)
		return;
	source->removed = true;
	source->next_leaving = loop->leaving;
	loop->leaving = source;
	if (!source->armed)
		return; /* in its own handler, or refused: the kernel does not have it */
	sqe = get_sqe(loop);
	if (!sqe) {
		loop_stop(loop, -EBUSY); /* a full ring that cannot be submitted: nothing moves any more */
		return;
	}
	if (source->takes)
		io_uring_prep_cancel64(sqe, (__u64)(uintptr_t)source, 0);
	else
		io_uring_prep_poll_remove(sqe, (__u64)(uintptr_t)source);
	io_uring_sqe_set_data(sqe, NULL);
}

static void handle_taken(struct source *source, int res, bool more)
{
	source->armed = source->takes = more;
	if (!source->removed)
		source->taken(source, res);
	else if (res >= 0)
		close_fd(res);
}

static void handle(struct loop *loop, struct source *source, int res)
{
	int r;

	source->armed = false;
	if (source->removed)
		return;
	source->refusals = res < 0 ? source->refusals + 1 : 0;
	if (res > 0)
		source->ready(source, (uint32_t)res);
	if (source->removed || (source->once && res > 0))
		return;
	r = source->refusals < REFUSALS_MAX ? arm(loop, source) : res;
	if (r < 0) {
		log_err("reactor: cannot watch fd %d: %s", source->fd, strerror(-r));
		loop_stop(loop, r);
	}
}

/* Those that wait, to the bound of one look. */
static void handle_some(struct loop *loop)
{
	const uint64_t begin = now_ns();
	struct io_uring_cqe *cqe;
	uint64_t now = begin;

	for (int i = 0; i < EVENTS_MAX && now - begin < EVENTS_NS && io_uring_peek_cqe(&loop->ring, &cqe) == 0; i++) {
		struct source *source = io_uring_cqe_get_data(cqe);
		const int res = cqe->res;
		const bool more = cqe->flags & IORING_CQE_F_MORE;

		io_uring_cqe_seen(&loop->ring, cqe);
		if (source && source->takes)
			handle_taken(source, res, more);
		else if (source)
			handle(loop, source, res);
		now = now_ns();
	}
	loop->rest_ns = now + MIN((now - begin) * REST_SHARE, (uint64_t)REST_MAX_NS);
}

static bool handle_events(struct loop *loop)
{
	struct io_uring_cqe *cqe;
	bool any = false;

	if (io_uring_peek_cqe(&loop->ring, &cqe) == 0) {
		handle_some(loop);
		any = true;
	}
	let_go(loop, false);
	if (io_uring_sq_ready(&loop->ring) > 0)
		submit(loop);
	return any;
}

static bool resting(struct loop *loop)
{
	if (loop->rest_ns && now_ns() >= loop->rest_ns)
		loop->rest_ns = 0;
	return loop->rest_ns;
}

/* Fence: partner of the one in loop_wake, and of those of the clients (park raises their flags). */
static int sleep_until_event(struct loop *loop)
{
	bool busy = false;
	int r = 0;

	atomic_store(&loop->sleeping, true);
	if (loop->hooks.park(loop->hooks.userdata))
		busy = true;
	atomic_thread_fence(memory_order_seq_cst);
	if (!busy && !loop->hooks.poll(loop->hooks.userdata))
		r = submitted(loop, io_uring_submit_and_wait(&loop->ring, 1));
	loop->hooks.unpark(loop->hooks.userdata);
	atomic_store(&loop->sleeping, false);
	return r;
}

/* The time after it. In a crowd nobody yields. */
static uint64_t yield(struct loop *loop)
{
	const uint64_t begin = now_ns();
	uint64_t end;

	if (crowd_is(&loop->crowd, begin))
		return begin;
	sched_yield();
	end = now_ns();
	seat_yielded(&loop->seat, begin, end);
	crowd_yielded(&loop->crowd, begin, end);
	return end;
}

int loop_run(struct loop *loop)
{
	uint64_t last_work = now_ns();
	uint32_t turns = 0, idle = 0;
	bool worked = false;

	loop->stopped = false;
	while (!loop->stopped) {
		bool work = loop->hooks.poll(loop->hooks.userdata);
		uint64_t now;

		/* Idle polls: who works has been slow, or has nothing to do. */
		if ((++turns % EVENTS_TURN == 0 || loop->look) && (idle >= SPINS_TURN || !resting(loop))) {
			loop->look = false;
			work |= handle_events(loop);
		}
		if (work) {
			if (idle > 0)
				seat_served(&loop->seat);
			worked = true;
			idle = 0;
			continue;
		}
		if (++idle % LOOKS_TURN == 0)
			cpu_relax();
		if (idle % SPINS_TURN)
			continue;
		now = yield(loop);
		if (worked) {
			last_work = now;
			worked = false;
		}
		if (crowd_is(&loop->crowd, now) ||
		    (now - last_work >= (uint64_t)loop->hooks.spin_us * 1000 && !seat_settling(&loop->seat, now))) {
			int r;

			seat_slept(&loop->seat);
			r = sleep_until_event(loop);
			if (r < 0)
				return r;
			last_work = now_ns();
			handle_events(loop);
		}
	}
	return loop->code;
}

bool loop_turn(struct loop *loop)
{
	const bool worked = loop->hooks.poll(loop->hooks.userdata), asks = io_uring_sq_ready(&loop->ring) > 0;

	return handle_events(loop) || worked || asks;
}

void loop_look(struct loop *loop)
{
	loop->look = true;
}

void loop_found(struct loop *loop, uint64_t since_ns)
{
	crowd_found(&loop->crowd, since_ns);
}

void loop_stop(struct loop *loop, int code)
{
	loop->stopped = true;
	loop->code = code;
}

void loop_drain(struct loop *loop)
{
	/* A second in which none goes. */
	for (int i = 0; loop && loop->leaving && i < 100; i++) {
		struct __kernel_timespec t = {.tv_nsec = 10000000};
		struct io_uring_cqe *cqe;

		io_uring_submit_and_wait_timeout(&loop->ring, &cqe, 1, &t, NULL);
		if (handle_events(loop))
			i = 0;
	}
}

void loop_wake(struct loop *loop)
{
	const uint64_t one = 1;

	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load(&loop->sleeping) && write(loop->waker.fd, &one, sizeof one) < 0)
		return; /* a full counter already means "awake" */
}
