/* SPDX-License-Identifier: MIT */
/*
 * lane-thread - the host's side of lanes: takes requests, asks the daemon, answers.
 *
 * It looks for requests without sleeping while there are any and for a moment longer, since nothing wakes it: a GPU
 * only writes words. When nothing has come for a while, or in a crowd (base/crowd.h), it naps between looks. It sleeps
 * until the first map is fixed, and never again: what is replayed while none is waits for an answer too.
 */
#include <errno.h>
#include <math.h>
#include <time.h>

#include "base/crowd.h"
#include "base/util.h"
#include "lanes.h"
#include "plan.h"
#include "step.h"

#define SPIN_NS 1000000         /* how long after the last request ... */
#define NAP_NS 20000            /* ... and then naps */
#define IDLE_NS 200000000       /* of this length; and from here on ... */
#define NAP_IDLE_NS 1000000     /* ... of this one */
#define SPINS_TURN 64           /* looks between two yields */
#define LOOK_DAEMON_NS 20000000 /* how often a daemon that is slow to answer is looked at whether it lives ... */
#define LOOK_NS 300000          /* ... which takes so long: more than the queue's wait spins */

/* -- answers ------------------------------------------------------------------------------------------------------ */

static void fill_answer(const struct lanes *l, const struct lane *lane, uint32_t tokens, float value)
{
	const size_t n = (size_t)tokens * l->engine->session->info.hidden;
	size_t i;

	for (i = 0; i < n; i++)
		lane->y[i] = value;
}

static void answer(struct lanes *l, struct lane *lane)
{
	lane->busy = false;
	lane->since_ns = 0;
	l->engine->ops->word_write(&lane->words->answer, 1);
}

/* Whoever asks for the lane's error gets the code, if it is the first one. */
static void raise_error(struct lane *lane, int code)
{
	int32_t none = 0;

	__atomic_compare_exchange_n(&lane->words->error, &none, code, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

/* y is no number then. */
static void answer_failed(struct lanes *l, struct lane *lane, int code)
{
	fill_answer(l, lane, l->tokens, NAN);
	raise_error(lane, code);
	answer(l, lane);
}

/* -- requests ----------------------------------------------------------------------------------------------------- */

struct asked {
	uint32_t layer, tokens, topk, row;
};

static struct asked read_request(const struct lanes *l, uint32_t request)
{
	struct asked a = {.layer = (request >> 15) - 1, .tokens = (request >> 6) % 512 + 1, .topk = request % 64 + 1};

	a.row = (uint32_t)l->engine->session->info.layer_index[a.layer];
	return a;
}

/* The pairs that the device does not compute: how many, or -EINVAL. Those that it does are noted. */
static int split(const struct lanes *l, struct lane *lane, const struct asked *a)
{
	const uint32_t n_experts = l->engine->n_experts;
	const int32_t *map = l->host_maps + (size_t)a->row * n_experts;
	uint64_t seen[DIV_UP(CACHE_EXPERTS_MAX, 64)] = {0};
	uint32_t i;
	int n = 0;

	lane->pairs_hit = lane->experts_asked = lane->experts_hit = 0;
	for (i = 0; i < a->tokens * a->topk; i++) {
		const int32_t id = lane->ids[i];

		if (id < -1 || id >= (int32_t)n_experts)
			return -EINVAL;
		lane->cpu_ids[i] = id >= 0 && map[id] < 0 ? id : -1;
		if (id < 0)
			continue;
		lane->pairs_hit += map[id] >= 0;
		lane->experts_asked += !(seen[id / 64] >> id % 64 & 1);
		lane->experts_hit += map[id] >= 0 && !(seen[id / 64] >> id % 64 & 1);
		seen[id / 64] |= (uint64_t)1 << id % 64;
		n += map[id] < 0;
	}
	return n;
}

static int post_compute(struct lanes *l, struct lane *lane, const struct asked *a)
{
	struct moe_session *s = l->engine->session;
	const struct moe_sqe sqe = {
		.op = MOE_OP_COMPUTE,
		.flags = s->params.share == MOE_SHARE_GROUP ? MOE_SQE_WHOLE : 0,
		.layer = (uint16_t)a->layer,
		.count = a->tokens,
		.compute.topk = a->topk,
		.compute.x_type = MOE_TYPE_F32,
		.compute.y_type = MOE_TYPE_F32,
		.compute.x = (uint64_t)((uint8_t *)lane->x - s->data),
		.compute.ids = (uint64_t)((uint8_t *)lane->cpu_ids - s->data),
		.compute.weights = (uint64_t)((uint8_t *)lane->weights - s->data),
		.compute.y = (uint64_t)((uint8_t *)lane->y - s->data),
	};

	return engine_submit(l->engine, &sqe, &lane->compute);
}

/* As step-books.c does for planned steps; one that has failed counts nowhere, nor does a dummy one. */
static void count(struct lanes *l, const struct lane *lane, const struct asked *a, const struct moe_cqe *cqe)
{
	struct moe_layer_stats *stats = &l->engine->session->stats[a->layer];

	if (lane->dummy)
		return;
	__atomic_fetch_add(&stats->steps, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&stats->tokens, a->tokens, __ATOMIC_RELAXED);
	__atomic_fetch_add(&stats->pairs_hit, lane->pairs_hit, __ATOMIC_RELAXED);
	__atomic_fetch_add(&stats->pairs_resident, lane->pairs_hit, __ATOMIC_RELAXED);
	__atomic_fetch_add(&stats->pairs_cpu, cqe->pairs, __ATOMIC_RELAXED);
	__atomic_fetch_add(&stats->experts_asked, lane->experts_asked, __ATOMIC_RELAXED);
	__atomic_fetch_add(&stats->experts_resident, lane->experts_hit, __ATOMIC_RELAXED);
	__atomic_fetch_add(&stats->active_sum, lane->experts_asked, __ATOMIC_RELAXED);
	stats_raise(&stats->active_max, lane->experts_asked);
	__atomic_fetch_add(&stats->cpu_ns, cqe->work_ns, __ATOMIC_RELAXED);
}

/* The ids are those that split() has seen only if the stream keeps the law of one user. */
static void tell_route(struct lanes *l, const struct lane *lane, const struct asked *a)
{
	struct engine *e = l->engine;

	if (!e->session->heat && !tap_is_on(&e->session->tap))
		return;
	pthread_mutex_lock(&e->lock);
	engine_tell_route(e, &(struct plan_params){.mode = MOE_MODE_DECODE,
						   .layer = a->layer,
						   .tokens = a->tokens,
						   .topk = a->topk,
						   .ids = lane->ids,
						   .weights = lane->weights,
						   .frozen = e->dummy});
	pthread_mutex_unlock(&e->lock);
}

static void take_request(struct lanes *l, struct lane *lane, uint32_t request)
{
	const struct asked a = read_request(l, request);
	int r;

	/* The stream writes it again only when it has been answered. */
	__atomic_store_n(&lane->words->request, 0, __ATOMIC_RELAXED);
	lane->asked = request;
	lane->since_ns = 0;
	lane->taken_ns = now_ns();
	lane->dummy = engine_is_dummy(l->engine);
	r = l->fixed ? split(l, lane, &a) : -ESTALE;
	if (r > 0) {
		r = post_compute(l, lane, &a);
		lane->busy = r == 0;
		if (r == 0) {
			tell_route(l, lane, &a);
			return;
		}
	}
	if (r < 0) {
		answer_failed(l, lane, r == -EPIPE ? lanes_lost(l->engine) : r);
		return;
	}
	tell_route(l, lane, &a);
	count(l, lane, &a, &(struct moe_cqe){0});
	fill_answer(l, lane, a.tokens, -0.0f); /* which changes no number that it is added to */
	answer(l, lane);
}

static void end_request(struct lanes *l, struct lane *lane)
{
	struct queue *queue = &l->engine->session->queue;
	const struct asked a = read_request(l, lane->asked);

	if (!queue_poll(queue, &lane->compute)) {
		if (atomic_load(&queue->dead))
			answer_failed(l, lane, lanes_lost(l->engine));
		return;
	}
	if (lane->compute.cqe.status < 0) {
		answer_failed(l, lane, lane->compute.cqe.status);
		return;
	}
	crowd_found(&queue->crowd, lane->taken_ns + lane->compute.cqe.wait_ns + lane->compute.cqe.work_ns);
	count(l, lane, &a, &lane->compute.cqe);
	answer(l, lane);
}

/* -- watchdog ----------------------------------------------------------------------------------------------------- */

static bool is_late(struct lanes *l, struct lane *lane, uint64_t now)
{
	const bool waits = __atomic_load_n(&lane->words->waiting, __ATOMIC_ACQUIRE) &&
			   !__atomic_load_n(&lane->words->answer, __ATOMIC_RELAXED);

	if (!waits)
		lane->since_ns = 0;
	else if (!lane->since_ns)
		lane->since_ns = now;
	return waits && now - lane->since_ns >= l->engine->watchdog_ns;
}

/* True: the lane is under way. */
static bool run_lane(struct lanes *l, struct lane *lane, uint64_t now)
{
	const uint32_t request = __atomic_load_n(&lane->words->request, __ATOMIC_ACQUIRE);

	if (lane->busy && request) /* two at a time: neither may have what it asked for */
		raise_error(lane, -EPROTO);
	else if (request)
		take_request(l, lane, request);
	if (lane->busy)
		end_request(l, lane);
	if (is_late(l, lane, now)) {
		engine_give_up(l->engine, -ETIME);
		answer_failed(l, lane, -ETIME);
	}
	return lane->busy || request;
}

/* -- the thread --------------------------------------------------------------------------------------------------- */

struct rest {
	uint64_t active_ns, looked_ns;
	uint32_t spins;
};

/* A queue that nobody waits for does not learn that the daemon is gone. */
static void look_at_daemon(struct lanes *l, struct rest *rest, uint64_t now)
{
	uint32_t i;

	for (i = 0; i < l->n; i++) {
		struct lane *lane = &l->lanes[i];

		if (lane->busy && now - lane->taken_ns > LOOK_DAEMON_NS && now - rest->looked_ns > LOOK_DAEMON_NS) {
			queue_wait(&l->engine->session->queue, &lane->compute, LOOK_NS);
			rest->looked_ns = now_ns();
		}
	}
}

static void pause_looking(struct lanes *l, struct rest *rest, bool active, uint64_t now)
{
	struct crowd *crowd = &l->engine->session->queue.crowd;
	uint64_t idle;

	if (active)
		rest->active_ns = now;
	idle = now - rest->active_ns;
	look_at_daemon(l, rest, now);
	if (idle > SPIN_NS || crowd_is(crowd, now))
		nanosleep(&(struct timespec){.tv_nsec = idle > IDLE_NS ? NAP_IDLE_NS : NAP_NS}, NULL);
	else if (++rest->spins % SPINS_TURN == 0)
		crowd_yield(crowd);
	else
		cpu_relax();
}

/* Sleeps until the first map is fixed. False: the thread is to end. */
static bool goes_on(struct lanes *l)
{
	bool on;

	pthread_mutex_lock(&l->lock);
	while (!l->used && !l->stopping)
		pthread_cond_wait(&l->more, &l->lock);
	on = !l->stopping;
	pthread_mutex_unlock(&l->lock);
	return on;
}

void *lanes_main(void *arg)
{
	struct lanes *l = arg;
	struct rest rest = {.active_ns = now_ns(), .looked_ns = now_ns()};

	while (goes_on(l)) {
		const uint64_t now = now_ns();
		bool active = false;
		uint32_t i;

		for (i = 0; i < l->n; i++)
			active |= run_lane(l, &l->lanes[i], now);
		pause_looking(l, &rest, active, now);
	}
	return NULL;
}
