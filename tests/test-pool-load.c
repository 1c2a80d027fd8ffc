/* SPDX-License-Identifier: MIT */
/*
 * test-pool-load - how the CPU pool works: many jobs at once, each node's records on its own team, priorities, which
 * hold amid rows without a pair, too, and idle threads that sleep.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "daemon/pool-internal.h"
#include "tests/pool-fills.h"

/* -- many at once ------------------------------------------------------------------------------------------------- */

enum { SUBMITTERS = 4, JOBS = 12, ROUNDS = 4 };

struct submitter {
	pthread_t thread;
	struct pool *pool;
	struct job *jobs[JOBS];
	void *expected[JOBS];
	struct fill *fills[JOBS];
	bool good;
};

static void *submitter_main(void *arg)
{
	struct submitter *s = arg;

	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < JOBS; i++) {
			memset(s->jobs[i]->y, 0xff, s->jobs[i]->y_bytes);
			pool_submit_compute(s->pool, &s->jobs[i]->compute);
			pool_submit_copy(s->pool, &s->fills[i]->copy);
		}
		for (int i = 0; i < JOBS; i++) {
			job_wait(s->jobs[i]);
			while (sem_wait(&s->fills[i]->ended) < 0)
				continue;
			s->good = s->good && fill_good(s->fills[i]) && s->jobs[i]->result.status == 0 &&
				  memcmp(s->jobs[i]->y, s->expected[i], s->jobs[i]->y_bytes) == 0;
		}
		if (round % 2)
			usleep(3000); /* let threads fall asleep */
	}
	return NULL;
}

static void test_many(uint32_t n_nodes, uint32_t threads)
{
	struct pool *pool = pool_make(n_nodes, threads);
	struct submitter s[SUBMITTERS];
	struct pool_stats stats;
	uint64_t pairs = 0;
	struct fake f;
	bool good = true;

	fake_layout(&f, 8, 200, 96, MOE_FORMAT_F16, n_nodes);
	fake_fill(&f);
	for (int n = 0; n < SUBMITTERS; n++) {
		s[n] = (struct submitter){.pool = pool, .good = true};
		for (int i = 0; i < JOBS; i++) {
			struct job *j = job_make(&f, i % 5 ? 1 + pick(4) : pick(60), 1 + pick(4), pick_x_type(),
						 pick_x_type(), pick(4));

			s[n].jobs[i] = j;
			s[n].fills[i] = fill_make(&f, pick(2), 2);
			job_run(pool, j);
			good = good && (i % 4 || job_good(&f, j, kernels_get(isa_detect(NULL))));
			s[n].expected[i] = allocate(j->y_bytes);
			memcpy(s[n].expected[i], j->y, j->y_bytes);
			pairs += job_pairs(j) * (ROUNDS + 1);
		}
	}
	for (int n = 0; n < SUBMITTERS; n++)
		require(pthread_create(&s[n].thread, NULL, submitter_main, &s[n]) == 0, "submitter %d", n);
	for (int n = 0; n < SUBMITTERS; n++) {
		pthread_join(s[n].thread, NULL);
		good = good && s[n].good;
		for (int i = 0; i < JOBS; i++) {
			job_free(s[n].jobs[i]);
			fill_free(s[n].fills[i]);
			free(s[n].expected[i]);
		}
	}
	ok(good, "%d threads submit mixed jobs to %u nodes, %u threads", SUBMITTERS, n_nodes, threads);
	pool_stats(pool, &stats);
	ok(stats.pairs == pairs && stats.jobs == SUBMITTERS * JOBS * (2 * ROUNDS + 1) && stats.busy_ns > 0,
	   "all of them are counted");
	fake_free(&f);
	pool_free(pool);
}

/* -- what only a kernel can see ----------------------------------------------------------------------------------- */

static const struct fake *hook_model;
static _Atomic uint32_t hook_calls, hook_strangers;
static sem_t hook_reached, hook_release;
static _Atomic bool hook_stops;
static struct job *_Atomic hook_watched; /* NULL once a kernel got its activations */
static struct job *order[8];             /* in which jobs ended */
static _Atomic uint32_t n_order;

static bool is_of(const struct job *j, const void *x)
{
	return j && (const float *)x >= (const float *)j->x &&
	       (const float *)x < (const float *)j->x + j->compute.tokens * hook_model->manifest.hidden;
}

/* Counts calls on a team's threads for rows of another node; stops at the first call when told to. */
static void hook_gate_up(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows, size_t cols,
			 const struct kernel_act *act, size_t tokens, const void *const *x, float *const *h)
{
	char name[16] = "";
	unsigned int team = 0;

	pthread_getname_np(pthread_self(), name, sizeof(name));
	if (sscanf(name, "moe-pool/%u.", &team) != 1)
		team = UINT32_MAX;
	atomic_fetch_add(&hook_calls, 1);
	for (uint32_t p = 0; p < hook_model->model.n_pools; p++) {
		const uint8_t *map = hook_model->model.pools[p].map, *data = gate->codes;

		if (data >= map && data < map + hook_model->model.pools[p].bytes && p != team)
			atomic_fetch_add(&hook_strangers, 1);
	}
	if (is_of(atomic_load(&hook_watched), x[0]))
		atomic_store(&hook_watched, NULL);
	if (atomic_exchange(&hook_stops, false)) {
		sem_post(&hook_reached);
		while (sem_wait(&hook_release) < 0)
			continue;
	}
	kernels_get(ISA_REF)->of[MOE_FORMAT_BF16]->gate_up(gate, up, rows, cols, act, tokens, x, h);
}

static struct kernels hook_table(const struct fake *f)
{
	static struct kernel_ops ops;
	struct kernels k = *kernels_get(ISA_REF);

	ops = *k.of[MOE_FORMAT_BF16];
	ops.gate_up = hook_gate_up;
	k.of[MOE_FORMAT_BF16] = &ops;
	hook_model = f;
	atomic_store(&hook_calls, 0);
	atomic_store(&hook_strangers, 0);
	atomic_store(&n_order, 0);
	sem_init(&hook_reached, 0, 0);
	sem_init(&hook_release, 0, 0);
	return k;
}

static void test_nodes(void)
{
	struct kernels k;
	struct pool *pool;
	struct fake f;
	struct job *j;

	fake_layout(&f, 10, 64, 70, MOE_FORMAT_BF16, 2);
	fake_fill(&f);
	k = hook_table(&f);
	pool = pool_make_kernels(2, 4, &k);
	for (int i = 0; i < 10; i++) {
		j = job_make(&f, 12, 3, MOE_TYPE_BF16, MOE_TYPE_F32, 0);
		job_run(pool, j);
		if (!job_good(&f, j, &k))
			atomic_fetch_add(&hook_strangers, 1000);
		job_free(j);
	}
	ok(atomic_load(&hook_calls) > 0 && atomic_load(&hook_strangers) == 0,
	   "a team touches only rows of its own node");
	pool_free(pool);
	fake_free(&f);
}

static void order_done(struct pool_compute *compute, const struct pool_result *result)
{
	order[atomic_fetch_add(&n_order, 1)] = container_of(compute, struct job, compute);
	job_done(compute, result);
}

/* Waits until the job that stops has reached its hook. */
static void hook_wait(void)
{
	while (sem_wait(&hook_reached) < 0)
		continue;
}

static struct job *order_job(const struct fake *f, enum pool_priority priority, uint64_t place)
{
	struct job *j = job_make(f, 6, 3, MOE_TYPE_F32, MOE_TYPE_F32, 0);

	j->compute.priority = priority;
	j->compute.order = place;
	j->compute.done = order_done;
	return j;
}

/* Waits for all and compares the order of their ends. */
static bool order_was(struct job *const *jobs, uint32_t n, const int *expected)
{
	bool good = true;

	for (uint32_t i = 0; i < n; i++)
		job_wait(jobs[i]);
	for (uint32_t i = 0; i < n; i++)
		good = good && order[i] == jobs[expected[i]];
	for (uint32_t i = 0; i < n && !good; i++)
		for (uint32_t k = 0; k < n; k++)
			if (order[i] == jobs[k])
				diag("job %u ended as number %u", k, i);
	return good;
}

/* One thread stands in the middle of a background job while others are submitted. */
static void test_priorities(void)
{
	static const enum pool_priority submitted[] = {POOL_BACKGROUND, POOL_BACKGROUND, POOL_PREFILL,
						       POOL_DECODE,     POOL_PREFILL,    POOL_DECODE};
	static const int expected[] = {3, 5, 2, 4, 0, 1};
	struct job *jobs[ARRAY_LEN(submitted)];
	struct kernels k;
	struct pool *pool;
	struct fake f;
	bool good = true;

	fake_layout(&f, 4, 64, 64, MOE_FORMAT_BF16, 1);
	fake_fill(&f);
	k = hook_table(&f);
	atomic_store(&hook_stops, true);
	pool = pool_make_kernels(1, 1, &k);
	for (size_t i = 0; i < ARRAY_LEN(submitted); i++) {
		/* within a priority all have the same place */
		jobs[i] = order_job(&f, submitted[i], submitted[i] == POOL_DECODE ? 99 : 1);
		pool_submit_compute(pool, &jobs[i]->compute);
		if (i == 0)
			hook_wait();
	}
	sem_post(&hook_release);
	ok(order_was(jobs, ARRAY_LEN(submitted), expected),
	   "decode before prefill before background, each in order, even amid a job");
	pool_free(pool);
	for (size_t i = 0; i < ARRAY_LEN(submitted); i++) {
		good = good && job_good(&f, jobs[i], &k);
		job_free(jobs[i]);
	}
	ok(good, "an interrupted job is right all the same");
	fake_free(&f);
}

/* One thread stands in the middle of job 0 while others of its priority are submitted. */
static void test_places(void)
{
	static const uint64_t places[] = {50, 70, 50, 10, 70, 10};
	static const int expected[] = {3, 5, 0, 2, 1, 4};
	struct job *jobs[ARRAY_LEN(places)];
	struct kernels k;
	struct pool *pool;
	struct fake f;
	bool good = true;

	fake_layout(&f, 4, 64, 64, MOE_FORMAT_BF16, 1);
	fake_fill(&f);
	k = hook_table(&f);
	atomic_store(&hook_stops, true);
	pool = pool_make_kernels(1, 1, &k);
	for (uint32_t i = 0; i < ARRAY_LEN(places); i++) {
		jobs[i] = order_job(&f, POOL_PREFILL, places[i]);
		pool_submit_compute(pool, &jobs[i]->compute);
		if (i == 0)
			hook_wait();
	}
	sem_post(&hook_release);
	ok(order_was(jobs, ARRAY_LEN(places), expected),
	   "within a priority the lower place goes first, even amid a job; of equal ones the earlier");
	pool_free(pool);
	for (uint32_t i = 0; i < ARRAY_LEN(places); i++) {
		good = good && job_good(&f, jobs[i], &k);
		job_free(jobs[i]);
	}
	ok(good, "all of them are right");
	fake_free(&f);
}

/*
 * Two teams of one thread. The first one's stands in job 0; the second one's has done its own rows of job 0 and has
 * begun job 1, of the same place. A job of a higher priority makes the first thread leave job 0, when each job needs
 * rows of both teams: it returns to job 0, not to job 1, and no team waits for the other's in vain.
 */
static void test_begun(void)
{
	struct job *jobs[3];
	struct kernels k;
	struct pool *pool;
	struct fake f;
	bool good = true;

	fake_layout(&f, 4, 64, 64, MOE_FORMAT_BF16, 2);
	fake_fill(&f);
	k = hook_table(&f);
	atomic_store(&hook_stops, true);
	pool = pool_make_kernels(2, 2, &k);
	for (uint32_t i = 0; i < 3; i++)
		jobs[i] = order_job(&f, i == 2 ? POOL_DECODE : POOL_PREFILL, 0);
	pool_submit_compute(pool, &jobs[0]->compute);
	hook_wait();
	atomic_store(&hook_watched, jobs[1]);
	pool_submit_compute(pool, &jobs[1]->compute);
	while (atomic_load(&hook_watched)) /* job 1 has begun: its views are with both teams */
		sched_yield();
	pool_submit_compute(pool, &jobs[2]->compute);
	sem_post(&hook_release);
	for (uint32_t i = 0; i < 3; i++)
		job_wait(jobs[i]);
	ok(order[2] == jobs[1] || (order[1] == jobs[1] && order[0] == jobs[0]),
	   "of jobs that have begun the earlier one goes on first");
	pool_free(pool);
	for (uint32_t i = 0; i < 3; i++) {
		good = good && job_good(&f, jobs[i], &k);
		job_free(jobs[i]);
	}
	ok(good, "and all of them are right, though each needed rows of both teams");
	fake_free(&f);
}

/* One that is done ends, whoever waits for memory. */
static void test_scratch_end(void)
{
	struct scratch *all;
	struct job *jobs[2];
	struct kernels k;
	struct pool *pool;
	uint64_t end = 0;
	bool ended = false;
	struct fake f;

	fake_layout(&f, 4, 64, 64, MOE_FORMAT_BF16, 1);
	fake_fill(&f);
	k = hook_table(&f);
	pool = pool_make_kernels(1, 1, &k);
	jobs[0] = order_job(&f, POOL_PREFILL, 9);
	jobs[1] = order_job(&f, POOL_PREFILL, 1);
	atomic_store(&hook_stops, true);
	pool_submit_compute(pool, &jobs[0]->compute);
	hook_wait();
	all = scratch_get(&pool->scratch, SCRATCH_USED_MAX, POOL_PREFILL);
	pool_submit_compute(pool, &jobs[1]->compute);
	sem_post(&hook_release);
	while (!ended && tap_wait(&end))
		ended = sem_trywait(&jobs[0]->ended) == 0;
	ok(ended && sem_trywait(&jobs[1]->ended) < 0,
	   "a computation ends though one that goes before it waits for memory");
	scratch_put(&pool->scratch, all);
	pool_queue_ring_one(&pool->queue);
	if (!ended)
		job_wait(jobs[0]);
	job_wait(jobs[1]);
	for (int i = 0; i < 2; i++)
		job_free(jobs[i]);
	pool_free(pool);
	fake_free(&f);
}

/* One that takes all the intermediate memory of its priority gives it back between two waves, where another goes before
 * it. */
static void test_scratch_back(void)
{
	enum { TOKENS = 2400, HIDDEN = 4096, TOPK = 8 };
	struct scratch *half;
	struct job *jobs[2];
	struct kernels k;
	struct pool *pool;
	struct fake f, small;
	void *alone;
	bool good;

	fake_layout(&f, 4, HIDDEN, 1, MOE_FORMAT_BF16, 1);
	fake_layout(&small, 4, 64, 64, MOE_FORMAT_BF16, 1);
	fake_fill(&f);
	fake_fill(&small);
	k = hook_table(&f);
	pool = pool_make_kernels(1, 1, &k);
	jobs[0] = job_make(&f, TOKENS, TOPK, MOE_TYPE_F32, MOE_TYPE_F32, 0);
	jobs[0]->compute.priority = POOL_PREFILL;
	jobs[0]->compute.order = 9;
	jobs[0]->compute.done = order_done;
	jobs[1] = order_job(&small, POOL_PREFILL, 1);
	job_run(pool, jobs[0]);
	alone = allocate(jobs[0]->y_bytes);
	memcpy(alone, jobs[0]->y, jobs[0]->y_bytes);
	memset(jobs[0]->y, 0, jobs[0]->y_bytes);
	atomic_store(&n_order, 0);
	atomic_store(&hook_stops, true);
	pool_submit_compute(pool, &jobs[0]->compute);
	hook_wait();
	half = scratch_get(&pool->scratch, SCRATCH_USED_MAX / 2, POOL_PREFILL);
	ok(!scratch_has_room(&pool->scratch, POOL_PREFILL), "a computation has all the intermediate memory there is");
	pool_submit_compute(pool, &jobs[1]->compute);
	sem_post(&hook_release);
	ok(order_was(jobs, 2, (const int[]){1, 0}), "one that goes before it does not wait for its last wave");
	good = job_good(&small, jobs[1], &k) && memcmp(alone, jobs[0]->y, jobs[0]->y_bytes) == 0;
	ok(good, "and both are right");
	scratch_put(&pool->scratch, half);
	pool_free(pool);
	for (int i = 0; i < 2; i++)
		job_free(jobs[i]);
	free(alone);
	fake_free(&f);
	fake_free(&small);
}

/* Its priority has as much intermediate memory as it may: a computation waits for some, copies need none. */
static void test_scratch_full(void)
{
	struct pool *pool = pool_make(1, 2);
	struct scratch *all = scratch_get(&pool->scratch, SCRATCH_USED_MAX, POOL_PREFILL);
	struct fill *fills[2];
	struct fake f;
	struct job *j;
	bool good = true;

	fake_layout(&f, 4, 64, 64, MOE_FORMAT_BF16, 1);
	fake_fill(&f);
	j = job_make(&f, 3, 2, MOE_TYPE_F32, MOE_TYPE_F32, 0);
	j->compute.priority = POOL_PREFILL;
	j->compute.order = 1;
	for (int i = 0; i < 2; i++) {
		fills[i] = fill_make(&f, 0, 1);
		fills[i]->copy.priority = POOL_PREFILL;
		if (i == 1)
			pool_submit_compute(pool, &j->compute);
		pool_submit_copy(pool, &fills[i]->copy);
		while (sem_wait(&fills[i]->ended) < 0)
			continue;
		good = good && fill_good(fills[i]);
		fill_free(fills[i]);
	}
	ok(good, "copies do not wait for intermediate memory");
	usleep(20000);
	ok(sem_trywait(&j->ended) < 0, "a computation does");
	scratch_put(&pool->scratch, all);
	pool_queue_ring_one(&pool->queue);
	job_wait(j);
	ok(job_good(&f, j, kernels_get(isa_detect(NULL))), "until there is some");
	job_free(j);
	pool_free(pool);
	fake_free(&f);
}

/* -- rows without a pair ------------------------------------------------------------------------------------------ */

enum { HOLES = 2048, HOLES_HIDDEN = 4096, HOLES_MIB = 32, BEYOND = 3, ATTEMPTS = 50 };

/* A prefill that has room for so many rows of y, of which the last few are not its own; of its tokens every `each`-th
 * has pairs, 0: none. */
static struct job *holes_job(const struct fake *f, uint32_t each)
{
	struct job *j = job_make(f, HOLES, 2, MOE_TYPE_F32, MOE_TYPE_F32, 0);

	for (uint32_t t = 0; t < HOLES; t++)
		if (!each || t % each != each / 2)
			j->ids[2 * t] = j->ids[2 * t + 1] = -1;
	j->compute.priority = POOL_PREFILL;
	j->compute.tokens -= BEYOND;
	return j;
}

static bool holes_good(const struct fake *f, const struct job *j)
{
	const uint32_t *y = j->y;
	bool good = job_good(f, j, kernels_get(isa_detect(NULL)));

	for (size_t i = (size_t)j->compute.tokens * HOLES_HIDDEN; i < (size_t)HOLES * HOLES_HIDDEN; i++)
		good = good && y[i] == UINT32_MAX;
	return good;
}

/* Turns are units and beginnings: between two of a thread what is more urgent goes first. */
static void test_holes(uint32_t n_nodes, uint32_t each)
{
	struct pool *pool = pool_make(n_nodes, n_nodes);
	uint32_t turns = 0;
	struct fake f;
	struct job *j;

	fake_layout(&f, 4, HOLES_HIDDEN, 16, MOE_FORMAT_F16, n_nodes);
	fake_fill(&f);
	j = holes_job(&f, each);
	job_run(pool, j);
	for (uint32_t i = 0; i < pool->n_workers; i++)
		turns += atomic_load(&pool->workers[i].turns) / 2;
	ok(turns >= HOLES_MIB - 1, "%d MiB, where %u tokens have pairs, are written in %u turns", HOLES_MIB,
	   each ? HOLES / each : 0, turns);
	ok(holes_good(&f, j), "on %u nodes: zeros, and nothing beyond them", n_nodes);
	job_free(j);
	fake_free(&f);
	pool_free(pool);
}

/* One thread, which this one pushes aside when it wakes up: on a busy machine it would else write all in its slice of
 * time, before something urgent comes. That may happen all the same, not each time. */
static void test_holes_give_way(void)
{
	struct pool *pool = pool_make(1, 1);
	struct job *holes, *urgent;
	bool first = false;
	struct fake f;

	pthread_setschedparam(pool->workers[0].thread, SCHED_IDLE, &(struct sched_param){0});
	fake_layout(&f, 4, HOLES_HIDDEN, 16, MOE_FORMAT_F16, 1);
	fake_fill(&f);
	holes = holes_job(&f, 0);
	holes->compute.done = order_done;
	urgent = order_job(&f, POOL_DECODE, 0);
	for (int i = 0; i < ATTEMPTS && !first; i++) {
		const uint32_t begun = atomic_load(&pool->workers[0].turns);

		atomic_store(&n_order, 0);
		holes->ends = urgent->ends = 0;
		memset(holes->y, 0xff, holes->y_bytes);
		pool_submit_compute(pool, &holes->compute);
		while (atomic_load(&pool->workers[0].turns) - begun < 3) /* in the first unit after the beginning */
			nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
		pool_submit_compute(pool, &urgent->compute);
		job_wait(holes);
		job_wait(urgent);
		first = order[0] == urgent;
	}
	ok(first, "a decode that comes while rows without a pair are written goes between");
	ok(holes_good(&f, holes) && job_good(&f, urgent, kernels_get(isa_detect(NULL))), "and both are right");
	pool_free(pool);
	job_free(holes);
	job_free(urgent);
	fake_free(&f);
}

/* -- idleness ----------------------------------------------------------------------------------------------------- */

/* Of all threads of this process. */
static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void test_idle(void)
{
	struct pool *pool = pool_make(2, 6);
	struct fake f;
	struct job *j;
	uint64_t start, used;
	int tries = 0;

	fake_layout(&f, 4, 64, 64, MOE_FORMAT_BF16, 2);
	fake_fill(&f);
	j = job_make(&f, 4, 2, MOE_TYPE_F32, MOE_TYPE_F32, 0);
	job_run(pool, j);
	usleep(50000); /* far beyond the polling time */
	do {
		start = cpu_ns();
		usleep(300000);
		used = cpu_ns() - start;
	} while (used >= 3000000 && ++tries < 10);
	ok(used < 3000000, "an idle pool uses no CPU");
	diag("%.3f ms in 300 ms", (double)used * 1e-6);
	job_run(pool, j);
	ok(job_good(&f, j, kernels_get(isa_detect(NULL))), "and wakes up");
	job_free(j);
	fake_free(&f);
	pool_free(pool);
}

/* -- whether it moves --------------------------------------------------------------------------------------------- */

/* One of two threads stands in a unit. */
static void test_look(void)
{
	struct job *stands, *other;
	char why[256] = "";
	struct kernels k;
	struct pool *pool;
	struct fake f;
	uint64_t end = 0;
	bool well;

	fake_layout(&f, 4, 64, 64, MOE_FORMAT_BF16, 1);
	fake_fill(&f);
	k = hook_table(&f);
	pool = pool_make_kernels(1, 2, &k);
	ok(pool_look(pool, why, sizeof why) && pool_look(pool, why, sizeof why), "a pool without work need not move");
	stands = job_make(&f, 1, 1, MOE_TYPE_F32, MOE_TYPE_F32, 0);
	other = job_make(&f, 1, 1, MOE_TYPE_F32, MOE_TYPE_F32, 0);
	atomic_store(&hook_stops, true);
	pool_submit_compute(pool, &stands->compute);
	hook_wait();
	ok(pool_look(pool, why, sizeof why), "a thread that has begun a unit since the last look has moved");
	ok(!pool_look(pool, why, sizeof why) && strstr(why, "thread moe-pool/0."), "not one that is still in it: %s",
	   why);
	job_run(pool, other);
	ok(!pool_look(pool, why, sizeof why), "also when the other thread moves");
	sem_post(&hook_release);
	job_wait(stands);
	do /* a job ends within its last unit, which its thread may not have left yet */
		well = pool_look(pool, why, sizeof why) && pool_look(pool, why, sizeof why);
	while (!well && tap_wait(&end));
	ok(well, "it goes on: all is well");
	pool_free(pool);
	job_free(stands);
	job_free(other);
	fake_free(&f);
}

int main(void)
{
	seed = tap_seed();
	test_look();
	test_many(1, 3);
	test_many(2, 4);
	test_many(3, 3);
	test_nodes();
	test_priorities();
	test_places();
	test_begun();
	test_scratch_full();
	test_scratch_end();
	test_scratch_back();
	test_holes(1, 0);
	test_holes(3, 256);
	test_holes_give_way();
	test_idle();
	return tap_done();
}
