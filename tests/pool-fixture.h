/* SPDX-License-Identifier: MIT */
/*
 * pool-fixture - what the tests of the CPU pool share: hosts and models in plain memory, random jobs, and the same
 * computation in plain double.
 */
#ifndef TESTS_POOL_FIXTURE_H
#define TESTS_POOL_FIXTURE_H

#include <math.h>
#include <sched.h>
#include <semaphore.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

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

static uint32_t pick_x_type(void)
{
	return pick(2) ? MOE_TYPE_BF16 : MOE_TYPE_F32;
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

/* Call first: prints the seed, or takes it from $TEST_SEED. */
static void seed_start(void)
{
	const char *text = getenv("TEST_SEED");

	seed = text ? strtoull(text, NULL, 0) : (unsigned long long)time(NULL);
	diag("TEST_SEED=%llu", seed);
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

#endif
