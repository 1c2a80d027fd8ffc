/* SPDX-License-Identifier: MIT */
/*
 * Deferral against a plain model of what it means: of each token's experts the weakest, if the CPU computes them, count
 * in the next MoE layer's output instead of in their own; nothing else changes, nothing is lost, nothing is counted
 * twice, and whatever goes wrong on the way leaves no step behind.
 */
#include <errno.h>

#include "step.h"
#include "tests/engine-jobs.h"

#define ROWS (LAYERS - 1)
#define FIRST 1 /* MoE layer; layer 0 is dense */

/* One token batch on its way through all MoE layers. */
struct pass {
	struct job jobs[ROWS]; /* of one number of tokens */
	struct moe_step *carry;
	double carried[TOKENS * HIDDEN]; /* what the plain model has deferred */
	uint64_t deferred, wrong;
};

static void pass_init(struct pass *pass)
{
	uint32_t row, i;

	*pass = (struct pass){0};
	for (row = 0; row < ROWS; row++) {
		do
			job_init(&pass->jobs[row]);
		while (row > 0 && pass->jobs[row].tokens != pass->jobs[0].tokens);
		pass->jobs[row].layer = FIRST + row;
		for (i = 0; i < pass->jobs[row].tokens * pass->jobs[row].topk; i++)
			if (below(4) == 0)
				pass->jobs[row].weights[i] = 0.25f; /* equal weights */
	}
}

/* -- the plain model ---------------------------------------------------------------------------------------------- */

/* The `defer` weakest of a token's experts, one after the other, but for the last that is left. */
static void weakest(const struct job *job, uint32_t token, uint32_t defer, bool *ret)
{
	const int32_t *ids = job->ids + token * job->topk;
	const float *weights = job->weights + token * job->topk;
	uint32_t k, left = 0;

	memset(ret, 0, job->topk * sizeof *ret);
	for (k = 0; k < job->topk; k++)
		left += ids[k] >= 0;
	for (; left > 1 && defer > 0; left--, defer--) {
		uint32_t least = UINT32_MAX;

		for (k = 0; k < job->topk; k++)
			if (ids[k] >= 0 && !ret[k] && (least == UINT32_MAX || weights[k] <= weights[least]))
				least = k;
		ret[least] = true;
	}
}

/* A layer's y, and the sum of its terms without their signs: plain_expert has both. */
struct sums {
	double y[TOKENS * HIDDEN], magnitude[TOKENS * HIDDEN];
};

/* What the layer's y must be, given what the device has; what the layer leaves takes the place of what was carried. */
static void expect(const struct fake *f, struct pass *pass, const struct job *job, uint32_t defer,
		   const struct moe_plan_view *view, struct sums *ret)
{
	double unused[HIDDEN] = {0};
	uint32_t t, k, pairs = 0;

	memset(ret, 0, sizeof *ret);
	memcpy(ret->y, pass->carried, sizeof pass->carried);
	memset(pass->carried, 0, sizeof pass->carried);
	for (t = 0; t < job->tokens; t++) {
		bool weak[EXPERTS];

		weakest(job, t, defer, weak);
		for (k = 0; k < job->topk; k++) {
			const uint32_t at = t * job->topk + k;
			const int32_t id = job->ids[at];
			const bool cpu = id >= 0 && view->expert_map[id] < 0, waits = cpu && weak[k];

			pairs += waits;
			pass->wrong += view->cpu_topk_ids[at] != (cpu && !waits ? id : -1);
			if (view->deferred_topk_ids)
				pass->wrong += view->deferred_topk_ids[at] != (waits ? id : -1);
			if (id >= 0)
				plain_expert(&f->values[fake_number(f, job->layer, (uint32_t)id)],
					     f->manifest.activation, 0, 0, INTER, (double)job->weights[at],
					     job->x + t * HIDDEN, (waits ? pass->carried : ret->y) + t * HIDDEN,
					     waits ? unused : ret->magnitude + t * HIDDEN);
		}
	}
	pass->wrong += view->pairs_deferred != pairs || (pairs > 0) != (view->deferred_topk_ids != NULL);
	pass->wrong += view->pairs_hit + view->pairs_miss_buffer + view->pairs_cpu + pairs != job->pairs;
	pass->deferred += pairs;
}

/* -- passes ------------------------------------------------------------------------------------------------------- */

static int pass_submit(struct fake *f, struct pass *pass, uint32_t row, enum moe_mode mode, uint32_t defer,
		       struct sums *ret, struct moe_error *err)
{
	struct job *job = &pass->jobs[row];
	struct moe_plan_view view;
	struct moe_plan *plan;
	int r = job_plan(f, job, mode, &plan, err);

	if (r < 0)
		return r;
	moe_plan_view(plan, &view);
	expect(f, pass, job, row + 1 < ROWS ? defer : 0, &view, ret);
	r = moe_submit_carry(&f->session, plan, job->x, &pass->carry, &job->step, err);
	pass->wrong += r == 0 && (pass->carry != NULL) != (view.pairs_deferred > 0);
	return r;
}

static int pass_wait(struct pass *pass, uint32_t row, const struct sums *want, struct moe_error *err)
{
	struct job *job = &pass->jobs[row];
	int r = moe_wait(job->step, job->y, 0, err);
	uint32_t i;

	for (i = 0; r == 0 && i < job->tokens * HIDDEN; i++)
		pass->wrong += !(fabs((double)job->y[i] - want->y[i]) <= job_allowed(want->magnitude[i]));
	return r;
}

static uint32_t steps_left(const struct fake *f)
{
	const struct engine *e = f->session.engine;
	uint32_t i, n = 0;

	for (i = 0; i < e->n_step_slots; i++)
		n += e->steps[i].state != STEP_FREE;
	return n;
}

/* Two micro-batches go through the layers side by side, each with what it carries. mode MOE_MODE_AUTO: at random. */
static int run_pair(struct fake *f, struct pass *passes, enum moe_mode mode, uint32_t defer)
{
	static struct sums want[2];
	struct moe_error err = {0};
	uint32_t row, i;
	int r = 0;

	for (row = 0; row < ROWS && r == 0; row++) {
		const uint32_t first = below(2);

		for (i = 0; i < 2 && r == 0; i++)
			r = pass_submit(f, &passes[i], row, mode == MOE_MODE_AUTO ? (enum moe_mode)below(4) : mode,
					defer, &want[i], &err);
		for (i = 0; i < 2 && r == 0; i++)
			r = pass_wait(&passes[first ^ i], row, &want[first ^ i], &err);
	}
	if (r < 0)
		diag("%s", err.text);
	return r == 0 && !passes[0].carry && !passes[1].carry && passes[0].wrong + passes[1].wrong == 0 ? 0 : 1;
}

static struct moe_attach_params defer_params(uint32_t defer)
{
	struct moe_attach_params p = default_params();

	p.approximate_defer = defer;
	p.max_steps = 2;
	return p;
}

static void test_passes(const char *name, const struct moe_attach_params *p, enum moe_mode mode,
			enum moe_step_phase phase, bool dummy)
{
	const uint32_t defer = phase == MOE_STEP_DECODE ? p->approximate_defer : 0;
	struct fake *f = open_fake(p);
	uint64_t pairs = 0, deferred = 0;
	struct totals sum;
	int i, wrong = 0;

	if (phase)
		wrong += moe_phase(&f->session, phase, 1, dummy, NULL) != 0;
	for (i = 0; i < 30; i++) {
		static struct pass passes[2];
		uint32_t j, row;

		for (j = 0; j < 2; j++)
			pass_init(&passes[j]);
		wrong += run_pair(f, passes, mode, defer);
		for (j = 0; j < 2; j++) {
			for (row = 0; row < ROWS; row++)
				pairs += passes[j].jobs[row].pairs;
			deferred += passes[j].deferred;
		}
	}
	sum = read_stats(f);
	ok(wrong == 0 && f->breaches == 0 && steps_left(f) == 0, "%s: 60 passes, %d wrong, nothing is left of them",
	   name, wrong);
	ok(dummy ? sum.pairs == 0 : sum.pairs == pairs && sum.steps == 60 * ROWS,
	   "%s: %llu pairs are counted once each, and the steps", name, (unsigned long long)pairs);
	ok(dummy || f->cpu_pairs == sum.cpu, "%s: the daemon computed what is counted as the CPU's", name);
	ok((deferred > 0) == (defer > 0 && p->cache_expert_num < EXPERTS), "%s: %llu pairs waited", name,
	   (unsigned long long)deferred);
	fake_free(f);
}

static void test_matrix(void)
{
	static const struct {
		const char *name;
		enum moe_mode mode;
		enum moe_fill fill;
		enum moe_step_phase phase;
		uint32_t slots, defer;
		bool dummy;
	} runs[] = {
		{"no slots, 1", MOE_MODE_DECODE, MOE_FILL_PUSH, MOE_STEP_DECODE, 0, 1, false},
		{"no slots, 5", MOE_MODE_DECODE, MOE_FILL_PUSH, MOE_STEP_DECODE, 0, 5, false},
		{"push, 1", MOE_MODE_DECODE, MOE_FILL_PUSH, MOE_STEP_DECODE, 4, 1, false},
		{"pull, 2", MOE_MODE_DECODE, MOE_FILL_PULL, MOE_STEP_DECODE, 3, 2, false},
		{"every mode, 3", MOE_MODE_AUTO, MOE_FILL_PUSH, MOE_STEP_DECODE, 2, 3, false},
		{"all experts cached", MOE_MODE_FULL, MOE_FILL_PUSH, MOE_STEP_DECODE, EXPERTS, 2, false},
		{"a dummy step", MOE_MODE_DECODE, MOE_FILL_PUSH, MOE_STEP_DECODE, 4, 2, true},
		{"off", MOE_MODE_DECODE, MOE_FILL_PUSH, MOE_STEP_DECODE, 4, 0, false},
		{"prefill", MOE_MODE_DECODE, MOE_FILL_PUSH, MOE_STEP_PREFILL, 4, 3, false},
		{"no phase was told", MOE_MODE_DECODE, MOE_FILL_PUSH, (enum moe_step_phase)0, 4, 3, false},
	};
	size_t i;

	for (i = 0; i < ARRAY_LEN(runs); i++) {
		struct moe_attach_params p = defer_params(runs[i].defer);

		p.fill = runs[i].fill;
		p.cache_expert_num = runs[i].slots;
		test_passes(runs[i].name, &p, runs[i].mode, runs[i].phase, runs[i].dummy);
	}
}

/* -- bits --------------------------------------------------------------------------------------------------------- */

/* The ys of one pass of the same inputs in a session of its own, whose daemon answers in an order of its own. */
static void bits_of(struct pass *pass, uint32_t defer, enum moe_step_phase phase, bool plainly)
{
	const struct moe_attach_params p = defer_params(defer);
	struct fake *f = open_fake(&p);
	uint32_t row;
	int r = 0;

	f->seed = tap_random(&seed) | 1;
	moe_phase(&f->session, phase, 1, false, NULL);
	for (row = 0; row < ROWS && r == 0; row++) {
		struct job *job = &pass->jobs[row];
		struct moe_plan *plan;

		r = job_plan(f, job, MOE_MODE_DECODE, &plan, NULL);
		if (r == 0 && plainly)
			r = moe_submit(&f->session, plan, job->x, &job->step, NULL);
		else if (r == 0)
			r = moe_submit_carry(&f->session, plan, job->x, &pass->carry, &job->step, NULL);
		if (r == 0)
			r = moe_wait(job->step, job->y, 0, NULL);
	}
	if (r < 0)
		abort();
	fake_free(f);
}

static void test_bits(void)
{
	struct pass first, second;
	int i, off = 0, prefill = 0, again = 0, differ = 0;
	uint32_t row;

	for (i = 0; i < 20; i++) {
		pass_init(&first);
		second = first;
		bits_of(&first, 0, MOE_STEP_DECODE, true);
		bits_of(&second, 0, MOE_STEP_DECODE, false);
		for (row = 0; row < ROWS; row++)
			off += memcmp(first.jobs[row].y, second.jobs[row].y, sizeof first.jobs[row].y) != 0;
		bits_of(&second, 3, MOE_STEP_PREFILL, true);
		for (row = 0; row < ROWS; row++)
			prefill += memcmp(first.jobs[row].y, second.jobs[row].y, sizeof first.jobs[row].y) != 0;
		bits_of(&second, 3, MOE_STEP_DECODE, false);
		for (row = 0; row < ROWS; row++)
			differ += memcmp(first.jobs[row].y, second.jobs[row].y, sizeof first.jobs[row].y) != 0;
		bits_of(&first, 3, MOE_STEP_DECODE, false);
		for (row = 0; row < ROWS; row++)
			again += memcmp(first.jobs[row].y, second.jobs[row].y, sizeof first.jobs[row].y) != 0;
	}
	ok(off == 0, "off: moe_submit_carry gives the bits of moe_submit");
	ok(prefill == 0, "prefill: the same bits, and moe_submit takes its plans");
	ok(differ > 0, "on: %d of %d layers differ", differ, 20 * ROWS);
	ok(again == 0, "on: the same bits again, in whatever order the daemon answers");
}

/* -- what goes wrong ---------------------------------------------------------------------------------------------- */

/* A session without slots in the decode phase, and a pass of which every layer but the last leaves something. */
static struct fake *open_deferring(struct pass *pass, uint32_t max_steps)
{
	struct moe_attach_params p = defer_params(2);
	struct fake *f;
	uint32_t row, i;

	p.cache_expert_num = 0;
	p.max_steps = max_steps;
	f = open_fake(&p);
	moe_phase(&f->session, MOE_STEP_DECODE, 1, false, NULL);
	pass_init(pass);
	for (row = 0; row < ROWS; row++) {
		struct job *job = &pass->jobs[row];

		job->tokens = 2;
		job->topk = 4;
		job->pairs = 8;
		for (i = 0; i < 8; i++)
			job->ids[i] = (int32_t)((row + i) % EXPERTS);
	}
	return f;
}

/* Layer FIRST of the pass, waited for; *carry is left. */
static void begin_pass(struct fake *f, struct pass *pass)
{
	struct sums want;

	memset(pass->carried, 0, sizeof pass->carried);
	if (pass_submit(f, pass, 0, MOE_MODE_DECODE, 2, &want, NULL) < 0 || pass_wait(pass, 0, &want, NULL) < 0)
		abort();
	require(pass->carry != NULL && pass->wrong == 0, "a layer leaves something");
}

static bool whole_pass_is_right(struct fake *f, struct pass *pass)
{
	struct sums want;
	struct moe_error err = {0};
	uint32_t row;
	int r = 0;

	memset(pass->carried, 0, sizeof pass->carried);
	for (row = 0; row < ROWS && r == 0; row++) {
		r = pass_submit(f, pass, row, MOE_MODE_DECODE, 2, &want, &err);
		if (r == 0)
			r = pass_wait(pass, row, &want, &err);
	}
	if (r < 0)
		diag("%s", err.text);
	return r == 0 && pass->wrong == 0 && !pass->carry && steps_left(f) == 0;
}

static void test_stopped(void)
{
	struct pass pass;
	struct fake *f = open_deferring(&pass, 1);
	struct moe_error err = {0};

	begin_pass(f, &pass);
	ok(moe_wait(pass.carry, NULL, 0, &err) == 0 && steps_left(f) == 0,
	   "a pass that stops gives back what it carries");
	pass.carry = NULL;
	ok(whole_pass_is_right(f, &pass), "and the next pass is right");
	f->stall = true;
	if (pass_submit(f, &pass, 0, MOE_MODE_DECODE, 2, &(struct sums){0}, &err) < 0)
		abort();
	f->stall = false;
	fake_free(f);
	ok(true, "detaching waits for a deferred part in flight");
}

static void test_refused(void)
{
	struct pass pass, other;
	struct fake *f = open_deferring(&pass, 2), *g = open_deferring(&other, 2);
	struct moe_error err = {0};
	struct moe_plan *plan;
	int r;

	if (job_plan(f, &pass.jobs[0], MOE_MODE_DECODE, &plan, NULL) < 0)
		abort();
	ok(moe_submit(&f->session, plan, pass.jobs[0].x, &pass.jobs[0].step, &err) == -EINVAL && steps_left(f) == 0,
	   "moe_submit takes no plan that defers: %s", err.text);

	begin_pass(f, &pass);
	r = pass_submit(f, &pass, 2, MOE_MODE_DECODE, 2, &(struct sums){0}, &err);
	ok(r == -EINVAL && !pass.carry && steps_left(f) == 0, "not the layer after: %s", err.text);

	begin_pass(f, &pass);
	pass.jobs[1].tokens = 1;
	pass.jobs[1].pairs = 4;
	r = pass_submit(f, &pass, 1, MOE_MODE_DECODE, 2, &(struct sums){0}, &err);
	ok(r == -EINVAL && !pass.carry && steps_left(f) == 0, "other tokens: %s", err.text);

	begin_pass(g, &other);
	pass.jobs[1].tokens = 2;
	pass.jobs[1].pairs = 8;
	pass.carry = other.carry;
	other.carry = NULL;
	r = pass_submit(f, &pass, 1, MOE_MODE_DECODE, 2, &(struct sums){0}, &err);
	ok(r == -EINVAL && !pass.carry && steps_left(f) == 0 && steps_left(g) == 0, "another session's");
	pass.wrong = 0;
	ok(whole_pass_is_right(f, &pass), "after all that a pass is right");
	fake_free(f);
	fake_free(g);
}

/* Two steps in flight leave room for a step and none for its deferred part. */
static void test_busy(void)
{
	struct pass pass;
	struct fake *f = open_deferring(&pass, 1);
	struct moe_error err = {0};
	struct job *last = &pass.jobs[ROWS - 1], again = *last;
	int r;

	if (job_submit(f, last, MOE_MODE_DECODE, &err) < 0 || job_submit(f, &again, MOE_MODE_DECODE, &err) < 0)
		abort();
	r = pass_submit(f, &pass, 0, MOE_MODE_DECODE, 2, &(struct sums){0}, &err);
	ok(r == -EBUSY && !pass.carry && steps_left(f) == 2,
	   "no room for the deferred part: nothing is left of the step: %s", err.text);
	ok(moe_wait(last->step, last->y, 0, NULL) == 0 && moe_wait(again.step, again.y, 0, NULL) == 0 &&
		   whole_pass_is_right(f, &pass),
	   "once there is room the pass is right");
	fake_free(f);
}

static void test_failed(void)
{
	struct pass pass;
	struct fake *f = open_deferring(&pass, 1);
	struct moe_error err = {0};
	struct sums want;
	int r;

	f->stall = true;
	if (pass_submit(f, &pass, 0, MOE_MODE_DECODE, 2, &want, &err) < 0)
		abort();
	f->fail_computes = 2;
	f->stall = false;
	r = moe_wait(pass.jobs[0].step, pass.jobs[0].y, 0, &err);
	ok(r == -EIO && pass.carry, "a failed computation fails its step");
	r = pass_submit(f, &pass, 1, MOE_MODE_DECODE, 2, &want, &err);
	if (r == 0)
		r = moe_wait(pass.jobs[1].step, pass.jobs[1].y, 0, &err);
	ok(r == -EIO, "a failed deferred one the step that carries it: %s", err.text);
	ok(moe_wait(pass.carry, NULL, 0, NULL) == 0 && steps_left(f) == 0, "and nothing is left");
	pass.carry = NULL;
	ok(whole_pass_is_right(f, &pass), "and the next pass is right");
	fake_free(f);
}

static void test_lost_daemon(void)
{
	struct pass pass;
	struct fake *f = open_deferring(&pass, 1);
	struct moe_error err = {0};
	struct sums want;
	int r;

	begin_pass(f, &pass);
	f->stall = true;
	if (pass_submit(f, &pass, 1, MOE_MODE_DECODE, 2, &want, &err) < 0)
		abort();
	fake_die(f);
	r = moe_wait(pass.jobs[1].step, pass.jobs[1].y, 0, &err);
	ok(r == -EPIPE, "a lost daemon ends a step that carries with -EPIPE: %s", err.text);
	r = pass_submit(f, &pass, 2, MOE_MODE_DECODE, 2, &want, &err);
	if (r == 0)
		r = moe_wait(pass.jobs[2].step, pass.jobs[2].y, 0, &err);
	ok(r == -EPIPE, "and the one after it");
	if (pass.carry)
		moe_wait(pass.carry, NULL, 0, NULL);
	ok(steps_left(f) == 0, "and no step is left");
	fake_free(f);
}

static void test_time_out(void)
{
	struct pass pass;
	struct fake *f = open_deferring(&pass, 1);
	struct moe_error err = {0};
	struct sums want;
	uint64_t end = 0;
	int r;

	begin_pass(f, &pass);
	f->stall = true;
	if (pass_submit(f, &pass, 1, MOE_MODE_DECODE, 2, &want, &err) < 0)
		abort();
	r = moe_wait(pass.jobs[1].step, pass.jobs[1].y, 20, &err);
	ok(r == -ETIMEDOUT, "a wait ends at its time-out");
	r = moe_wait(pass.carry, NULL, 20, &err);
	pass.carry = NULL;
	f->stall = false;
	do {
		memset(pass.carried, 0, sizeof pass.carried);
		r = pass_submit(f, &pass, 0, MOE_MODE_DECODE, 2, &want, &err);
	} while (r == -EBUSY && tap_wait(&end));
	ok(r == 0 && pass_wait(&pass, 0, &want, &err) == 0 && moe_wait(pass.carry, NULL, 0, &err) == 0,
	   "once the daemon answers, what was left is swept");
	pass.carry = NULL;
	ok(whole_pass_is_right(f, &pass), "and the next pass is right");
	fake_free(f);
}

static void test_attach(void)
{
	struct moe_attach_params p = defer_params(EXPERTS / 2);
	struct fake *f = fake_new(&shape, &p, model_seed);
	struct engine *engine = NULL;
	struct moe_error err = {0};

	ok(engine_new(&engine, &f->session, &err) == -EINVAL && !engine, "as many as top-k: %s", err.text);
	fake_free(f);
}

int main(void)
{
	jobs_begin();
	test_matrix();
	test_bits();
	test_stopped();
	test_refused();
	test_busy();
	test_failed();
	test_lost_daemon();
	test_time_out();
	test_attach();
	return tap_done();
}
