/* SPDX-License-Identifier: MIT */
#include "queue.h"

#include <assert.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/futex.h"
#include "base/util.h"
#include "queue-module.h"

#define SPIN_US 20
#define SPIN_WAKE_US 100   /* where the daemon slept: rather than two wake-ups one after the other */
#define SPIN_BRIEF_US 400  /* what the reactor answers by itself takes a wake-up at most (spin_of) */
#define LOOK_NS 100000000u /* how often a sleeper looks whether the daemon still lives */
#define SPINS_TURN 64      /* polls between two yields: the daemon may need this very core */
#define MODULE_NAP_NS 1000000u
#define BRIEF_POLLS 64 /* with the lock held: a microsecond or two */

int queue_init(struct queue *queue, struct moe_client_page *client, const struct moe_daemon_page *daemon, int doorbell,
	       int socket)
{
	*queue = (struct queue){
		.client = client,
		.daemon = daemon,
		.sqes = (struct moe_sqe *)((uint8_t *)client + daemon->sqe_offset),
		.cqes = (const struct moe_cqe *)((const uint8_t *)daemon + daemon->cqe_offset),
		.entries = daemon->sq_entries,
		.alone_able = daemon->alone_able == 1,
		.doorbell = doorbell,
		.socket = socket,
	};
	return -pthread_mutex_init(&queue->lock, NULL);
}

void queue_fini(struct queue *queue)
{
	pthread_mutex_destroy(&queue->lock);
}

static void op_move(struct queue_op *op, uint32_t from, uint32_t to)
{
	assert(moe_request_arrow(from, to));
	assert(atomic_load_explicit(&op->state, memory_order_relaxed) == from);
	(void)from;
	atomic_store_explicit(&op->state, to, memory_order_release);
}

static bool op_ended(const struct queue_op *op)
{
	return atomic_load_explicit(&op->state, memory_order_acquire) == MOE_REQUEST_RETIRED;
}

/* Whether the completion with this index is given out. */
static bool given_out(const struct queue *queue, uint32_t index)
{
	return __atomic_load_n(&queue->cqes[index & (queue->entries - 1)].seq, __ATOMIC_ACQUIRE) == index + 1;
}

/* Under the lock, as their counting is: one that is only about to sleep sees the new turn and does not. */
static void wake_followers(struct queue *queue)
{
	if (queue->followers == 0)
		return;
	atomic_fetch_add(&queue->turn, 1);
	futex_wake(&queue->turn, FUTEX_ALL);
}

/* Under the lock: no other thread writes it. */
static void count_event(struct queue *queue)
{
	const uint32_t n = atomic_load_explicit(&queue->events, memory_order_relaxed);

	atomic_store_explicit(&queue->events, n + 1, memory_order_release);
}

uint32_t queue_events(const struct queue *queue)
{
	return atomic_load_explicit(&queue->events, memory_order_acquire);
}

/* Under the lock: a completion is its op's. */
static void retire(struct queue *queue, const struct moe_cqe *cqe)
{
	struct queue_op *op = (struct queue_op *)(uintptr_t)cqe->user_data;

	op->cqe = *cqe;
	/* The daemon moved it from PUBLISHED to COMPLETED; here we learn of it. */
	atomic_store_explicit(&op->state, MOE_REQUEST_COMPLETED, memory_order_relaxed);
	queue->in_flight--;
	op_move(op, MOE_REQUEST_COMPLETED, MOE_REQUEST_RETIRED);
	count_event(queue);
}

/* Under the lock: the completion at the head is taken. */
static void step_head(struct queue *queue)
{
	__atomic_store_n(&queue->client->cq_head, ++queue->cq_head, __ATOMIC_RELEASE);
}

static void drain_module(struct queue *queue)
{
	struct moe_cqe cqe;
	bool any = false, over = false, dead = false;
	int r = 1;

	while (r > 0 && (queue->in_flight > 0 || queue_module_refused(queue->module))) {
		r = queue_module_next(queue->module, &cqe, &over);
		if (r > 0) {
			retire(queue, &cqe);
			any = true;
		}
		dead |= r < 0 || over;
	}
	if (dead)
		atomic_store(&queue->dead, true);
	if (any || atomic_load(&queue->dead))
		wake_followers(queue);
}

/* Under the lock. The op may be freed by its waiter as soon as it is RETIRED; and once the queue is dead, at any
 * time. */
static void drain(struct queue *queue)
{
	bool any = false;

	if (atomic_load(&queue->dead))
		return;
	if (queue->module && !queue_module_mine(queue->module)) {
		atomic_store(&queue->dead, true); /* a thread that leads has stayed with the parent */
		return;
	}
	if (queue->module) {
		if (!queue->leading) /* who sleeps in poll(2) would not hear of what another takes */
			drain_module(queue);
		return;
	}
	for (; given_out(queue, queue->cq_head); any = true) {
		const struct moe_cqe cqe = queue->cqes[queue->cq_head & (queue->entries - 1)];

		/* The daemon may end this session at this very moment, and give its memory back: then it is zeros, or
		 * was before all of it was copied. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (!given_out(queue, queue->cq_head) || !cqe.user_data) {
			atomic_store(&queue->dead, true);
			break;
		}
		retire(queue, &cqe);
		step_head(queue);
	}
	if (any || atomic_load(&queue->dead))
		wake_followers(queue);
}

static bool daemon_gone(const struct queue *queue)
{
	struct pollfd p = {.fd = queue->socket, .events = POLLRDHUP};

	return poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR | POLLRDHUP | POLLNVAL));
}

/* Of a daemon that is gone: what it has answered before is drained first. */
static bool has_news(struct queue *queue, uint32_t head)
{
	return queue->module ? queue_module_news(queue->module) : given_out(queue, head);
}

/* Under the lock, with what is there drained: for who never sleeps for as long as a look lasts. */
static void look_at_daemon(struct queue *queue, uint64_t now)
{
	if (queue->leading || now - queue->looked_ns < LOOK_NS)
		return;
	queue->looked_ns = now;
	if (!has_news(queue, queue->cq_head) && daemon_gone(queue))
		atomic_store(&queue->dead, true);
}

/* The leader's sleep. Fence: partner of the one after the daemon's cq_tail store. */
static void sleep_on_tail(struct queue *queue, uint32_t head, uint64_t timeout_ns)
{
	uint32_t tail;

	__atomic_store_n(&queue->client->cq_wait, 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	tail = __atomic_load_n(&queue->daemon->cq_tail, __ATOMIC_ACQUIRE);
	if (!given_out(queue, head))
		futex_wait(&queue->daemon->cq_tail, tail, timeout_ns);
	__atomic_store_n(&queue->client->cq_wait, 0, __ATOMIC_RELAXED);
}

/* Called and returns with the lock held, which it drops while it sleeps: until something may have changed. */
static int wait_change(struct queue *queue, uint64_t timeout_ns)
{
	const uint64_t nap = timeout_ns && timeout_ns < LOOK_NS ? timeout_ns : LOOK_NS;

	if (atomic_load(&queue->dead))
		return -EPIPE;
	if (queue->leading) {
		const uint32_t turn = atomic_load(&queue->turn);

		queue->followers++;
		pthread_mutex_unlock(&queue->lock);
		futex_wait(&queue->turn, turn, nap);
		pthread_mutex_lock(&queue->lock);
		queue->followers--;
		return 0;
	}
	queue->leading = true;
	const uint32_t head = queue->cq_head;
	pthread_mutex_unlock(&queue->lock);
	if (queue->module)
		queue_module_sleep(queue->module, queue->socket, nap);
	else
		sleep_on_tail(queue, head, nap);
	const bool gone = !has_news(queue, head) && daemon_gone(queue);
	pthread_mutex_lock(&queue->lock);
	queue->leading = false;
	queue->looked_ns = now_ns();
	drain(queue);
	if (gone)
		atomic_store(&queue->dead, true);
	/* Another waiter must take the lead, whether or not something came. */
	wake_followers(queue);
	return 0;
}

/* Under the lock: until an entry is free, or patience ends. */
static NOINLINE int await_room(struct queue *queue)
{
	const uint64_t patience = queue->patience_ns, end = now_ns() + patience;
	int r = 0;

	drain(queue);
	while (queue->in_flight == queue->entries && r == 0) {
		const uint64_t now = now_ns();

		r = patience && now >= end ? -ETIME : wait_change(queue, patience ? end - now : 0);
	}
	return r;
}

/* Under the lock. */
static ALWAYS_INLINE int find_room(struct queue *queue)
{
	const int r = queue->in_flight == queue->entries ? await_room(queue) : 0;

	return r == 0 && atomic_load(&queue->dead) ? -EPIPE : r;
}

/* Under the lock: for a nap, or until something of this session has ended. Refusals are taken before, or by who leads:
 * each ends a sleep, and is no reason to ask again. */
static int take_nap(struct queue *queue)
{
	const uint32_t in_flight = queue->in_flight;
	const uint64_t end = now_ns() + MODULE_NAP_NS;
	uint64_t now;
	int r = 0;

	drain(queue);
	while (r == 0 && queue->in_flight >= in_flight && (now = now_ns()) < end)
		r = wait_change(queue, end - now); /* of the user's other processes it is not told */
	return r;
}

/* Under the lock. What the module refuses as it is has ended with that. */
static NOINLINE int publish_by_module(struct queue *queue, const struct moe_sqe *sqe, struct queue_op *op)
{
	const uint64_t patience = queue->patience_ns, end = now_ns() + patience;
	struct moe_sqe entry = *sqe;
	int r;

	entry.user_data = (uintptr_t)op;
	op->wakes = false;
	op->spin_us = 0; /* looking at the module is a system call, as sleeping is */
	atomic_store_explicit(&op->state, MOE_REQUEST_PUBLISHED, memory_order_relaxed);
	while ((r = queue_module_post(queue->module, &entry)) == -EAGAIN) {
		if (patience && now_ns() >= end)
			return -ETIME;
		r = take_nap(queue);
		if (r < 0)
			return r;
	}
	if (r == -EPIPE) {
		atomic_store(&queue->dead, true);
		return r;
	}
	queue->in_flight++;
	if (r < 0)
		retire(queue, &(struct moe_cqe){.user_data = entry.user_data, .status = r});
	return 0;
}

/* What the daemon answers in its reactor: in less time than it takes to let go of the lock and to take it again. */
static bool is_brief(const struct moe_sqe *sqe)
{
	return sqe->op != MOE_OP_FILL && sqe->op != MOE_OP_COMPUTE;
}

/* For how long the op is waited for awake. To wake a thread takes tens of microseconds on some hypervisors, and
 * hundreds when the host is busy: two sides that both spin for less find each other asleep, request after request. So
 * the client stays awake for what is brief; an agreement waits for others. */
static uint32_t spin_of(const struct moe_sqe *sqe, bool wakes)
{
	if (is_brief(sqe) && sqe->op != MOE_OP_AGREE)
		return SPIN_BRIEF_US;
	return wakes ? SPIN_WAKE_US : SPIN_US;
}

/* Under the lock: may the entry that comes lie beside the tail (the law of the lone request)? */
static bool may_be_alone(const struct queue *queue)
{
	return queue->alone_able && !queue->module && queue->in_flight == 0 && queue->sq_tail + 1 != 0;
}

/* By few stores, next to each other in time: the daemon looks at that line. */
static void post_alone(struct queue *queue, const struct moe_sqe *sqe, struct queue_op *op)
{
	typedef uint64_t words __attribute__((vector_size(16), aligned(8), may_alias));
	uint64_t *to = (uint64_t *)queue->client->alone;
	const uint64_t *from = (const uint64_t *)sqe;

	assert(from[7] == 0);
	for (int i = 1; i < 7; i += 2)
		*(words *)&to[i] = *(const words *)&from[i];
	to[0] = (uintptr_t)op;
	queue->sq_alone = queue->sq_tail + 1;
	__atomic_store_n(&queue->client->sq_alone, queue->sq_alone, __ATOMIC_RELEASE);
}

static void post_in_queue(struct queue *queue, const struct moe_sqe *sqe, struct queue_op *op)
{
	struct moe_sqe *entry = &queue->sqes[queue->sq_tail & (queue->entries - 1)];

	*entry = *sqe;
	entry->user_data = (uintptr_t)op;
	if (queue->sq_alone == queue->sq_tail + 1) { /* of 2^32 entries ago */
		queue->sq_alone = 0;
		__atomic_store_n(&queue->client->sq_alone, 0, __ATOMIC_RELAXED);
	}
}

/* Under the lock: the entry in the place of sq_tail, or beside it, is the daemon's. */
static void announce(struct queue *queue)
{
	queue->in_flight++;
	__atomic_store_n(&queue->client->sq_tail, ++queue->sq_tail, __ATOMIC_RELEASE);
}

/* Before it is published. */
static void op_init(const struct queue *queue, const struct moe_sqe *sqe, struct queue_op *op)
{
	op->wakes = __atomic_load_n(&queue->daemon->sq_wait, __ATOMIC_RELAXED);
	op->spin_us = spin_of(sqe, op->wakes);
	atomic_store_explicit(&op->state, MOE_REQUEST_FREE, memory_order_relaxed);
}

/* Under the lock. */
static int publish(struct queue *queue, const struct moe_sqe *sqe, struct queue_op *op)
{
	if (queue->module)
		return publish_by_module(queue, sqe, op);
	op_init(queue, sqe, op);
	post_in_queue(queue, sqe, op);
	op_move(op, MOE_REQUEST_FREE, MOE_REQUEST_POSTED);
	op_move(op, MOE_REQUEST_POSTED, MOE_REQUEST_PUBLISHED);
	announce(queue);
	return 0;
}

/* After the entry is published. */
static void ring_doorbell(struct queue *queue)
{
	if (queue->module)
		return;
	/* Partner: the fence between the daemon's sq_wait store and its last look at sq_tail. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&queue->daemon->sq_wait, __ATOMIC_RELAXED)) {
		const uint64_t one = 1;

		/* A full counter (EAGAIN) already means "awake": nothing is lost. */
		if (write(queue->doorbell, &one, sizeof one) < 0)
			return;
	}
}

int queue_submit(struct queue *queue, const struct moe_sqe *sqe, struct queue_op *op)
{
	int r;

	pthread_mutex_lock(&queue->lock);
	r = find_room(queue);
	if (r == 0)
		r = publish(queue, sqe, op);
	pthread_mutex_unlock(&queue->lock);
	if (r == 0)
		ring_doorbell(queue);
	return r;
}

/* False: at `end`, in a crowd, or where there is somebody's completion. */
static bool spin_until(struct queue *queue, struct queue_op *op, uint64_t end)
{
	uint64_t now;

	do {
		for (int i = 0; i < SPINS_TURN; i++) {
			if (op_ended(op))
				return true;
			if (given_out(queue, __atomic_load_n(&queue->client->cq_head, __ATOMIC_RELAXED)))
				return false;
			cpu_relax();
		}
		now = crowd_yield(&queue->crowd);
	} while (now < end && !crowd_is(&queue->crowd, now));
	return false;
}

/* What a wait is for: the op's end, or with `since` anything. */
static ALWAYS_INLINE bool is_over(const struct queue *queue, const struct queue_op *op, const uint32_t *since)
{
	return op_ended(op) || (since && queue_events(queue) != *since);
}

static ALWAYS_INLINE int await(struct queue *queue, struct queue_op *op, const uint32_t *since, uint64_t timeout_ns)
{
	uint64_t begin, end, awake;
	int r = 0;

	if (is_over(queue, op, since)) /* before the clock, which is a tenth of a brief request */
		return 0;
	begin = now_ns();
	end = timeout_ns ? begin + timeout_ns : UINT64_MAX;
	awake = MIN(begin + (uint64_t)op->spin_us * 1000, end);
	/* Others' completions are drained on the way. */
	for (uint64_t now = begin; now < awake && !crowd_is(&queue->crowd, now); now = now_ns()) {
		if (spin_until(queue, op, awake) || queue_poll(queue, op)) {
			crowd_found(&queue->crowd, begin + op->cqe.wait_ns + op->cqe.work_ns);
			return 0;
		}
		if (is_over(queue, op, since))
			return 0;
	}
	pthread_mutex_lock(&queue->lock);
	for (;;) {
		uint64_t now;

		drain(queue);
		if (is_over(queue, op, since) || r < 0)
			break;
		now = now_ns();
		if (now >= end) {
			look_at_daemon(queue, now);
			r = atomic_load(&queue->dead) ? -EPIPE : -ETIMEDOUT;
			break;
		}
		r = wait_change(queue, end == UINT64_MAX ? 0 : end - now);
	}
	pthread_mutex_unlock(&queue->lock);
	return is_over(queue, op, since) ? 0 : r;
}

int queue_wait(struct queue *queue, struct queue_op *op, uint64_t timeout_ns)
{
	return await(queue, op, NULL, timeout_ns);
}

int queue_wait_any(struct queue *queue, struct queue_op *op, uint32_t since, uint64_t timeout_ns)
{
	return await(queue, op, &since, timeout_ns);
}

/* Who leads and is only about to sleep does not hear it, and sees it when it wakes. */
void queue_kick(struct queue *queue)
{
	pthread_mutex_lock(&queue->lock);
	count_event(queue);
	if (queue->leading && !queue->module)
		futex_wake(&queue->daemon->cq_tail, FUTEX_ALL);
	wake_followers(queue);
	pthread_mutex_unlock(&queue->lock);
}

bool queue_poll(struct queue *queue, struct queue_op *op)
{
	if (!op_ended(op)) {
		pthread_mutex_lock(&queue->lock);
		drain(queue);
		pthread_mutex_unlock(&queue->lock);
	}
	return op_ended(op);
}

void queue_give_up(struct queue *queue)
{
	pthread_mutex_lock(&queue->lock);
	atomic_store(&queue->dead, true);
	wake_followers(queue);
	pthread_mutex_unlock(&queue->lock);
}

/* The end of a request whose op is its caller's. */
static NOINLINE int await_call(struct queue *queue, struct queue_op *op, struct moe_cqe *ret_cqe)
{
	int r = queue_wait(queue, op, queue->patience_ns);

	if (r == -ETIMEDOUT) { /* nobody may find the op later */
		queue_give_up(queue);
		r = -ETIME;
	}
	if (r < 0)
		return r;
	if (ret_cqe)
		*ret_cqe = op->cqe;
	return op->cqe.status;
}

/* Under the lock: looks for the answer beside the queue, where nothing else is in flight and the daemon is awake. */
static const struct moe_cqe *await_alone(const struct queue *queue)
{
	const struct moe_cqe *cqe = &queue->daemon->alone;
	const uint32_t seq = queue->cq_head + 1;

	for (int i = 0; i < BRIEF_POLLS; i++) {
		if (__atomic_load_n(&cqe->seq, __ATOMIC_ACQUIRE) == seq)
			return cqe;
		cpu_relax(); /* at each: a look takes the line from the daemon, which is about to write it */
	}
	return NULL;
}

/* Under the lock, which it gives back. What is answered at once is nobody's but this function's: no state of an op, no
 * second copy of the completion, and no doorbell, whose fence is a part of the trip. What is not is an op like any
 * other; a daemon that fell asleep at that very moment hears the bell so many looks later. */
static int call_alone(struct queue *queue, const struct moe_sqe *sqe, struct queue_op *op, struct moe_cqe *ret_cqe)
{
	const struct moe_cqe *cqe;
	int status;

	op_init(queue, sqe, op);
	post_alone(queue, sqe, op);
	announce(queue);
	cqe = op->wakes ? NULL : await_alone(queue);
	if (!cqe) {
		op_move(op, MOE_REQUEST_FREE, MOE_REQUEST_POSTED);
		op_move(op, MOE_REQUEST_POSTED, MOE_REQUEST_PUBLISHED);
		pthread_mutex_unlock(&queue->lock);
		ring_doorbell(queue);
		return await_call(queue, op, ret_cqe);
	}
	status = cqe->status;
	if (ret_cqe)
		*ret_cqe = *cqe;
	queue->in_flight--;
	step_head(queue);
	pthread_mutex_unlock(&queue->lock);
	return status;
}

int queue_call(struct queue *queue, const struct moe_sqe *sqe, struct moe_cqe *ret_cqe)
{
	struct queue_op op;
	int r;

	pthread_mutex_lock(&queue->lock);
	r = find_room(queue);
	if (r == 0 && may_be_alone(queue) && is_brief(sqe))
		return call_alone(queue, sqe, &op, ret_cqe);
	if (r == 0)
		r = publish(queue, sqe, &op);
	pthread_mutex_unlock(&queue->lock);
	if (r < 0)
		return r;
	ring_doorbell(queue);
	return await_call(queue, &op, ret_cqe);
}
