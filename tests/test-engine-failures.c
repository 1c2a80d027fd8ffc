/* SPDX-License-Identifier: MIT */
/*
 * The engine when something goes wrong: failed fills and computations, a lost daemon, time-outs, dropped plans. A step
 * that cannot be right ends with a code, never with wrong numbers, and what comes after it is right again. And the
 * calls beside submit and wait.
 */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "step.h"
#include "tests/engine-jobs.h"

/* One token that wants two experts. */
static void job_of(struct job *job, uint32_t layer, int32_t first, int32_t second)
{
	uint32_t i;

	*job = (struct job){
		.layer = layer, .tokens = 1, .topk = 2, .ids = {first, second}, .weights = {1, -1}, .pairs = 2};
	for (i = 0; i < HIDDEN; i++)
		job->x[i] = (float)plain_random(&seed, 1);
}

/* -- failures ----------------------------------------------------------------------------------------------------- */

static void test_group_stops_when_ranks_may_differ(void)
{
	struct moe_attach_params p = default_params();
	struct moe_error err = {0};
	struct fake *f;
	struct job job;
	int r;

	p.tp_size = 2;
	p.share = MOE_SHARE_GROUP;
	p.n_copy = MOE_N_COPY_STAIRS;
	f = open_fake(&p);
	job_of(&job, 1, 3, 4);
	f->fail_fills = 1;
	ok(job_run(f, &job, MOE_MODE_DECODE) == -EIO, "a failed fill fails the step");
	r = job_submit(f, &job, MOE_MODE_DECODE, &err);
	ok(r == -EIO, "and a rank of a group plans no more: %s", err.text);
	fake_free(f);
}

/* One rank has no room for the step that moe_fill needs: it has lost who was in the slot, the others have not. */
static void test_group_stops_when_fills_differ(void)
{
	struct moe_attach_params p = default_params();
	struct moe_error err = {0};
	struct job steps[2], job;
	struct fake *f;
	int r;

	p.tp_size = 2;
	p.share = MOE_SHARE_GROUP;
	p.n_copy = MOE_N_COPY_STAIRS;
	p.max_steps = 2;
	f = open_fake(&p);
	require(moe_fill(&f->session, 1, 3, 0, &err) == 0, "a slot is filled: %s", err.text);
	for (int i = 0; i < 2; i++) {
		job_of(&steps[i], 2 + (uint32_t)i, 5, 6);
		require(job_submit(f, &steps[i], MOE_MODE_DECODE, &err) == 0, "a step: %s", err.text);
	}
	ok(moe_fill(&f->session, 1, 7, 0, &err) == -EBUSY, "no room for a fill: %s", err.text);
	for (int i = 0; i < 2; i++)
		moe_wait(steps[i].step, steps[i].y, 0, NULL);
	job_of(&job, 1, 3, 7);
	r = job_submit(f, &job, MOE_MODE_DECODE, &err);
	ok(r == -EBUSY && strstr(err.text, "ranks"), "and a rank of a group plans no more: %s", err.text);
	fake_free(f);
}

static void test_failed_fill(enum moe_fill fill, const char *name)
{
	struct moe_attach_params p = default_params();
	struct fake *f;
	struct job job, next;
	struct moe_error err = {0};
	int r, second;

	p.fill = fill;
	f = open_fake(&p);
	job_of(&job, 1, 7, 8);
	next = job;
	f->stall = true; /* so that the second step is submitted before the first one's fill fails */
	f->fail_fills = 2;
	r = job_submit(f, &job, MOE_MODE_DECODE, &err);
	second = job_submit(f, &next, MOE_MODE_DECODE, &err);
	require(r == 0 && second == 0, "%s: two steps on the same new slots are submitted", name);
	f->stall = false;
	r = moe_wait(job.step, job.y, 0, &err);
	second = moe_wait(next.step, next.y, 0, &err);
	ok(r == -EIO && second == -EIO, "%s: both fail when the fill does: %s", name, err.text);
	ok(f->session.engine->rows[0].cache->n_cached == 0, "%s: the slots are empty again", name);
	ok(job_run(f, &job, MOE_MODE_DECODE) == 0 && job_run(f, &next, MOE_MODE_DECODE) == 0 &&
		   f->session.engine->rows[0].cache->n_cached == 2,
	   "%s: and are filled anew by the next step", name);
	f->fail_fills = 1;
	job.layer = 2;
	ok(job_run(f, &job, MOE_MODE_FULL) == -EIO && job_run(f, &job, MOE_MODE_FULL) == 0,
	   "%s: a failed copy of a prefetch fails its step only", name);
	ok(read_stats(f).steps == 3, "%s: failed steps are not counted", name);
	fake_free(f);
}

static void test_failed_compute(void)
{
	struct moe_attach_params p = default_params();
	struct fake *f;
	struct job job;

	p.cache_expert_num = 0;
	f = open_fake(&p);
	do
		job_init(&job);
	while (job.pairs == 0);
	f->fail_computes = 1;
	ok(job_run(f, &job, MOE_MODE_DECODE) == -EIO, "a failed COMPUTE fails the step");
	ok(job_run(f, &job, MOE_MODE_DECODE) == 0, "and that step only");
	fake_free(f);
}

static void test_lost_daemon(void)
{
	struct moe_attach_params p = default_params();
	struct fake *f = open_fake(&p);
	struct job jobs[2];
	struct moe_error err = {0};
	uint64_t began;
	int r[3], i;

	f->stall = true;
	for (i = 0; i < 2; i++) {
		job_of(&jobs[i], (uint32_t)i + 1, 5, 6);
		r[i] = job_submit(f, &jobs[i], i ? MOE_MODE_FULL : MOE_MODE_DECODE, &err);
	}
	require(r[0] == 0 && r[1] == 0, "two steps are in flight");
	fake_die(f);
	began = now_ns();
	for (i = 0; i < 2; i++)
		r[i] = moe_wait(jobs[i].step, jobs[i].y, 0, &err);
	ok(r[0] == -EPIPE && r[1] == -EPIPE && now_ns() - began < TAP_SOON_NS,
	   "a lost daemon ends both with -EPIPE: %s", err.text);
	job_of(&jobs[0], 3, 11, 10);
	r[0] = job_run(f, &jobs[0], MOE_MODE_DECODE);
	ok(r[0] == -EPIPE && moe_nop(&f->session, &err) == -EPIPE, "and so does every later call");
	fake_free(f);
}

/* Who awaits words and requests at once sleeps so briefly that it spins all of that. */
static void test_lost_between(void)
{
	const struct moe_sqe nop = {.op = MOE_OP_NOP};
	struct moe_attach_params p = default_params();
	struct fake *f = open_fake(&p);
	struct queue *queue = &f->session.queue;
	const uint64_t began = now_ns();
	struct queue_op op = {0};
	int r;

	f->stall = true;
	f->daemon->sq_wait = 1; /* it sleeps: an answer takes longer */
	require(queue_submit(queue, &nop, &op) == 0 && op.spin_us > 50, "a request is in flight");
	fake_die(f);
	do
		r = queue_wait(queue, &op, 50000);
	while (r == -ETIMEDOUT && now_ns() - began < TAP_SOON_NS);
	ok(r == -EPIPE, "a lost daemon ends waits that are brief: %d", r);
	fake_free(f);
}

struct waiter {
	struct queue *queue;
	struct queue_op *op;
	uint32_t since;
	int r;
};

static void *wait_any(void *arg)
{
	struct waiter *w = arg;

	w->r = queue_wait_any(w->queue, w->op, w->since, 3 * TAP_SOON_NS);
	return NULL;
}

/* A request that does not end keeps nobody from another one's end, nor from a kick. */
static void test_any(void)
{
	static const char *const names[] = {"another one's end", "a kick"};
	struct moe_attach_params p = default_params();
	const bool pushes = push_into_gpus;
	struct moe_copy guess = {.expert = 9};
	struct fake *f;
	struct moe_error err = {0};
	struct moe_step *step;

	push_into_gpus = true; /* in the order of pulls there is no guess */
	f = open_fake(&p);
	push_into_gpus = pushes;
	f->hold = true;
	require(moe_prefetch(&f->session, 1, &guess, 1, &step, &err) == 0, "a request that is held: %s", err.text);
	for (int i = 0; i < 2; i++) {
		struct waiter w = {&f->session.queue, &step->fills[0].op, queue_events(&f->session.queue), 1};
		const uint64_t began = now_ns();
		pthread_t thread;

		require(pthread_create(&thread, NULL, wait_any, &w) == 0, "a thread");
		usleep(50000);
		if (i == 0)
			require(moe_nop(&f->session, &err) == 0, "a NOP: %s", err.text);
		else
			queue_kick(&f->session.queue);
		pthread_join(thread, NULL);
		ok(w.r == 0 && now_ns() - began < TAP_SOON_NS && w.op->state != MOE_REQUEST_RETIRED,
		   "%s ends a wait for anything: %d", names[i], w.r);
	}
	f->hold = false;
	ok(moe_wait(step, NULL, 0, NULL) == 0, "then it ends as well");
	fake_free(f);
}

#define STANDS_MS 3000
#define WATCHDOG_MS 2000

/* This process, for longer than the daemon may be silent. */
static void stand_still(void)
{
	const pid_t parent = getpid(), helper = fork();

	if (helper == 0) {
		kill(parent, SIGSTOP);
		usleep(STANDS_MS * 1000);
		_exit(kill(parent, SIGCONT) < 0);
	}
	require(helper > 0 && waitpid(helper, NULL, 0) == helper, "stopped, and on again");
}

static void test_stood_still(void)
{
	struct moe_attach_params p = default_params();
	struct moe_error err = {0};
	struct fake *f;
	struct job job;
	int r;

	p.watchdog_ms = WATCHDOG_MS;
	f = open_fake(&p);
	f->session.params.watchdog_ms = WATCHDOG_MS;
	f->stall = true;
	job_of(&job, 1, 5, 6);
	require(job_submit(f, &job, MOE_MODE_FULL, &err) == 0, "a step is in flight");
	stand_still();
	f->stall = false;
	r = moe_wait(job.step, job.y, 0, &err);
	ok(r == 0 && job_error(f, &job, job.y) <= 1,
	   "a worker that stood still does not give up a daemon that answers: %d %s", r, err.text);
	fake_free(f);
}

static void test_time_out(void)
{
	struct moe_attach_params p = default_params();
	struct moe_error err = {0};
	struct fake *f;
	struct job job;
	uint64_t end = 0;
	int i, r, wrong = 0;

	p.max_steps = 1;
	f = open_fake(&p);
	job_of(&job, 1, 5, 6);
	f->stall = true;
	r = job_submit(f, &job, MOE_MODE_DECODE, &err);
	if (r == 0)
		r = moe_wait(job.step, job.y, 20, &err);
	ok(r == -ETIMEDOUT, "a wait ends at its time-out: %s", err.text);
	ok(job_submit(f, &job, MOE_MODE_DECODE, &err) == -EBUSY,
	   "the step's memory is not reused while it is in flight");
	f->stall = false;
	while ((r = job_submit(f, &job, MOE_MODE_DECODE, &err)) == -EBUSY && tap_wait(&end))
		;
	wrong += r != 0 || moe_wait(job.step, job.y, 0, &err) < 0 || job_error(f, &job, job.y) > 1;
	for (i = 0; i < 20; i++) {
		job_init(&job);
		wrong += job_run(f, &job, MOE_MODE_AUTO) != 0;
	}
	ok(wrong == 0, "once the daemon answers, the forgotten step is swept and the next ones are right");
	f->stall = true;
	job_of(&job, 2, 1, 2);
	r = job_submit(f, &job, MOE_MODE_FULL, &err);
	if (r == 0)
		moe_wait(job.step, job.y, 1, &err);
	f->stall = false;
	fake_free(f);
	ok(true, "detaching waits for a step that was left");
}

/* A daemon that lives and does not answer: no stream waits for it for ever, and nobody believes it any more. */
static void test_watchdog(enum moe_fill fill, const char *name)
{
	struct moe_attach_params p = default_params();
	struct moe_error err = {0};
	struct fake *f = NULL;
	struct job first, second;
	uint64_t began = 0;
	int r[3] = {0, -1, 0};

	p.fill = fill;
	p.watchdog_ms = 60;
	/* Its copies wait for the first one's, on the device; unless this machine took as long to submit it. */
	for (int tries = 0; tries < 8 && r[1] != 0; tries++, p.watchdog_ms *= 2) {
		if (f) {
			f->stall = false;
			fake_free(f);
		}
		f = open_fake(&p);
		job_of(&first, 1, 5, 6);
		second = first;
		f->stall = true;
		began = now_ns();
		r[0] = job_submit(f, &first, MOE_MODE_DECODE, &err);
		r[1] = job_submit(f, &second, MOE_MODE_FULL, &err);
	}
	require(r[0] == 0 && r[1] == 0, "%s: two steps wait for a daemon that is silent", name);
	r[0] = moe_wait(first.step, first.y, 0, &err);
	r[1] = moe_wait(second.step, second.y, 0, NULL);
	ok(r[0] == -ETIME && r[1] < 0 && now_ns() - began >= 60000000, "%s: the watchdog ends both: %s", name,
	   err.text);
	ok(now_ns() - began < TAP_SOON_NS, "%s: in time", name);
	r[0] = job_plan(f, &first, MOE_MODE_DECODE, &(struct moe_plan *){NULL}, &err);
	f->stall = false;
	r[1] = moe_nop(&f->session, NULL);
	ok(r[0] == -ETIME && r[1] == -EPIPE && f->session.engine->rows[0].cache->n_cached == 0,
	   "%s: the session is at its end, even if the daemon answers now", name);
	fake_free(f);
}

/* A step that nobody waits for, of a daemon that is silent: who leaves is not held up. */
static void test_leaving(void)
{
	struct moe_attach_params p = default_params();
	struct moe_plan_view view;
	struct moe_plan *plan;
	uint64_t began;
	struct fake *f;
	struct job job;

	p.watchdog_ms = 100;
	f = open_fake(&p);
	job_of(&job, 1, 5, 6);
	f->stall = true;
	moe_set_n_copy(&f->session, 0);
	require(job_plan(f, &job, MOE_MODE_PREFETCH, &plan, NULL) == 0, "planned");
	moe_plan_view(plan, &view);
	require(view.pairs_cpu > 0 && moe_submit(&f->session, plan, job.x, &job.step, NULL) == 0,
		"the daemon has a part of a step");
	began = now_ns();
	f->session.engine = engine_free(f->session.engine);
	ok(now_ns() - began < TAP_SOON_NS, "a session ends though its daemon says nothing");
	f->stall = false;
	fake_free(f);
}

static void test_busy(void)
{
	struct moe_attach_params p = default_params();
	struct fake *f = open_fake(&p);
	struct moe_error err = {0};
	struct job jobs[FLIGHT + 1];
	int i, wrong = 0;

	for (i = 0; i < FLIGHT; i++) {
		job_init(&jobs[i]);
		wrong += job_submit(f, &jobs[i], MOE_MODE_DECODE, &err) != 0;
	}
	job_init(&jobs[FLIGHT]);
	ok(wrong == 0 && job_submit(f, &jobs[FLIGHT], MOE_MODE_DECODE, &err) == -EBUSY, "one step too many: %s",
	   err.text);
	for (i = 0; i < FLIGHT; i++)
		wrong += moe_wait(jobs[i].step, jobs[i].y, 0, &err) != 0;
	ok(wrong == 0 && job_run(f, &jobs[FLIGHT], MOE_MODE_DECODE) == 0, "once they are waited for it runs");
	fake_free(f);
}

/* Plans that are dropped, or submitted in the wrong order, never lead to a slot that holds something else. */
static void test_dropped_plans(void)
{
	struct moe_attach_params p = default_params();
	struct fake *f = open_fake(&p);
	struct moe_error err = {0};
	struct moe_plan *first, *second;
	struct moe_step *step;
	struct job a, b;
	int round, wrong = 0, r;

	job_of(&a, 1, 1, 2);
	if (job_plan(f, &a, MOE_MODE_DECODE, &first, NULL) < 0)
		abort();
	moe_plan_free(first);
	ok(f->session.engine->rows[0].cache->n_cached == 0 && job_run(f, &a, MOE_MODE_DECODE) == 0,
	   "a plan that is dropped leaves no promise in the cache");
	a.layer = 2;
	if (job_plan(f, &a, MOE_MODE_DECODE, &first, NULL) < 0 || job_plan(f, &a, MOE_MODE_DECODE, &second, NULL) < 0)
		abort();
	r = moe_submit(&f->session, second, a.x, &step, &err);
	ok(r == -ESTALE, "a plan that counts on one not yet submitted is refused: %s", err.text);
	moe_plan_free(first);
	for (round = 0; round < 100; round++) {
		job_init(&b);
		if (job_plan(f, &b, (enum moe_mode)below(4), &first, NULL) < 0)
			abort();
		if (below(2)) {
			moe_plan_free(first);
			continue;
		}
		r = moe_submit(&f->session, first, b.x, &b.step, NULL);
		if (r == 0)
			r = moe_wait(b.step, b.y, 0, NULL);
		wrong += r != 0 || job_error(f, &b, b.y) > 1;
	}
	ok(wrong == 0, "with every other plan dropped the rest is right");
	fake_free(f);
}

/* -- the other calls ---------------------------------------------------------------------------------------------- */

static void test_fill(enum moe_fill fill, const char *name)
{
	struct moe_attach_params p = default_params();
	struct fake *f;
	struct moe_plan_view view;
	struct moe_plan *plan;
	struct moe_error err = {0};
	struct job job;

	job_of(&job, 3, 9, 4);
	p.fill = fill;
	f = open_fake(&p);
	ok(moe_fill(&f->session, 3, 9, 2, &err) == 0 && moe_fill(&f->session, 3, 4, 0, &err) == 0, "%s: warm start",
	   name);
	ok(moe_fill(&f->session, 3, 9, 2, &err) == 0, "%s: what is there already is no error", name);
	ok(moe_fill(&f->session, 3, 9, 1, &err) == -EEXIST, "%s: one place an expert: %s", name, err.text);
	ok(moe_fill(&f->session, 3, EXPERTS, 1, &err) == -EINVAL && moe_fill(&f->session, 3, 1, 4, &err) == -EINVAL &&
		   moe_fill(&f->session, 0, 1, 1, &err) == -EINVAL,
	   "%s: numbers out of range are refused", name);
	if (job_plan(f, &job, MOE_MODE_DECODE, &plan, NULL) < 0)
		abort();
	moe_plan_view(plan, &view);
	ok(view.n_copies == 0 && view.pairs_hit == 2 && view.expert_map[9] == 2 && view.expert_map[4] == 0,
	   "%s: the next step hits both", name);
	ok(moe_submit(&f->session, plan, job.x, &job.step, NULL) == 0 && moe_wait(job.step, job.y, 0, NULL) == 0 &&
		   job_error(f, &job, job.y) < 1,
	   "%s: and computes right", name);
	ok(moe_fill(&f->session, 3, 1, 2, &err) == 0 && job_run(f, &job, MOE_MODE_DECODE) == 0,
	   "%s: who was in the slot is turned out", name);
	f->fail_fills = 1;
	ok(moe_fill(&f->session, 3, 7, 0, &err) == -EIO && job_run(f, &job, MOE_MODE_DECODE) == 0,
	   "%s: a failed fill leaves the slot empty", name);
	fake_free(f);
}

/* What the daemon finds of it, where it knows of weights and where it does not. `sent`: hints before. */
static void test_hint_weighted(struct fake *f, uint32_t sent)
{
	static const int32_t ids[] = {3, 0, 2};
	static const float weights[] = {0.5f, 0.25f, 0.125f};
	const uint64_t features = f->session.features;
	const uint8_t *data = f->session.data;
	bool good = true;

	for (int knows = 0; knows < 2; knows++) {
		const struct moe_sqe *hint = &f->hint;
		uint64_t end = 0;

		f->session.features = knows ? features | MOE_FEATURE_WEIGHTS
					    : features & ~(uint64_t)MOE_FEATURE_WEIGHTS;
		require(moe_hint_weighted(&f->session, 1, 3, ids, weights, NULL) == 0, "a hint");
		sent++;
		while (atomic_load(&f->hints) < sent && tap_wait(&end))
			;
		good = good && hint->layer == 1 && hint->count == 3 &&
		       memcmp(data + hint->hint.ids, ids, sizeof ids) == 0 && (hint->hint.weights != 0) == knows &&
		       (!knows || memcmp(data + hint->hint.weights, weights, sizeof weights) == 0);
	}
	f->session.features = features;
	ok(good, "moe_hint_weighted: ids and weights, the latter for a daemon that knows of them");
}

static void test_calls(void)
{
	struct moe_attach_params p = default_params();
	struct fake *f = open_fake(&p);
	const int32_t good[] = {1, 2, 3}, bad[] = {1, EXPERTS};
	struct moe_error err = {0};
	struct job job;
	int i, wrong = 0;

	for (i = 0; i < 20; i++) {
		job_init(&job);
		wrong += moe_compute(&f->session, job.layer, job.tokens, job.topk, job.ids, job.weights, job.x, job.y,
				     &err) != 0;
		wrong += job_error(f, &job, job.y) > 1;
	}
	ok(wrong == 0 && read_stats(f).cpu == read_stats(f).pairs, "moe_compute: all on the CPU, and right");
	ok(moe_compute(&f->session, 1, 1, 1, good, job.weights, NULL, job.y, &err) == -EINVAL, "moe_compute: no x: %s",
	   err.text);
	ok(moe_compute(&f->session, 0, 1, 1, good, job.weights, job.x, job.y, &err) == -EINVAL,
	   "moe_compute: a dense layer is refused");
	ok(moe_nop(&f->session, &err) == 0 && f->nops == 1, "moe_nop");
	for (i = 0; i < 5; i++)
		wrong += moe_hint(&f->session, 2, 3, good, &err) != 0;
	ok(wrong == 0 && moe_nop(&f->session, &err) == 0, "moe_hint");
	ok(moe_hint(&f->session, 2, 2, bad, &err) == -EINVAL && moe_hint(&f->session, 2, 0, good, &err) == -EINVAL,
	   "moe_hint: ids out of range are refused: %s", err.text);
	test_hint_weighted(f, 5);
	ok(moe_phase(&f->session, MOE_STEP_PREFILL, 7, false, &err) == 0 && f->phases == 1, "moe_phase");
	ok(moe_phase(&f->session, (enum moe_step_phase)3, 7, false, &err) == -EINVAL, "moe_phase: %s", err.text);
	ok(f->breaches == 0, "and nothing broke the ring's rules");
	fake_free(f);
}

static void test_dummy(void)
{
	struct moe_attach_params p = default_params();
	struct fake *f = open_fake(&p);
	struct totals before, after;
	struct job job;
	int i, wrong = 0, cached = 0;

	for (i = 0; i < 20; i++) {
		job_init(&job);
		wrong += job_run(f, &job, MOE_MODE_AUTO) != 0;
	}
	before = read_stats(f);
	for (i = 0; i < LAYERS - 1; i++)
		cached += (int)f->session.engine->rows[i].cache->n_cached;
	wrong += moe_phase(&f->session, MOE_STEP_DECODE, 1, true, NULL) != 0;
	for (i = 0; i < 20; i++) {
		job_init(&job);
		wrong += job_run(f, &job, (enum moe_mode)below(4)) != 0;
	}
	after = read_stats(f);
	for (i = 0; i < LAYERS - 1; i++)
		cached -= (int)f->session.engine->rows[i].cache->n_cached;
	ok(wrong == 0 && memcmp(&before, &after, sizeof before) == 0 && cached == 0,
	   "a dummy step computes right, counts nowhere and moves nothing");
	wrong += moe_phase(&f->session, MOE_STEP_DECODE, 2, false, NULL) != 0 || job_run(f, &job, MOE_MODE_AUTO) != 0;
	ok(wrong == 0 && read_stats(f).steps == before.steps + 1, "after it steps count again");
	fake_free(f);
}

static void test_hit_counters_live(void)
{
	struct moe_attach_params p = default_params();
	struct fake *f = open_fake(&p);
	const struct moe_layer_stats *s = &f->session.stats[1];
	struct job job;
	int i, wrong = 0;

	job_of(&job, 1, 1, 2);
	for (i = 0; i < 10; i++)
		wrong += job_run(f, &job, MOE_MODE_DECODE) != 0;
	ok(wrong == 0 && s->pairs_hit == 20 && s->pairs_resident == 18 && s->fills == 2 && s->active_sum == 20 &&
		   s->active_max == 2 && s->slots == 4 && s->tokens == 10 &&
		   s->fill_bytes == 2 * fake_slice(f, 1)->bytes,
	   "ten steps with the same two experts: 20 pairs on cache slots, 18 of them resident, 2 fills");
	ok(s->device_ns > 0 && s->copy_ns > 0 && s->wait_ns > 0, "and the times run");
	fake_free(f);
}

static void refuse(const char *what, const struct moe_attach_params *params)
{
	struct fake *f = fake_new(&shape, params, model_seed);
	struct moe_error err = {0};
	struct engine *engine = NULL;
	int r = engine_new(&engine, &f->session, &err);

	ok(r == -EINVAL && !engine && err.text[0], "%s: %s", what, err.text);
	fake_free(f);
}

static void test_refusals(void)
{
	struct moe_attach_params p = default_params();

	p.policy = "mru";
	refuse("policy", &p);
	p = default_params();
	p.device = "abacus";
	refuse("device", &p);
	p = default_params();
	p.tp_size = 2;
	p.share = MOE_SHARE_GROUP;
	refuse("group with measured n_copy", &p);
	p = default_params();
	p.fill = (enum moe_fill)7;
	refuse("fill", &p);
	p = default_params();
	p.cache_expert_num = EXPERTS + 1;
	p.miss_expert_num = 1;
	refuse("too many slots", &p);
}

int main(void)
{
	jobs_begin();
	test_group_stops_when_ranks_may_differ();
	test_group_stops_when_fills_differ();
	test_failed_fill(MOE_FILL_PUSH, "push");
	test_failed_fill(MOE_FILL_PULL, "pull");
	test_failed_compute();
	test_lost_daemon();
	test_lost_between();
	test_any();
	test_stood_still();
	test_time_out();
	test_watchdog(MOE_FILL_PUSH, "push");
	test_watchdog(MOE_FILL_PULL, "pull");
	test_leaving();
	test_busy();
	test_dropped_plans();
	test_fill(MOE_FILL_PUSH, "push");
	test_fill(MOE_FILL_PULL, "pull");
	test_calls();
	test_dummy();
	test_hit_counters_live();
	test_refusals();
	return tap_done();
}
