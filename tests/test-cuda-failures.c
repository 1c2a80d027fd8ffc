/* SPDX-License-Identifier: MIT */
/*
 * The driver refuses single calls, and commands fail while they run: those of a short session, once and for ever.
 * Whatever fails, no step has wrong numbers, everything is given back, and nobody waits for ever.
 */
#include <errno.h>
#include <unistd.h>

#include "tests/cuda-sim/cuda-sim.h"
#include "tests/engine-jobs.h"
#include "tests/leaks.h"

#define STEPS 4
#define SECONDS_MAX 120
#define EACH_MAX 100 /* of more calls than that, every second one, or every third, ... */

static struct cuda_sim driver;
static uint32_t watchdog_ms; /* 0: the library's own */

struct outcome {
	bool attached;
	int failed, wrong; /* of the steps */
};

/* What a worker on the GPU has. A device that has failed may go on with what it was given: memory stays until the
 * session is detached. */
struct place {
	struct device *device;
	struct moe_stream *stream;
	struct device_stream *commands;
	struct device_memory memory; /* x, y, ids, weights: ROOM bytes each */
	uint8_t *host;               /* the same, registered */
};

#define ROOM 4096

static int place_init(struct place *p, struct fake *f, struct moe_error *err)
{
	const struct device_ops *ops = f->session.engine->ops;
	int r = ops->open(&p->device, "", err);

	if (r == 0)
		r = moe_stream_new(&f->session, &p->stream, err);
	if (r == 0)
		r = ops->stream_borrow(p->device, moe_stream_handle(p->stream), false, &p->commands, err);
	if (r == 0)
		r = ops->alloc(p->device, 4 * ROOM, &p->memory, err);
	if (r == 0)
		r = ops->host_register(p->device, p->host, 4 * ROOM, true, err);
	return r;
}

static void place_leave(struct place *p)
{
	if (p->device)
		device_cuda.stream_return(p->commands);
	moe_stream_free(p->stream);
}

/* The session is detached. */
static void place_fini(struct place *p)
{
	if (p->device) {
		device_cuda.free(p->device, &p->memory);
		device_cuda.close(p->device);
	}
	munmap(p->host, 4 * ROOM);
}

/* The same job planned and on a lane; y comes last. Its plan copies nothing, as lanes must find the cache at rest. */
static int run_place(struct place *p, struct fake *f, struct job *job, bool lane, struct moe_error *err)
{
	const struct device_ops *ops = f->session.engine->ops;
	const uint64_t x = p->memory.base, y = x + ROOM, rows = sizeof job->x;
	const struct moe_lane_step step = {
		.size = sizeof step,
		.layer = job->layer,
		.tokens = job->tokens,
		.topk = job->topk,
		.stream = moe_stream_handle(p->stream),
		.x = x,
		.y = y,
		.ids = x + 2 * ROOM,
		.weights = x + 3 * ROOM,
	};
	struct moe_plan *plan;
	int r, end;

	memcpy(p->host, job->x, rows);
	memcpy(p->host + 2 * ROOM, job->ids, sizeof job->ids);
	memcpy(p->host + 3 * ROOM, job->weights, sizeof job->weights);
	r = ops->copy_to_device(p->commands, &(struct device_copy){x, p->host, 4 * ROOM, 4 * ROOM, 1}, 1);
	if (r == 0 && lane)
		r = moe_lane_submit(&f->session, &step, err);
	else if (r == 0 && (r = job_plan(f, job, MOE_MODE_DECODE, &plan, err)) == 0)
		r = moe_submit_on(&f->session, plan, step.stream, x, y, &job->step, err);
	if (r < 0)
		return r;
	r = ops->copy_to_host(p->commands, p->host + ROOM, y, rows);
	end = moe_stream_wait(p->stream, 0, err);
	r = r == 0 ? end : r;
	end = lane ? moe_lane_error(&f->session, 0, err) : moe_wait(job->step, NULL, 0, err);
	return r == 0 ? end : r;
}

/* Counts the steps that failed, and those with wrong numbers. */
static void on_streams(struct fake *f, struct place *place, struct outcome *out)
{
	struct moe_error err = {0};
	int r = moe_lanes_fix(&f->session, &err), i;
	struct job job;

	if (r == 0)
		r = place_init(place, f, &err);
	for (i = 0; i < 4 && r == 0; i++) {
		job_init(&job);
		r = run_place(place, f, &job, i % 2, &err);
		out->wrong += r == 0 && job_error(f, &job, (float *)(void *)(place->host + ROOM)) > 1;
	}
	out->failed += r < 0;
	place_leave(place);
}

/* Attaches, takes a step in every mode with the next one in flight, and more on a stream of its own, detaches. */
static struct outcome session(unsigned long long jobs_seed)
{
	struct moe_attach_params p = default_params();
	struct outcome out = {0};
	struct moe_error err = {0};
	struct job jobs[STEPS];
	struct place place = {.host = fake_map(4 * ROOM)};
	struct fake *f;
	int i, r[STEPS];

	p.lanes = 1;
	p.fill = MOE_FILL_PULL;
	p.watchdog_ms = watchdog_ms;
	p.max_steps = STEPS;
	seed = jobs_seed;
	f = fake_new(&shape, &p, model_seed);
	f->pause_us = 0;
	fake_make_immutable(f);
	out.attached = engine_new(&f->session.engine, &f->session, &err) == 0;
	for (i = 0; i < STEPS && out.attached; i++) {
		job_init(&jobs[i]);
		r[i] = job_submit(f, &jobs[i], (enum moe_mode)(i % 4), &err);
	}
	for (i = 0; i < STEPS && out.attached; i++) {
		if (r[i] == 0)
			r[i] = moe_wait(jobs[i].step, jobs[i].y, 0, &err);
		out.failed += r[i] < 0;
		out.wrong += r[i] == 0 && job_error(f, &jobs[i], jobs[i].y) > 1;
	}
	if (out.attached)
		on_streams(f, &place, &out);
	fake_free(f);
	place_fini(&place);
	return out;
}

static void test_all_well(unsigned long long jobs_seed)
{
	struct outcome out;

	driver.fail(NULL);
	out = session(jobs_seed);
	require(out.attached && out.failed == 0 && out.wrong == 0 && driver.live() == 0,
		"nothing fails: %d steps are right, and all is given back", STEPS);
}

/* `what` with the number of the call or command, and a + when it goes on. */
static void test_each(const char *what, const char *more, unsigned long n, unsigned long long jobs_seed)
{
	struct leaks before;
	unsigned long at, attached = 0, failed = 0, wrong = 0, left = 0, unseen = 0;

	session(jobs_seed);
	before = leaks_now();
	watchdog_ms = 2000;
	for (at = 1; at <= n; at += 1 + n / EACH_MAX) {
		struct outcome out;
		char fail[32];

		snprintf(fail, sizeof fail, "%s:%lu%s", what, at, more);
		driver.fail(fail);
		alarm(SECONDS_MAX);
		out = session(jobs_seed);
		alarm(0);
		attached += out.attached;
		failed += out.failed > 0;
		wrong += (unsigned long)out.wrong;
		unseen += out.attached && out.failed == 0;
		if (driver.live() && left++ == 0)
			diag("%s: %u objects are left", fail, driver.live());
		if (out.wrong)
			diag("%s: %d steps are wrong", fail, out.wrong);
		driver.fail(NULL);
	}
	ok(wrong == 0,
	   "%s%s, each of %lu: %lu times attached, %lu times with steps that failed, %lu without, none wrong", what,
	   more, n, attached, failed, unseen);
	ok(left == 0, "%s%s: the driver has everything back", what, more);
	ok(leaks_none(&before, (unsigned)n), "%s%s: so has the system", what, more);
}

int main(void)
{
	unsigned long long jobs_seed;
	unsigned long calls, runs;

	jobs_begin();
	require(strcmp(test_device(), "cuda") == 0 && cuda_sim_find(&driver), "the driver is simulated");
	jobs_seed = seed;
	test_all_well(jobs_seed);
	driver.fail(NULL);
	session(jobs_seed);
	calls = driver.calls();
	runs = driver.runs();
	require(calls > 50 && runs > 10, "a session makes %lu calls, the device runs %lu commands", calls, runs);
	test_each("*", "", calls, jobs_seed);
	test_each("*", "+", calls, jobs_seed);
	test_each("run", "", runs, jobs_seed);
	test_all_well(jobs_seed);
	return tap_done();
}
