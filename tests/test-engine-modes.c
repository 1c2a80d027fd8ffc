/* SPDX-License-Identifier: MIT */
/*
 * What the engine counts by mode: how long the parts of its steps were and what the steps took. The daemon's parts have
 * lengths that the test says; of the others only what holds however busy the machine is.
 */
#include "tests/engine-jobs.h"

#define TAKES_NS 20000000ull
#define STEPS 6
#define ROUNDS 10
#define GAIN_SEEN 0.2 /* all of it where the machine has nothing else to do */

static const char *const names[MOE_STATS_MODES] = {"decode", "prefetch", "full", "dual-batch"};

/* One token, five experts of which no step in a row has the same: whatever the cache has, some come and some stay. */
static void job_of_five(struct job *job, uint32_t number)
{
	uint32_t k;

	job_init(job);
	*job = (struct job){.layer = 1 + number % (LAYERS - 1), .tokens = 1, .topk = 5, .pairs = 5, .x = {1}};
	for (k = 0; k < job->topk; k++) {
		job->ids[k] = (int32_t)((number / (LAYERS - 1) * 5 + k) % EXPERTS);
		job->weights[k] = 0.25f;
	}
}

static struct fake *open_modes(bool dual_batch)
{
	struct moe_attach_params p = default_params();

	p.dual_batch = dual_batch;
	return open_fake(&p);
}

static const struct moe_mode_stats *modes_of(const struct fake *f)
{
	return f->client->modes;
}

/* Of copies, device and CPU, one after the other. */
static uint64_t serial_ns(const struct moe_mode_stats *m)
{
	return m->copy_ns + m->device_ns + m->cpu_ns;
}

static int run_steps(struct fake *f, enum moe_mode mode, int n)
{
	int wrong = 0;

	for (int i = 0; i < n; i++) {
		struct job job;

		job_of_five(&job, (uint32_t)i);
		wrong += job_run(f, &job, mode) != 0;
	}
	return wrong;
}

/* Each step counts once, in its own mode. */
static void test_counts(void)
{
	static const struct {
		enum moe_mode mode;
		bool dual_batch;
		enum moe_stats_mode as;
	} runs[] = {
		{MOE_MODE_DECODE, false, MOE_STATS_DECODE},    {MOE_MODE_PREFETCH, false, MOE_STATS_PREFETCH},
		{MOE_MODE_FULL, false, MOE_STATS_FULL},        {MOE_MODE_AUTO, true, MOE_STATS_DUAL_BATCH},
		{MOE_MODE_PREFETCH, true, MOE_STATS_PREFETCH},
	};

	for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
		struct fake *f = open_modes(runs[i].dual_batch);
		const struct moe_mode_stats *m = modes_of(f);
		uint64_t elsewhere = 0;
		int wrong = run_steps(f, runs[i].mode, 40);

		for (int j = 0; j < MOE_STATS_MODES; j++)
			elsewhere += j == (int)runs[i].as ? 0 : m[j].steps + m[j].hidden + m[j].taken_ns;
		m += runs[i].as;
		ok(wrong == 0 && m->steps + m->hidden == 40 && elsewhere == 0,
		   "%s%s: 40 steps, %llu waited for and %llu hidden", names[runs[i].as],
		   runs[i].dual_batch ? " (dual_batch)" : "", (unsigned long long)m->steps,
		   (unsigned long long)m->hidden);
		fake_free(f);
	}
}

static void test_not_counted(void)
{
	struct fake *f = open_modes(false);
	const struct moe_mode_stats *m = modes_of(f);
	int wrong;

	wrong = moe_phase(&f->session, MOE_STEP_DECODE, 1, true, NULL) != 0;
	wrong += run_steps(f, MOE_MODE_DECODE, 8);
	ok(wrong == 0 && m->steps + m->hidden == 0, "dummy steps count in no mode");
	moe_phase(&f->session, MOE_STEP_DECODE, 2, false, NULL);
	atomic_store(&f->fail_computes, 1);
	wrong = run_steps(f, MOE_MODE_DECODE, 1);
	ok(wrong == 1 && m->steps + m->hidden == 0, "nor do failed ones");
	wrong = run_steps(f, MOE_MODE_DECODE, 8);
	ok(wrong == 0 && m->steps + m->hidden == 8, "after them steps count");
	fake_free(f);
}

/* A worker that comes late finds a step that is over. */
static void test_hidden(void)
{
	struct fake *f = open_modes(false);
	const struct moe_mode_stats *m = modes_of(f);
	struct timespec late = {.tv_nsec = 20000000}; /* twice as late each time */
	int wrong = 0, rounds = 0;

	while (rounds < ROUNDS && m->hidden == 0) {
		struct job job;

		job_of_five(&job, (uint32_t)rounds++);
		wrong += job_submit(f, &job, MOE_MODE_DECODE, NULL) != 0;
		nanosleep(&late, NULL);
		late = (struct timespec){late.tv_sec * 2 + late.tv_nsec / 500000000, late.tv_nsec * 2 % 1000000000};
		wrong += moe_wait(job.step, job.y, 0, NULL) != 0;
	}
	ok(wrong == 0 && m->hidden > 0 && m->steps + m->hidden == (uint64_t)rounds,
	   "a step that was over before is hidden");
	fake_free(f);
}

/* Lengths that the daemon says come out as they are, and no step is shorter than its longest part. */
static void test_known_lengths(void)
{
	struct fake *f = open_modes(false);
	const struct moe_mode_stats *m = modes_of(f);
	const bool push = f->session.params.fill == MOE_FILL_PUSH;
	const uint64_t began = now_ns();
	int wrong;

	atomic_store(&f->takes_ns, TAKES_NS);
	wrong = run_steps(f, MOE_MODE_DECODE, STEPS);
	ok(wrong == 0 && m->steps > 0 && m->cpu_ns == m->steps * TAKES_NS,
	   "the CPU pool's part is what its completions say");
	ok(push ? m->copy_ns == m->steps * TAKES_NS : m->copy_ns > 0 && m->copy_ns < now_ns() - began, "copies take %s",
	   push ? "what their completions say" : "what events say");
	ok(m->taken_ns >= m->steps * TAKES_NS && m->taken_ns <= now_ns() - began,
	   "steps take no less than their longest part, and no more than passes");
	fake_free(f);
}

/* With everything on the device its part waits for the copies: nothing runs side by side, and nothing is saved. Events
 * of some devices have floats for times. */
static void test_nothing_to_gain(void)
{
	struct fake *f = open_modes(false);
	const struct moe_mode_stats *m = &modes_of(f)[MOE_STATS_FULL];
	int wrong;

	atomic_store(&f->takes_ns, TAKES_NS);
	wrong = run_steps(f, MOE_MODE_FULL, STEPS);
	ok(wrong == 0 && m->steps > 0 && m->cpu_ns == 0 && m->copy_ns > 0 && m->device_ns > 0 &&
		   (double)m->taken_ns >= 0.99 * (double)serial_ns(m),
	   "full, one step at a time: they take no less than copies and device together");
	fake_free(f);
}

/* Copies and CPU of one step run side by side: in some round, at least, that must show. */
static void test_gain(void)
{
	double best = -1;

	if (strcmp(test_device(), "host") != 0) {
		tap_skip("the length of copies by pull is not the daemon's to say");
		return;
	}
	for (int round = 0; round < 5 * ROUNDS && best < GAIN_SEEN; round++) {
		struct fake *f = open_modes(false);
		const struct moe_mode_stats *m = modes_of(f);
		double ideal, gain;

		atomic_store(&f->takes_ns, TAKES_NS);
		run_steps(f, MOE_MODE_DECODE, STEPS);
		ideal = (double)MAX(m->device_ns, MAX(m->copy_ns, m->cpu_ns));
		gain = (double)serial_ns(m) - ideal;
		if (m->steps > 0)
			best = fmax(best, ((double)serial_ns(m) - (double)m->taken_ns) / gain);
		fake_free(f);
	}
	ok(best >= GAIN_SEEN && best <= 1, "copies beside the CPU: %.2f of the gain is had", best);
}

/* Two micro-batches: what they take adds up to no more than what passes. */
static void test_in_flight(void)
{
	struct fake *f = open_modes(true);
	const struct moe_mode_stats *m = &modes_of(f)[MOE_STATS_DUAL_BATCH];
	uint64_t began, passed;
	int wrong = 0;

	atomic_store(&f->takes_ns, TAKES_NS);
	began = now_ns();
	for (uint32_t i = 0; i < STEPS; i += 2) {
		struct job a, b;

		job_of_five(&a, i);
		job_of_five(&b, i + 1);
		wrong += job_submit(f, &a, MOE_MODE_AUTO, NULL) != 0 || job_submit(f, &b, MOE_MODE_AUTO, NULL) != 0;
		wrong += moe_wait(a.step, a.y, 0, NULL) != 0 || moe_wait(b.step, b.y, 0, NULL) != 0;
	}
	passed = now_ns() - began;
	ok(wrong == 0 && m->steps + m->hidden == STEPS && m->cpu_ns == m->steps * TAKES_NS && m->taken_ns <= passed,
	   "two in flight take %.0f ms of %.0f that pass", (double)m->taken_ns / 1e6, (double)passed / 1e6);
	fake_free(f);
}

int main(void)
{
	jobs_begin();
	test_counts();
	test_not_counted();
	test_hidden();
	test_known_lengths();
	test_nothing_to_gain();
	test_gain();
	test_in_flight();
	return tap_done();
}
