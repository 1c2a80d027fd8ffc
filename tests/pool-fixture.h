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
#include "tests/plain-experts.h"
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

__attribute__((unused)) static uint32_t pick_x_type(void)
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

/* -- hosts and pools ---------------------------------------------------------------------------------------------- */

/* n_nodes nodes that all have the CPUs of this process. */
static struct host *host_make(uint32_t n_nodes)
{
	struct host *host = calloc(1, sizeof(*host));
	cpu_set_t cpus;

	require(host && sched_getaffinity(0, sizeof(cpus), &cpus) == 0, "a host with %u nodes", n_nodes);
	host->n_nodes = n_nodes;
	host->cpu_quota = -1;
	for (uint32_t n = 0; n < n_nodes; n++) {
		struct host_node *node = &host->nodes[n];

		node->id = (int)n;
		for (uint16_t c = 0; c < HOST_CPUS_MAX; c++)
			if (CPU_ISSET(c, &cpus))
				node->cpus[node->n_cpus++] = c;
		node->n_cores = node->n_cpus;
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

/* Two layers; the second one's experts have biases. */
struct fake {
	struct moe_manifest manifest;
	struct moe_layout whole[2], layouts[2]; /* in one pool file, and as it is */
	struct resident model;
	uint8_t *records[2];         /* of each layer, whole */
	struct plain_values *values; /* [layer][expert], filled when asked for */
};

static void fake_layout(struct fake *f, uint32_t n_experts, uint32_t hidden, uint32_t inter, uint32_t format,
			uint32_t n_pools)
{
	*f = (struct fake){0};
	for (int i = 0; i < 2; i++) {
		plain_layout(&f->whole[i], format, format, hidden, inter, i == 1);
		plain_spread(&f->layouts[i], &f->whole[i], n_pools);
	}
	f->manifest = (struct moe_manifest){
		.n_pools = n_pools,
		.n_layers = 2,
		.n_moe_layers = 2,
		.n_experts = n_experts,
		.n_layouts = 2,
		.hidden = hidden,
		.inter = inter,
		.record_bytes = f->layouts[1].record_bytes,
	};
	f->model.manifest = &f->manifest;
	f->model.layouts = f->layouts;
	f->model.n_pools = n_pools;
}

static uint8_t *fake_record(const struct fake *f, uint32_t row, uint32_t expert)
{
	return f->records[row] + expert * f->whole[row].record_bytes;
}

/* Of all experts. */
static void fake_fill(struct fake *f)
{
	const struct moe_manifest *m = &f->manifest;
	const uint32_t n = m->n_moe_layers * m->n_experts;
	struct moe_record *records = allocate(n * sizeof(*records));
	uint64_t used = 0;

	for (uint32_t i = 0; i < n; i++) {
		const uint32_t row = i / m->n_experts;

		records[i] = (struct moe_record){.layout = row, .offset = used};
		used += f->layouts[row].record_bytes;
	}
	f->model.records = records;
	for (uint32_t row = 0; row < m->n_moe_layers; row++)
		f->records[row] = allocate(m->n_experts * f->whole[row].record_bytes);
	for (uint32_t p = 0; p < m->n_pools; p++) {
		f->model.pools[p].map = allocate(used);
		f->model.pools[p].bytes = used;
		memset(f->model.pools[p].map, 0xff, used);
	}
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t row = i / m->n_experts;
		uint8_t *record = fake_record(f, row, i % m->n_experts);

		plain_fill_record(&f->whole[row], record, &seed);
		for (uint32_t p = 0; p < m->n_pools; p++)
			plain_move_share(&f->whole[row], record, &f->layouts[row], p,
					 (uint8_t *)f->model.pools[p].map + records[i].offset, false);
	}
	f->values = calloc(n, sizeof(*f->values));
	require(f->values != NULL, "memory for the experts' values");
}

static const struct plain_values *fake_values(const struct fake *f, uint32_t row, uint32_t expert)
{
	struct plain_values *v = &f->values[row * f->manifest.n_experts + expert];

	if (!v->hidden)
		plain_decode(v, &f->whole[row], fake_record(f, row, expert));
	return v;
}

static void fake_free(struct fake *f)
{
	for (uint32_t i = 0; i < f->manifest.n_moe_layers * f->manifest.n_experts; i++)
		plain_forget(&f->values[i]);
	free(f->values);
	for (uint32_t p = 0; p < f->model.n_pools; p++)
		free(f->model.pools[p].map);
	for (uint32_t row = 0; row < f->manifest.n_moe_layers; row++)
		free(f->records[row]);
	free((void *)f->model.records);
}

/* -- jobs --------------------------------------------------------------------------------------------------------- */

struct job {
	struct pool_compute compute; /* first: the callback's pointer is the job */
	struct moe_slice slice;      /* the job's */
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

/* The job is for this rank's slice. */
static void job_slice(struct job *j, uint32_t rank, uint32_t size)
{
	moe_slice_of(&j->slice, j->compute.layout, rank, size);
	j->compute.slice = &j->slice;
}

static void job_row(struct job *j, const struct fake *f, uint32_t row)
{
	j->compute.row = row;
	j->compute.layout = &f->layouts[row];
	job_slice(j, 0, 1);
}

/* Random inputs; about one pair in `holes` is missing (0: none). */
__attribute__((unused)) static struct job *job_make(const struct fake *f, uint32_t tokens, uint32_t topk,
						    uint32_t x_type, uint32_t y_type, uint32_t holes)
{
	const size_t n = (size_t)tokens * f->manifest.hidden, pairs = (size_t)tokens * topk;
	const struct kernels *ref = kernels_get(ISA_REF); /* asks the CPU, which is slow in a virtual machine */
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
			ref->f32_to_bf16(1, &x, (uint16_t *)j->x + i);
	}
	j->compute = (struct pool_compute){
		.model = &f->model,
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
	job_row(j, f, pick(2));
	return j;
}

__attribute__((unused)) static void job_free(struct job *j)
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

__attribute__((unused)) static void job_run(struct pool *pool, struct job *j)
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

static float job_x(const struct job *j, uint32_t token, uint32_t i)
{
	const size_t at = (size_t)token * j->compute.model->manifest->hidden + i;

	return j->compute.x_type == MOE_TYPE_F32 ? ((const float *)j->x)[at]
						 : (float)bf16_value(((const uint16_t *)j->x)[at]);
}

/* y and the magnitude of its terms for one token: the slice's part of the intermediate dimension only. */
static void plain_token(const struct fake *f, const struct job *j, uint32_t token, double *y, double *magnitude)
{
	const struct moe_manifest *m = &f->manifest;
	float *x = allocate(m->hidden * sizeof(*x)), limit;

	memcpy(&limit, &m->limit, sizeof(limit));
	for (uint32_t i = 0; i < m->hidden; i++)
		x[i] = job_x(j, token, i);
	for (uint32_t k = 0; k < j->compute.topk; k++) {
		const int32_t id = j->ids[(size_t)token * j->compute.topk + k];

		if (id >= 0)
			plain_expert(fake_values(f, j->compute.row, (uint32_t)id), m->activation, (double)limit,
				     j->slice.first, j->slice.inter,
				     (double)j->weights[(size_t)token * j->compute.topk + k], x, y, magnitude);
	}
	free(x);
}

/* `kernels`: those of the pool. */
__attribute__((unused)) static bool job_good(const struct fake *f, const struct job *j, const struct kernels *kernels)
{
	const double tolerance = plain_tolerance(kernels, j->compute.layout);
	const uint32_t hidden = f->manifest.hidden;
	double *y = allocate(hidden * sizeof(*y)), *magnitude = allocate(hidden * sizeof(*magnitude));
	bool good = j->result.status == 0 && j->ends == 1 && j->result.pairs == job_pairs(j);

	for (uint32_t t = 0; t < j->compute.tokens && good; t++) {
		memset(y, 0, hidden * sizeof(*y));
		memset(magnitude, 0, hidden * sizeof(*magnitude));
		plain_token(f, j, t, y, magnitude);
		for (uint32_t o = 0; o < hidden && good; o++) {
			const size_t at = (size_t)t * hidden + o;
			const bool narrow = j->compute.y_type == MOE_TYPE_BF16;
			const double got = narrow ? bf16_value(((uint16_t *)j->y)[at]) : (double)((float *)j->y)[at];

			good = fabs(got - y[o]) <= tolerance * magnitude[o] + (narrow ? fabs(y[o]) * 0x1p-8 : 0.0);
			if (!good)
				diag("y[%u][%u] = %g, expected %g (terms %g)", t, o, got, y[o], magnitude[o]);
		}
	}
	free(y);
	free(magnitude);
	return good;
}

#endif
