/* SPDX-License-Identifier: MIT */
/* A session that guesses, and one with ghosts, with a fake daemon: what is counted is what a predictor and ghosts
 * beside it say, announcements wait for nobody, and results are right. */
#include "ghost/ghost.h"
#include "predict/predict.h"
#include "tests/engine-jobs.h"

#define GUESSED 3

static struct fake *open_guessing(uint32_t predict, uint32_t tp_rank)
{
	struct moe_attach_params p = default_params();

	p.predict = predict;
	p.tp_rank = tp_rank;
	p.tp_size = tp_rank + 1;
	return open_fake(&p);
}

struct seen {
	uint64_t guessed, asked, found;
};

static struct seen read_seen(const struct fake *f)
{
	struct seen sum = {0};

	for (uint32_t i = 0; i < LAYERS; i++) {
		sum.guessed += f->session.stats[i].guessed;
		sum.asked += f->session.stats[i].guess_asked;
		sum.found += f->session.stats[i].guess_found;
	}
	return sum;
}

/* What the session should count for this step, by a predictor of our own; and all that it says of the next layer. */
struct beside {
	struct predict *predict;
	uint32_t n[LAYERS];
	int32_t guess[LAYERS][EXPERTS];
	struct seen seen;
};

static void follow(struct beside *b, const struct job *job, uint32_t topk_max)
{
	const uint32_t row = job->layer - 1, next = (row + 1) % (LAYERS - 1);
	bool asked[EXPERTS] = {false};

	if (job->topk > topk_max)
		abort();
	for (uint32_t i = 0; i < job->tokens * job->topk; i++)
		if (job->ids[i] >= 0)
			asked[job->ids[i]] = true;
	b->seen.guessed += b->n[row];
	for (uint32_t e = 0; e < EXPERTS && b->n[row]; e++)
		b->seen.asked += asked[e];
	for (uint32_t i = 0; i < b->n[row]; i++)
		b->seen.found += asked[b->guess[row][i]];
	predict_learn(b->predict, row, job->tokens, job->topk, job->ids);
	predict_remember(b->predict, row, job->tokens, job->topk, job->ids);
	b->n[row] = 0;
	b->n[next] = predict_next(b->predict, next, GUESSED, b->guess[next]);
}

static void test_counts(void)
{
	struct fake *f = open_guessing(GUESSED, 0);
	const uint32_t topk = f->session.info.topk;
	struct beside b = {0};
	struct seen seen;
	bool right = true;

	require(predict_new(&b.predict, LAYERS - 1, EXPERTS, topk, NULL) == 0, "a predictor beside the session's");
	for (uint32_t i = 0; i < 300 && right; i++) {
		struct moe_plan *unused;
		struct job job;

		do
			job_init(&job);
		while (job.topk > topk);
		job.layer = 1 + i % (LAYERS - 1);
		if (below(5) == 0 && job_plan(f, &job, MOE_MODE_DECODE, &unused, NULL) == 0)
			moe_plan_free(unused);
		if (below(8) == 0)
			right &= moe_phase(&f->session, MOE_STEP_DECODE, i, true, NULL) == 0 &&
				 job_run(f, &job, MOE_MODE_DECODE) == 0 &&
				 moe_phase(&f->session, MOE_STEP_DECODE, i, false, NULL) == 0;
		right &= job_run(f, &job, below(2) ? MOE_MODE_DECODE : MOE_MODE_PREFETCH) == 0;
		follow(&b, &job, topk);
	}
	seen = read_seen(f);
	ok(right, "steps of a session that guesses are right");
	ok(seen.guessed == b.seen.guessed && seen.asked == b.seen.asked && seen.found == b.seen.found && seen.found > 0,
	   "guessed %llu, asked %llu, found %llu: as the predictor beside it; plans not submitted and dummy steps "
	   "count "
	   "nothing",
	   (unsigned long long)seen.guessed, (unsigned long long)seen.asked, (unsigned long long)seen.found);
	ok(f->hints > 0 && f->breaches == 0, "%u guesses were announced", atomic_load(&f->hints));
	predict_free(b.predict);
	fake_free(f);
}

/* One token whose expert at each layer follows from the layer below. */
static bool run_chain(struct fake *f, uint32_t steps)
{
	bool right = true;

	for (uint32_t i = 0; i < steps * (LAYERS - 1) && right; i++) {
		struct job job;

		job_init(&job);
		job.layer = 1 + i % (LAYERS - 1);
		job.tokens = job.topk = job.pairs = 1;
		job.ids[0] = (int32_t)((i / (LAYERS - 1) * 3 + job.layer * 2) % EXPERTS);
		/* A rank's y is only its part. */
		right = job_run(f, &job, MOE_MODE_DECODE) <= (f->session.params.tp_size > 1);
	}
	return right;
}

static void test_learns(void)
{
	struct fake *f = open_guessing(1, 0);
	struct seen before, after;

	ok(run_chain(f, 4 * EXPERTS), "a walk through the layers that repeats itself");
	before = read_seen(f);
	ok(run_chain(f, EXPERTS), "once more");
	after = read_seen(f);
	ok(after.asked - before.asked == (uint64_t)EXPERTS * (LAYERS - 1) &&
		   after.found - before.found >= (after.asked - before.asked) * 9 / 10,
	   "has been learned: %llu of %llu guesses of one expert are right",
	   (unsigned long long)(after.found - before.found), (unsigned long long)(after.asked - before.asked));
	fake_free(f);
}

/* The daemon answers nothing for a while: steps cannot end, but submitting waits for no announcement. */
static void test_waits_for_nobody(void)
{
	struct fake *f = open_guessing(GUESSED, 0);
	struct job jobs[2];
	uint32_t i;
	int r = 0;

	ok(run_chain(f, 3), "some steps");
	f->stall = true;
	for (i = 0; i < 2; i++) {
		job_init(&jobs[i]);
		jobs[i].layer = 1 + i;
		r |= job_submit(f, &jobs[i], MOE_MODE_DECODE, NULL);
	}
	ok(r == 0, "submitted while no announcement is answered");
	f->stall = false;
	for (i = 0; i < 2; i++)
		r |= moe_wait(jobs[i].step, jobs[i].y, 0, NULL);
	ok(r == 0 && job_error(f, &jobs[0], jobs[0].y) < 1 && job_error(f, &jobs[1], jobs[1].y) < 1,
	   "and right when it answers again");
	fake_free(f);
}

static void test_off(void)
{
	struct fake *f = open_guessing(0, 0);
	struct moe_error err = {0};

	ok(run_chain(f, 5) && f->hints == 0 && read_seen(f).guessed == 0, "off by default: nothing is announced");
	f->session.params.predict = 4;
	f->session.params.dual_batch = true;
	ok(engine_new(&(struct engine *){NULL}, &f->session, &err) == -EINVAL && strstr(err.text, "predict"),
	   "refused with dual_batch: %s", err.text);
	f->session.params.dual_batch = false;
	fake_free(f);
	f = open_guessing(GUESSED, 1);
	ok(run_chain(f, 5) && f->hints == 0 && read_seen(f).guessed == 0, "of a group rank 0 guesses alone");
	fake_free(f);
}

/* -- ghosts ------------------------------------------------------------------------------------------------------- */

static bool same_counts(const struct moe_ghost_stats *s, const struct ghost_counts *c, uint32_t n)
{
	bool same = s->steps == c->steps && s->asked == c->asked && s->asked_pairs == c->asked_pairs &&
		    s->bound_asked == c->bound.asked && s->bound_hits == c->bound.hits && s->bound_asked > 0 &&
		    s->bound_own == c->bound.own && s->recent_asked == c->recent.asked &&
		    s->recent_hits == c->recent.hits && s->recent_own == c->recent.own;

	for (uint32_t i = 0; i < n; i++)
		same &= s->caches[i].hits == c->hits[i] && s->caches[i].hits_pairs == c->hits_pairs[i];
	return same;
}

/* Two of the four layers are looked at: the second and the last. */
static void test_ghosts(void)
{
	struct moe_attach_params p = default_params();
	struct ghost_cache caches[MOE_GHOST_CACHES];
	const struct moe_ghost_stats *stats;
	struct ghost_counts counts = {0};
	struct ghost *beside[2];
	bool right = true;
	struct fake *f;
	uint32_t n = 0;

	p.ghost_layers = 2;
	f = open_fake(&p);
	stats = &f->session.queue.client->ghosts;
	for (; n < MOE_GHOST_CACHES && stats->caches[n].slots; n++)
		caches[n] = (struct ghost_cache){policy_find((const char *)stats->caches[n].policy),
						 (uint32_t)stats->caches[n].slots};
	ok(stats->layers == 2 && n == 7 && strcmp(caches[0].policy->name, "lru") == 0 && caches[0].slots == 4 &&
		   caches[1].slots == 1 && caches[2].slots == 3 && caches[3].slots == 6 && caches[4].slots == 9 &&
		   strcmp(caches[5].policy->name, "ema") == 0,
	   "the session's own cache, an eighth to three quarters of its experts, and other policies");
	for (int i = 0; i < 2; i++)
		require(ghost_new(&beside[i], EXPERTS, caches, n, 4, NULL) == 0, "ghosts beside the session's");
	for (uint32_t i = 0; i < 3 * GHOST_WINDOW * (LAYERS - 1) && right; i++) {
		struct job job;

		job_init(&job);
		job.layer = 1 + i % (LAYERS - 1);
		right = job_run(f, &job, below(2) ? MOE_MODE_DECODE : MOE_MODE_PREFETCH) == 0;
		if (job.layer == 2 || job.layer == 4)
			ghost_step(beside[job.layer / 4],
				   &(struct policy_tokens){job.tokens, job.topk, job.ids, job.weights}, &counts);
	}
	ok(right, "steps of a session with ghosts are right");
	ok(same_counts(stats, &counts, n), "%llu steps of two layers are counted as beside it",
	   (unsigned long long)stats->steps);
	for (int i = 0; i < 2; i++)
		ghost_free(beside[i]);
	fake_free(f);
}

int main(void)
{
	jobs_begin();
	test_ghosts();
	test_counts();
	test_learns();
	test_waits_for_nobody();
	test_off();
	return tap_done();
}
