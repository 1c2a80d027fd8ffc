/* SPDX-License-Identifier: MIT */
/*
 * test-pool - what the CPU pool computes: against a plain computation in double, and the same bits whatever the
 * threads, nodes, waves and company.
 */
#include <errno.h>

#include "daemon/pool-wave.h"
#include "tests/pool-fixture.h"

/* One random model, every rank of one random tp size. */
static bool random_model(struct pool *pool, const struct kernels *kernels)
{
	const uint32_t tokens = pick(4) ? 1 + pick(12) : pick(2), format = 1 + pick(MOE_FORMAT_COUNT - 1);
	const uint32_t multiple = plain_multiple(format), most = multiple > 1 ? 96 / multiple + 1 : 90;
	const float limit = 0.5f;
	uint32_t size;
	struct fake f;
	struct job *j;
	bool good = true;

	fake_layout(&f, 1 + pick(6), multiple * (1 + pick(most)), multiple * (1 + pick(most)), format, 1 + pick(4));
	f.manifest.activation = pick(4);
	memcpy(&f.manifest.limit, &limit, sizeof(limit));
	fake_fill(&f);
	size = 1 + pick(MIN(moe_slice_units(&f.layouts[0]), 4u));
	for (uint32_t rank = 0; rank < size && good; rank++) {
		j = job_make(&f, tokens, 1 + pick(5), pick_x_type(), pick_x_type(), pick(4));
		job_slice(j, rank, size);
		job_run(pool, j);
		good = job_good(&f, j, kernels);
		if (!good)
			diag("%s, experts %u hidden %u inter %u shares %u rank %u of %u tokens %u topk %u",
			     moe_formats[format].name, f.manifest.n_experts, f.manifest.hidden, f.manifest.inter,
			     f.manifest.n_pools, rank, size, tokens, j->compute.topk);
		job_free(j);
	}
	fake_free(&f);
	return good;
}

static void test_random(void)
{
	static const uint32_t shapes[][2] = {{1, 1}, {1, 3}, {2, 4}, {2, 1}, {3, 4}, {4, 4}};

	for (size_t s = 0; s < ARRAY_LEN(shapes) * 2; s++) {
		const struct kernels *kernels = kernels_get(s % 2 ? ISA_REF : isa_detect(NULL));
		struct pool *pool = pool_make_kernels(shapes[s / 2][0], shapes[s / 2][1], kernels);
		bool good = true;

		for (int i = 0; i < 25 && good; i++)
			good = random_model(pool, kernels);
		ok(good, "random models, %u nodes, %u threads, %s: as computed in double", shapes[s / 2][0],
		   shapes[s / 2][1], kernels->name);
		pool_free(pool);
	}
}

enum { SHAPES = 8, SHARES = 4 };

/* Of one format: the job on each pool, the weights in one pool file or several. */
static bool same_on_nodes(struct pool *const *pools, uint32_t format)
{
	const uint32_t multiple = plain_multiple(format), ranks = 1 + pick(3), tokens = 1 + pick(40);
	const uint32_t hidden = multiple > 1 ? 256 : 330, inter = multiple > 1 ? 3 * MAX(multiple, 64u) : 190;
	const unsigned long long weights = seed;
	uint8_t *first = NULL;
	bool same = true;

	for (uint32_t shares = 1; shares <= SHARES; shares++) {
		uint32_t size;
		struct fake f;
		struct job *j;

		seed = weights; /* the same model and job */
		fake_layout(&f, 5, hidden, inter, format, shares);
		fake_fill(&f);
		j = job_make(&f, tokens, 3, MOE_TYPE_F32, MOE_TYPE_F32, 6);
		size = MIN(ranks, moe_slice_units(&f.layouts[0]));
		job_slice(j, pick(size), size);
		for (int s = 0; s < SHAPES && same; s++) {
			job_run(pools[s], j);
			if (!first) {
				first = allocate(j->y_bytes);
				memcpy(first, j->y, j->y_bytes);
				same = job_good(&f, j, kernels_get(isa_detect(NULL)));
			}
			same = same && memcmp(first, j->y, j->y_bytes) == 0;
			if (!same)
				diag("%s: %u shares, pool %d, a rank of %u", moe_formats[format].name, shares, s, size);
		}
		job_free(j);
		fake_free(&f);
	}
	free(first);
	return same;
}

/* A node may have no share, or several, and a team too. */
static void test_shares(void)
{
	static const uint32_t shapes[SHAPES][2] = {{1, 1}, {1, 2}, {2, 2}, {2, 3}, {3, 3}, {4, 4}, {3, 1}, {4, 2}};
	struct pool *pools[SHAPES];
	bool same = true;

	for (int i = 0; i < SHAPES; i++)
		pools[i] = pool_make(shapes[i][0], shapes[i][1]);
	for (uint32_t format = 1; format < MOE_FORMAT_COUNT && same; format++)
		same = same_on_nodes(pools, format);
	ok(same, "each format: the same bits with 1 to 4 shares on 1 to 4 nodes");
	for (int i = 0; i < SHAPES; i++)
		pool_free(pools[i]);
}

/* The same job with any number of threads, and each token alone. */
static void test_bits(void)
{
	static const uint32_t shapes[][2] = {{1, 1}, {1, 2}, {1, 3}, {1, 5}, {2, 4}, {3, 3}};
	struct fake f;
	struct job *j, *one;
	void *first;
	bool same = true;

	fake_layout(&f, 9, 330, 190, MOE_FORMAT_BF16, 2);
	fake_fill(&f);
	j = job_make(&f, 45, 4, MOE_TYPE_F32, MOE_TYPE_F32, 6);
	first = allocate(j->y_bytes);
	for (size_t s = 0; s < ARRAY_LEN(shapes); s++) {
		struct pool *pool = pool_make(shapes[s][0], shapes[s][1]);

		for (int i = 0; i < 5; i++) {
			job_run(pool, j);
			if (s == 0 && i == 0)
				memcpy(first, j->y, j->y_bytes);
			same = same && memcmp(first, j->y, j->y_bytes) == 0;
		}
		pool_free(pool);
	}
	ok(same && job_good(&f, j, kernels_get(isa_detect(NULL))),
	   "the same bits with 1, 2, 3 and 5 threads, and with 2 and 3 nodes");

	one = job_make(&f, 1, 4, MOE_TYPE_F32, MOE_TYPE_F32, 0);
	job_row(one, &f, j->compute.row);
	{
		struct pool *pool = pool_make(1, 2);

		for (uint32_t t = 0; t < 45; t++) {
			one->compute.x = (float *)j->x + (size_t)t * 330;
			one->compute.ids = j->ids + t * 4;
			one->compute.weights = j->weights + t * 4;
			job_run(pool, one);
			same = same && memcmp(one->y, (float *)first + (size_t)t * 330, 330 * 4) == 0;
		}
		pool_free(pool);
	}
	ok(same, "the same bits for a token alone and among others");
	job_free(one);
	job_free(j);
	free(first);
	fake_free(&f);
}

/* More tokens than scratch memory holds at once, with a stretch that has no pair at all. */
static void test_waves(void)
{
	enum { TOKENS = 2400, HIDDEN = 4096, TOPK = 8, PART = 300 };
	struct pool *pool = pool_make(1, 2);
	struct fake f;
	struct job *j;
	char *whole;
	bool same = true, zero = true;
	uint32_t first, pairs;

	fake_layout(&f, 6, HIDDEN, 4, MOE_FORMAT_F16, 1);
	fake_fill(&f);
	j = job_make(&f, TOKENS, TOPK, MOE_TYPE_BF16, MOE_TYPE_BF16, 50);
	for (size_t i = 0; i < (size_t)200 * TOPK; i++)
		j->ids[i] = j->ids[(size_t)(TOKENS - 1) * TOPK - i] = -1;
	wave_extent(&(struct ffn_job){.pool = pool, .compute = &j->compute}, &first, &pairs);
	ok(first < TOKENS, "the first wave has %u of %u tokens", first, TOKENS);
	job_run(pool, j);
	ok(j->result.status == 0 && j->result.pairs == job_pairs(j), "a job of several waves ends");
	whole = allocate(j->y_bytes);
	memcpy(whole, j->y, j->y_bytes);
	for (size_t i = 0; i < (size_t)200 * HIDDEN; i++)
		zero = zero && ((uint16_t *)whole)[i] == 0;
	ok(zero, "tokens without a pair are zeros");
	for (uint32_t t = 0; t < TOKENS; t += PART) {
		struct pool_compute *c = &j->compute;

		c->tokens = PART;
		c->x = (uint16_t *)j->x + (size_t)t * HIDDEN;
		c->ids = j->ids + (size_t)t * TOPK;
		c->weights = j->weights + (size_t)t * TOPK;
		job_run(pool, j);
		same = same && memcmp(j->y, whole + (size_t)t * HIDDEN * 2, (size_t)PART * HIDDEN * 2) == 0;
	}
	ok(same, "the same bits in several waves as in several jobs");
	ok(pool->scratch.kept != NULL, "the pool keeps its intermediate memory");
	pool_trim(pool);
	ok(pool->scratch.kept == NULL, "until it is told to give it back");
	job_run(pool, j);
	same = memcmp(j->y, whole + (size_t)(TOKENS - PART) * HIDDEN * 2, (size_t)PART * HIDDEN * 2) == 0;
	ok(same, "and takes some again for the next job: the same bits");
	free(whole);
	job_free(j);
	fake_free(&f);
	pool_free(pool);
}

/* 2^31 values per pair and buffer: more than any address space has. */
static void test_no_memory(void)
{
	struct pool *pool = pool_make(1, 2);
	struct fake f;
	struct job *j;
	int32_t ids[64] = {0};
	float weights[64] = {0};
	struct pool_stats stats;

	fake_layout(&f, 1, 8, 8, MOE_FORMAT_BF16, 1);
	fake_fill(&f);
	j = job_make(&f, 1, 1, MOE_TYPE_F32, MOE_TYPE_F32, 0);
	j->compute.topk = 64;
	j->compute.ids = ids;
	j->compute.weights = weights;
	f.manifest.hidden = f.manifest.inter = 0x80000000u;
	j->slice.inter = 0x80000000u;
	for (int i = 0; i < 3; i++)
		job_run(pool, j);
	pool_stats(pool, &stats);
	ok(j->result.status == -ENOMEM && j->ends == 1 && j->result.pairs == 0 && stats.pairs == 0,
	   "too little memory is the job's status");
	ok(((uint8_t *)j->y)[0] == 0xff, "and nothing is written");
	job_free(j);
	fake_free(&f);
	pool_free(pool);
}

static void test_params(void)
{
	struct host *host = host_make(3);
	struct pool_params params = {.host = host, .kernels = kernels_get(ISA_REF)};
	const uint32_t cpus = host->nodes[0].n_cpus;
	struct pool *pool = NULL;
	struct moe_error err = {0};

	host->nodes[1].n_cpus = host->nodes[1].n_cores = 0;
	require(pool_new(&pool, &params, &err) == 0, "a pool on all cores");
	ok(pool_threads(pool) == 2 * cpus, "a thread for each core of each node that has any");
	pool = pool_free(pool);
	host->nodes[0].n_cores = 1; /* its other CPUs are second threads of that core */
	host->nodes[2].n_cores = 1;
	require(pool_new(&pool, &params, &err) == 0, "a pool on single cores");
	ok(pool_threads(pool) == 2, "no two threads on a core");
	pool = pool_free(pool);
	host->cpu_quota = 1.5;
	require(pool_new(&pool, &params, &err) == 0, "a pool under a quota");
	ok(pool_threads(pool) == 1, "no more threads than the CPU quota lets run");
	pool = pool_free(pool);
	host->cpu_quota = 0.25;
	require(pool_new(&pool, &params, &err) == 0, "a pool under a small quota");
	ok(pool_threads(pool) == 1, "one thread at least");
	pool = pool_free(pool);
	host->cpu_quota = -1;
	params.threads = 5;
	require(pool_new(&pool, &params, &err) == 0, "a pool of five");
	ok(pool_threads(pool) == 5, "as many threads as asked for");
	pool = pool_free(pool);
	host->nodes[0].n_cpus = host->nodes[2].n_cpus = 0;
	ok(pool_new(&pool, &params, &err) == -EINVAL && !pool && strstr(err.text, "CPU"),
	   "no CPU at all is refused: %s", err.text);
	host->nodes[0].n_cpus = 1;
	host->nodes[0].cpus[0] = HOST_CPUS_MAX - 1;
	ok(pool_new(&pool, &params, &err) < 0 && !pool && strstr(err.text, "1023"), "a CPU that is not there: %s",
	   err.text);
	ok(pool_free(NULL) == NULL, "freeing nothing");
	free(host);
}

/* -- what a thread takes at once ---------------------------------------------------------------------------------- */

/* Whether the blocks of what was drawn are one expert's. */
static bool neighbours(const struct wave *w, struct pool_units units)
{
	const struct wave_place first = lane_place(&w->rows, 0, units.first);
	bool good = units.n > 0 && units.n <= first.n;

	for (uint32_t i = 1; i < units.n && good; i++) {
		const struct wave_place place = lane_place(&w->rows, 0, units.first + i);

		good = place.down == first.down && place.expert == first.expert && place.block == first.block + i;
	}
	return good;
}

/* Draws all units of a job's only wave as one thread would, none of which is run. */
static void draw_all(struct pool *pool, struct job *j, const char *what, bool several)
{
	struct ffn_job job = {.pool = pool, .compute = &j->compute};
	uint32_t tokens, pairs, all, next = 0, most = 0, last = 0;
	struct pool_units units;
	struct wave *w;
	bool good = true;

	wave_extent(&job, &tokens, &pairs);
	require(wave_new(&w, &job, tokens, pairs, NULL) == 0, "a wave");
	all = lane_gate_units(&w->rows, 0) + w->rows.down.team[1] * w->n_experts;
	atomic_store(&w->rows.batch.views[0].units, all);
	for (; (units = pool_view_draw(&w->rows.batch.views[0], 0)).n; next += units.n) {
		good = good && units.first == next && neighbours(w, units);
		most = MAX(most, units.n);
		last = units.n;
	}
	ok(good && next == all, "%s: each of %u units is taken once, neighbours together", what, all);
	ok(several ? most > 4 && last == 1 : most == 1, "at most %u at once, and %u at last", most, last);
	pool_batch_unref(&w->rows.batch);
	scratch_put(&pool->scratch, job.scratch);
}

/* What a wave of many tokens with one pair each takes is bounded too, and kept for the next: with activations that are
 * widened, and packed, there is more of a token than of a pair. */
static void test_scratch_bound(void)
{
	enum { TOKENS = 3500, HIDDEN = 7168, TOPK = 8 };
	struct pool *pool = pool_make(1, 2);
	struct ffn_job job = {.pool = pool};
	uint32_t tokens, pairs;
	struct fake f;
	struct wave *w;
	struct job *j;

	fake_layout(&f, 6, HIDDEN, 4, MOE_FORMAT_BF16, 1);
	fake_fill(&f);
	j = job_make(&f, TOKENS, TOPK, MOE_TYPE_BF16, MOE_TYPE_BF16, 50);
	for (size_t i = 0; i < (size_t)TOKENS * TOPK; i++)
		j->ids[i] = i % TOPK ? -1 : (int32_t)(i / TOPK % 6);
	job.compute = &j->compute;
	wave_extent(&job, &tokens, &pairs);
	require(wave_new(&w, &job, tokens, pairs, NULL) == 0, "a wave");
	ok(job.scratch->bytes <= SCRATCH_KEPT_MAX, "%u of %u tokens take %zu MiB, which are kept", tokens, TOKENS,
	   job.scratch->bytes >> 20);
	pool_batch_unref(&w->rows.batch);
	scratch_put(&pool->scratch, job.scratch);
	ok(pool->scratch.kept == job.scratch, "until the next");
	job_free(j);
	fake_free(&f);
	pool_free(pool);
}

/* One expert has half of all pairs: a unit of it is no longer than one would be if all experts had the same. */
static void test_skewed(void)
{
	enum { HIDDEN = 512, INTER = 768, EXPERTS = 8, TOKENS = 512, TOPK = 2, THREADS = 16, UNITS = 4, STEP = 16 };
	struct pool *pool = pool_make(1, THREADS);
	struct ffn_job job = {.pool = pool};
	uint32_t tokens, pairs, gate, down;
	struct fake f;
	struct wave *w;
	struct job *j;

	fake_layout(&f, EXPERTS, HIDDEN, INTER, MOE_FORMAT_F16, 1);
	fake_fill(&f);
	j = job_make(&f, TOKENS, TOPK, MOE_TYPE_F32, MOE_TYPE_F32, 0);
	for (uint32_t t = 0; t < TOKENS; t++) {
		j->ids[2 * t] = 0;
		j->ids[2 * t + 1] = (int32_t)(1 + t % (EXPERTS - 1));
	}
	job.compute = &j->compute;
	wave_extent(&job, &tokens, &pairs);
	require(wave_new(&w, &job, tokens, pairs, NULL) == 0, "a wave");
	gate = w->gate_blocks[0].rows;
	down = w->down_blocks[0].rows;
	ok(w->pairs_most == TOKENS && gate <= ALIGN_UP(INTER * 2 / (THREADS * UNITS), STEP) &&
		   down <= ALIGN_UP(HIDDEN * 2 / (THREADS * UNITS), STEP),
	   "half of %u pairs are one expert's: units of %u and %u rows for %d threads", pairs, gate, down, THREADS);
	pool_batch_unref(&w->rows.batch);
	scratch_put(&pool->scratch, job.scratch);
	job_free(j);
	fake_free(&f);
	pool_free(pool);
}

static void test_takes(void)
{
	enum { HIDDEN = 512, INTER = 768, EXPERTS = 8 };
	struct pool *pool = pool_make(1, 2);
	struct fake f;

	for (uint32_t shares = 1; shares <= 2; shares++) {
		struct job *few, *many;

		fake_layout(&f, EXPERTS, HIDDEN, INTER, MOE_FORMAT_BF16, shares);
		fake_fill(&f);
		few = job_make(&f, 1, EXPERTS, MOE_TYPE_F32, MOE_TYPE_F32, 0);
		many = job_make(&f, 40, EXPERTS, MOE_TYPE_F32, MOE_TYPE_F32, 0);
		for (uint32_t i = 0; i < EXPERTS; i++)
			few->ids[i] = (int32_t)i;
		for (uint32_t i = 0; i < 40 * EXPERTS; i++)
			many->ids[i] = (int32_t)(i % EXPERTS);
		draw_all(pool, few, shares == 1 ? "one token" : "one token, two shares", true);
		draw_all(pool, many, shares == 1 ? "40 tokens" : "40 tokens, two shares", false);
		job_free(few);
		job_free(many);
		fake_free(&f);
	}
	pool_free(pool);
}

int main(void)
{
	seed = tap_seed();
	test_params();
	test_random();
	test_bits();
	test_shares();
	test_waves();
	test_scratch_bound();
	test_skewed();
	test_takes();
	test_no_memory();
	return tap_done();
}
