/* SPDX-License-Identifier: MIT */
/*
 * test-pool - the CPU pool against a plain computation in double, the same bits whatever the threads, nodes and company,
 * many jobs at once, priorities, and idleness.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"
#include "daemon/pool.h"
#include "kernels/ref/scalar.h"
#include "tests/tap.h"

static unsigned long long seed;

static uint32_t pick(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) >> 33) % n;
}

static float pick_float(void)
{
	return (float)((double)(tap_random(&seed) >> 11) * 0x1p-52 - 1.0);
}

static void *allocate(size_t bytes)
{
	void *p = aligned_alloc(64, ALIGN_UP(bytes + 1, (size_t)64));

	if (!p) {
		printf("Bail out! no memory\n");
		exit(1);
	}
	return p;
}

/* -- hosts and pools ---------------------------------------------------------------------------------------------- */

/* n_nodes nodes that all have the CPUs of this process. */
static struct host *host_make(uint32_t n_nodes)
{
	struct host *host = calloc(1, sizeof(*host));
	cpu_set_t cpus;

	require(host && sched_getaffinity(0, sizeof(cpus), &cpus) == 0, "a host with %u nodes", n_nodes);
	host->n_nodes = n_nodes;
	for (uint32_t n = 0; n < n_nodes; n++) {
		struct host_node *node = &host->nodes[n];

		node->id = (int)n;
		for (uint16_t c = 0; c < HOST_CPUS_MAX; c++)
			if (CPU_ISSET(c, &cpus))
				node->cpus[node->n_cpus++] = c;
	}
	return host;
}

static struct pool *pool_make_kernels(uint32_t n_nodes, uint32_t threads, const struct kernels *kernels)
{
	struct host *host = host_make(n_nodes);
	struct pool_params params = {.host = host, .threads = threads, .kernels = kernels, .spin_us = 20};
	struct pool *pool = NULL;
	struct moe_error err;

	require(pool_new(&pool, &params, &err) == 0, "a pool of %u threads on %u nodes", threads, n_nodes);
	free(host);
	return pool;
}

static struct pool *pool_make(uint32_t n_nodes, uint32_t threads)
{
	return pool_make_kernels(n_nodes, threads, kernels_get(isa_detect(NULL)));
}

/* -- models ------------------------------------------------------------------------------------------------------- */

struct fake {
	struct moe_manifest manifest;
	struct resident model;
};

static void fake_layout(struct fake *f, uint32_t n_experts, uint32_t hidden, uint32_t inter, uint32_t type,
			uint32_t n_pools)
{
	const uint64_t part = ALIGN_UP((uint64_t)hidden * inter * 2, (uint64_t)MOE_PART_ALIGN);
	struct moe_manifest *m = &f->manifest;

	*f = (struct fake){0};
	*m = (struct moe_manifest){
		.n_pools = n_pools,
		.n_layers = 2,
		.n_moe_layers = 2,
		.n_experts = n_experts,
		.hidden = hidden,
		.inter = inter,
		.type = type,
		.record_bytes = ALIGN_UP(3 * part, (uint64_t)MOE_RECORD_ALIGN),
		.up_offset = part,
		.down_offset = 2 * part,
	};
	f->model.manifest = m;
	f->model.n_pools = n_pools;
}

static void fake_fill(struct fake *f)
{
	const struct moe_manifest *m = &f->manifest;
	const uint32_t n = m->n_moe_layers * m->n_experts;
	struct moe_record *records = allocate(n * sizeof(*records));
	uint64_t used[MOE_POOLS_MAX] = {0};

	for (uint32_t i = 0; i < n; i++) {
		const uint32_t pool = (i / m->n_experts + i % m->n_experts) % m->n_pools;

		records[i] = (struct moe_record){.pool = pool, .offset = used[pool]};
		used[pool] += m->record_bytes;
	}
	f->model.records = records;
	for (uint32_t p = 0; p < m->n_pools; p++) {
		uint16_t *w = allocate(used[p]);

		/* magnitudes 2^-7 .. 2, any sign and fraction */
		for (uint64_t i = 0; i < used[p] / 2; i++)
			w[i] = (uint16_t)(m->type == MOE_TYPE_BF16 ? (120 + pick(8)) << 7 | pick(128)
								   : (8 + pick(8)) << 10 | pick(1024)) |
			       (uint16_t)(pick(2) << 15);
		f->model.pools[p].map = w;
		f->model.pools[p].bytes = used[p];
	}
}

static void fake_free(struct fake *f)
{
	for (uint32_t p = 0; p < f->model.n_pools; p++)
		free(f->model.pools[p].map);
	free((void *)f->model.records);
}

static double weight(const struct fake *f, const uint8_t *part, uint64_t row, uint64_t col, uint64_t cols)
{
	const uint16_t bits = ((const uint16_t *)part)[row * cols + col];

	return f->manifest.type == MOE_TYPE_BF16 ? bf16_value(bits) : f16_value(bits);
}

/* -- jobs --------------------------------------------------------------------------------------------------------- */

struct job {
	struct pool_compute compute; /* first: the callback's pointer is the job */
	struct pool_result result;
	sem_t ended;
	uint32_t ends;
	int32_t *ids;
	float *weights;
	void *x, *y;
	size_t y_bytes;
};

static void job_done(struct pool_compute *compute, const struct pool_result *result)
{
	struct job *j = container_of(compute, struct job, compute);

	j->result = *result;
	j->ends++;
	memset(&compute->entry, 0xee, sizeof(compute->entry)); /* the pool has let go of it */
	sem_post(&j->ended);
}

/* Random inputs; about one pair in `holes` is missing (0: none). */
static struct job *job_make(const struct fake *f, uint32_t tokens, uint32_t topk, uint32_t x_type, uint32_t y_type,
			    uint32_t holes)
{
	const size_t n = (size_t)tokens * f->manifest.hidden, pairs = (size_t)tokens * topk;
	struct job *j = allocate(sizeof(*j));

	*j = (struct job){0};
	sem_init(&j->ended, 0, 0);
	j->ids = allocate(pairs * sizeof(*j->ids));
	j->weights = allocate(pairs * sizeof(*j->weights));
	j->x = allocate(n * 4);
	j->y_bytes = n * (y_type == MOE_TYPE_BF16 ? 2 : 4);
	j->y = allocate(j->y_bytes);
	memset(j->y, 0xff, j->y_bytes); /* NaNs: what is not written is seen */
	for (size_t i = 0; i < pairs; i++) {
		j->ids[i] = holes && pick(holes) == 0 ? -1 : (int32_t)pick(f->manifest.n_experts);
		j->weights[i] = pick_float();
	}
	for (size_t i = 0; i < n; i++) {
		const float x = pick_float();

		if (x_type == MOE_TYPE_F32)
			((float *)j->x)[i] = x;
		else
			kernels_get(ISA_REF)->f32_to_bf16(1, &x, (uint16_t *)j->x + i);
	}
	j->compute = (struct pool_compute){
		.model = &f->model,
		.row = pick(2),
		.priority = pick(POOL_PRIORITIES),
		.tokens = tokens,
		.topk = topk,
		.x = j->x,
		.y = j->y,
		.x_type = x_type,
		.y_type = y_type,
		.ids = j->ids,
		.weights = j->weights,
		.done = job_done,
	};
	moe_slice_of(&j->compute.slice, &f->manifest, 0, 1);
	return j;
}

static void job_free(struct job *j)
{
	sem_destroy(&j->ended);
	free(j->ids);
	free(j->weights);
	free(j->x);
	free(j->y);
	free(j);
}

static void job_wait(struct job *j)
{
	while (sem_wait(&j->ended) < 0)
		continue;
}

static void job_run(struct pool *pool, struct job *j)
{
	memset(j->y, 0xff, j->y_bytes);
	j->ends = 0;
	pool_submit_compute(pool, &j->compute);
	job_wait(j);
}

static uint64_t job_pairs(const struct job *j)
{
	uint64_t pairs = 0;

	for (size_t i = 0; i < (size_t)j->compute.tokens * j->compute.topk; i++)
		pairs += j->ids[i] >= 0;
	return pairs;
}

/* -- the plain computation ---------------------------------------------------------------------------------------- */

static double job_x(const struct job *j, uint32_t token, uint32_t i)
{
	const size_t at = (size_t)token * j->compute.model->manifest->hidden + i;

	return j->compute.x_type == MOE_TYPE_F32 ? ((const float *)j->x)[at] : bf16_value(((const uint16_t *)j->x)[at]);
}

/* y and the magnitude of its terms for one token: rank's part of the intermediate dimension only. */
static void plain_token(const struct fake *f, const struct job *j, uint32_t token, uint32_t rank, double *y,
			double *magnitude)
{
	const struct moe_manifest *m = &f->manifest;
	const uint32_t inter = j->compute.slice.inter;

	for (uint32_t k = 0; k < j->compute.topk; k++) {
		const int32_t id = j->ids[(size_t)token * j->compute.topk + k];
		const double factor = j->weights[(size_t)token * j->compute.topk + k];
		const uint8_t *record;

		if (id < 0)
			continue;
		record = resident_record(&f->model, j->compute.row, (uint32_t)id);
		for (uint32_t r = rank * inter; r < (rank + 1) * inter; r++) {
			double g = 0, u = 0, gm = 0, um = 0, h;

			for (uint32_t c = 0; c < m->hidden; c++) {
				const double x = job_x(j, token, c);
				const double gate = weight(f, record, r, c, m->hidden) * x;
				const double up = weight(f, record + m->up_offset, r, c, m->hidden) * x;

				g += gate;
				u += up;
				gm += fabs(gate);
				um += fabs(up);
			}
			h = activation_value((enum kernel_activation)m->activation, g) * u;
			for (uint32_t o = 0; o < m->hidden; o++) {
				const double down = weight(f, record + m->down_offset, o, r, m->inter);

				y[o] += factor * down * h;
				magnitude[o] += fabs(factor * down) * gm * um;
			}
		}
	}
}

static bool job_good(const struct fake *f, const struct job *j, uint32_t rank)
{
	const uint32_t hidden = f->manifest.hidden;
	double *y = allocate(hidden * sizeof(*y)), *magnitude = allocate(hidden * sizeof(*magnitude));
	bool good = j->result.status == 0 && j->ends == 1 && j->result.pairs == job_pairs(j);

	for (uint32_t t = 0; t < j->compute.tokens && good; t++) {
		memset(y, 0, hidden * sizeof(*y));
		memset(magnitude, 0, hidden * sizeof(*magnitude));
		plain_token(f, j, t, rank, y, magnitude);
		for (uint32_t o = 0; o < hidden && good; o++) {
			const size_t at = (size_t)t * hidden + o;
			const bool narrow = j->compute.y_type == MOE_TYPE_BF16;
			const double got = narrow ? bf16_value(((uint16_t *)j->y)[at]) : ((float *)j->y)[at];

			good = fabs(got - y[o]) <= 1e-5 * magnitude[o] + (narrow ? fabs(y[o]) * 0x1p-8 : 0.0);
			if (!good)
				diag("y[%u][%u] = %g, expected %g (terms %g)", t, o, got, y[o], magnitude[o]);
		}
	}
	free(y);
	free(magnitude);
	return good;
}

/* -- tests -------------------------------------------------------------------------------------------------------- */

static uint32_t pick_x_type(void)
{
	return pick(2) ? MOE_TYPE_BF16 : MOE_TYPE_F32;
}

/* One random model, every rank of one random tp size. */
static bool random_model(struct pool *pool)
{
	const uint32_t size = 1u << pick(3), tokens = pick(4) ? 1 + pick(30) : pick(2);
	const uint32_t hidden = 1 + pick(90), inter = size * (1 + pick(40 / size));
	struct fake f;
	struct job *j;
	bool good = true;

	fake_layout(&f, 1 + pick(12), hidden, inter, pick(2) ? MOE_TYPE_BF16 : MOE_TYPE_F16, 1 + pick(2));
	f.manifest.activation = pick(3);
	fake_fill(&f);
	for (uint32_t rank = 0; rank < size && good; rank++) {
		j = job_make(&f, tokens, 1 + pick(5), pick_x_type(), pick_x_type(), pick(4));
		moe_slice_of(&j->compute.slice, &f.manifest, rank, size);
		job_run(pool, j);
		good = job_good(&f, j, rank);
		if (!good)
			diag("experts %u hidden %u inter %u rank %u of %u tokens %u topk %u", f.manifest.n_experts,
			     hidden, inter, rank, size, tokens, j->compute.topk);
		job_free(j);
	}
	fake_free(&f);
	return good;
}

static void test_random(void)
{
	static const uint32_t shapes[][2] = {{1, 1}, {1, 3}, {2, 4}, {2, 1}};

	for (size_t s = 0; s < ARRAY_LEN(shapes); s++) {
		struct pool *pool = pool_make(shapes[s][0], shapes[s][1]);
		bool good = true;

		for (int i = 0; i < 40 && good; i++)
			good = random_model(pool);
		ok(good, "random models, %u nodes, %u threads: as computed in double", shapes[s][0], shapes[s][1]);
		pool_free(pool);
	}
}

/* The same job with any number of threads and nodes, and each token alone. */
static void test_bits(void)
{
	static const uint32_t shapes[][2] = {{1, 1}, {1, 2}, {1, 3}, {1, 5}, {2, 4}};
	struct fake f;
	struct job *j, *one;
	void *first;
	bool same = true;

	fake_layout(&f, 9, 330, 190, MOE_TYPE_BF16, 2);
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
	ok(same && job_good(&f, j, 0), "the same bits with 1, 2, 3 and 5 threads, and with 2 nodes");

	one = job_make(&f, 1, 4, MOE_TYPE_F32, MOE_TYPE_F32, 0);
	one->compute.row = j->compute.row;
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
	enum { TOKENS = 900, HIDDEN = 4096, TOPK = 8, PART = 300 };
	struct pool *pool = pool_make(1, 2);
	struct fake f;
	struct job *j;
	char *whole;
	bool same = true, zero = true;

	fake_layout(&f, 6, HIDDEN, 4, MOE_TYPE_F16, 1);
	fake_fill(&f);
	j = job_make(&f, TOKENS, TOPK, MOE_TYPE_BF16, MOE_TYPE_BF16, 50);
	for (size_t i = 0; i < (size_t)200 * TOPK; i++)
		j->ids[i] = j->ids[(size_t)(TOKENS - 1) * TOPK - i] = -1;
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
	free(whole);
	job_free(j);
	fake_free(&f);
	pool_free(pool);
}

/* -- copies ------------------------------------------------------------------------------------------------------- */

struct fill {
	struct pool_copy copy;
	struct pool_result result;
	sem_t ended;
	uint8_t *dst;
};

static void fill_done(struct pool_copy *copy, const struct pool_result *result)
{
	struct fill *fill = container_of(copy, struct fill, copy);

	fill->result = *result;
	sem_post(&fill->ended);
}

static struct fill *fill_make(const struct fake *f, uint32_t rank, uint32_t size)
{
	struct fill *fill = allocate(sizeof(*fill));

	*fill = (struct fill){0};
	sem_init(&fill->ended, 0, 0);
	moe_slice_of(&fill->copy.slice, &f->manifest, rank, size);
	fill->dst = allocate(fill->copy.slice.bytes + 64);
	memset(fill->dst, 0xa5, fill->copy.slice.bytes + 64);
	fill->copy.model = &f->model;
	fill->copy.row = pick(2);
	fill->copy.expert = pick(f->manifest.n_experts);
	fill->copy.priority = pick(POOL_PRIORITIES);
	fill->copy.dst = fill->dst;
	fill->copy.done = fill_done;
	return fill;
}

static bool fill_good(const struct fill *fill)
{
	const struct pool_copy *c = &fill->copy;
	const uint8_t *record = resident_record(c->model, c->row, c->expert);
	bool good = fill->result.status == 0 && fill->result.bytes == c->slice.bytes;

	for (int p = 0; p < 3; p++) {
		const struct moe_slice_part *part = &c->slice.part[p];

		for (uint64_t r = 0; r < part->rows; r++)
			good = good && memcmp(fill->dst + part->slot_offset + r * part->width,
					      record + part->offset + r * part->pitch, part->width) == 0;
	}
	for (int i = 0; i < 64; i++)
		good = good && fill->dst[c->slice.bytes + (uint64_t)i] == 0xa5;
	return good;
}

static void fill_free(struct fill *fill)
{
	sem_destroy(&fill->ended);
	free(fill->dst);
	free(fill);
}

static void test_copies(void)
{
	struct pool *pool = pool_make(2, 3);
	struct pool_stats before, after;
	uint64_t bytes = 0;
	struct fake f;
	bool good = true;

	fake_layout(&f, 2, 700, 1024, MOE_TYPE_BF16, 2); /* parts of 1.4 MB: several units each */
	fake_fill(&f);
	pool_stats(pool, &before);
	for (int i = 0; i < 12; i++) {
		const uint32_t size = 1u << pick(4);
		struct fill *fill = fill_make(&f, pick(size), size);

		pool_submit_copy(pool, &fill->copy);
		while (sem_wait(&fill->ended) < 0)
			continue;
		good = good && fill_good(fill);
		bytes += fill->copy.slice.bytes;
		fill_free(fill);
	}
	pool_stats(pool, &after);
	ok(good, "slices arrive packed, and nothing behind them");
	ok(after.copy_bytes - before.copy_bytes == bytes && after.jobs - before.jobs == 12, "copies are counted");
	fake_free(&f);
	pool_free(pool);
}

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

	fake_layout(&f, 8, 200, 96, MOE_TYPE_F16, 2);
	fake_fill(&f);
	for (int n = 0; n < SUBMITTERS; n++) {
		s[n] = (struct submitter){.pool = pool, .good = true};
		for (int i = 0; i < JOBS; i++) {
			struct job *j = job_make(&f, i % 5 ? 1 + pick(4) : pick(60), 1 + pick(4), pick_x_type(),
						 pick_x_type(), pick(4));

			s[n].jobs[i] = j;
			s[n].fills[i] = fill_make(&f, pick(2), 2);
			job_run(pool, j);
			good = good && (i % 4 || job_good(&f, j, 0));
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

/* Counts calls on a team's threads for records of another node; stops at the first call when told to. */
static void hook_gate_up(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows, size_t cols,
			 enum kernel_activation act, size_t tokens, const float *const *x, float *const *h)
{
	char name[16] = "";
	unsigned int team = 0;

	pthread_getname_np(pthread_self(), name, sizeof(name));
	if (sscanf(name, "moe-pool/%u.", &team) != 1)
		team = UINT32_MAX;
	atomic_fetch_add(&hook_calls, 1);
	for (uint32_t p = 0; p < hook_model->model.n_pools; p++) {
		const uint8_t *map = hook_model->model.pools[p].map, *data = gate->data;

		if (data >= map && data < map + hook_model->model.pools[p].bytes && p != team)
			atomic_fetch_add(&hook_strangers, 1);
	}
	if (atomic_exchange(&hook_stops, false)) {
		sem_post(&hook_reached);
		while (sem_wait(&hook_release) < 0)
			continue;
	}
	kernels_get(ISA_REF)->gate_up[KERNEL_BF16](gate, up, rows, cols, act, tokens, x, h);
}

static struct kernels hook_table(const struct fake *f)
{
	struct kernels k = *kernels_get(ISA_REF);

	k.gate_up[KERNEL_BF16] = hook_gate_up;
	hook_model = f;
	atomic_store(&hook_calls, 0);
	atomic_store(&hook_strangers, 0);
	return k;
}

static void test_nodes(void)
{
	struct kernels k;
	struct pool *pool;
	struct fake f;
	struct job *j;

	fake_layout(&f, 10, 64, 70, MOE_TYPE_BF16, 2);
	fake_fill(&f);
	k = hook_table(&f);
	pool = pool_make_kernels(2, 4, &k);
	for (int i = 0; i < 10; i++) {
		j = job_make(&f, 12, 3, MOE_TYPE_BF16, MOE_TYPE_F32, 0);
		job_run(pool, j);
		if (!job_good(&f, j, 0))
			atomic_fetch_add(&hook_strangers, 1000);
		job_free(j);
	}
	ok(atomic_load(&hook_calls) > 0 && atomic_load(&hook_strangers) == 0,
	   "a team touches only records of its own node");
	pool_free(pool);
	fake_free(&f);
}

static struct job *order[8];
static _Atomic uint32_t n_order;

static void order_done(struct pool_compute *compute, const struct pool_result *result)
{
	order[atomic_fetch_add(&n_order, 1)] = container_of(compute, struct job, compute);
	job_done(compute, result);
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

	fake_layout(&f, 4, 64, 64, MOE_TYPE_BF16, 1);
	fake_fill(&f);
	k = hook_table(&f);
	sem_init(&hook_reached, 0, 0);
	sem_init(&hook_release, 0, 0);
	atomic_store(&hook_stops, true);
	pool = pool_make_kernels(1, 1, &k);
	for (size_t i = 0; i < ARRAY_LEN(submitted); i++) {
		jobs[i] = job_make(&f, 6, 3, MOE_TYPE_F32, MOE_TYPE_F32, 0);
		jobs[i]->compute.priority = submitted[i];
		jobs[i]->compute.done = order_done;
		pool_submit_compute(pool, &jobs[i]->compute);
		if (i == 0)
			while (sem_wait(&hook_reached) < 0)
				continue;
	}
	sem_post(&hook_release);
	for (size_t i = 0; i < ARRAY_LEN(submitted); i++)
		job_wait(jobs[i]);
	for (size_t i = 0; i < ARRAY_LEN(submitted); i++)
		good = good && order[i] == jobs[expected[i]];
	ok(good, "decode before prefill before background, each in order, even amid a job");
	pool_free(pool);
	for (size_t i = 0; i < ARRAY_LEN(submitted); i++) {
		good = good && job_good(&f, jobs[i], 0);
		job_free(jobs[i]);
	}
	ok(good, "an interrupted job is right all the same");
	fake_free(&f);
}

/* -- the rest ----------------------------------------------------------------------------------------------------- */

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

	fake_layout(&f, 4, 64, 64, MOE_TYPE_BF16, 2);
	fake_fill(&f);
	j = job_make(&f, 4, 2, MOE_TYPE_F32, MOE_TYPE_F32, 0);
	job_run(pool, j);
	usleep(50000); /* far beyond the polling time */
	start = cpu_ns();
	usleep(300000);
	used = cpu_ns() - start;
	ok(used < 3000000, "an idle pool uses no CPU");
	diag("%.3f ms in 300 ms", (double)used * 1e-6);
	job_run(pool, j);
	ok(job_good(&f, j, 0), "and wakes up");
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

	fake_layout(&f, 1, 8, 8, MOE_TYPE_BF16, 1);
	fake_fill(&f);
	j = job_make(&f, 1, 1, MOE_TYPE_F32, MOE_TYPE_F32, 0);
	j->compute.topk = 64;
	j->compute.ids = ids;
	j->compute.weights = weights;
	f.manifest.hidden = f.manifest.inter = 0x80000000u;
	j->compute.slice.inter = 0x80000000u;
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

	host->nodes[1].n_cpus = 0;
	require(pool_new(&pool, &params, &err) == 0, "a pool on all CPUs");
	ok(pool_threads(pool) == 2 * cpus, "a thread for each CPU of each node that has any");
	pool = pool_free(pool);
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

int main(void)
{
	const char *text = getenv("TEST_SEED");

	seed = text ? strtoull(text, NULL, 0) : (unsigned long long)time(NULL);
	diag("TEST_SEED=%llu", seed);
	test_params();
	test_random();
	test_bits();
	test_waves();
	test_copies();
	test_many(1, 3);
	test_many(2, 4);
	test_nodes();
	test_priorities();
	test_idle();
	test_no_memory();
	return tap_done();
}
