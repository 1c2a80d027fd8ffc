/* SPDX-License-Identifier: MIT */
/*
 * peer-ggml - an expert layer as llama.cpp builds it: one graph with three products by expert id (mul_mat_id), SwiGLU
 * between, the results weighted and added up.
 *
 * The graph is made once. Its weights are tensors over all experts in memory, with the records' strides: BF16 and F16
 * lie in rows as ggml wants them. Activations, ids and weights of a request are read where they are, and the result is
 * written there.
 */
#include <errno.h>
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "kernels/record.h"
#include "tools/bench/peer.h"

#define BUFFERS (MOE_PARTS + 4)

struct ggml_peer {
	struct peer peer;
	const struct ffn_run *run;
	ggml_backend_t backend;
	struct ggml_context *context;
	struct ggml_cgraph *graph;
	ggml_gallocr_t middle; /* memory of what is between */
	ggml_backend_buffer_t buffers[BUFFERS];
	uint32_t n_buffers;
};

/* -- the graph ---------------------------------------------------------------------------------------------------- */

/* Says where a tensor lies: in memory of ours. */
static struct ggml_tensor *place(struct ggml_peer *p, struct ggml_tensor *tensor, const void *at, size_t bytes)
{
	/* A buffer begins on its alignment, which a result need not do. */
	const uintptr_t begin = (uintptr_t)at & ~(uintptr_t)63;
	ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr((void *)begin, bytes + ((uintptr_t)at - begin));

	p->buffers[p->n_buffers++] = buffer;
	ggml_backend_tensor_alloc(buffer, tensor, (void *)(uintptr_t)at);
	return tensor;
}

/* One part of all experts: cols x rows x experts. */
static struct ggml_tensor *weights_of(struct ggml_peer *p, int part)
{
	const struct ffn_model *m = &p->run->model;
	const uint32_t hidden = p->run->shape.hidden, inter = p->run->shape.inter, experts = m->manifest.n_experts;
	const struct kernel_matrix first = record_matrix(resident_record(&m->resident, 0, 0), &m->layout, &m->slice,
							 part, RECORD_IN_POOL);
	struct ggml_tensor *t = ggml_new_tensor_3d(
		p->context, p->run->format == MOE_FORMAT_F16 ? GGML_TYPE_F16 : GGML_TYPE_BF16,
		part == MOE_PART_DOWN ? inter : hidden, part == MOE_PART_DOWN ? hidden : inter, experts);

	t->nb[1] = first.pitch;
	t->nb[2] = m->manifest.record_bytes;
	t->nb[3] = t->nb[2] * experts;
	return place(p, t, first.codes,
		     m->bytes - (size_t)((const uint8_t *)first.codes - (uint8_t *)m->resident.pools[0].map));
}

/* hidden x topk x tokens -> hidden x tokens: the sum over the experts of each token. */
static struct ggml_tensor *sum_of(struct ggml_context *c, struct ggml_tensor *each)
{
	struct ggml_tensor *sum = NULL;

	for (int64_t k = 0; k < each->ne[1]; k++) {
		struct ggml_tensor *one = ggml_view_2d(c, each, each->ne[0], each->ne[2], each->nb[2],
						       (size_t)k * each->nb[1]);

		sum = sum ? ggml_add(c, sum, one) : one;
	}
	return ggml_cont(c, sum);
}

static void make_graph(struct ggml_peer *p)
{
	const struct ffn_run *run = p->run;
	struct ggml_context *c = p->context;
	const uint32_t tokens = run->o->tokens, topk = run->shape.topk, hidden = run->shape.hidden;
	const size_t pairs = (size_t)tokens * topk, values = (size_t)tokens * hidden;
	struct ggml_tensor *x = place(p, ggml_new_tensor_3d(c, GGML_TYPE_F32, hidden, 1, tokens), run->x, values * 4);
	struct ggml_tensor *ids = place(p, ggml_new_tensor_2d(c, GGML_TYPE_I32, topk, tokens), run->ids, pairs * 4);
	struct ggml_tensor *weights = place(p, ggml_new_tensor_3d(c, GGML_TYPE_F32, 1, topk, tokens), run->weights,
					    pairs * 4);
	struct ggml_tensor *gate = ggml_mul_mat_id(c, weights_of(p, MOE_PART_GATE), x, ids);
	struct ggml_tensor *up = ggml_mul_mat_id(c, weights_of(p, MOE_PART_UP), x, ids);
	struct ggml_tensor *h = ggml_swiglu_split(c, gate, up);
	struct ggml_tensor *down = ggml_mul_mat_id(c, weights_of(p, MOE_PART_DOWN), h, ids);
	struct ggml_tensor *y = sum_of(c, ggml_mul(c, down, weights));

	place(p, y, run->y, values * 4);
	p->graph = ggml_new_graph(c);
	ggml_build_forward_expand(p->graph, y);
}

/* -- the peer ----------------------------------------------------------------------------------------------------- */

static int request(struct peer *peer, struct moe_error *err)
{
	struct ggml_peer *p = container_of(peer, struct ggml_peer, peer);
	const enum ggml_status status = ggml_backend_graph_compute(p->backend, p->graph);

	return status == GGML_STATUS_SUCCESS ? 0 : moe_error_set(err, -EIO, "ggml: %s", ggml_status_to_string(status));
}

static struct peer *ggml_peer_free(struct peer *peer)
{
	struct ggml_peer *p = container_of(peer, struct ggml_peer, peer);

	ggml_gallocr_free(p->middle);
	for (uint32_t i = 0; i < p->n_buffers; i++)
		ggml_backend_buffer_free(p->buffers[i]);
	ggml_free(p->context);
	ggml_backend_free(p->backend);
	free(p);
	return NULL;
}

static void keep_quiet(enum ggml_log_level level, const char *text, void *userdata)
{
	if (level == GGML_LOG_LEVEL_ERROR)
		fputs(text, stderr);
}

static int open_backend(struct ggml_peer *p, struct moe_error *err)
{
	ggml_backend_set_n_threads_t set_threads = NULL;

	ggml_log_set(keep_quiet, NULL);
	ggml_backend_load_all();
	p->backend = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL);
	if (p->backend)
		set_threads = (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(
			ggml_backend_dev_backend_reg(ggml_backend_get_device(p->backend)),
			"ggml_backend_set_n_threads");
	if (!set_threads)
		return moe_error_set(err, -ENODEV, "this ggml has no back-end for the CPU");
	set_threads(p->backend, (int)pool_threads(p->run->pool));
	return 0;
}

static int make_parts(struct ggml_peer *p, struct moe_error *err)
{
	int r = open_backend(p, err);

	if (r < 0)
		return r;
	p->context = ggml_init((struct ggml_init_params){
		.mem_size = 256 * ggml_tensor_overhead() + ggml_graph_overhead(), .no_alloc = true});
	if (!p->context)
		return moe_error_set(err, -ENOMEM, "no memory for ggml's graph");
	make_graph(p);
	p->middle = ggml_gallocr_new(ggml_backend_get_default_buffer_type(p->backend));
	if (!p->middle || !ggml_gallocr_alloc_graph(p->middle, p->graph))
		return moe_error_set(err, -ENOMEM, "no memory for ggml's %u tokens", p->run->o->tokens);
	return 0;
}

int peer_ggml(struct peer **ret, const struct ffn_run *run, bool packed, struct moe_error *err)
{
	struct ggml_peer *p;
	int r;

	if (run->format != MOE_FORMAT_BF16 && run->format != MOE_FORMAT_F16)
		return moe_error_set(err, -ENOTSUP, "reads weights of bf16 and f16 in place, not of %s",
				     moe_formats[run->format].name);
	if (run->shape.activation != MOE_ACTIVATION_SILU || run->shape.bias)
		return moe_error_set(err, -ENOTSUP, "compared with SiLU without a bias only, not what %s has",
				     run->shape.name);
	p = calloc(1, sizeof *p);
	if (!p)
		return moe_error_set(err, -ENOMEM, "no memory");
	p->peer = (struct peer){.request = request, .free = ggml_peer_free};
	snprintf(p->peer.name, sizeof p->peer.name, "ggml %s", ggml_version());
	p->run = run;
	r = make_parts(p, err);
	if (r < 0)
		ggml_peer_free(&p->peer);
	else
		*ret = &p->peer;
	return r;
}
