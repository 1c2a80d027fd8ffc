/* SPDX-License-Identifier: MIT */
/*
 * One expert layer on a GPU, all of whose experts lie in slots: as the library launches it, beside the rate at which a
 * kernel reads memory and the rate of dense bfloat16 products. Ids, weights and map are the device's, as on lanes.
 *
 * Requests of a burst take the experts in turn, as in `moe-bench ffn`, so that few of them find their weights in a
 * cache of the GPU.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "tools/bench/ffn-run.h"
#include "tools/bench/gpu.h"

#define BURST_MAX 24 /* requests: a stream holds the launches of as many behind a gate */
#define BURST_NS 3e6
#define TOKENS_MAX 4096u

struct layer {
	struct gpu *g;
	struct gpu_dense *dense;
	struct options o; /* with other tokens */
	struct ffn_run run;
	struct device_memory slots, work;
	struct device_experts experts;
	uint32_t routes, burst;
};

/* -- the device's memory ------------------------------------------------------------------------------------------ */

/* What is copied to a device stands in the second half of host memory meanwhile. */
static uint8_t *staging(const struct gpu *g)
{
	return g->host + g->host_bytes / 2;
}

static int upload(struct gpu *g, device_ptr to, const void *from, uint64_t bytes, struct moe_error *err)
{
	const uint64_t room = g->host_bytes / 2;
	int r = 0;

	for (uint64_t at = 0; at < bytes && r == 0; at += room) {
		const uint64_t n = MIN(room, bytes - at);
		const struct device_copy copy = {to + at, staging(g), n, n, 1};

		memcpy(staging(g), (const uint8_t *)from + at, n);
		r = device_cuda.copy_to_device(g->stream, &copy, 1);
		r = r < 0 ? gpu_error(g, r, "cannot copy to the device", err) : gpu_settle(g, err);
	}
	return r;
}

/* A record as a slot has it. */
static void lay_out(const struct moe_slice *slice, const uint8_t *record, uint8_t *slot)
{
	for (int part = 0; part < MOE_PARTS; part++)
		for (int plane = 0; plane < MOE_PLANES; plane++) {
			const struct moe_slice_plane *p = &slice->plane[part][plane];

			for (uint64_t row = 0; row < p->rows; row++)
				memcpy(slot + p->slot_offset + row * p->width, record + p->offset + row * p->pitch,
				       p->width);
		}
}

static int fill_slots(struct layer *l, struct moe_error *err)
{
	const struct ffn_model *m = &l->run.model;
	const uint64_t bytes = m->slice.bytes;
	uint8_t *slot = calloc(1, bytes);
	int r = slot ? device_cuda.alloc(l->g->device, bytes * m->manifest.n_experts, &l->slots, err)
		     : moe_error_set(err, -ENOMEM, "no memory for a slot");

	for (uint32_t i = 0; i < m->manifest.n_experts && r == 0; i++) {
		lay_out(&m->slice, resident_record(&m->resident, 0, i), slot);
		r = upload(l->g, l->slots.base + i * bytes, slot, bytes, err);
	}
	free(slot);
	return r;
}

static uint64_t cut(uint64_t *at, uint64_t bytes)
{
	const uint64_t here = *at;

	*at += ALIGN_UP(bytes, (uint64_t)CUDA_SCRATCH_ALIGN);
	return here;
}

/* Room for the most tokens; slot i has expert i. */
static int make_work(struct layer *l, struct moe_error *err)
{
	const struct ffn_model *m = &l->run.model;
	const uint64_t tokens = l->o.tokens, rows = tokens * l->run.shape.hidden * sizeof(float);
	const uint64_t pairs = tokens * l->run.shape.topk * sizeof(int32_t), n = m->manifest.n_experts;
	int32_t *map = calloc(n, sizeof *map);
	uint64_t at = 0;
	struct device_experts *e = &l->experts;
	int r;

	*e = (struct device_experts){.slots = l->slots.base,
				     .slot_bytes = m->slice.bytes,
				     .layout = &m->layout,
				     .slice = &m->slice,
				     .hidden = l->run.shape.hidden,
				     .activation = m->manifest.activation,
				     .tokens = l->o.tokens,
				     .topk = l->run.shape.topk,
				     .n_experts = (uint32_t)n};
	memcpy(&e->limit, &m->manifest.limit, sizeof e->limit);
	e->x = cut(&at, rows);
	e->y = cut(&at, rows);
	e->on_weights = cut(&at, pairs);
	e->on_map = cut(&at, n * sizeof *map);
	e->on_ids = cut(&at, pairs * BURST_MAX);
	r = map ? device_cuda.alloc(l->g->device, at, &l->work, err) : moe_error_set(err, -ENOMEM, "no memory");
	e->x += l->work.base, e->y += l->work.base, e->on_weights += l->work.base, e->on_map += l->work.base;
	e->on_ids += l->work.base;
	for (uint64_t i = 0; i < n && map; i++)
		map[i] = (int32_t)i;
	if (r == 0)
		r = upload(l->g, e->on_map, map, n * sizeof *map, err);
	if (r == 0)
		r = upload(l->g, e->x, l->run.x, rows, err);
	if (r == 0)
		r = upload(l->g, e->on_weights, l->run.weights, pairs, err);
	if (r == 0)
		r = device_cuda.experts_prepare(l->g->stream, e, err);
	free(map);
	return r;
}

/* Requests in turn; the last one's ids stay in the run. */
static int make_routes(struct layer *l, struct moe_error *err)
{
	const uint64_t pairs = (uint64_t)l->o.tokens * l->run.shape.topk * sizeof(int32_t);
	int r = 0;

	for (uint32_t i = 0; i < l->routes && r == 0; i++) {
		ffn_run_route(&l->run);
		r = upload(l->g, l->experts.on_ids + i * pairs, l->run.ids, pairs, err);
	}
	return r;
}

/* -- ways --------------------------------------------------------------------------------------------------------- */

static int give_request(void *arg, uint32_t i)
{
	const struct layer *l = arg;
	struct device_experts e = l->experts;

	e.on_ids += (uint64_t)(i % l->routes) * l->o.tokens * l->run.shape.topk * sizeof(int32_t);
	return device_cuda.experts(l->g->stream, &e);
}

static int time_requests(void *arg, double *ret_ns, struct moe_error *err)
{
	struct layer *l = arg;

	return gpu_time(l->g, true, give_request, l, l->burst, ret_ns, err);
}

static int give_read(void *arg, uint32_t i)
{
	const struct layer *l = arg;

	return gpu_give_read(l->g, l->g->memory.base, l->g->memory.bytes);
}

static int time_read(void *arg, double *ret_ns, struct moe_error *err)
{
	return gpu_time(((struct layer *)arg)->g, true, give_read, arg, 1, ret_ns, err);
}

static int time_mma(void *arg, double *ret_ns, struct moe_error *err)
{
	return gpu_dense_mma(((struct layer *)arg)->dense, ret_ns, err);
}

static int time_cublas(void *arg, double *ret_ns, struct moe_error *err)
{
	return gpu_dense_cublas(((struct layer *)arg)->dense, ret_ns, err);
}

/* -- a row -------------------------------------------------------------------------------------------------------- */

static bool is_prefill(const struct layer *l)
{
	return (uint64_t)l->o.tokens * l->run.shape.topk >= (uint64_t)l->experts.n_experts * CUDA_DECODE_PAIRS;
}

/* The last request of the routes once more, and what it came to. */
static int check(struct layer *l, double *ret_error, struct moe_error *err)
{
	const uint64_t bytes = (uint64_t)l->o.tokens * l->run.shape.hidden * sizeof(float);
	int r = bytes > l->g->host_bytes / 2 ? moe_error_set(err, -ENOMEM, "--check of %u tokens needs --bytes of %llu",
							     l->o.tokens, (unsigned long long)(8 * bytes))
					     : give_request(l, l->routes - 1);

	if (r == 0)
		r = device_cuda.copy_to_host(l->g->stream, staging(l->g), l->experts.y, bytes);
	if (r == 0)
		r = gpu_settle(l->g, err);
	else if (!*err->text)
		gpu_error(l->g, r, "a request cannot be checked", err);
	if (r < 0)
		return r;
	memcpy(l->run.y, staging(l->g), bytes);
	*ret_error = ffn_run_error(&l->run);
	return *ret_error <= FFN_ERROR_MAX
		       ? 0
		       : moe_error_set(err, -EBADMSG,
				       "%u tokens in %s: the result is %.2g of the largest output off the reference's; "
				       "at most %g expected",
				       l->o.tokens, moe_formats[l->run.format].name, *ret_error, FFN_ERROR_MAX);
}

static json_t *row(struct layer *l, struct gpu_way *ways, double error)
{
	const uint32_t rounds = l->o.samples;
	const double bytes = ffn_run_bytes(&l->run), operations = ffn_run_flops(&l->run);
	const double read = (double)l->g->memory.bytes / gpu_best(&ways[1], rounds);
	const double mma = gpu_dense_mma_operations(l->dense) / gpu_best(&ways[2], rounds);
	const double blas = ways[3].measure ? gpu_dense_cublas_operations(l->dense) / gpu_best(&ways[3], rounds) : 0;
	const double best = gpu_best(&ways[0], rounds);
	json_t *o = json_pack("{s:s, s:i, s:s, s:i}", "format", moe_formats[l->run.format].name, "tokens",
			      (int)l->o.tokens, "path", is_prefill(l) ? "prefill" : "decode", "experts",
			      (int)l->run.distinct);

	json_object_set_new(o, "weight_gbs", gpu_rate_json(&ways[0], rounds, bytes));
	json_object_set_new(o, "tflops", gpu_rate_json(&ways[0], rounds, operations / 1e3));
	json_object_set_new(o, "us", gpu_us_json(ways[0].ns, rounds));
	json_object_set_new(o, "read_limit_gbs", json_real(read));
	json_object_set_new(o, "share_of_read", json_real(bytes / best / read));
	json_object_set_new(o, "mma_tflops", json_real(mma / 1e3));
	json_object_set_new(o, "cublas_tflops", blas > 0 ? json_real(blas / 1e3) : json_null());
	json_object_set_new(o, "dense_limit", json_string(blas > mma ? "cublas" : "mma"));
	json_object_set_new(o, "share_of_dense", json_real(operations / best / MAX(mma, blas)));
	json_object_set_new(o, "max_rel_error", isnan(error) ? json_null() : json_real(error));
	return o;
}

static int measure(struct layer *l, uint32_t tokens, json_t *to, struct moe_error *err)
{
	struct gpu_way ways[] = {
		{"experts", time_requests, {0}},
		{"read", time_read, {0}},
		{"mma", time_mma, {0}},
		{"cublas", gpu_dense_cublas_operations(l->dense) > 0 ? time_cublas : NULL, {0}},
	};
	double error = NAN, once = 0;
	int r;

	l->o.tokens = l->experts.tokens = tokens;
	r = ffn_run_retake(&l->run, &l->o);
	l->routes = MIN(BURST_MAX, DIV_UP(l->experts.n_experts, l->run.active));
	if (r == 0)
		r = make_routes(l, err);
	if (r == 0 && l->o.check)
		r = check(l, &error, err);
	l->burst = 1;
	for (int i = 0; i < 2 && r == 0; i++)
		r = time_requests(l, &once, err);
	if (r < 0)
		return r;
	l->burst = l->g->simulated ? 2 : (uint32_t)MIN(MAX(BURST_NS / once, 1.0), BURST_MAX);
	r = gpu_rounds(ways, ARRAY_LEN(ways), l, l->o.samples, err);
	if (r == 0)
		json_array_append_new(to, row(l, ways, error));
	return r;
}

/* -- formats ------------------------------------------------------------------------------------------------------ */

static int measure_format(struct gpu *g, struct gpu_dense *dense, const char *format, json_t *to, json_t *ret_shape,
			  struct moe_error *err)
{
	static const uint32_t real[] = {1, 4, 16, 512, 1024, 2048, TOKENS_MAX}, simulated[] = {1, 4, 16};
	const uint32_t *tokens = g->simulated ? simulated : real;
	const size_t n = g->simulated ? ARRAY_LEN(simulated) : ARRAY_LEN(real);
	struct layer l = {.g = g, .dense = dense, .o = *g->o};
	int r;

	l.o.format = format;
	l.o.tokens = tokens[n - 1];
	l.o.bytes = 1; /* all experts once */
	l.o.threads = 1;
	r = ffn_run_make(&l.run, &l.o) ? moe_error_set(err, -EINVAL, "there is no such layer") : fill_slots(&l, err);
	if (r == 0)
		r = make_work(&l, err);
	if (r == 0)
		json_object_update_new(ret_shape,
				       json_pack("{s:s, s:i, s:i, s:i, s:i}", "name", l.run.shape.name, "hidden",
						 (int)l.run.shape.hidden, "inter", (int)l.run.shape.inter, "experts",
						 (int)l.run.shape.experts, "topk", (int)l.run.shape.topk));
	for (size_t i = 0; i < n && r == 0; i++)
		r = measure(&l, tokens[i], to, err);
	device_cuda.free(g->device, &l.slots);
	device_cuda.free(g->device, &l.work);
	ffn_run_free(&l.run);
	return r;
}

/* A format that fails is noted; the others go on, unless the device has failed. */
static int try_format(struct gpu *g, struct gpu_dense *dense, const char *format, json_t *to, json_t *ret_shape,
		      struct moe_error *err)
{
	int r = measure_format(g, dense, format, to, ret_shape, err);

	if (r == 0 || device_cuda.failure(g->device))
		return r;
	gpu_note(g->failed, format, err->text);
	*err = (struct moe_error){0};
	return 0;
}

int gpu_experts(struct gpu *g, json_t *to, struct moe_error *err)
{
	static const char *const formats[] = {"bf16", "fp8-block", "int8", "int4-g128-f16", "mxfp4"};
	json_t *rows = json_array(), *shape = json_object();
	struct gpu_dense *dense = NULL;
	int r = gpu_dense_open(&dense, g, err);

	json_object_set_new(to, "shape", shape);
	json_object_set_new(to, "experts", rows);
	if (r == 0 && g->o->check)
		r = gpu_dense_check(dense, err);
	for (size_t i = 0; i < ARRAY_LEN(formats) && r == 0; i++)
		if (!g->o->format || i == 0)
			r = try_format(g, dense, g->o->format ? g->o->format : formats[i], rows, shape, err);
	gpu_dense_close(dense);
	return r;
}
