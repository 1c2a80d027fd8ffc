/* SPDX-License-Identifier: MIT */
/*
 * Experts that the device reads in the pool: the bits of filled ones, under a lease for as long as they are read. The
 * fake daemon's pools are NaNs where nothing is leased.
 */
#include <errno.h>

#include "tests/cuda-sim/cuda-sim.h"
#include "tests/engine-jobs.h"

static struct moe_attach_params reading(enum moe_zero_copy zero_copy)
{
	struct moe_attach_params p = default_params();

	p.fill = MOE_FILL_PULL;
	p.zero_copy = zero_copy;
	return p;
}

static bool leases_are_back(const struct fake *f, const struct totals *sum)
{
	return f->leases_held == 0 && f->leases == f->releases && f->leases == sum->fills + sum->reads &&
	       f->breaches == 0;
}

/* -- numbers ------------------------------------------------------------------------------------------------------ */

/* Everything on the device, once from slots and once from the pool. */
static void test_bits(uint32_t tp_size)
{
	struct moe_attach_params p = reading(MOE_ZERO_COPY_OFF), q = reading(MOE_ZERO_COPY_ALWAYS);
	int round, wrong = 0, differ = 0;
	struct fake *filled, *read;
	struct totals sum, without;

	p.tp_size = q.tp_size = tp_size;
	p.tp_rank = q.tp_rank = tp_size - 1;
	filled = open_fake(&p);
	read = open_fake(&q);
	for (round = 0; round < 100; round++) {
		struct job a, b;

		job_init(&a);
		b = a;
		wrong += job_submit(filled, &a, MOE_MODE_FULL, NULL) < 0 || moe_wait(a.step, a.y, 0, NULL) < 0;
		wrong += job_submit(read, &b, MOE_MODE_FULL, NULL) < 0 || moe_wait(b.step, b.y, 0, NULL) < 0;
		differ += memcmp(a.y, b.y, a.tokens * HIDDEN * sizeof(float)) != 0;
		wrong += tp_size == 1 && job_error(read, &b, b.y) > 1;
	}
	without = read_stats(filled);
	sum = read_stats(read);
	ok(wrong == 0 && differ == 0, "rank %u of %u: the bits of filled experts, in all of %d steps", tp_size - 1,
	   tp_size, round);
	ok(sum.reads > 100 && sum.pool > sum.pairs / 2 && without.reads == 0 && sum.cpu == 0,
	   "and %llu experts were read for %llu pairs, %llu filled", (unsigned long long)sum.reads,
	   (unsigned long long)sum.pool, (unsigned long long)sum.fills);
	ok(leases_are_back(read, &sum), "all %u leases are back", read->leases);
	fake_free(filled);
	fake_free(read);
}

static void test_ranks(void)
{
	struct moe_attach_params p = reading(MOE_ZERO_COPY_ALWAYS);
	struct fake *ranks[2];
	int round, wrong = 0;
	uint32_t r, i;

	p.tp_size = 2;
	p.share = MOE_SHARE_GROUP;
	p.n_copy = MOE_N_COPY_STAIRS;
	for (r = 0; r < 2; r++) {
		p.tp_rank = r;
		ranks[r] = open_fake(&p);
	}
	for (round = 0; round < 40; round++) {
		float sum[TOKENS * HIDDEN] = {0};
		struct job job;

		job_init(&job);
		for (r = 0; r < 2; r++) {
			wrong += job_submit(ranks[r], &job, (enum moe_mode)(1 + round % 3), NULL) < 0 ||
				 moe_wait(job.step, job.y, 0, NULL) < 0;
			for (i = 0; i < job.tokens * HIDDEN; i++)
				sum[i] += job.y[i];
		}
		wrong += job_error(ranks[0], &job, sum) > 1;
	}
	ok(wrong == 0 && read_stats(ranks[0]).reads > 0, "two ranks that always read: their parts add up");
	for (r = 0; r < 2; r++)
		fake_free(ranks[r]);
}

/* -- by cost ------------------------------------------------------------------------------------------------------ */

static struct totals run_by_cost(double read_ns, double cpu_ns, enum moe_mode mode, bool *ret_good)
{
	const struct moe_attach_params p = reading(MOE_ZERO_COPY_COST);
	struct fake *f = open_fake(&p);
	struct totals sum;
	int wrong = 0;

	for (int i = 0; i < 60; i++) {
		struct job job;

		job_init(&job);
		pthread_mutex_lock(&f->session.engine->lock);
		f->session.engine->ncopy.read_ns_per_byte = read_ns;
		f->session.engine->ncopy.cpu.per_expert = cpu_ns;
		pthread_mutex_unlock(&f->session.engine->lock);
		wrong += job_run(f, &job, mode) != 0;
	}
	sum = read_stats(f);
	*ret_good = wrong == 0 && leases_are_back(f, &sum);
	fake_free(f);
	return sum;
}

static void test_cost(void)
{
	struct totals dear, cheap;
	bool good, all;

	dear = run_by_cost(1e9, 1, MOE_MODE_DECODE, &good);
	ok(good && dear.reads == 0 && dear.fills > 0, "decode: what costs too much is not read");
	cheap = run_by_cost(0, 1e9, MOE_MODE_DECODE, &good);
	ok(good && cheap.reads > 0 && cheap.fills < dear.fills,
	   "what costs nothing is: %llu read, %llu filled instead of %llu", (unsigned long long)cheap.reads,
	   (unsigned long long)cheap.fills, (unsigned long long)dear.fills);
	dear = run_by_cost(1e9, 1e9, MOE_MODE_FULL, &good);
	cheap = run_by_cost(0, 1e9, MOE_MODE_FULL, &all);
	ok(good && all && dear.reads == 0 && cheap.miss_buffer < dear.miss_buffer && cheap.pool > 0,
	   "full: %llu pairs by the miss buffer, or %llu and %llu from the pool", (unsigned long long)dear.miss_buffer,
	   (unsigned long long)cheap.miss_buffer, (unsigned long long)cheap.pool);
}

/* -- leases ------------------------------------------------------------------------------------------------------- */

/* One token on `k` experts that nobody has asked for yet. */
static void cold_job(struct job *job, uint32_t first, uint32_t k)
{
	*job = (struct job){.layer = 1, .tokens = 1, .topk = k, .pairs = k, .x = {1}};
	for (uint32_t i = 0; i < k; i++) {
		job->ids[i] = (int32_t)(first + i);
		job->weights[i] = 0.5f;
	}
}

static void test_failed_lease(void)
{
	const struct moe_attach_params p = reading(MOE_ZERO_COPY_ALWAYS);
	struct fake *f = open_fake(&p);
	struct totals sum;
	struct job job;

	cold_job(&job, 0, 4);
	atomic_store(&f->fail_fills, 1);
	ok(job_run(f, &job, MOE_MODE_DECODE) == -EIO, "a lease that is refused fails the step");
	ok(job_run(f, &job, MOE_MODE_DECODE) == 0, "and no later one");
	sum = read_stats(f);
	ok(sum.reads == 4 && f->leases == f->releases && f->leases_held == 0 && f->leases == 7,
	   "the other leases of both are back: %u of %u", f->releases, f->leases);
	fake_free(f);
}

/* What the caller's stream does before the step is its own business: no watchdog runs meanwhile, and the leases are
 * held. */
static void test_held_while_read(void)
{
	struct moe_attach_params p = reading(MOE_ZERO_COPY_ALWAYS);
	const struct device_ops *ops;
	struct moe_stream *stream;
	struct device_stream *theirs = NULL;
	struct device_memory memory;
	struct fake *f;
	struct engine *e;
	struct job job;
	struct moe_plan *plan;
	uint32_t *word, held;
	uint64_t began;
	int r;

	p.watchdog_ms = 1000;
	f = open_fake(&p);
	e = f->session.engine;
	ops = e->ops;
	word = fake_map(ENGINE_PAGE);
	cold_job(&job, 0, 4);
	r = ops->host_register(e->device, word, ENGINE_PAGE, true, NULL);
	if (r == 0)
		r = ops->alloc(e->device, 2 * HIDDEN * sizeof(float), &memory, NULL);
	if (r == 0)
		r = moe_stream_new(&f->session, &stream, NULL);
	if (r == 0)
		r = ops->stream_borrow(e->device, moe_stream_handle(stream), false, &theirs, NULL);
	if (r == 0)
		r = ops->stream_wait_word(theirs, word, 1);
	if (r == 0)
		r = job_plan(f, &job, MOE_MODE_DECODE, &plan, NULL);
	if (r == 0)
		r = moe_submit_on(&f->session, plan, moe_stream_handle(stream), memory.base,
				  memory.base + HIDDEN * sizeof(float), &job.step, NULL);
	ok(r == 0, "a step that reads, on a stream that does not go on");
	while (atomic_load(&f->leases) < 4)
		sched_yield();
	began = now_ns();
	while (now_ns() - began < 2 * e->watchdog_ns)
		nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
	held = (uint32_t)atomic_load(&f->leases_held);
	ops->word_write(word, 1);
	r = moe_wait(job.step, NULL, 0, NULL);
	ok(held == 4 && r == 0, "its leases are held for longer than the watchdog's time: %u, and it ends with %d",
	   held, r);
	ok(f->leases_held == 0, "then they are back");
	moe_stream_free(stream);
	ops->stream_return(theirs);
	ops->free(e->device, &memory);
	fake_free(f);
	munmap(word, ENGINE_PAGE);
}

static void test_dummy_step(void)
{
	const struct moe_attach_params p = reading(MOE_ZERO_COPY_ALWAYS);
	struct fake *f = open_fake(&p);
	struct job job;

	cold_job(&job, 0, 4);
	moe_phase(&f->session, MOE_STEP_DECODE, 1, true, NULL);
	ok(job_run(f, &job, MOE_MODE_DECODE) == 0 && f->leases == 0, "a dummy step reads nothing in the pool");
	fake_free(f);
}

/* -- pages -------------------------------------------------------------------------------------------------------- */

static bool reads_pageable(void)
{
	const char *pageable = getenv("CUSIM_PAGEABLE");

	return strcmp(test_device(), "cuda") == 0 && pageable && atoi(pageable);
}

static const char *line_of(const struct fake *f)
{
	return engine_describe(f->session.engine);
}

static int run_reads(struct fake *f, int rounds)
{
	int wrong = 0;

	for (int i = 0; i < rounds; i++) {
		struct job job;

		job_init(&job);
		wrong += job_run(f, &job, MOE_MODE_FULL) != 0;
	}
	return wrong;
}

/* The driver takes all of it: what is read was asked for before. */
static void test_pages(enum moe_pages pages)
{
	struct moe_attach_params p = reading(MOE_ZERO_COPY_ALWAYS);
	struct totals sum;
	struct fake *f;
	uint64_t asked;
	int wrong;

	p.pages = pages;
	f = open_fake(&p);
	wrong = run_reads(f, 40);
	sum = read_stats(f);
	asked = atomic_load(&f->session.engine->pages.asked_bytes);
	ok(wrong == 0 && sum.reads > 0 &&
		   (pages == MOE_PAGES_PREFETCH ? asked * 20 >= sum.read_bytes * 19 : asked == 0) /* less padding */,
	   "%llu bytes read in the pool, and %llu prefetched", (unsigned long long)sum.read_bytes,
	   (unsigned long long)asked);
	ok(strstr(line_of(f), "is advised") && !strstr(line_of(f), "prefetched") == (pages == MOE_PAGES_ADVISE), "%s",
	   line_of(f));
	fake_free(f);
}

/* The driver refuses a call of this kind: it is not asked again, and every number is right. */
static void test_pages_refused(const char *what, bool later)
{
	struct moe_attach_params p = reading(MOE_ZERO_COPY_ALWAYS);
	struct cuda_sim sim = {0};
	struct fake *f;
	uint64_t asked;
	int wrong;

	require(cuda_sim_find(&sim), "the simulated driver");
	p.pages = MOE_PAGES_PREFETCH;
	sim.fail(what);
	f = open_fake(&p);
	ok(!strstr(line_of(f), "has refused") == later, "%s: when attached: %s", what, line_of(f));
	wrong = run_reads(f, 20);
	asked = atomic_load(&f->session.engine->pages.asked_bytes);
	wrong += run_reads(f, 20);
	ok(wrong == 0 && read_stats(f).reads > 0 && atomic_load(&f->session.engine->pages.asked_bytes) == asked &&
		   (asked > 0) == later,
	   "%s: all is right, %llu bytes were prefetched before", what, (unsigned long long)asked);
	ok(strstr(line_of(f), "read where they lie") != NULL, "%s: it is told: %s", what, line_of(f));
	sim.fail(NULL);
	fake_free(f);
}

/* -- refusals ----------------------------------------------------------------------------------------------------- */

static int attach(const struct moe_attach_params *p, const char *words)
{
	struct fake *f = fake_new(&shape, p, model_seed);
	struct moe_error err = {0};
	int r = engine_new(&f->session.engine, &f->session, &err);

	if (r < 0)
		f->session.engine = NULL;
	if (r < 0 && !strstr(err.text, words)) {
		diag("%s", err.text);
		r = 1;
	}
	fake_free(f);
	return r;
}

static void test_refusals(void)
{
	struct moe_attach_params p = reading(MOE_ZERO_COPY_ALWAYS);

	p.fill = MOE_FILL_PUSH;
	ok(attach(&p, "MOE_FILL_PULL") == -EINVAL, "who does not map the pool cannot read it");
	p = reading((enum moe_zero_copy)3);
	ok(attach(&p, "zero_copy") == -EINVAL, "no such zero_copy");
	p = reading(MOE_ZERO_COPY_COST);
	p.share = MOE_SHARE_GROUP;
	p.tp_size = 2;
	p.n_copy = MOE_N_COPY_STAIRS;
	ok(attach(&p, "measure differently") == -EINVAL, "ranks that must plan alike do not read by cost");
	p = reading(MOE_ZERO_COPY_ALWAYS);
	p.pages = (enum moe_pages)3;
	ok(attach(&p, "pages (3)") == -EINVAL, "no such pages");
	p = reading(MOE_ZERO_COPY_OFF);
	p.pages = MOE_PAGES_ADVISE;
	ok(attach(&p, "set zero_copy") == -EINVAL, "pages of what is not read");
	p = reading(MOE_ZERO_COPY_ALWAYS);
	p.pages = MOE_PAGES_PREFETCH;
	if (!reads_pageable())
		ok(attach(&p, "attributes 88 and 100") == -EOPNOTSUPP, "a device that does not read so");
}

int main(void)
{
	jobs_begin();
	test_bits(1);
	test_bits(3);
	test_ranks();
	test_cost();
	test_failed_lease();
	test_held_while_read();
	test_dummy_step();
	test_refusals();
	if (reads_pageable()) {
		test_pages(MOE_PAGES_ADVISE);
		test_pages(MOE_PAGES_PREFETCH);
		test_pages_refused("cuMemAdvise:1+", false);
		test_pages_refused("cuMemPrefetchAsync:1+", false);
		test_pages_refused("cuMemPrefetchAsync:40", true);
	}
	return tap_done();
}
