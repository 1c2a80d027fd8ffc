/* SPDX-License-Identifier: MIT */
/*
 * engine-jobs - a small model behind a fake daemon, random steps on it, and what must come out of them. Its layers take
 * turns in two formats, whose slots differ in size and are cut in different units: 96 are three of 32 to MXFP4.
 */
#ifndef TESTS_ENGINE_JOBS_H
#define TESTS_ENGINE_JOBS_H

#include "cache.h"
#include "device/device-host.h"
#include "engine.h"
#include "tests/fake-daemon.h"

#define EXPERTS 12
#define HIDDEN 32
#define INTER 96
#define LAYERS 5
#define TOKENS 6
#define FLIGHT 3

static const struct fake_shape shape = {LAYERS, EXPERTS, HIDDEN, INTER, 16, {MOE_FORMAT_MXFP4, MOE_FORMAT_FP8_ROW}, 3};
static unsigned long long seed, model_seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

/* MOE_TEST_DEVICE: what the engine computes on, "host" if not said. */
static const char *test_device(void)
{
	const char *given = getenv("MOE_TEST_DEVICE");

	return given ? given : "host";
}

static struct moe_attach_params default_params(void)
{
	return (struct moe_attach_params){
		.size = sizeof(struct moe_attach_params),
		.tp_size = 1,
		.entries = 16,
		.max_tokens = TOKENS,
		.max_steps = FLIGHT,
		.cache_expert_num = 4,
		.cache_topk = 2,
		.update_expert_num = 2,
		.policy = "lru",
		.device = test_device(),
	};
}

/* Set by a test whose subject is pushing, or by MOE_TEST_PUSH: the fake daemon pushes into GPUs as well. */
__attribute__((unused)) static bool push_into_gpus;

/* Else devices whose memory is no file get their experts by pull, whatever the params say. */
__attribute__((unused)) static struct fake *open_fake(const struct moe_attach_params *params)
{
	struct moe_attach_params p = *params;
	const struct device_ops *ops;
	const char *which;
	struct moe_error err;
	struct fake *f;

	push_into_gpus |= getenv("MOE_TEST_PUSH") != NULL;
	if (device_find(p.device, &ops, &which, &err) == 0 && !ops->exports && !push_into_gpus)
		p.fill = MOE_FILL_PULL;
	f = fake_new(&shape, &p, model_seed);
	f->session.features = push_into_gpus ? MOE_FEATURE_DEVICE : 0;

	if (engine_new(&f->session.engine, &f->session, &err) < 0) {
		diag("%s", err.text);
		abort();
	}
	return f;
}

/* One layer's step: its input and what must come out. */
struct job {
	uint32_t layer, tokens, topk;
	int32_t ids[TOKENS * EXPERTS];
	float weights[TOKENS * EXPERTS], x[TOKENS * HIDDEN], y[TOKENS * HIDDEN];
	uint32_t pairs;
	struct moe_step *step;
};

__attribute__((unused)) static void job_init(struct job *job)
{
	uint32_t t, k, i;

	*job = (struct job){.layer = 1 + below(LAYERS - 1), .tokens = 1 + below(TOKENS), .topk = 1 + below(5)};
	for (t = 0; t < job->tokens; t++) {
		const uint32_t first = below(below(2) ? 3 : EXPERTS), stride = below(2) ? 1 : 5;

		for (k = 0; k < job->topk; k++) {
			const uint32_t at = t * job->topk + k;

			job->ids[at] = below(20) ? (int32_t)((first + k * stride) % EXPERTS) : -1;
			job->weights[at] = (float)plain_random(&seed, 1);
			job->pairs += job->ids[at] >= 0;
		}
	}
	for (i = 0; i < job->tokens * HIDDEN; i++)
		job->x[i] = (float)plain_random(&seed, 1);
}

/* What a result may differ by: on the host nothing but the sums' order; other devices may pack activations, and lose
 * what plain_tolerance says. */
static double job_allowed(double magnitude)
{
	return strcmp(test_device(), "host") == 0 ? 1e-4 : 1e-4 + 0.03 * magnitude;
}

/* The largest distance of y from the plain result of the whole experts, as a share of what is allowed; NaN counts as
 * endless. */
static double job_error(const struct fake *f, const struct job *job, const float *y)
{
	double worst = 0;
	uint32_t t, k, j;

	for (t = 0; t < job->tokens; t++) {
		double want[HIDDEN] = {0}, magnitude[HIDDEN] = {0};

		for (k = 0; k < job->topk; k++)
			if (job->ids[t * job->topk + k] >= 0)
				plain_expert(
					&f->values[fake_number(f, job->layer, (uint32_t)job->ids[t * job->topk + k])],
					f->manifest.activation, 0, 0, INTER, (double)job->weights[t * job->topk + k],
					job->x + t * HIDDEN, want, magnitude);
		for (j = 0; j < HIDDEN; j++) {
			const double error = fabs(want[j] - (double)y[t * HIDDEN + j]) / job_allowed(magnitude[j]);

			if (!(error <= worst))
				worst = isnan(error) ? INFINITY : error;
		}
	}
	return worst;
}

static int job_plan(struct fake *f, const struct job *job, enum moe_mode mode, struct moe_plan **ret,
		    struct moe_error *err)
{
	return moe_plan(&f->session, job->layer, mode, job->tokens, job->topk, job->ids, job->weights, ret, err);
}

static int job_submit(struct fake *f, struct job *job, enum moe_mode mode, struct moe_error *err)
{
	struct moe_plan *plan;
	int r = job_plan(f, job, mode, &plan, err);

	return r < 0 ? r : moe_submit(&f->session, plan, job->x, &job->step, err);
}

/* Submit, wait, compare: 0, the error's code, or 1 when the numbers are wrong. */
__attribute__((unused)) static int job_run(struct fake *f, struct job *job, enum moe_mode mode)
{
	struct moe_error err;
	int r = job_submit(f, job, mode, &err);

	if (r == 0)
		r = moe_wait(job->step, job->y, 0, &err);
	if (r == 0 && job_error(f, job, job->y) > 1)
		r = 1;
	return r;
}

struct totals {
	uint64_t pairs, hit, miss_buffer, pool, cpu, steps, fills, reads, read_bytes;
};

__attribute__((unused)) static struct totals read_stats(const struct fake *f)
{
	struct totals sum = {0};
	uint32_t i;

	for (i = 0; i < LAYERS; i++) {
		const struct moe_layer_stats *s = &f->session.stats[i];

		sum.hit += s->pairs_hit;
		sum.miss_buffer += s->pairs_miss_buffer;
		sum.pool += s->pairs_pool;
		sum.cpu += s->pairs_cpu;
		sum.steps += s->steps;
		sum.fills += s->fills;
		sum.reads += s->reads;
		sum.read_bytes += s->read_bytes;
	}
	sum.pairs = sum.hit + sum.miss_buffer + sum.pool + sum.cpu;
	return sum;
}

/* The seed is printed and can be given; the streams pause at random from here on. */
static void jobs_begin(void)
{
	seed = tap_seed();
	model_seed = seed + 1;
	device_host_jitter(seed | 1);
	device_host_kernels(kernels_get(ISA_REF)); /* whose activations are exact, whatever the format */
}

#endif
