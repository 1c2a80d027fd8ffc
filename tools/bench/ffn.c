/* SPDX-License-Identifier: MIT */
/*
 * ffn - the CPU pool alone on one expert layer after another, beside what this machine can read and compute.
 *
 * Rounds of three: a burst of requests, each begun by the end of the one before, a streaming read of the same memory by
 * the same threads, and the instructions that the dot products are made of. Requests take the experts in turn, so that
 * all weights pass by before one comes again. The time of a request is its burst's time over the burst's requests; what
 * is quoted is best over best, and the median beside it.
 */
#include <errno.h>
#include <math.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/host.h"
#include "base/util.h"
#include "bench.h"
#include "daemon/pool.h"
#include "kernels/record.h"
#include "tools/bench/ffn-model.h"
#include "uapi/moe_ring.h"

#define BURST_NS 60e6 /* about */
#define READ_BYTES (1ull << 30)
#define PEAK_ROUNDS 400000u

static const struct ffn_shape shapes[] = {
	{"qwen3-30b-a3b", 2048, 768, 128, 8, MOE_ACTIVATION_SILU, false},
	{"mixtral-8x7b", 4096, 14336, 8, 2, MOE_ACTIVATION_SILU, false},
	{"deepseek-v3", 7168, 2048, 256, 8, MOE_ACTIVATION_SILU, false},
	{"gpt-oss-20b", 2880, 2880, 32, 4, MOE_ACTIVATION_SWIGLU_CLAMPED, true},
	{"kimi-k2", 7168, 2048, 384, 8, MOE_ACTIVATION_SILU, false},
};

struct ffn_bench {
	const struct options *o;
	struct ffn_shape shape;
	uint32_t format, active; /* distinct experts of a request */
	const struct kernels *kernels;
	struct ffn_model model;
	struct pool *pool;
	struct host *host;
	float *x, *y, *weights;
	int32_t *ids;
	/* the burst under way */
	struct pool_compute job;
	uint32_t left, turn;
	int status;
	sem_t over;
};

/* -- requests ----------------------------------------------------------------------------------------------------- */

/* Each of the request's experts gets the same number of pairs; with --skew the first one gets nine tokens in ten. */
static void route(struct ffn_bench *b)
{
	const uint32_t topk = b->shape.topk, n = b->model.manifest.n_experts;

	for (uint32_t t = 0; t < b->o->tokens; t++)
		for (uint32_t k = 0; k < topk; k++) {
			const uint32_t i = t * topk + k;
			uint32_t nth = i % b->active;

			if (b->o->skew && b->active > topk)
				nth = k == 0 && t % 10 ? 0 : 1 + i % (b->active - 1);
			b->ids[i] = (int32_t)((b->turn + nth) % n);
		}
	b->turn = (b->turn + b->active) % n;
}

static void submit(struct ffn_bench *b);

static void request_done(struct pool_compute *job, const struct pool_result *result)
{
	struct ffn_bench *b = container_of(job, struct ffn_bench, job);

	b->status = b->status ? b->status : result->status;
	if (--b->left)
		submit(b);
	else
		sem_post(&b->over);
}

static void submit(struct ffn_bench *b)
{
	route(b);
	b->job = (struct pool_compute){.model = &b->model.resident,
				       .layout = &b->model.layout,
				       .slice = &b->model.slice,
				       .priority = b->o->tokens > 16 ? POOL_PREFILL : POOL_DECODE,
				       .tokens = b->o->tokens,
				       .topk = b->shape.topk,
				       .x = b->x,
				       .y = b->y,
				       .x_type = MOE_TYPE_F32,
				       .y_type = MOE_TYPE_F32,
				       .ids = b->ids,
				       .weights = b->weights,
				       .done = request_done};
	pool_submit_compute(b->pool, &b->job);
}

/* Nanoseconds of a request in a burst of n. */
static double burst(struct ffn_bench *b, uint32_t n)
{
	const uint64_t begin = now_ns();

	b->left = n;
	submit(b);
	while (sem_wait(&b->over) < 0)
		;
	return (double)(now_ns() - begin) / n;
}

/* -- results ------------------------------------------------------------------------------------------------------ */

struct figures {
	double *ns;
	uint32_t rounds;
	double read_gbs, peak_gflops, error;
};

/* The instructions that the format's dot products are made of; NULL: not known. */
static uint64_t (*peak_of(const struct ffn_bench *b))(uint64_t)
{
	const enum kernel_pack pack = b->kernels->of[b->format]->pack;

	return pack == PACK_F32 || pack == PACK_BF16 ? b->kernels->peak_bf16 : b->kernels->peak_int8;
}

static void print_figures(const struct ffn_bench *b, const struct figures *f)
{
	const struct summary s = summarise(f->ns, f->rounds);
	const double bytes = ffn_published_bytes(&b->shape, b->format) * b->active;
	const double flops = 6.0 * b->shape.hidden * b->shape.inter * b->shape.topk * b->o->tokens;

	if (b->o->json) {
		printf("{\"shape\": {\"name\": \"%s\", \"hidden\": %u, \"inter\": %u, \"experts\": %u, \"topk\": %u, "
		       "\"active_experts\": %u, \"resident_bytes\": %llu}, \"format\": \"%s\", \"isa\": \"%s\", "
		       "\"variant\": "
		       "\"%s\", \"threads\": %u, \"tokens\": %u, \"ms\": {\"best\": %.4f, \"median\": %.4f}, "
		       "\"weight_gbs\": {\"best\": %.2f, \"median\": %.2f}, \"read_limit_gbs\": %.2f, "
		       "\"share_of_read\": %.4f, \"gflops\": {\"best\": %.1f, \"median\": %.1f}, "
		       "\"compute_limit_gflops\": %.1f, \"share_of_compute\": %.4f, \"max_rel_error\": ",
		       b->shape.name, b->shape.hidden, b->shape.inter, b->shape.experts, b->shape.topk, b->active,
		       (unsigned long long)b->model.bytes, moe_formats[b->format].name, b->kernels->name,
		       b->kernels->variant, pool_threads(b->pool), b->o->tokens, s.best / 1e6, s.p50 / 1e6,
		       bytes / s.best, bytes / s.p50, f->read_gbs, bytes / s.best / f->read_gbs, flops / s.best,
		       flops / s.p50, f->peak_gflops, f->peak_gflops > 0 ? flops / s.best / f->peak_gflops : 0);
		if (isnan(f->error))
			printf("null}\n");
		else
			printf("%.3g}\n", f->error);
		return;
	}
	printf("%s (hidden %u, intermediate %u), %s, %u tokens x top %u on %u experts, %s, %u threads, %.1f GiB in "
	       "rotation\n"
	       "  request      %9.3f ms best, %9.3f ms median\n"
	       "  weights      %9.1f GB/s of %.1f GB/s read: %5.1f %%\n"
	       "  arithmetic   %9.1f GFLOP/s of %.1f: %5.1f %%\n",
	       b->shape.name, b->shape.hidden, b->shape.inter, moe_formats[b->format].name, b->o->tokens, b->shape.topk,
	       b->active, b->kernels->variant, pool_threads(b->pool), (double)b->model.bytes / (1u << 30), s.best / 1e6,
	       s.p50 / 1e6, bytes / s.best, f->read_gbs, 100 * bytes / s.best / f->read_gbs, flops / s.best,
	       f->peak_gflops, f->peak_gflops > 0 ? 100 * flops / s.best / f->peak_gflops : 0);
	if (!isnan(f->error))
		printf("  error        %9.2g of the largest output\n", f->error);
}

static int measure(struct ffn_bench *b, struct figures *f, struct moe_error *err)
{
	const uint32_t threads = pool_threads(b->pool);
	const uint64_t read_bytes = MIN(READ_BYTES, b->model.bytes);
	uint64_t (*const peak)(uint64_t) = peak_of(b);
	double once;
	uint32_t n;

	burst(b, 1); /* touches the scratch memory */
	once = burst(b, 1);
	n = (uint32_t)MIN(MAX(BURST_NS / once, 1.0), 4096.0);
	for (uint32_t i = 0; i < f->rounds; i++) {
		const uint64_t at = (uint64_t)i * read_bytes % (b->model.bytes - read_bytes + 1) & ~(uint64_t)4095;

		f->ns[i] = burst(b, n);
		f->read_gbs = MAX(f->read_gbs,
				  limit_read((const char *)b->model.resident.pools[0].map + at, read_bytes, threads));
		if (peak)
			f->peak_gflops = MAX(f->peak_gflops, limit_compute(peak, PEAK_ROUNDS, threads));
	}
	if (b->status)
		return moe_error_sys(err, b->status, "the pool cannot compute");
	return 0;
}

/* -- the check ---------------------------------------------------------------------------------------------------- */

/* h = act(gate x, up x) of one expert. */
static void exact_hidden(const struct ffn_bench *b, const uint8_t *record, const float *x, double *h)
{
	const struct ffn_model *m = &b->model;
	const struct kernel_matrix gate = record_matrix(record, &m->layout, &m->slice, MOE_PART_GATE, RECORD_IN_POOL);
	const struct kernel_matrix up = record_matrix(record, &m->layout, &m->slice, MOE_PART_UP, RECORD_IN_POOL);
	const struct kernel_act act = record_act(m->manifest.activation, m->manifest.limit);

	for (uint32_t r = 0; r < b->shape.inter; r++) {
		double g = gate.bias ? gate.bias[r] : 0, u = up.bias ? up.bias[r] : 0;

		for (uint32_t c = 0; c < b->shape.hidden; c++) {
			g += kernel_weight(&gate, r, c) * x[c];
			u += kernel_weight(&up, r, c) * x[c];
		}
		h[r] = kernel_gated(&act, g, u);
	}
}

/* Adds weight * (down h) to rows of y, every `step`-th. */
static void exact_down(const struct ffn_bench *b, const uint8_t *record, const double *h, double weight, double *y,
		       uint32_t step)
{
	const struct ffn_model *m = &b->model;
	const struct kernel_matrix down = record_matrix(record, &m->layout, &m->slice, MOE_PART_DOWN, RECORD_IN_POOL);

	for (uint32_t r = 0; r < b->shape.hidden; r += step) {
		double sum = down.bias ? down.bias[r] : 0;

		for (uint32_t c = 0; c < b->shape.inter; c++)
			sum += kernel_weight(&down, r, c) * h[c];
		y[r] += weight * sum;
	}
}

/* The largest error of the last request's first token, over its largest output; some rows stand for all. NaN: no
 * memory. */
static double check_error(struct ffn_bench *b)
{
	const uint32_t step = MAX(b->shape.hidden / 256, 1u);
	double *h = calloc(b->shape.inter, sizeof *h), *y = calloc(b->shape.hidden, sizeof *y);
	double worst = NAN, largest = 0;

	for (uint32_t k = 0; h && y && k < b->shape.topk; k++) {
		const uint8_t *record = resident_record(&b->model.resident, 0, (uint32_t)b->ids[k]);

		exact_hidden(b, record, b->x, h);
		exact_down(b, record, h, b->weights[k], y, step);
	}
	for (uint32_t r = 0; h && y && r < b->shape.hidden; r += step) {
		const double error = fabs(y[r] - b->y[r]);

		worst = isnan(worst) || error > worst || isnan(error) ? error : worst;
		largest = MAX(largest, fabs(y[r]));
	}
	free(h);
	free(y);
	return worst / largest;
}

/* -- the verb ----------------------------------------------------------------------------------------------------- */

static int read_options(struct ffn_bench *b, struct moe_error *err)
{
	const struct options *o = b->o;
	enum isa isa;
	int r;

	b->shape = shapes[0];
	for (size_t i = 0; o->shape && i < ARRAY_LEN(shapes); i++)
		if (strcmp(shapes[i].name, o->shape) == 0)
			b->shape = shapes[i];
	if (o->shape && strcmp(b->shape.name, o->shape) != 0)
		return moe_error_set(
			err, -EINVAL,
			"no shape '%s'; there are qwen3-30b-a3b, mixtral-8x7b, deepseek-v3, gpt-oss-20b, kimi-k2",
			o->shape);
	if (o->hidden || o->inter || o->experts || o->topk)
		b->shape.name = "custom";
	b->shape.hidden = o->hidden ? o->hidden : b->shape.hidden;
	b->shape.inter = o->inter ? o->inter : b->shape.inter;
	b->shape.experts = o->experts ? o->experts : b->shape.experts;
	b->shape.topk = o->topk ? o->topk : b->shape.topk;
	b->format = MOE_FORMAT_BF16;
	for (uint32_t f = 1; o->format && f < MOE_FORMAT_COUNT; f++)
		if (strcmp(moe_formats[f].name, o->format) == 0)
			b->format = f;
	if (o->format && strcmp(moe_formats[b->format].name, o->format) != 0)
		return moe_error_set(err, -EINVAL, "no format '%s'; 'moe-bench ffn --format list' names them",
				     o->format);
	r = isa_from_name(o->isa ? o->isa : "auto", &isa);
	if (r < 0)
		return moe_error_set(err, r, "--isa %s: %s", o->isa, isa_why_not(o->isa));
	b->kernels = kernels_get(isa);
	b->active = o->active ? o->active : MIN(b->shape.experts, o->tokens * b->shape.topk);
	if (b->active < b->shape.topk || b->shape.topk > MOE_TOPK_MAX)
		return moe_error_set(err, -EINVAL, "--active %u experts; at least the %u of a token expected",
				     b->active, b->shape.topk);
	return 0;
}

static int make(struct ffn_bench *b, struct moe_error *err)
{
	const size_t pairs = (size_t)b->o->tokens * b->shape.topk, values = (size_t)b->o->tokens * b->shape.hidden;
	uint64_t random = 7;
	int r;

	b->host = calloc(1, sizeof *b->host);
	b->x = aligned_alloc(64, ALIGN_UP(values * sizeof *b->x, (size_t)64));
	b->y = aligned_alloc(64, ALIGN_UP(values * sizeof *b->y, (size_t)64));
	b->weights = calloc(pairs, sizeof *b->weights);
	b->ids = calloc(pairs, sizeof *b->ids);
	if (!b->host || !b->x || !b->y || !b->weights || !b->ids)
		return moe_error_set(err, -ENOMEM, "no memory for %u tokens", b->o->tokens);
	for (size_t i = 0; i < values; i++) {
		random = random * 6364136223846793005u + 1442695040888963407u;
		b->x[i] = (float)(random >> 40) * 0x1p-23f - 1.0f;
	}
	for (size_t i = 0; i < pairs; i++)
		b->weights[i] = 1.0f / (float)b->shape.topk;
	r = ffn_model_make(&b->model, &b->shape, b->format, b->o->bytes, b->active, err);
	if (r < 0)
		return r;
	host_read(b->host, false);
	return pool_new(
		&b->pool,
		&(struct pool_params){.host = b->host, .threads = b->o->threads, .kernels = b->kernels, .spin_us = 50},
		err);
}

int bench_ffn(const struct options *o)
{
	struct ffn_bench b = {.o = o};
	struct figures f = {.rounds = o->samples, .error = NAN, .ns = calloc(o->samples, sizeof *f.ns)};
	struct moe_error err = {0};
	int r;

	if (o->format && strcmp(o->format, "list") == 0) {
		for (uint32_t i = 1; i < MOE_FORMAT_COUNT; i++)
			printf("%s\n", moe_formats[i].name);
		free(f.ns);
		return 0;
	}
	r = read_options(&b, &err);
	if (r < 0) {
		free(f.ns);
		bench_fail(&err);
		return 2;
	}
	sem_init(&b.over, 0, 0);
	r = f.ns ? make(&b, &err) : -ENOMEM;
	if (r == 0)
		r = measure(&b, &f, &err);
	if (r == 0 && o->check)
		f.error = check_error(&b);
	if (r == 0)
		print_figures(&b, &f);
	pool_free(b.pool);
	ffn_model_free(&b.model);
	free(b.host);
	free(b.x);
	free(b.y);
	free(b.weights);
	free(b.ids);
	free(f.ns);
	return r < 0 ? bench_fail(&err) : 0;
}
