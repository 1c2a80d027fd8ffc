/* SPDX-License-Identifier: MIT */
/*
 * The scheduler's order, with a pool that does one unit of cost at a time, always of the job that goes first: decode
 * before prefill before background, users and their sessions have equal shares whatever their requests are like, a
 * session's own requests keep their order, never more of a session than the window at once, fills keep to their budget,
 * and cancelling takes exactly one session's waiting requests, or one of them, which then has cost nothing.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "base/util.h"
#include "daemon/scheduler.h"
#include "tests/tap.h"

#define THREADS 2 /* so the window is its minimum, 4 */
#define WINDOW 4
#define MANY 64

static struct request *given[1024];
static int n_given, wakes, n_cancelled, strange;

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

static void test_window(struct sched *sched)
{
	struct request requests[MANY], other = make(MOE_OP_FILL, POOL_PREFILL, MANY, 1), *first, *second, *done;
	struct sched_client client, neighbour;
	uint64_t names[MANY];
	bool in_order = true;

	sched_client_init(&client);
	sched_client_init(&neighbour);
	n_given = wakes = 0;
	for (int i = 0; i < MANY; i++) {
		requests[i] = make(i % 2 ? MOE_OP_COMPUTE : MOE_OP_FILL, POOL_PREFILL, (uint64_t)i, 1);
		sched_queue(sched, &client, &requests[i]);
	}
	ok(n_given == WINDOW, "%d of %d run: the window", n_given, MANY);
	ok(requests[0].state == MOE_REQUEST_RUNNING && requests[WINDOW].state == MOE_REQUEST_QUEUED,
	   "the others are QUEUED");
	sched_queue(sched, &neighbour, &other);
	ok(other.state == MOE_REQUEST_RUNNING, "another session has a window of its own");
	first = first_given(true);
	second = first_given(true);
	ok(first == &requests[0] && second == &other, "its first request goes before the second one of who was first");
	end(second);
	end(first);
	ok(wakes == 2, "an end wakes the loop");
	done = sched_next_done(sched);
	ok(done == second && done->state == MOE_REQUEST_DONE && done->cqe.pairs == 7 && done->cqe.work_ns == 20,
	   "ended requests come back in the order of their ends, with their figures");
	ok(sched_next_done(sched) == first && !sched_next_done(sched), "each once");
	ok(n_given == WINDOW && requests[WINDOW].state == MOE_REQUEST_RUNNING, "as many follow");
	require(run_all(sched, names) == MANY - 1, "all run");
	for (int i = 1; i < MANY; i++)
		in_order &= names[i - 1] == (uint64_t)i;
	ok(in_order, "in the order of their claim");
}

static void test_order(struct sched *sched)
{
	enum { A = 100, B = 200 };
	struct sched_client a, b;
	struct request requests[8];
	uint64_t names[8];
	int n = 0, count;
	const uint64_t expected[] = {A + 2, B + 2, A + 3, B + 3, A + 0, B + 0, A + 1, B + 1};
	const enum pool_priority classes[] = {POOL_PREFILL, POOL_PREFILL, POOL_DECODE, POOL_DECODE};
	bool good = true;

	sched_client_init(&a);
	sched_client_init(&b);
	for (int i = 0; i < 4; i++) {
		requests[n] = make(MOE_OP_COMPUTE, classes[i], (uint64_t)(A + i), 5);
		sched_queue(sched, &a, &requests[n++]);
	}
	for (int i = 0; i < 4; i++) {
		requests[n] = make(MOE_OP_COMPUTE, classes[i], (uint64_t)(B + i), 5);
		sched_queue(sched, &b, &requests[n++]);
	}
	count = run_all(sched, names);
	for (int i = 0; i < 8; i++)
		good &= names[i] == expected[i];
	ok(count == 8 && good, "decode first; within a class sessions with equal requests take turns");
}

/* -- shares ------------------------------------------------------------------------------------------------------- */

enum { SESSIONS_MAX = 8, DEPTH_MAX = 6, ROUNDS = 200 };

/* A session that always has `depth` requests: the next one follows at once when one has ended. */
struct load {
	struct sched_client client;
	struct request requests[DEPTH_MAX];
	uint64_t left[DEPTH_MAX]; /* of their cost */
	uint32_t depth;
	uint64_t cost_max, served;
};

static unsigned long long seed;

static uint64_t pick(uint64_t n)
{
	return (tap_random(&seed) >> 20) % n;
}

static void load_ask(struct sched *sched, struct load *l, uint32_t i)
{
	const uint64_t cost = pick(4) ? l->cost_max : 1 + pick(l->cost_max);

	l->requests[i] = make(pick(2) ? MOE_OP_COMPUTE : MOE_OP_FILL, POOL_PREFILL, (uint64_t)(uintptr_t)l, cost);
	l->left[i] = cost;
	sched_queue(sched, &l->client, &l->requests[i]);
}

static void load_start_for(struct sched *sched, struct load *l, struct sched_user *user, uint32_t depth,
			   uint64_t cost_max)
{
	*l = (struct load){.depth = depth, .cost_max = cost_max};
	sched_client_init(&l->client);
	l->client.user = user;
	for (uint32_t i = 0; i < depth; i++)
		load_ask(sched, l, i);
}

static void load_start(struct sched *sched, struct load *l, uint32_t depth, uint64_t cost_max)
{
	load_start_for(sched, l, NULL, depth, cost_max);
}

/* The pool works for so long, one unit of cost at a time. */
static void serve(struct sched *sched, uint64_t units)
{
	while (units-- > 0) {
		struct request *request = first_given(false), *done;
		struct load *l = (struct load *)(uintptr_t)request->sqe.user_data;
		const uint32_t i = (uint32_t)(request - l->requests);

		l->served++;
		if (--l->left[i] > 0)
			continue;
		end(first_given(true));
		done = sched_next_done(sched);
		strange += done != request || sched_next_done(sched);
		load_ask(sched, l, i);
	}
}

/* Ends all requests, without new ones. */
static void drain(struct sched *sched, const struct load *loads, uint32_t n)
{
	uint64_t names[SESSIONS_MAX * DEPTH_MAX];
	int left = 0;

	for (uint32_t s = 0; s < n; s++)
		left += (int)loads[s].depth;
	strange += run_all(sched, names) != left;
}

static void test_shares(struct sched *sched)
{
	uint64_t worst = 0;
	bool good = true;

	for (int round = 0; round < ROUNDS && good; round++) {
		const uint32_t n = 2 + (uint32_t)pick(SESSIONS_MAX - 1);
		uint64_t low = UINT64_MAX, high = 0, cost_max = 0;
		struct load loads[SESSIONS_MAX];

		for (uint32_t s = 0; s < n; s++) {
			load_start(sched, &loads[s], 1 + (uint32_t)pick(DEPTH_MAX), 1 + pick(pick(2) ? 500 : 5));
			cost_max = MAX(cost_max, loads[s].cost_max);
		}
		serve(sched, n * cost_max * (10 + pick(10)));
		for (uint32_t s = 0; s < n; s++) {
			low = MIN(low, loads[s].served);
			high = MAX(high, loads[s].served);
		}
		good = high - low <= cost_max;
		worst = MAX(worst, 100 * (high - low) / cost_max);
		if (!good)
			diag("%u sessions got %" PRIu64 " to %" PRIu64 ", requests cost up to %" PRIu64, n, low, high,
			     cost_max);
		drain(sched, loads, n);
	}
	ok(good, "no session is ever further behind another than one of the largest requests");
	diag("%.2f of them at worst", (double)worst / 100);
}

/* One asks for 512 tokens at a time, the other for one token. */
static void test_large_and_small(struct sched *sched)
{
	struct load loads[2];

	load_start(sched, &loads[0], 1, 384);
	load_start(sched, &loads[1], 1, 9);
	serve(sched, 38400);
	ok(loads[1].served > 38400 * 45 / 100 && loads[1].served < 38400 * 55 / 100,
	   "a session with small requests gets half the pool beside one with large ones (%" PRIu64 " of 38400)",
	   loads[1].served);
	drain(sched, loads, 2);
}

/* One user with a session, beside one with several. */
static void test_users(struct sched *sched)
{
	uint64_t worst = 0;
	bool good = true;

	for (int round = 0; round < ROUNDS && good; round++) {
		const uint32_t n = 2 + (uint32_t)pick(SESSIONS_MAX - 1);
		const uint64_t cost_max = 1 + pick(200);
		struct sched_user one = {0}, many = {0};
		struct load loads[SESSIONS_MAX];
		uint64_t before[SESSIONS_MAX], of_many = 0, of_one, most = 0, least = UINT64_MAX, apart;

		for (uint32_t s = 0; s < n; s++)
			load_start_for(sched, &loads[s], s ? &many : &one, 1 + (uint32_t)pick(DEPTH_MAX), cost_max);
		good = one.busy[POOL_PREFILL] == 1 && many.busy[POOL_PREFILL] == n - 1;
		serve(sched, n * DEPTH_MAX * cost_max); /* what came before all sessions were there */
		for (uint32_t s = 0; s < n; s++)
			before[s] = loads[s].served;
		serve(sched, n * cost_max * (20 + pick(20)));
		of_one = loads[0].served - before[0];
		for (uint32_t s = 1; s < n; s++) {
			of_many += loads[s].served - before[s];
			most = MAX(most, loads[s].served - before[s]);
			least = MIN(least, loads[s].served - before[s]);
		}
		apart = MAX(of_one, of_many) - MIN(of_one, of_many);
		good &= apart <= 2 * n * cost_max && most - least <= 2 * cost_max;
		worst = MAX(worst, 100 * apart / (n * cost_max));
		if (!good)
			diag("one user got %" PRIu64 ", one with %u sessions %" PRIu64 " (%" PRIu64 " to %" PRIu64
			     " each), requests cost up to %" PRIu64,
			     of_one, n - 1, of_many, least, most, cost_max);
		drain(sched, loads, n);
		good &= one.busy[POOL_PREFILL] == 0 && many.busy[POOL_PREFILL] == 0;
	}
	ok(good, "a user with one session gets as much as one with many, whose sessions get the same");
	diag("%.2f of their largest requests apart at worst", (double)worst / 100);
}

static void test_no_claim_on_the_past(struct sched *sched)
{
	struct load loads[2];
	uint64_t before;

	load_start(sched, &loads[0], 2, 100);
	serve(sched, 20000);
	load_start(sched, &loads[1], 2, 100);
	before = loads[0].served;
	serve(sched, 2000);
	ok(loads[1].served >= 900 && loads[1].served <= 1200 && loads[0].served - before >= 800,
	   "who comes later gets a share from then on, and nothing for the time before (%" PRIu64 " of 2000)",
	   loads[1].served);
	drain(sched, loads, 2);
}

/* -- cancelling --------------------------------------------------------------------------------------------------- */

static void cancelled(struct request *request)
{
	n_cancelled += request->cqe.status == -ECANCELED && request->state == MOE_REQUEST_DONE;
	request_move(request, MOE_REQUEST_REAPED);
}

static void test_cancel(struct sched *sched)
{
	struct sched_user user = {0};
	struct sched_client a, b;
	struct request requests[60];
	uint64_t names[60];
	int count, of_a = 0;

	sched_client_init(&a);
	sched_client_init(&b);
	a.user = b.user = &user;
	for (int i = 0; i < 60; i++) {
		requests[i] = make(MOE_OP_FILL, (enum pool_priority)(i / 2 % 3), (uint64_t)i, 3);
		sched_queue(sched, i % 2 ? &b : &a, &requests[i]);
	}
	ok(user.busy[0] == 2 && user.busy[1] == 2 && user.busy[2] == 2, "both sessions of the user have requests");
	sched_cancel_all(sched, &a, cancelled);
	ok(n_cancelled == 30 - 3 * WINDOW, "all waiting requests of the session are cancelled");
	count = run_all(sched, names);
	for (int i = 0; i < count; i++)
		of_a += names[i] % 2 == 0;
	ok(count == 30 + 3 * WINDOW && of_a == 3 * WINDOW,
	   "those with the pool end, and all of the other session's run");
	ok(user.busy[0] == 0 && user.busy[1] == 0 && user.busy[2] == 0, "then none has");
}

static void test_cancel_one(struct sched *sched)
{
	struct sched_client a;
	struct request requests[MANY];
	uint64_t names[MANY];
	int count, n = 0;
	bool good = true, gone[MANY] = {false};

	sched_client_init(&a);
	for (int i = 0; i < MANY; i++) {
		requests[i] = make(MOE_OP_FILL, POOL_PREFILL, (uint64_t)i, 3);
		sched_queue(sched, &a, &requests[i]);
	}
	for (int i = WINDOW; i < MANY; i += 1 + (int)pick(5)) { /* the last one always: the list's end */
		i = i + 5 >= MANY ? MANY - 1 : i;
		sched_cancel(sched, &requests[i]);
		good &= requests[i].state == MOE_REQUEST_DONE && requests[i].cqe.status == -ECANCELED;
		gone[i] = true;
		n++;
	}
	requests[MANY - 1] = make(MOE_OP_FILL, POOL_PREFILL, MANY - 1, 3);
	gone[MANY - 1] = false;
	sched_queue(sched, &a, &requests[MANY - 1]);
	count = run_all(sched, names);
	ok(good && count == MANY - n + 1, "%d of the waiting requests are cancelled, one after the other", n);
	for (int i = 0, at = 0; i < MANY; i++)
		good &= gone[i] || names[at++] == (uint64_t)i;
	ok(good, "and the others keep their order");
}

/* One session asks for much and takes it back, the other has the same without it. */
static void test_cancel_cost(struct sched *sched)
{
	struct sched_client a, b;
	struct request of_a[3 * WINDOW], of_b[2 * WINDOW];
	bool good = true;

	sched_client_init(&a);
	sched_client_init(&b);
	n_given = 0;
	for (int i = 0; i < 3 * WINDOW; i++) {
		of_a[i] = make(MOE_OP_FILL, POOL_BACKGROUND, (uint64_t)i, i / WINDOW == 1 ? 1000 : 5);
		sched_queue(sched, &a, &of_a[i]);
	}
	for (int i = 0; i < 2 * WINDOW; i++) {
		of_b[i] = make(MOE_OP_FILL, POOL_BACKGROUND, (uint64_t)i, 5);
		sched_queue(sched, &b, &of_b[i]);
	}
	for (int i = 2 * WINDOW - 1; i >= WINDOW; i--)
		sched_cancel(sched, &of_a[i]);
	for (int i = 0; i < WINDOW; i++)
		good &= of_a[i].order == of_b[i].order && of_a[2 * WINDOW + i].order == of_b[WINDOW + i].order;
	ok(good && a.end[POOL_BACKGROUND] == b.end[POOL_BACKGROUND], "what was cancelled has cost nothing");
	for (uint64_t names[5 * WINDOW]; run_all(sched, names) > 0;)
		;
}

/* -- the budget --------------------------------------------------------------------------------------------------- */

static struct request make_fill(enum pool_priority priority, uint64_t name, uint64_t bytes)
{
	struct request r = make(MOE_OP_FILL, priority, name, 1);

	r.fill.bytes = bytes;
	return r;
}

static void test_budget(void)
{
	enum { BACK, BACK2, DECODE, DECODE2, PREFILL, LARGE, COMPUTE, SMALL, N };
	struct sched *sched;
	struct sched_client a, b;
	struct request r[N], other = make_fill(POOL_DECODE, 99, 100);
	uint64_t names[N + 1];
	int count;

	require(sched_new(&sched, NULL, 100, NULL) == 0, "a scheduler with a budget");
	sched_client_init(&a);
	sched_client_init(&b);
	n_given = 0;
	r[BACK] = make_fill(POOL_BACKGROUND, BACK, 100);
	r[BACK2] = make_fill(POOL_BACKGROUND, BACK2, 1);
	r[DECODE] = make_fill(POOL_DECODE, DECODE, 60);
	r[DECODE2] = make_fill(POOL_DECODE, DECODE2, 40);
	r[PREFILL] = make_fill(POOL_PREFILL, PREFILL, 1);
	r[LARGE] = make_fill(POOL_DECODE, LARGE, 101);
	r[COMPUTE] = make(MOE_OP_COMPUTE, POOL_DECODE, COMPUTE, 1);
	r[SMALL] = make_fill(POOL_DECODE, SMALL, 1);
	for (int i = 0; i < N; i++)
		sched_queue(sched, &a, &r[i]);
	ok(r[BACK].state == MOE_REQUEST_RUNNING && r[BACK2].state == MOE_REQUEST_QUEUED,
	   "speculative fills use the budget, and no more");
	ok(r[DECODE].state == MOE_REQUEST_RUNNING && r[DECODE2].state == MOE_REQUEST_RUNNING,
	   "a fill does not wait for less urgent ones");
	ok(r[PREFILL].state == MOE_REQUEST_QUEUED, "but for more urgent ones");
	ok(r[COMPUTE].state == MOE_REQUEST_RUNNING && r[LARGE].state == MOE_REQUEST_QUEUED &&
		   r[SMALL].state == MOE_REQUEST_QUEUED,
	   "a computation goes past fills that wait, a fill does not");
	ok(sched_filling(&a) == 200, "what is with the pool is counted");
	sched_queue(sched, &b, &other);
	ok(other.state == MOE_REQUEST_RUNNING, "another session has a budget of its own");
	count = run_all(sched, names);
	ok(count == N + 1, "all end, also the one that is larger than the budget");
	for (int i = 0, at = -1; i < count; i++) {
		static const uint64_t order[] = {LARGE, SMALL, PREFILL, BACK, BACK2};

		for (int k = 0; k < 5; k++)
			if (names[i] == order[k])
				strange += ++at != k;
	}
	ok(strange == 0 && sched_filling(&a) == 0, "decode before prefill before speculation");
	sched_free(sched);
}

static void test_shared_budget(void)
{
	enum { FIRST, LARGE, SMALL, SMALL2, OWN, N };
	struct sched *sched;
	struct sched_client a, b, c, alone;
	struct request r[N], rest = make_fill(POOL_DECODE, 98, 100), last = make_fill(POOL_DECODE, 99, 100);
	uint64_t names[N + 2];

	require(sched_new(&sched, NULL, 100, NULL) == 0, "a scheduler with a budget");
	sched_client_init(&a);
	sched_client_init(&b);
	sched_client_init(&c);
	sched_client_init(&alone);
	sched_share(&b, &a);
	sched_share(&c, &a);
	n_given = 0;
	r[FIRST] = make_fill(POOL_DECODE, FIRST, 60);
	r[LARGE] = make_fill(POOL_DECODE, LARGE, 80);
	r[SMALL] = make_fill(POOL_DECODE, SMALL, 10);
	r[SMALL2] = make_fill(POOL_DECODE, SMALL2, 10);
	r[OWN] = make_fill(POOL_DECODE, OWN, 100);
	r[SMALL2].cost = 2;
	sched_queue(sched, &a, &r[FIRST]);
	sched_queue(sched, &b, &r[LARGE]);
	sched_queue(sched, &c, &r[SMALL2]);
	sched_queue(sched, &alone, &r[OWN]);
	ok(r[FIRST].state == MOE_REQUEST_RUNNING && r[LARGE].state == MOE_REQUEST_QUEUED,
	   "sessions that share a device share its budget");
	ok(r[SMALL2].state == MOE_REQUEST_QUEUED, "what fits does not overtake what is before it");
	ok(r[OWN].state == MOE_REQUEST_RUNNING, "another device has a budget of its own");
	sched_cancel(sched, &r[LARGE]);
	ok(r[SMALL2].state == MOE_REQUEST_RUNNING, "when that is taken back, it starts");
	sched_queue(sched, &b, &rest);
	sched_queue(sched, &a, &r[SMALL]);
	sched_queue(sched, &c, &last);
	ok(r[SMALL].state == MOE_REQUEST_QUEUED && rest.state == MOE_REQUEST_QUEUED && last.state == MOE_REQUEST_QUEUED,
	   "again they wait for the first");
	ok(run_all(sched, names) == N + 1 && rest.state == MOE_REQUEST_REAPED && last.state == MOE_REQUEST_REAPED,
	   "all end, whoever's end makes room");
	sched_part(sched, &a);
	sched_part(sched, &c);
	r[FIRST] = make_fill(POOL_DECODE, FIRST, 100);
	r[LARGE] = make_fill(POOL_DECODE, LARGE, 100);
	sched_queue(sched, &a, &r[FIRST]);
	sched_queue(sched, &b, &r[LARGE]);
	ok(r[FIRST].state == MOE_REQUEST_RUNNING && r[LARGE].state == MOE_REQUEST_RUNNING,
	   "who has parted has a budget of its own");
	run_all(sched, names);
	sched_free(sched);
}

/* Never more with the pool than the law allows; nothing that waits is forgotten, whatever is cancelled. */
static void test_budget_at_random(int n_sharers)
{
	enum { N = 400 };
	static struct request r[N];
	struct sched_client sharers[3];
	struct sched *sched;
	int ended = 0, taken = 0, queued = 0;
	bool good = true;

	require(sched_new(&sched, NULL, 50, NULL) == 0, "a scheduler with a budget");
	for (int i = 0; i < n_sharers; i++) {
		sched_client_init(&sharers[i]);
		if (i > 0)
			sched_share(&sharers[i], &sharers[pick((uint64_t)i)]);
	}
	n_given = 0;
	while (good && ended + taken < N) {
		uint64_t with_pool[POOL_PRIORITIES] = {0}, sum = 0;
		int fills = 0;
		struct request *done;

		if (queued < N) {
			r[queued] = pick(4) ? make_fill((enum pool_priority)pick(3), (uint64_t)queued, 1 + pick(70))
					    : make(MOE_OP_COMPUTE, (enum pool_priority)pick(3), (uint64_t)queued, 5);
			sched_queue(sched, &sharers[pick((uint64_t)n_sharers)], &r[queued++]);
		}
		for (int i = 0; i < n_given; i++)
			if (given[i]->sqe.op == MOE_OP_FILL)
				with_pool[given[i]->priority] += given[i]->fill.bytes;
		for (int class = 0; class < POOL_PRIORITIES && good; class ++) {
			for (int i = fills = 0; i < n_given; i++)
				fills += given[i]->sqe.op == MOE_OP_FILL && given[i]->priority == (unsigned)class;
			good = with_pool[class] <= 50 || fills == 1;
			sum += with_pool[class];
		}
		for (int i = 0; i < n_sharers; i++)
			sum -= sched_filling(&sharers[i]);
		good &= sum == 0;
		if (queued > 0 && pick(6) == 0) {
			struct request *q = &r[pick((uint64_t)queued)];

			if (q->state == MOE_REQUEST_QUEUED) {
				sched_cancel(sched, q);
				taken++;
			}
		}
		if (queued == N || pick(2)) {
			struct request *q = first_given(true);

			if (!q) {
				good &= queued == ended + taken; /* else something that waits is forgotten */
				continue;
			}
			end(q);
			while ((done = sched_next_done(sched)))
				ended++;
		}
	}
	ok(good && taken > 0, "at random, %d sessions: %d ended, %d cancelled, the budget kept", n_sharers, ended,
	   taken);
	sched_free(sched);
}

int main(void)
{
	struct sched *sched;

	seed = tap_seed();
	require(sched_new(&sched, NULL, 0, NULL) == 0, "a scheduler");
	ok(sched_fill_budget(sched) == THREADS * SCHED_FILL_BUDGET_THREAD, "with the default budget");
	test_window(sched);
	test_order(sched);
	test_shares(sched);
	test_large_and_small(sched);
	test_users(sched);
	test_no_claim_on_the_past(sched);
	test_cancel(sched);
	test_cancel_one(sched);
	test_cancel_cost(sched);
	test_budget();
	test_shared_budget();
	test_budget_at_random(1);
	test_budget_at_random(3);
	ok(strange == 0, "each request reaches the pool in its place, and ends once");
	ok(sched_free(sched) == NULL, "nothing runs at the end");
	return tap_done();
}
