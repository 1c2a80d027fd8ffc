/* SPDX-License-Identifier: MIT */
/*
 * The scheduler's order, with a pool that does one unit of cost at a time, always of the job that goes first: decode
 * before prefill before background, users and their sessions have equal shares whatever their requests are like, a
 * session's own requests keep their order, never more of a session than the window at once, and cancelling takes
 * exactly one session's waiting requests, or one of them, which then has cost nothing.
 */
#include "tests/sched-pool.h"

#define WINDOW 4 /* the least */
#define MANY 64

static int n_cancelled;

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
	ok(strange == 0, "each request reaches the pool in its place, and ends once");
	ok(sched_free(sched) == NULL, "nothing runs at the end");
	return tap_done();
}
