/* SPDX-License-Identifier: MIT */
/*
 * The scheduler's budgets: fills with the pool are never more bytes than one budget for each class and device allows,
 * or one fill; what waits for it neither holds others up nor is forgotten.
 */
#include "tests/sched-pool.h"

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
	seed = tap_seed();
	test_budget();
	test_shared_budget();
	test_budget_at_random(1);
	test_budget_at_random(3);
	ok(strange == 0, "each request reaches the pool in its place, and ends once");
	return tap_done();
}
