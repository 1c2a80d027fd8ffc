/* SPDX-License-Identifier: MIT */
#include "tools/bench/ffn-run.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/host.h"
#include "base/util.h"
#include "kernels/record.h"
#include "uapi/moe_ring.h"

#define BURST_NS 10e6
#define READ_BYTES ((1ull << 30) / LIMIT_READ_WAYS) /* at least, for the limit */
#define DECODE_TOKENS 16
/* Of the limit of arithmetic, which is measured for as long as a request takes. */
#define PEAK_NS_MIN 1.5e6
#define PEAK_NS_MAX 2e9

static const struct ffn_shape shapes[] = {
	{"qwen3-30b-a3b", 2048, 768, 128, 8, MOE_ACTIVATION_SILU, false},
	{"mixtral-8x7b", 4096, 14336, 8, 2, MOE_ACTIVATION_SILU, false},
	{"deepseek-v3", 7168, 2048, 256, 8, MOE_ACTIVATION_SILU, false},
	{"gpt-oss-20b", 2880, 2880, 32, 4, MOE_ACTIVATION_SWIGLU_CLAMPED, true},
	{"kimi-k2", 7168, 2048, 384, 8, MOE_ACTIVATION_SILU, false},
};

/* -- requests ----------------------------------------------------------------------------------------------------- */

/* Which of the request's experts the pair takes: each gets the same number of pairs; with --skew the first one gets
 * nine tokens in ten. */
static uint32_t pick(const struct ffn_run *b, uint32_t token, uint32_t k)
{
	const uint32_t topk = b->shape.topk, i = token * topk + k;

	if (!b->o->skew || b->active == topk)
		return i % b->active;
	return k == 0 && token % 10 ? 0 : 1 + i % (b->active - 1);
}

void ffn_run_route(struct ffn_run *b)
{
	const uint32_t topk = b->shape.topk, n = b->model.manifest.n_experts;

	for (uint32_t t = 0; t < b->o->tokens; t++)
		for (uint32_t k = 0; k < topk; k++)
			b->ids[t * topk + k] = (int32_t)((b->turn + pick(b, t, k)) % n);
	b->turn = (b->turn + b->active) % n;
}

static void submit(struct ffn_run *b);

static void request_done(struct pool_compute *job, const struct pool_result *result)
{
	struct ffn_run *b = container_of(job, struct ffn_run, job);

	b->status = b->status ? b->status : result->status;
	if (--b->left)
		submit(b);
	else
		sem_post(&b->over);
}

static void submit(struct ffn_run *b)
{
	ffn_run_route(b);
	b->job = (struct pool_compute){.model = &b->model.resident,
				       .layout = &b->model.layout,
				       .slice = &b->model.slice,
				       .priority = b->o->tokens > DECODE_TOKENS ? POOL_PREFILL : POOL_DECODE,
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

double ffn_run_burst(struct ffn_run *b, uint32_t n)
{
	const uint64_t begin = now_ns();

	b->left = n;
	submit(b);
	while (sem_wait(&b->over) < 0)
		;
	return (double)(now_ns() - begin) / n;
}

/* Of one read of the limit. */
static double read_bytes(const struct ffn_run *b)
{
	return MAX((double)READ_BYTES, ffn_run_bytes(b));
}

uint32_t ffn_run_burst_length(const struct ffn_run *b, double request_ns)
{
	const double by_time = BURST_NS / request_ns, by_bytes = read_bytes(b) / ffn_run_bytes(b);

	return (uint32_t)MIN(MAX(MIN(by_time, by_bytes), 1.0), 4096.0);
}

uint32_t ffn_run_bursts(const struct ffn_run *b)
{
	return b->o->tokens > DECODE_TOKENS ? 1 : LIMIT_READ_WAYS;
}

/* -- what is counted ---------------------------------------------------------------------------------------------- */

/* Experts that a request in fact chooses: 0 without memory. */
static uint32_t count_distinct(const struct ffn_run *b)
{
	bool *seen = calloc(b->active, sizeof *seen);
	uint32_t distinct = 0;

	for (uint32_t t = 0; seen && t < b->o->tokens; t++)
		for (uint32_t k = 0; k < b->shape.topk; k++) {
			bool *one = &seen[pick(b, t, k)];

			distinct += !*one;
			*one = true;
		}
	free(seen);
	return distinct;
}

int ffn_run_retake(struct ffn_run *b, const struct options *o)
{
	b->o = o;
	b->active = MIN(b->shape.experts, o->tokens * b->shape.topk);
	b->distinct = count_distinct(b);
	return b->distinct ? 0 : -ENOMEM;
}

double ffn_run_bytes(const struct ffn_run *b)
{
	return ffn_published_bytes(&b->shape, b->format) * b->distinct;
}

double ffn_run_flops(const struct ffn_run *b)
{
	return 6.0 * b->shape.hidden * b->shape.inter * b->shape.topk * b->o->tokens;
}

/* The instructions that the format's dot products are made of; NULL: not known. */
static uint64_t (*peak_of(const struct ffn_run *b))(uint64_t)
{
	const struct kernel_ops *ops = b->kernels->of[b->format];
	const size_t pairs = (size_t)b->o->tokens * b->shape.topk;
	const bool groups = ops->groups && pairs >= ops->groups->least * b->distinct;
	const enum kernel_pack pack = ops->pack == PACK_I8_BLOCK && groups ? PACK_BF16 : ops->pack;

	if (pack == PACK_F32 || pack == PACK_F32_UP || pack == PACK_F16)
		return b->kernels->peak_f32;
	return pack == PACK_BF16 ? b->kernels->peak_bf16 : b->kernels->peak_int8;
}

void ffn_run_limits(const struct ffn_run *b, uint32_t round, double request_ns, struct ffn_limits *limits)
{
	const uint32_t threads = pool_threads(b->pool);
	const uint64_t bytes = MIN((uint64_t)(LIMIT_READ_WAYS * read_bytes(b)), b->model.bytes);
	const uint64_t at = (uint64_t)round * bytes % (b->model.bytes - bytes + 1) & ~(uint64_t)4095;
	const double ns = MIN(MAX(request_ns, PEAK_NS_MIN), PEAK_NS_MAX);
	uint64_t (*const peak)(uint64_t) = peak_of(b);

	limits->read_gbs = MAX(limits->read_gbs,
			       limit_read((const char *)b->model.resident.pools[0].map + at, bytes, threads));
	if (peak)
		limits->gflops = MAX(limits->gflops, limit_compute(peak, ns, threads));
}

void ffn_run_print_shape(const struct ffn_run *b)
{
	printf("\"shape\": {\"name\": \"%s\", \"hidden\": %u, \"inter\": %u, \"experts\": %u, \"topk\": %u, "
	       "\"active_experts\": %u, \"resident_bytes\": %llu}",
	       b->shape.name, b->shape.hidden, b->shape.inter, b->shape.experts, b->shape.topk, b->distinct,
	       (unsigned long long)b->model.bytes);
}

void ffn_run_print_title(const struct ffn_run *b)
{
	printf("%s (hidden %u, intermediate %u), %s, %u tokens x top %u on %u experts, %s, %u threads, %.3g GiB in "
	       "rotation\n",
	       b->shape.name, b->shape.hidden, b->shape.inter, moe_formats[b->format].name, b->o->tokens, b->shape.topk,
	       b->distinct, b->kernels->variant, pool_threads(b->pool), (double)b->model.bytes / (1u << 30));
}

void print_json_number(double value)
{
	if (isfinite(value))
		printf("%.3g", value);
	else
		printf("null");
}

/* -- the check ---------------------------------------------------------------------------------------------------- */

/* h = act(gate x, up x) of one expert. */
static void exact_hidden(const struct ffn_run *b, const uint8_t *record, const float *x, double *h)
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
static void exact_down(const struct ffn_run *b, const uint8_t *record, const double *h, double weight, double *y,
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

/* The same of one token; *ret_largest: its largest output. */
static double token_error(const struct ffn_run *b, uint32_t token, double *h, double *y, double *ret_largest)
{
	const uint32_t step = MAX(b->shape.hidden / 256, 1u), topk = b->shape.topk;
	const float *x = b->x + (size_t)token * b->shape.hidden, *found = b->y + (size_t)token * b->shape.hidden;
	double worst = 0;

	memset(y, 0, b->shape.hidden * sizeof *y);
	for (uint32_t k = 0; k < topk; k++) {
		const size_t pair = (size_t)token * topk + k;
		const uint8_t *record = resident_record(&b->model.resident, 0, (uint32_t)b->ids[pair]);

		exact_hidden(b, record, x, h);
		exact_down(b, record, h, b->weights[pair], y, step);
	}
	for (uint32_t r = 0; r < b->shape.hidden; r += step) {
		const double error = fabs(y[r] - found[r]);

		if (isnan(error))
			return NAN;
		worst = MAX(worst, error);
		*ret_largest = MAX(*ret_largest, fabs(y[r]));
	}
	return worst;
}

double ffn_run_error(const struct ffn_run *b)
{
	double *h = calloc(b->shape.inter, sizeof *h), *y = calloc(b->shape.hidden, sizeof *y);
	double first = NAN, last = NAN, largest = 0;

	if (h && y) {
		first = token_error(b, 0, h, y, &largest);
		last = b->o->tokens > 1 ? token_error(b, b->o->tokens - 1, h, y, &largest) : first;
	}
	free(h);
	free(y);
	return isnan(first) || isnan(last) ? NAN : MAX(first, last) / largest;
}

/* -- making one --------------------------------------------------------------------------------------------------- */

static int read_options(struct ffn_run *b, struct moe_error *err)
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
	if (b->active < b->shape.topk || b->active > o->tokens * b->shape.topk || b->shape.topk > MOE_TOPK_MAX)
		return moe_error_set(err, -EINVAL,
				     "%u experts of a request; %u tokens with top %u choose %u to %u (--active), and "
				     "the top is at most %d",
				     b->active, o->tokens, b->shape.topk, b->shape.topk, o->tokens * b->shape.topk,
				     MOE_TOPK_MAX);
	return 0;
}

/* The weights are one node's: its threads compute with them, and its limits are theirs. */
static void stay_on_node(struct host *host)
{
	uint32_t nodes = 0, first = 0;

	host_read(host, false);
	for (uint32_t n = host->n_nodes; n-- > 0;)
		if (host->nodes[n].n_cpus) {
			nodes++;
			first = n;
		}
	if (nodes < 2)
		return;
	if (host_bind_thread(&host->nodes[first]) < 0)
		return;
	fprintf(stderr, "moe-bench: one of %u NUMA nodes is measured: node %d, %u CPUs\n", nodes, host->nodes[first].id,
		host->nodes[first].n_cpus);
	host_read(host, false);
}

static int make_parts(struct ffn_run *b, struct moe_error *err)
{
	const size_t pairs = (size_t)b->o->tokens * b->shape.topk, values = (size_t)b->o->tokens * b->shape.hidden;
	uint64_t random = 7;
	int r;

	b->host = calloc(1, sizeof *b->host);
	b->x = aligned_alloc(64, ALIGN_UP(values * sizeof *b->x, (size_t)64));
	b->y = aligned_alloc(64, ALIGN_UP(values * sizeof *b->y, (size_t)64));
	b->weights = calloc(pairs, sizeof *b->weights);
	b->ids = calloc(pairs, sizeof *b->ids);
	b->distinct = count_distinct(b);
	if (!b->distinct || !b->host || !b->x || !b->y || !b->weights || !b->ids)
		return moe_error_set(err, -ENOMEM, "no memory for %u tokens", b->o->tokens);
	for (size_t i = 0; i < values; i++) {
		random = random * 6364136223846793005u + 1442695040888963407u;
		b->x[i] = (float)(random >> 40) * 0x1p-23f - 1.0f;
	}
	for (size_t i = 0; i < pairs; i++)
		b->weights[i] = 1.0f / (float)b->shape.topk;
	stay_on_node(b->host);
	r = ffn_model_make(&b->model, &b->shape, b->format, b->o->bytes, b->active, err);
	if (r < 0)
		return r;
	return pool_new(
		&b->pool,
		&(struct pool_params){.host = b->host, .threads = b->o->threads, .kernels = b->kernels, .spin_us = 50},
		err);
}

int ffn_run_make(struct ffn_run *ret, const struct options *o)
{
	struct moe_error err = {0};

	*ret = (struct ffn_run){.o = o};
	sem_init(&ret->over, 0, 0);
	if (read_options(ret, &err) < 0) {
		bench_fail(&err);
		return 2;
	}
	return make_parts(ret, &err) < 0 ? bench_fail(&err) : 0;
}

void ffn_run_free(struct ffn_run *b)
{
	pool_free(b->pool);
	ffn_model_free(&b->model);
	free(b->host);
	free(b->x);
	free(b->y);
	free(b->weights);
	free(b->ids);
	sem_destroy(&b->over);
}
