/* SPDX-License-Identifier: MIT */
/*
 * Slices that are copied in chunks, and experts that are copied on a guess, with a fake daemon: what comes is cached,
 * what is taken back is not, and no step is ever wrong or waits because of a guess.
 */
#include "step.h"
#include "tests/engine-jobs.h"

#define SLOTS 4
#define CHUNK 512 /* slices of these shapes have several kilobytes */
#define ROUNDS 400

static struct fake *open_chunked(const struct moe_attach_params *params)
{
	struct fake *f = open_fake(params);

	f->session.engine->chunk_bytes = CHUNK;
	return f;
}

/* One token, all of whose experts are `a` and `b`. */
static void job_of(struct job *job, uint32_t layer, int32_t a, int32_t b)
{
	do
		job_init(job);
	while (job->topk < 2);
	job->layer = layer;
	job->tokens = 1;
	job->pairs = 2;
	for (uint32_t k = 0; k < job->topk; k++)
		job->ids[k] = k == 0 ? a : k == 1 ? b : -1;
}

static const struct cache *cache_of(const struct fake *f, uint32_t layer)
{
	return f->session.engine->rows[layer - 1].cache;
}

static bool books_good(struct fake *f)
{
	for (uint32_t i = 0; i < LAYERS - 1; i++)
		if (cache_check(f->session.engine->rows[i].cache))
			return false;
	return true;
}

/* -- chunks ------------------------------------------------------------------------------------------------------- */

static void test_chunks(void)
{
	static const enum moe_mode modes[] = {MOE_MODE_DECODE, MOE_MODE_PREFETCH, MOE_MODE_FULL};
	struct moe_attach_params p = default_params();
	struct fake *f = open_chunked(&p);
	uint64_t copies, bytes = 0;
	bool good = true;

	for (int i = 0; i < 60 && good; i++) {
		struct job job;

		job_init(&job);
		good = job_run(f, &job, modes[below(3)]) == 0;
	}
	copies = read_stats(f).fills;
	for (uint32_t i = 0; i < LAYERS; i++)
		bytes += f->session.stats[i].fill_bytes;
	ok(good, "steps whose slices come in chunks are right");
	ok(copies > 0 && f->fills > copies, "%u FILLs brought %llu slices", atomic_load(&f->fills),
	   (unsigned long long)copies);
	ok(bytes >= copies * MIN(f->session.slices[0].bytes, f->session.slices[1].bytes) &&
		   bytes <= copies * f->session.info.slot_bytes,
	   "slices are counted, not chunks");
	ok(f->breaches == 0, "the ring's rules are kept");
	fake_free(f);
}

static void test_failed_chunk(void)
{
	struct moe_attach_params p = default_params();
	struct fake *f = open_chunked(&p);
	struct job job;

	job_of(&job, 1, 7, 8);
	f->fail_fills = 1;
	ok(job_run(f, &job, MOE_MODE_DECODE) == -EIO && cache_of(f, 1)->n_cached == 1,
	   "a chunk that fails takes its expert out, and no other");
	ok(job_run(f, &job, MOE_MODE_DECODE) == 0 && cache_of(f, 1)->n_cached == 2, "which the next step brings anew");
	fake_free(f);
}

/* -- guesses ------------------------------------------------------------------------------------------------------ */

static void test_arrives(void)
{
	const struct moe_copy copies[] = {{5, 3}, {9, 1}};
	struct moe_attach_params p = default_params();
	struct fake *f = open_chunked(&p);
	struct moe_error err = {0};
	struct moe_plan_view view;
	struct moe_plan *plan;
	struct moe_step *step;
	struct job job;

	job_of(&job, 2, 9, 5);
	ok(moe_fill(&f->session, 2, 4, 3, &err) == 0 && moe_prefetch(&f->session, 2, copies, 2, &step, &err) == 0,
	   "two experts are guessed");
	ok(cache_of(f, 2)->cache_map[4] < 0 && cache_of(f, 2)->n_reserved == 2, "who was in their slots has left");
	ok(moe_wait(step, NULL, 0, &err) == 0 && cache_of(f, 2)->cache_map[5] == 3 &&
		   cache_of(f, 2)->cache_map[9] == 1 && cache_of(f, 2)->n_reserved == 0,
	   "they are cached once the guess was waited for");
	ok(f->speculative > 2 && f->cancels == 0, "as speculative chunks (%u)", atomic_load(&f->speculative));
	if (job_plan(f, &job, MOE_MODE_DECODE, &plan, NULL) < 0)
		abort();
	moe_plan_view(plan, &view);
	ok(view.n_copies == 0 && view.pairs_hit == 2, "the next step hits both");
	ok(moe_submit(&f->session, plan, job.x, &job.step, NULL) == 0 && moe_wait(job.step, job.y, 0, NULL) == 0 &&
		   job_error(f, &job, job.y) < 1,
	   "and computes right");
	fake_free(f);
}

/* The daemon does none of the guess: everything else goes on. */
static void test_nobody_waits(void)
{
	const struct moe_copy copies[] = {{5, 3}, {9, 1}}, again = {6, 1};
	struct moe_attach_params p = default_params();
	struct fake *f = open_chunked(&p);
	struct moe_error err = {0};
	struct moe_step *step;
	uint64_t end = 0;
	bool good = true;

	f->hold = true;
	require(moe_prefetch(&f->session, 1, copies, 2, &step, &err) == 0, "a guess: %s", err.text);
	for (int i = 0; i < 12 && good; i++) {
		struct job job;

		job_of(&job, 1, 5, 9);
		good = job_run(f, &job, i % 2 ? MOE_MODE_PREFETCH : MOE_MODE_DECODE) == 0;
	}
	ok(good && cache_of(f, 1)->n_reserved == 2, "steps with the same experts go on meanwhile, beside its slots");
	ok(moe_prefetch(&f->session, 1, &again, 1, &step, &err) == -EBUSY, "one guess a slot: %s", err.text);
	ok(moe_fill(&f->session, 1, 7, 3, &err) == -EBUSY, "nor is it filled by hand: %s", err.text);
	ok(f->cancels == 0, "what they ask for is not taken back");
	ok(moe_wait(step, NULL, 20, &err) == -ETIMEDOUT, "it has not come");
	f->hold = false;
	while (cache_of(f, 1)->n_reserved && tap_wait(&end)) {
		struct job job;

		job_of(&job, 2, 1, 2);
		good = good && job_run(f, &job, MOE_MODE_DECODE) == 0; /* sweeps what was left */
	}
	ok(good && cache_of(f, 1)->n_reserved == 0 && books_good(f), "what was left is swept once it has come");
	fake_free(f);
}

/* What was left is swept by whoever needs its slots, though nobody submits a step. */
static void test_left(void)
{
	const struct moe_copy first = {5, 3}, second = {9, 1};
	struct moe_attach_params p = default_params();
	struct fake *f = open_chunked(&p);
	struct moe_step *steps[2];
	uint64_t end = 0;
	int r;

	f->hold = true;
	require(moe_prefetch(&f->session, 1, &first, 1, &steps[0], NULL) == 0 &&
			moe_prefetch(&f->session, 2, &second, 1, &steps[1], NULL) == 0,
		"two guesses");
	ok(moe_wait(steps[1], NULL, 20, NULL) == -ETIMEDOUT, "one is left");
	f->hold = false;
	ok(moe_wait(steps[0], NULL, 0, NULL) == 0, "the other comes");
	do
		r = moe_fill(&f->session, 2, 7, second.slot, NULL);
	while (r == -EBUSY && tap_wait(&end));
	ok(r == 0 && cache_of(f, 2)->cache_map[7] == second.slot && books_good(f),
	   "the slot of the one that was left can be filled");
	ok(moe_wait(NULL, NULL, 0, NULL) == 0, "no step has ended well");
	fake_free(f);
}

/* A daemon that no longer answers is waited for once. */
static void test_silent(void)
{
	const struct moe_copy copies[] = {{5, 0}, {9, 1}, {11, 2}};
	struct moe_attach_params p = default_params();
	struct moe_error err = {0};
	struct moe_step *step;
	uint64_t began;
	struct fake *f;
	struct job job;

	p.watchdog_ms = 200;
	f = open_chunked(&p);
	f->session.params.watchdog_ms = p.watchdog_ms;
	f->hold = true;
	require(moe_prefetch(&f->session, 1, copies, 3, &step, &err) == 0, "a guess: %s", err.text);
	f->stall = true;
	ok(moe_cancel(step, 0, NULL, &err) == -ETIME, "a guess is not taken back: %s", err.text);
	ok(moe_wait(step, NULL, 0, &err) < 0, "nor does it come: %s", err.text);
	f->stall = f->hold = false;
	fake_free(f);

	p.entries = MOE_RING_ENTRIES_MIN;
	f = open_chunked(&p);
	f->stall = true;
	job_init(&job);
	began = now_ns();
	if (job_submit(f, &job, MOE_MODE_FULL, &err) == 0)
		ok(moe_wait(job.step, job.y, 0, &err) < 0,
		   "a step of more requests than the ring has room for fails: %s", err.text);
	diag("after %llu ms", (unsigned long long)((now_ns() - began) / 1000000));
	ok(now_ns() - began < EXPERTS * p.watchdog_ms * 1000000ull, "after some waits, not one for each expert");
	f->stall = false;
	fake_free(f);
}

/* Nothing can be taken back where the ring has no room for that. */
static void test_full(void)
{
	struct moe_copy copies[MOE_RING_ENTRIES_MIN];
	struct moe_attach_params p = default_params();
	struct moe_error err = {0};
	struct moe_step *step;
	struct fake *f;

	p.watchdog_ms = 200;
	p.entries = p.cache_expert_num = MOE_RING_ENTRIES_MIN;
	f = open_fake(&p);
	f->session.params.watchdog_ms = p.watchdog_ms;
	f->stall = true;
	for (uint32_t i = 0; i < MOE_RING_ENTRIES_MIN; i++)
		copies[i] = (struct moe_copy){(int32_t)i, (int32_t)i};
	require(moe_prefetch(&f->session, 1, copies, MOE_RING_ENTRIES_MIN, &step, &err) == 0, "a guess: %s", err.text);
	ok(moe_cancel(step, 0, NULL, &err) == -ETIME, "a full ring: a guess is not taken back: %s", err.text);
	ok(moe_wait(step, NULL, 0, &err) < 0, "and ends: %s", err.text);
	f->stall = false;
	fake_free(f);
}

static void test_cancel(void)
{
	const struct moe_copy copies[] = {{5, 0}, {9, 1}, {11, 2}};
	const int32_t keep[] = {3, 9};
	struct moe_attach_params p = default_params();
	struct fake *f = open_chunked(&p);
	struct moe_error err = {0};
	struct moe_step *step;
	struct job job;

	f->hold = true;
	require(moe_prefetch(&f->session, 1, copies, 3, &step, &err) == 0, "a guess: %s", err.text);
	require(moe_cancel(step, 2, keep, &err) == 0, "taken back");
	ok(f->cancels > 2, "all but one, in %u CANCELs", atomic_load(&f->cancels));
	f->hold = false;
	ok(moe_wait(step, NULL, 0, &err) == -ECANCELED, "the wait says so: %s", err.text);
	ok(cache_of(f, 1)->cache_map[9] == 1 && cache_of(f, 1)->n_cached == 1 && cache_of(f, 1)->n_reserved == 0,
	   "the one that was kept is cached, the other slots are free");
	job_of(&job, 1, 9, 5);
	ok(job_run(f, &job, MOE_MODE_DECODE) == 0 && cache_of(f, 1)->n_cached == 2, "and are used by the next step");
	job_of(&job, 2, 1, 2);
	require(job_submit(f, &job, MOE_MODE_DECODE, &err) == 0, "a step");
	ok(moe_cancel(job.step, 0, NULL, &err) == -EINVAL, "a step is not taken back: %s", err.text);
	moe_wait(job.step, NULL, 0, NULL);
	f->hold = true;
	require(moe_prefetch(&f->session, 3, copies, 3, &step, &err) == 0, "a guess: %s", err.text);
	ok(f->breaches == 0, "the ring's rules are kept");
	fake_free(f); /* would wait for ever if it did not take the guess back */
	ok(true, "a session that ends takes its guesses back");
}

/* The layer's next step chooses one of two. */
static void test_wrong_guess(void)
{
	const struct moe_copy copies[] = {{5, 3}, {9, 1}};
	struct moe_attach_params p = default_params();
	struct fake *f = open_chunked(&p);
	struct moe_error err = {0};
	struct moe_step *step;
	struct job job;

	f->hold = true;
	require(moe_prefetch(&f->session, 1, copies, 2, &step, &err) == 0, "a guess: %s", err.text);
	job_of(&job, 2, 3, 4);
	ok(job_run(f, &job, MOE_MODE_DECODE) == 0 && f->cancels == 0, "another layer's choice says nothing of it");
	require(moe_phase(&f->session, MOE_STEP_DECODE, 1, true, &err) == 0, "a dummy step");
	job_of(&job, 1, 3, 4);
	ok(job_run(f, &job, MOE_MODE_DECODE) == 0 && f->cancels == 0, "nor does a dummy step's");
	require(moe_phase(&f->session, MOE_STEP_DECODE, 2, false, &err) == 0, "a true one");
	job_of(&job, 1, 9, 4);
	ok(job_run(f, &job, MOE_MODE_DECODE) == 0, "a step with one of the two is right");
	ok(f->cancels == step->n_chunks && step->n_chunks > 1, "the other is taken back, in %u CANCELs",
	   atomic_load(&f->cancels));
	f->hold = false;
	ok(moe_wait(step, NULL, 0, &err) == -ECANCELED, "the wait says so: %s", err.text);
	ok(cache_of(f, 1)->cache_map[5] < 0 && cache_of(f, 1)->n_reserved == 0 && books_good(f),
	   "it is not cached, and its slot is free");
	ok(cache_of(f, 1)->cache_map[9] >= 0, "the one that was chosen is cached");
	ok(f->breaches == 0, "the ring's rules are kept");
	fake_free(f);
}

/* Of two micro-batches either may be meant. */
static void test_dual_batch(void)
{
	const struct moe_copy copy = {5, 3};
	struct moe_attach_params p = default_params();
	struct moe_step *step;
	struct fake *f;
	struct job job;

	p.dual_batch = true;
	f = open_chunked(&p);
	f->hold = true;
	require(moe_prefetch(&f->session, 1, &copy, 1, &step, NULL) == 0, "a guess");
	job_of(&job, 1, 3, 4);
	ok(job_run(f, &job, MOE_MODE_DECODE) == 0 && f->cancels == 0, "with dual_batch nothing is taken back");
	f->hold = false;
	ok(moe_wait(step, NULL, 0, NULL) == 0 && cache_of(f, 1)->cache_map[5] == 3, "and it is cached");
	fake_free(f);
}

static void test_refused(void)
{
	const struct moe_copy good = {5, 0}, twice[] = {{5, 0}, {5, 1}}, one_slot[] = {{5, 0}, {6, 0}};
	const struct moe_copy bad[] = {{-1, 0}, {EXPERTS, 0}, {0, -1}, {0, SLOTS}};
	struct moe_attach_params p = default_params();
	struct fake *f = open_chunked(&p);
	struct moe_error err = {0};
	struct moe_step *step;
	bool refused = true;

	for (int i = 0; i < 4; i++)
		refused &= moe_prefetch(&f->session, 1, &bad[i], 1, &step, &err) == -EINVAL;
	ok(refused && moe_prefetch(&f->session, 0, &good, 1, &step, &err) == -EINVAL &&
		   moe_prefetch(&f->session, 1, &good, 0, &step, &err) == -EINVAL &&
		   moe_prefetch(&f->session, 1, &good, SLOTS + 1, &step, &err) == -EINVAL,
	   "numbers out of range are refused");
	ok(moe_prefetch(&f->session, 1, twice, 2, &step, &err) == -EINVAL &&
		   moe_prefetch(&f->session, 1, one_slot, 2, &step, &err) == -EINVAL,
	   "and one expert or slot twice: %s", err.text);
	ok(moe_fill(&f->session, 1, 5, 2, &err) == 0 && moe_prefetch(&f->session, 1, &good, 1, &step, &err) == -EEXIST,
	   "and what is cached: %s", err.text);
	ok(cache_of(f, 1)->n_reserved == 0 && cache_of(f, 1)->n_cached == 1, "none of them has changed anything");
	fake_free(f);
	p.fill = MOE_FILL_PULL;
	f = open_fake(&p);
	ok(moe_prefetch(&f->session, 1, &good, 1, &step, &err) == -ENOTSUP, "pull: %s", err.text);
	fake_free(f);
	p = default_params();
	p.tp_size = 3;
	p.share = MOE_SHARE_GROUP;
	p.n_copy = MOE_N_COPY_STAIRS;
	f = open_fake(&p);
	ok(moe_prefetch(&f->session, 1, &good, 1, &step, &err) == -ENOTSUP, "group: %s", err.text);
	fake_free(f);
}

/* A fill of the guess fails: nothing else does. */
static void test_failed_guess(void)
{
	const struct moe_copy copies[] = {{5, 0}, {9, 1}};
	struct moe_attach_params p = default_params();
	struct fake *f = open_chunked(&p);
	struct moe_step *step;
	struct job job;

	f->fail_fills = 1;
	require(moe_prefetch(&f->session, 1, copies, 2, &step, NULL) == 0, "a guess");
	ok(moe_wait(step, NULL, 0, NULL) == -EIO && cache_of(f, 1)->n_cached == 1 && cache_of(f, 1)->n_reserved == 0,
	   "a guess that fails leaves its slot free");
	job_of(&job, 1, 9, 5);
	ok(job_run(f, &job, MOE_MODE_DECODE) == 0, "and the steps that follow are right");
	fake_free(f);
}

/* A plan fills a slot; before it is submitted a guess takes the slot, whose place it then writes. */
static void test_overtaken(uint32_t slots, uint32_t updates, bool comes)
{
	struct moe_attach_params p = default_params();
	struct moe_copy guess = {.expert = 9};
	struct moe_error err = {0};
	struct moe_plan_view view;
	struct moe_plan *plan;
	struct moe_step *step;
	bool good = true;
	struct fake *f;
	struct job job;

	p.cache_expert_num = slots;
	p.update_expert_num = updates;
	f = open_chunked(&p);
	job_of(&job, 1, 7, 8);
	require(job_plan(f, &job, MOE_MODE_DECODE, &plan, NULL) == 0, "planned");
	moe_plan_view(plan, &view);
	require(view.n_copies > 0, "which copies");
	guess.slot = view.copy_map[0].slot;
	f->hold = !comes;
	require(moe_prefetch(&f->session, 1, &guess, 1, &step, &err) == 0, "a guess: %s", err.text);
	if (comes)
		require(moe_wait(step, NULL, 0, NULL) == 0, "which has come");
	ok(moe_submit(&f->session, plan, job.x, &job.step, &err) == -ESTALE && strstr(err.text, "prefetch"),
	   "a plan whose slot a guess has taken is refused: %s", err.text);
	for (int i = 0; i < 8; i++) {
		job_of(&job, 1 + i % 2, 9, i); /* what is chosen is not taken back */
		good = good && job_run(f, &job, MOE_MODE_DECODE) == 0;
	}
	f->hold = false;
	good = (comes || moe_wait(step, NULL, 0, NULL) == 0) && good;
	for (int i = 0; i < 8; i++)
		good = good && job_run(f, &job, MOE_MODE_DECODE) == 0;
	ok(good && books_good(f), "and the steps after it are right");
	fake_free(f);
}

/* A plan counts on a slot that another plan was to fill, which is dropped; then a guess brings the same expert there,
 * and has not come. */
static void test_not_yet_there(void)
{
	struct moe_attach_params p = default_params();
	struct fake *f = open_chunked(&p);
	struct moe_plan *fills, *hits;
	struct moe_error err = {0};
	struct moe_plan_view view;
	struct moe_step *step;
	struct moe_copy guess;
	struct job job;

	job_of(&job, 1, 7, 8);
	require(job_plan(f, &job, MOE_MODE_DECODE, &fills, NULL) == 0 &&
			job_plan(f, &job, MOE_MODE_DECODE, &hits, NULL) == 0,
		"planned twice");
	moe_plan_view(fills, &view);
	require(view.n_copies > 0, "the first one copies");
	guess = (struct moe_copy){view.copy_map[0].expert, view.copy_map[0].slot};
	moe_plan_free(fills);
	f->hold = true;
	require(moe_prefetch(&f->session, 1, &guess, 1, &step, &err) == 0, "a guess: %s", err.text);
	ok(moe_submit(&f->session, hits, job.x, &job.step, &err) == -ESTALE && strstr(err.text, "prefetch"),
	   "a slot whose expert is still to come is none to read: %s", err.text);
	f->hold = false;
	ok(moe_wait(step, NULL, 0, NULL) == 0 && job_run(f, &job, MOE_MODE_DECODE) == 0 && books_good(f),
	   "once it has come the step is right");
	fake_free(f);
}

/* -- by chance ---------------------------------------------------------------------------------------------------- */

static struct moe_step *guess_at_random(struct fake *f, uint32_t *refused)
{
	struct moe_copy copies[SLOTS];
	const uint32_t layer = 1 + below(LAYERS - 1), n = 1 + below(SLOTS - 1), first = below(EXPERTS);
	struct moe_step *step = NULL;

	for (uint32_t i = 0; i < n; i++)
		copies[i] = (struct moe_copy){(int32_t)((first + 5 * i) % EXPERTS), (int32_t)((first + i) % SLOTS)};
	if (moe_prefetch(&f->session, layer, copies, n, &step, NULL) < 0) {
		++*refused;
		return NULL;
	}
	return step;
}

static void test_random(void)
{
	static const enum moe_mode modes[] = {MOE_MODE_DECODE, MOE_MODE_PREFETCH, MOE_MODE_FULL};
	struct moe_attach_params p = default_params();
	struct fake *f = open_chunked(&p);
	struct moe_step *guess = NULL;
	uint32_t refused = 0, taken = 0, came = 0;
	bool good = true;

	for (int i = 0; i < ROUNDS && good; i++) {
		struct job job;

		f->hold = below(2);
		if (!guess)
			guess = guess_at_random(f, &refused);
		job_init(&job);
		good = job_run(f, &job, modes[below(3)]) == 0 && books_good(f);
		if (guess && below(2)) {
			const int32_t keep = (int32_t)below(EXPERTS);
			int r;

			if (below(2))
				moe_cancel(guess, below(2), &keep, NULL);
			f->hold = false;
			r = moe_wait(guess, NULL, 0, NULL);
			guess = NULL;
			taken += r == -ECANCELED;
			came += r == 0;
			good = good && (r == 0 || r == -ECANCELED) && books_good(f);
		}
	}
	ok(good && f->breaches == 0, "%d steps beside guesses are right", ROUNDS);
	ok(taken > 0 && came > 0, "%u guesses came, %u were taken back, %u refused", came, taken, refused);
	fake_free(f);
}

int main(void)
{
	push_into_gpus = true;
	jobs_begin();
	test_chunks();
	test_failed_chunk();
	test_arrives();
	test_nobody_waits();
	test_left();
	test_silent();
	test_full();
	test_cancel();
	test_wrong_guess();
	test_dual_batch();
	test_refused();
	test_failed_guess();
	for (int comes = 0; comes < 2; comes++) {
		test_overtaken(SLOTS, 2, comes);
		test_overtaken(EXPERTS, EXPERTS, comes);
	}
	test_not_yet_there();
	test_random();
	return tap_done();
}
