/* SPDX-License-Identifier: MIT */
/*
 * peer-onednn - experts as oneDNN's users compute them: three products each, SiLU and the product of gate and up fused
 * into them (post-operations), tokens gathered by expert before and added up behind.
 *
 *   BF16  activations, gate and hidden values rounded to BF16
 *   INT8  activations quantized to 8 bits, one scale for all tokens of a request, and again one for all hidden values
 *         of an expert; scales of weights and activations together are one float per row of the product
 *
 * Weights lie in the records, rows of codes, and are described to oneDNN as such: plain. Or they are reordered
 * beforehand into the layout that oneDNN asks for: packed, a second copy of all weights. Products are matmul
 * primitives, but for one token on plain weights, where oneDNN's inner product (a matrix by a vector) is the faster of
 * the two. A primitive is made for each number of tokens that an expert has, when it first occurs.
 */
#include <errno.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/host.h"
#include "base/util.h"
#include "kernels/record.h"
#include "tools/bench/onednn.h"
#include "tools/bench/peer.h"

#define SHAPES_MAX 64
#define NO_PAIR UINT32_MAX

/* y[tokens][rows] = x[tokens][cols] W^T, with what is fused into it. */
struct product {
	dnnl_primitive_t primitive;
	dnnl_memory_t src, weights, dst, scales, gate;
};

struct shape {
	uint32_t tokens; /* of an expert */
	struct product part[MOE_PARTS];
};

struct onednn {
	struct peer peer;
	const struct ffn_run *run;
	dnnl_engine_t engine;
	dnnl_stream_t stream;
	dnnl_data_type_t type, middle;         /* of weights and activations; of what the first two products give */
	struct kernel_matrix first[MOE_PARTS]; /* expert 0's */
	/* of the copy */
	bool packed;
	dnnl_memory_desc_t packed_desc[MOE_PARTS];
	uint64_t packed_offset[MOE_PARTS], packed_expert, packed_bytes;
	uint8_t *copy;
	struct shape shapes[SHAPES_MAX];
	uint32_t n_shapes;
	/* of a request: activations packed, and its pairs as one list for each expert */
	uint8_t *x;
	float x_scale;
	uint32_t *head, *next, *experts, n_experts;
	/* of an expert: its tokens' activations, gate, hidden values, those packed, results; floats of a row each */
	uint8_t *in, *gate, *hidden, *hidden_packed;
	float *out, *scales;
	uint32_t *pairs;
};

static uint32_t rows_of(const struct onednn *p, int part)
{
	return part == MOE_PART_DOWN ? p->run->shape.hidden : p->run->shape.inter;
}

static uint32_t cols_of(const struct onednn *p, int part)
{
	return part == MOE_PART_DOWN ? p->run->shape.inter : p->run->shape.hidden;
}

static bool quantized(const struct onednn *p)
{
	return p->type == dnnl_s8;
}

static size_t value_bytes(const struct onednn *p)
{
	return quantized(p) ? 1 : 2;
}

/* -- products ----------------------------------------------------------------------------------------------------- */

/* Rows of `width` values, one behind the other. */
static dnnl_status_t rows_desc(dnnl_memory_desc_t *ret, uint32_t rows, uint32_t width, dnnl_data_type_t type)
{
	return onednn_strided(ret, (dnnl_dims_t){rows, width}, type, (dnnl_dims_t){width, 1});
}

/* The weights of one part: as they lie in a record, or (`any`) as oneDNN would have them. */
static dnnl_status_t weights_desc(const struct onednn *p, int part, bool inner, bool any, dnnl_memory_desc_t *ret)
{
	const uint32_t n = rows_of(p, part), k = cols_of(p, part);
	const dnnl_dim_t pitch = (dnnl_dim_t)(p->first[part].pitch / value_bytes(p));

	if (inner)
		return onednn_strided(ret, (dnnl_dims_t){n, k}, p->type, (dnnl_dims_t){pitch, 1});
	if (any)
		return onednn_any(ret, (dnnl_dims_t){k, n}, p->type);
	return onednn_strided(ret, (dnnl_dims_t){k, n}, p->type, (dnnl_dims_t){1, pitch});
}

/* Scales of the rows, then SiLU for gate, or the product with it for up. */
static dnnl_status_t add_post_operations(const struct onednn *p, int part, uint32_t tokens, dnnl_primitive_attr_t attr)
{
	dnnl_memory_desc_t scales = {0}, gate = {0};
	dnnl_post_ops_t ops = NULL;
	dnnl_status_t r = dnnl_post_ops_create(&ops);

	r = r ? r : rows_desc(&scales, 1, rows_of(p, part), dnnl_f32);
	r = r ? r : rows_desc(&gate, tokens, p->run->shape.inter, p->middle);
	if (!r && quantized(p))
		r = dnnl_post_ops_append_binary(ops, dnnl_binary_mul, ONEDNN_IN(scales));
	if (!r && part == MOE_PART_GATE)
		r = onednn_swish(ops);
	if (!r && part == MOE_PART_UP)
		r = dnnl_post_ops_append_binary(ops, dnnl_binary_mul, ONEDNN_IN(gate));
	r = r ? r : dnnl_primitive_attr_set_post_ops(attr, ops);
	dnnl_post_ops_destroy(ops);
	onednn_desc_free(&scales);
	onednn_desc_free(&gate);
	return r;
}

/* A description of the product, for weights in the layout `weights`. */
static dnnl_status_t describe(const struct onednn *p, int part, uint32_t tokens, bool inner, onednn_desc_in weights,
			      dnnl_primitive_desc_t *ret)
{
	const dnnl_data_type_t to = part == MOE_PART_DOWN ? dnnl_f32 : p->middle;
	dnnl_memory_desc_t src = {0}, dst = {0};
	dnnl_primitive_attr_t attr = NULL;
	dnnl_status_t r = dnnl_primitive_attr_create(&attr);

	r = r ? r : add_post_operations(p, part, tokens, attr);
	r = r ? r : rows_desc(&src, tokens, cols_of(p, part), p->type);
	r = r ? r : rows_desc(&dst, tokens, rows_of(p, part), to);
	r = r ? r : onednn_product(ret, p->engine, inner, ONEDNN_IN(src), weights, ONEDNN_IN(dst), attr);
	onednn_desc_free(&src);
	onednn_desc_free(&dst);
	dnnl_primitive_attr_destroy(attr);
	return r;
}

/* A memory of `rows` rows at `at`. */
static dnnl_status_t rows_memory(const struct onednn *p, uint32_t rows, uint32_t width, dnnl_data_type_t type, void *at,
				 dnnl_memory_t *ret)
{
	dnnl_memory_desc_t desc = {0};
	dnnl_status_t r = rows_desc(&desc, rows, width, type);

	r = r ? r : dnnl_memory_create(ret, ONEDNN_IN(desc), p->engine, at);
	onednn_desc_free(&desc);
	return r;
}

static dnnl_status_t product_make(const struct onednn *p, int part, uint32_t tokens, struct product *q)
{
	const bool down = part == MOE_PART_DOWN, inner = !p->packed && tokens == 1;
	const uint32_t n = rows_of(p, part), k = cols_of(p, part);
	uint8_t *const from = !down ? p->in : quantized(p) ? p->hidden_packed : p->hidden;
	void *const to = down ? (void *)p->out : part == MOE_PART_UP ? p->hidden : p->gate;
	dnnl_memory_desc_t weights = {0};
	dnnl_primitive_desc_t desc = NULL;
	dnnl_status_t r = p->packed ? onednn_desc_copy(&weights, ONEDNN_IN(p->packed_desc[part]))
				    : weights_desc(p, part, inner, false, &weights);

	r = r ? r : describe(p, part, tokens, inner, ONEDNN_IN(weights), &desc);
	r = r ? r : dnnl_primitive_create(&q->primitive, desc);
	r = r ? r : dnnl_memory_create(&q->weights, ONEDNN_IN(weights), p->engine, DNNL_MEMORY_NONE);
	r = r ? r : rows_memory(p, tokens, k, p->type, from, &q->src);
	r = r ? r : rows_memory(p, tokens, n, down ? dnnl_f32 : p->middle, to, &q->dst);
	r = r ? r : rows_memory(p, 1, n, dnnl_f32, p->scales, &q->scales);
	r = r ? r : rows_memory(p, tokens, p->run->shape.inter, p->middle, p->gate, &q->gate);
	dnnl_primitive_desc_destroy(desc);
	onednn_desc_free(&weights);
	return r;
}

static void product_free(struct product *q)
{
	dnnl_primitive_destroy(q->primitive);
	dnnl_memory_destroy(q->src);
	dnnl_memory_destroy(q->weights);
	dnnl_memory_destroy(q->dst);
	dnnl_memory_destroy(q->scales);
	dnnl_memory_destroy(q->gate);
}

static dnnl_status_t product_run(const struct onednn *p, int part, const struct product *q, void *weights)
{
	const int mul = DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1;
	const int mul_gate = DNNL_ARG_ATTR_MULTIPLE_POST_OP(quantized(p)) | DNNL_ARG_SRC_1;
	dnnl_exec_arg_t args[5] = {{DNNL_ARG_SRC, q->src}, {DNNL_ARG_WEIGHTS, q->weights}, {DNNL_ARG_DST, q->dst}};
	int n = 3;
	dnnl_status_t r = dnnl_memory_set_data_handle(q->weights, weights);

	if (quantized(p))
		args[n++] = (dnnl_exec_arg_t){mul, q->scales};
	if (part == MOE_PART_UP)
		args[n++] = (dnnl_exec_arg_t){mul_gate, q->gate};
	r = r ? r : dnnl_primitive_execute(q->primitive, p->stream, n, args);
	return r ? r : dnnl_stream_wait(p->stream);
}

static int shape_of(struct onednn *p, uint32_t tokens, struct shape **ret, struct moe_error *err)
{
	struct shape *s = p->shapes;
	dnnl_status_t r = dnnl_success;

	while (s < p->shapes + p->n_shapes && s->tokens != tokens)
		s++;
	*ret = s;
	if (s < p->shapes + p->n_shapes)
		return 0;
	if (p->n_shapes == SHAPES_MAX)
		return moe_error_set(err, -ENOSPC, "oneDNN: more than %d numbers of tokens an expert", SHAPES_MAX);
	p->n_shapes++;
	s->tokens = tokens;
	for (int part = 0; r == dnnl_success && part < MOE_PARTS; part++)
		r = product_make(p, part, tokens, &s->part[part]);
	if (r == dnnl_success)
		return 0;
	return moe_error_set(err, -ENOTSUP, "oneDNN has no product of %s weights for this CPU (status %d)",
			     moe_formats[p->run->format].name, r);
}

/* -- packed weights ----------------------------------------------------------------------------------------------- */

static dnnl_status_t choose_packed(struct onednn *p, int part, uint32_t tokens)
{
	dnnl_memory_desc_t any = {0};
	dnnl_primitive_desc_t desc = NULL;
	dnnl_status_t r = weights_desc(p, part, false, true, &any);

	r = r ? r : describe(p, part, tokens, false, ONEDNN_IN(any), &desc);
	r = r ? r
	      : onednn_desc_copy(&p->packed_desc[part], dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0));
	dnnl_primitive_desc_destroy(desc);
	onednn_desc_free(&any);
	return r;
}

static uint8_t *weights_at(const struct onednn *p, int part, uint32_t expert)
{
	const struct ffn_model *m = &p->run->model;
	const uint8_t *record = resident_record(&m->resident, 0, expert);

	if (p->packed)
		return p->copy + expert * p->packed_expert + p->packed_offset[part];
	return (uint8_t *)(uintptr_t)record_matrix(record, &m->layout, &m->slice, part, RECORD_IN_POOL).codes;
}

/* One part of all experts. */
static dnnl_status_t pack_part(struct onednn *p, int part)
{
	const struct ffn_model *m = &p->run->model;
	dnnl_memory_desc_t plain = {0};
	dnnl_primitive_desc_t desc = NULL;
	dnnl_primitive_t reorder = NULL;
	dnnl_memory_t from = NULL, to = NULL;
	dnnl_status_t r = weights_desc(p, part, false, false, &plain);

	r = r ? r
	      : dnnl_reorder_primitive_desc_create(&desc, ONEDNN_IN(plain), p->engine, ONEDNN_IN(p->packed_desc[part]),
						   p->engine, NULL);
	r = r ? r : dnnl_primitive_create(&reorder, desc);
	r = r ? r : dnnl_memory_create(&from, ONEDNN_IN(plain), p->engine, DNNL_MEMORY_NONE);
	r = r ? r : dnnl_memory_create(&to, ONEDNN_IN(p->packed_desc[part]), p->engine, DNNL_MEMORY_NONE);
	for (uint32_t e = 0; r == dnnl_success && e < m->manifest.n_experts; e++) {
		const struct kernel_matrix matrix = record_matrix(resident_record(&m->resident, 0, e), &m->layout,
								  &m->slice, part, RECORD_IN_POOL);
		const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};

		r = dnnl_memory_set_data_handle(from, (void *)(uintptr_t)matrix.codes);
		r = r ? r : dnnl_memory_set_data_handle(to, weights_at(p, part, e));
		r = r ? r : dnnl_primitive_execute(reorder, p->stream, 2, args);
		r = r ? r : dnnl_stream_wait(p->stream);
	}
	dnnl_memory_destroy(from);
	dnnl_memory_destroy(to);
	dnnl_primitive_destroy(reorder);
	dnnl_primitive_desc_destroy(desc);
	onednn_desc_free(&plain);
	return r;
}

/* The layout that oneDNN prefers for as many tokens as most experts have. */
static int pack(struct onednn *p, struct moe_error *err)
{
	const uint32_t pairs = p->run->o->tokens * p->run->shape.topk;
	dnnl_status_t r = dnnl_success;
	int64_t available, limit, left;

	for (int part = 0; r == dnnl_success && part < MOE_PARTS; part++) {
		r = choose_packed(p, part, DIV_UP(pairs, p->run->active));
		p->packed_offset[part] = p->packed_expert;
		p->packed_expert += r ? 0 : ALIGN_UP(dnnl_memory_desc_get_size(ONEDNN_IN(p->packed_desc[part])), 64ul);
	}
	p->packed_bytes = p->packed_expert * p->run->model.manifest.n_experts;
	host_read_memory(&available, &limit, &left);
	if (!r && ((available >= 0 && p->packed_bytes > (uint64_t)available) ||
		   (limit >= 0 && p->packed_bytes > (uint64_t)left)))
		return moe_error_set(err, -ENOMEM, "its copy of the weights needs %.1f GiB more memory: see --bytes",
				     (double)p->packed_bytes / (1u << 30));
	p->copy = r ? NULL : limit_memory(p->packed_bytes);
	if (!r && !p->copy)
		return moe_error_set(err, -ENOMEM, "no memory for oneDNN's copy of the weights: see --bytes");
	for (int part = 0; r == dnnl_success && part < MOE_PARTS; part++)
		r = pack_part(p, part);
	return r ? moe_error_set(err, -ENOTSUP, "oneDNN has no layout of %s weights for this CPU (status %d)",
				 moe_formats[p->run->format].name, r)
		 : 0;
}

/* -- activations -------------------------------------------------------------------------------------------------- */

static uint32_t largest_bits(const float *from, size_t n)
{
	uint32_t largest = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t bits;

		memcpy(&bits, &from[i], sizeof bits);
		bits &= 0x7fffffff; /* magnitudes of floats are ordered as integers are */
		largest = MAX(largest, bits);
	}
	return largest;
}

/* Rounded to nearest: an integer plus 1.5 * 2^23 is a float's low bits. */
static void quantize_row(const float *from, size_t n, float factor, uint8_t *to)
{
	for (size_t i = 0; i < n; i++) {
		const float shifted = from[i] * factor + 12582912.0f;
		uint32_t bits;

		memcpy(&bits, &shifted, sizeof bits);
		to[i] = (uint8_t)bits;
	}
}

/* Returns what the codes are multiplied by. */
static float quantize(const float *from, uint32_t rows, size_t width, uint8_t *to)
{
	uint32_t bits = 0;
	float largest;

#pragma omp parallel for reduction(max : bits) if (rows > 1)
	for (uint32_t r = 0; r < rows; r++)
		bits = MAX(bits, largest_bits(from + r * width, width));
	memcpy(&largest, &bits, sizeof largest);
	if (!(largest > 0))
		largest = 1;
#pragma omp parallel for if (rows > 1)
	for (uint32_t r = 0; r < rows; r++)
		quantize_row(from + r * width, width, 127 / largest, to + r * width);
	return largest / 127;
}

static void pack_activations(struct onednn *p)
{
	const struct ffn_run *run = p->run;
	const size_t hidden = run->shape.hidden;

	if (quantized(p)) {
		p->x_scale = quantize(run->x, run->o->tokens, hidden, p->x);
		return;
	}
#pragma omp parallel for if (run->o->tokens > 1)
	for (uint32_t t = 0; t < run->o->tokens; t++)
		run->kernels->f32_to_bf16(hidden, run->x + t * hidden, (uint16_t *)p->x + t * hidden);
}

/* -- requests ----------------------------------------------------------------------------------------------------- */

static void group_pairs(struct onednn *p)
{
	p->n_experts = 0;
	for (uint32_t i = p->run->o->tokens * p->run->shape.topk; i-- > 0;) {
		const uint32_t e = (uint32_t)p->run->ids[i];

		if (p->head[e] == NO_PAIR)
			p->experts[p->n_experts++] = e;
		p->next[i] = p->head[e];
		p->head[e] = i;
	}
}

/* The expert's pairs into `pairs`; the list is empty then. */
static uint32_t take_pairs(struct onednn *p, uint32_t expert)
{
	uint32_t n = 0;

	for (uint32_t i = p->head[expert]; i != NO_PAIR; i = p->next[i])
		p->pairs[n++] = i;
	p->head[expert] = NO_PAIR;
	return n;
}

static void gather(struct onednn *p, uint32_t n)
{
	const size_t row = p->run->shape.hidden * value_bytes(p);

#pragma omp parallel for if (n > 1)
	for (uint32_t i = 0; i < n; i++)
		memcpy(p->in + i * row, p->x + p->pairs[i] / p->run->shape.topk * row, row);
}

/* An expert's pairs are of different tokens. */
static void add_up(struct onednn *p, uint32_t n)
{
	const struct ffn_run *run = p->run;
	const size_t hidden = run->shape.hidden;

#pragma omp parallel for if (n > 1)
	for (uint32_t i = 0; i < n; i++)
		run->kernels->axpy(hidden, run->weights[p->pairs[i]], p->out + i * hidden,
				   run->y + p->pairs[i] / run->shape.topk * hidden);
}

static void multiply_scales(struct onednn *p, const uint8_t *record, int part, float scale)
{
	const struct ffn_model *m = &p->run->model;
	const struct kernel_matrix matrix = record_matrix(record, &m->layout, &m->slice, part, RECORD_IN_POOL);
	const uint32_t rows = rows_of(p, part);

	for (uint32_t r = 0; quantized(p) && r < rows; r++)
		p->scales[r] = matrix.row_scales[r] * scale;
}

static int run_expert(struct onednn *p, uint32_t expert, struct moe_error *err)
{
	const uint8_t *record = resident_record(&p->run->model.resident, 0, expert);
	const uint32_t n = take_pairs(p, expert);
	dnnl_status_t status = dnnl_success;
	struct shape *shape;
	const int r = shape_of(p, n, &shape, err);

	if (r < 0)
		return r;
	gather(p, n);
	for (int part = 0; status == dnnl_success && part < MOE_PARTS; part++) {
		float scale = p->x_scale;

		if (part == MOE_PART_DOWN && quantized(p))
			scale = quantize((const float *)p->hidden, n, p->run->shape.inter, p->hidden_packed);
		multiply_scales(p, record, part, scale);
		status = product_run(p, part, &shape->part[part], weights_at(p, part, expert));
	}
	if (status)
		return moe_error_set(err, -EIO, "oneDNN: a product failed with status %d", status);
	add_up(p, n);
	return 0;
}

static int request(struct peer *peer, struct moe_error *err)
{
	struct onednn *p = container_of(peer, struct onednn, peer);
	int r = 0;

	memset(p->run->y, 0, (size_t)p->run->o->tokens * p->run->shape.hidden * sizeof *p->run->y);
	pack_activations(p);
	group_pairs(p);
	for (uint32_t i = 0; r == 0 && i < p->n_experts; i++)
		r = run_expert(p, p->experts[i], err);
	return r;
}

/* -- the peer ----------------------------------------------------------------------------------------------------- */

static struct peer *onednn_free(struct peer *peer)
{
	struct onednn *p = container_of(peer, struct onednn, peer);

	for (uint32_t s = 0; s < p->n_shapes; s++)
		for (int part = 0; part < MOE_PARTS; part++)
			product_free(&p->shapes[s].part[part]);
	for (int part = 0; part < MOE_PARTS; part++)
		onednn_desc_free(&p->packed_desc[part]);
	dnnl_stream_destroy(p->stream);
	dnnl_engine_destroy(p->engine);
	if (p->copy)
		munmap(p->copy, p->packed_bytes);
	free(p->x);
	free(p->head);
	free(p->next);
	free(p->experts);
	free(p->in);
	free(p->gate);
	free(p->hidden);
	free(p->hidden_packed);
	free(p->out);
	free(p->scales);
	free(p->pairs);
	free(p);
	return NULL;
}

static void *lines(uint64_t values, size_t size)
{
	return aligned_alloc(64, ALIGN_UP(MAX(values, 1ul) * size, 64ul));
}

static int make_parts(struct onednn *p, struct moe_error *err)
{
	const struct ffn_run *run = p->run;
	const struct ffn_model *m = &run->model;
	const uint64_t tokens = run->o->tokens, hidden = run->shape.hidden, inter = run->shape.inter;
	const uint32_t experts = m->manifest.n_experts;

	p->x = lines(tokens * hidden, 2);
	p->in = lines(tokens * hidden, 2);
	p->gate = lines(tokens * inter, 4);
	p->hidden = lines(tokens * inter, 4);
	p->hidden_packed = lines(tokens * inter, 1);
	p->out = lines(tokens * hidden, 4);
	p->scales = lines(MAX(hidden, inter), 4);
	p->pairs = lines(tokens, 4);
	p->next = lines(tokens * run->shape.topk, 4);
	p->head = lines(experts, 4);
	p->experts = lines(experts, 4);
	if (!p->x || !p->in || !p->gate || !p->hidden || !p->hidden_packed || !p->out || !p->scales || !p->pairs ||
	    !p->next || !p->head || !p->experts)
		return moe_error_set(err, -ENOMEM, "no memory for %llu tokens", (unsigned long long)tokens);
	for (uint32_t e = 0; e < experts; e++)
		p->head[e] = NO_PAIR;
	for (int part = 0; part < MOE_PARTS; part++)
		p->first[part] = record_matrix(resident_record(&m->resident, 0, 0), &m->layout, &m->slice, part,
					       RECORD_IN_POOL);
	if (dnnl_engine_create(&p->engine, dnnl_cpu, 0) ||
	    dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags))
		return moe_error_set(err, -ENODEV, "oneDNN has no engine for this CPU");
	return p->packed ? pack(p, err) : 0;
}

/* What it could not compute, or not in as many threads. */
static int refuse(const struct ffn_run *run, struct moe_error *err)
{
	if (run->format != MOE_FORMAT_BF16 && run->format != MOE_FORMAT_INT8)
		return moe_error_set(err, -ENOTSUP, "takes weights of bf16 and int8, not of %s",
				     moe_formats[run->format].name);
	if (run->shape.activation != MOE_ACTIVATION_SILU || run->shape.bias)
		return moe_error_set(err, -ENOTSUP, "fuses SiLU without a bias only, not what %s has", run->shape.name);
	if (dnnl_version()->cpu_runtime != DNNL_RUNTIME_OMP)
		return moe_error_set(err, -ENOTSUP, "this oneDNN is not built with OpenMP: its threads cannot be set");
	return 0;
}

int peer_onednn(struct peer **ret, const struct ffn_run *run, bool packed, struct moe_error *err)
{
	const dnnl_version_t *version = dnnl_version();
	struct onednn *p;
	struct shape *shape;
	int r = refuse(run, err);

	if (r < 0)
		return r;
	p = calloc(1, sizeof *p);
	if (!p)
		return moe_error_set(err, -ENOMEM, "no memory");
	p->peer = (struct peer){.request = request, .free = onednn_free};
	snprintf(p->peer.name, sizeof p->peer.name, "onednn%s %d.%d.%d", packed ? "-packed" : "", version->major,
		 version->minor, version->patch);
	p->run = run;
	p->packed = packed;
	p->type = run->format == MOE_FORMAT_INT8 ? dnnl_s8 : dnnl_bf16;
	p->middle = run->format == MOE_FORMAT_INT8 ? dnnl_f32 : dnnl_bf16;
	omp_set_num_threads((int)pool_threads(run->pool));
	r = make_parts(p, err);
	if (r == 0) /* so that what it cannot do is known now */
		r = shape_of(p, DIV_UP(run->o->tokens * run->shape.topk, run->active), &shape, err);
	if (r < 0)
		onednn_free(&p->peer);
	else
		*ret = &p->peer;
	return r;
}
