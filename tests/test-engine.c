/* SPDX-License-Identifier: MIT */
/*
 * The engine's steps against plain arithmetic: all modes, fills and policies, several steps in flight, with streams
 * that pause at random and a daemon that answers out of order. A copy or a computation that is not ordered by an event
 * reads NaNs and is seen.
 */
#include <errno.h>

#include "tests/engine-jobs.h"

#define FLIGHT_MOST 12

/* -- many steps --------------------------------------------------------------------------------------------------- */

/* Keeps up to max_steps in flight, waits for them in random order. mode MOE_MODE_AUTO: a random one each time. */
static int run_many(struct fake *f, enum moe_mode mode, int steps, bool same_layer, uint64_t *ret_pairs)
{
	static struct job jobs[FLIGHT_MOST];
	bool busy[FLIGHT_MOST] = {false};
	int wrong = 0, left = steps, flying = 0;

	*ret_pairs = 0;
	while (left > 0 || flying > 0) {
		const uint32_t i = below(f->session.params.max_steps);
		struct moe_error err = {0};
		int r = 0;

		if (!busy[i] && left > 0) {
			job_init(&jobs[i]);
			if (same_layer)
				jobs[i].layer = 2;
			r = job_submit(f, &jobs[i], mode == MOE_MODE_AUTO ? (enum moe_mode)below(4) : mode, &err);
			busy[i] = r == 0;
			flying += busy[i];
			left--;
			*ret_pairs += jobs[i].pairs;
		} else if (busy[i]) {
			r = moe_wait(jobs[i].step, jobs[i].y, 0, &err);
			busy[i] = false;
			flying--;
			if (r == 0 && job_error(f, &jobs[i], jobs[i].y) > 1) {
				r = 1;
				strcpy(err.text, "wrong numbers");
			}
		}
		if (r != 0 && wrong++ == 0)
			diag("%d: %s", r, err.text);
	}
	return wrong;
}

static void test_many(const char *name, const struct moe_attach_params *params, enum moe_mode mode, int steps,
		      bool same_layer)
{
	struct fake *f = open_fake(params);
	struct totals sum;
	uint64_t pairs;
	int wrong;

	f->session.engine->compute[PLACE_ASIDE].tokens = 1 + below(TOKENS);
	wrong = run_many(f, mode, steps, same_layer, &pairs);
	sum = read_stats(f);
	ok(wrong == 0 && f->breaches == 0, "%s: %d steps, %d wrong", name, steps, wrong);
	ok(sum.pairs == pairs && sum.steps == (uint64_t)steps,
	   "%s: %llu pairs add up (%llu hit, %llu miss buffer, %llu pool, %llu CPU, %llu fills)", name,
	   (unsigned long long)pairs, (unsigned long long)sum.hit, (unsigned long long)sum.miss_buffer,
	   (unsigned long long)sum.pool, (unsigned long long)sum.cpu, (unsigned long long)sum.fills);
	if (params->fill == MOE_FILL_PULL)
		ok(f->leases_held == 0 && f->leases == f->releases && f->leases == sum.fills + sum.reads,
		   "%s: %u leases are given back", name, f->leases);
	fake_free(f);
}

static void test_matrix(void)
{
	static const struct {
		const char *name;
		enum moe_mode mode;
		enum moe_fill fill;
		const char *policy;
		uint32_t slots, miss;
		enum moe_zero_copy zero_copy;
	} runs[] = {
		{"decode, push, lru", MOE_MODE_DECODE, MOE_FILL_PUSH, "lru", 4, 0},
		{"decode, push, original", MOE_MODE_DECODE, MOE_FILL_PUSH, "original", 4, 0},
		{"decode, pull, lru", MOE_MODE_DECODE, MOE_FILL_PULL, "lru", 3, 0},
		{"prefetch, push, lru", MOE_MODE_PREFETCH, MOE_FILL_PUSH, "lru", 4, 0},
		{"prefetch, pull, original", MOE_MODE_PREFETCH, MOE_FILL_PULL, "original", 2, 3},
		{"full, push, lru", MOE_MODE_FULL, MOE_FILL_PUSH, "lru", 1, 0},
		{"full, pull, lru", MOE_MODE_FULL, MOE_FILL_PULL, "lru", 2, 0},
		{"every mode, push, lru", MOE_MODE_AUTO, MOE_FILL_PUSH, "lru", 3, 4},
		{"every mode, pull, original", MOE_MODE_AUTO, MOE_FILL_PULL, "original", 3, 4},
		{"decode, read by cost", MOE_MODE_DECODE, MOE_FILL_PULL, "lru", 3, 0, MOE_ZERO_COPY_COST},
		{"decode, always read, original", MOE_MODE_DECODE, MOE_FILL_PULL, "original", 3, 0,
		 MOE_ZERO_COPY_ALWAYS},
		{"every mode, read by cost", MOE_MODE_AUTO, MOE_FILL_PULL, "original", 3, 4, MOE_ZERO_COPY_COST},
		{"every mode, always read", MOE_MODE_AUTO, MOE_FILL_PULL, "lru", 2, 3, MOE_ZERO_COPY_ALWAYS},
		{"all experts cached", MOE_MODE_AUTO, MOE_FILL_PUSH, "lru", EXPERTS, 0},
		{"no slots", MOE_MODE_AUTO, MOE_FILL_PUSH, "lru", 0, 0},
	};
	size_t i;

	for (i = 0; i < ARRAY_LEN(runs); i++) {
		struct moe_attach_params p = default_params();

		p.fill = runs[i].fill;
		p.policy = runs[i].policy;
		p.cache_expert_num = runs[i].slots;
		p.miss_expert_num = runs[i].miss;
		p.zero_copy = runs[i].zero_copy;
		p.n_copy = i % 2 ? MOE_N_COPY_STAIRS : MOE_N_COPY_COST;
		p.register_bytes = i % 3 ? 0 : 1 + below(20000); /* a record or a few in each piece */
		test_many(runs[i].name, &p, runs[i].mode, 120, false);
	}
}

/* The original had one sync struct and one buffer for both: the second micro-batch overwrote the first one's. */
static void test_micro_batches_of_one_layer(void)
{
	struct moe_attach_params p = default_params();

	p.cache_expert_num = 1;
	test_many("micro-batches of one layer, full", &p, MOE_MODE_FULL, 150, true);
	p.cache_expert_num = 2;
	test_many("micro-batches of one layer, decode", &p, MOE_MODE_DECODE, 150, true);
	p.fill = MOE_FILL_PULL;
	test_many("micro-batches of one layer, pull", &p, MOE_MODE_AUTO, 150, true);
}

/* So that copies must wait for who uses the places that they go to. */
static void test_more_fills_than_spare_places(void)
{
	struct moe_attach_params p = default_params();

	p.max_steps = FLIGHT_MOST;
	test_many("more fills than spare places, push", &p, MOE_MODE_DECODE, 200, true);
	p.fill = MOE_FILL_PULL;
	test_many("more fills than spare places, pull", &p, MOE_MODE_DECODE, 200, true);
	test_many("the same, any layer", &p, MOE_MODE_DECODE, 200, false);
}

/* Several threads, each with a layer of its own; the layers share miss buffers, streams and the ring. */
struct worker {
	struct fake *fake;
	pthread_t thread;
	uint32_t layer;
	struct job jobs[20];
	int wrong;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	size_t i;

	for (i = 0; i < ARRAY_LEN(w->jobs); i++) {
		w->jobs[i].layer = w->layer;
		w->wrong += job_run(w->fake, &w->jobs[i], i % 3 ? MOE_MODE_FULL : MOE_MODE_DECODE) != 0;
	}
	return NULL;
}

static void test_threads(void)
{
	struct moe_attach_params p = default_params();
	struct fake *f = open_fake(&p);
	static struct worker workers[FLIGHT];
	int i, wrong = 0;
	size_t j;

	for (i = 0; i < FLIGHT; i++) {
		workers[i] = (struct worker){.fake = f, .layer = (uint32_t)i + 1};
		for (j = 0; j < ARRAY_LEN(workers[i].jobs); j++)
			job_init(&workers[i].jobs[j]);
	}
	for (i = 0; i < FLIGHT; i++)
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
			abort();
	for (i = 0; i < FLIGHT; i++) {
		pthread_join(workers[i].thread, NULL);
		wrong += workers[i].wrong;
	}
	ok(wrong == 0 && f->breaches == 0, "%d threads on layers of their own: %d steps wrong", FLIGHT, wrong);
	fake_free(f);
}

/* -- tensor parallel ---------------------------------------------------------------------------------------------- */

static void test_ranks(enum moe_share share, const char *name)
{
	struct moe_attach_params p = default_params();
	struct fake *ranks[2];
	uint32_t r;
	int round, wrong = 0;

	p.tp_size = 2;
	p.share = share;
	p.n_copy = MOE_N_COPY_STAIRS;
	for (r = 0; r < 2; r++) {
		p.tp_rank = r;
		ranks[r] = open_fake(&p);
		moe_set_n_copy(&ranks[r]->session, 2);
	}
	for (round = 0; round < 60; round++) {
		struct job job;
		float sum[TOKENS * HIDDEN] = {0};
		uint32_t i;

		job_init(&job);
		for (r = 0; r < 2; r++) {
			const enum moe_mode mode = round % 2 ? MOE_MODE_DECODE : MOE_MODE_PREFETCH;

			wrong += job_submit(ranks[r], &job, mode, NULL) < 0 || moe_wait(job.step, job.y, 0, NULL) < 0;
			for (i = 0; i < job.tokens * HIDDEN; i++)
				sum[i] += job.y[i];
		}
		wrong += job_error(ranks[0], &job, sum) > 1;
	}
	ok(wrong == 0, "%s: the ranks' parts add up to the layer's output", name);
	if (share == MOE_SHARE_GROUP)
		ok(ranks[1]->computes == 0 && ranks[0]->computes > 0 && ranks[0]->wholes == ranks[0]->computes,
		   "%s: rank 0 alone asks for whole experts", name);
	else
		ok(ranks[0]->computes > 0 && ranks[0]->computes == ranks[1]->computes && ranks[0]->wholes == 0,
		   "%s: each rank asks for its slice", name);
	fake_free(ranks[0]);
	fake_free(ranks[1]);
}

int main(void)
{
	jobs_begin();
	test_matrix();
	test_micro_batches_of_one_layer();
	test_more_fills_than_spare_places();
	test_threads();
	test_ranks(MOE_SHARE_PART, "part");
	test_ranks(MOE_SHARE_GROUP, "group");
	return tap_done();
}
