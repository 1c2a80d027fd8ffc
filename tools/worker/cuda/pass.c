/* SPDX-License-Identifier: MIT */
#include "tools/worker/cuda/pass.h"

#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/util.h"

#define LATENT_EPSILON 1e-6f /* mla.c says why */

/* -- memory ------------------------------------------------------------------------------------------------------- */

static int check(const struct arch *a, struct moe_error *err)
{
	const struct router_config *r = &a->router;
	const uint32_t value = a->latent ? a->mla.kv_rank : a->gqa.head_dim;

	if (value > DENSE_VALUE_MAX)
		return moe_error_set(err, -ENOTSUP,
				     "attention on the GPU: values of %u numbers found, at most %d expected: use "
				     "--dense host",
				     value, DENSE_VALUE_MAX);
	if (r->n_experts > DENSE_EXPERTS_MAX || (r->group != ROUTER_GROUP_NONE && r->n_groups > DENSE_GROUPS_MAX))
		return moe_error_set(err, -ENOTSUP,
				     "router on the GPU: %u experts in %u groups found, at most %d in %d expected: use "
				     "--dense host",
				     r->n_experts, r->n_groups, DENSE_EXPERTS_MAX, DENSE_GROUPS_MAX);
	return 0;
}

static void set_widths(struct pass *p)
{
	const struct arch *a = p->arch;

	p->key_width = a->latent ? a->mla.kv_rank : a->gqa.kv_heads * a->gqa.head_dim;
	p->value_width = a->latent ? a->mla.rope_dim : p->key_width;
	p->choice_pitch = ALIGN_UP(a->router.topk, 4u);
}

/* Places all arrays behind `base`; returns what they take. */
static uint64_t cut(struct pass *p, uint64_t base)
{
	const struct arch *a = p->arch;
	const struct arch_mla *m = &a->mla;
	const uint64_t t = p->tokens_max, wide = t * a->hidden, inter = MAX(MAX(a->dense_inter, a->shared_inter), 1u);
	const uint64_t heads = a->latent ? m->heads : a->gqa.heads,
		       head = a->latent ? m->plain_dim + m->rope_dim : a->gqa.head_dim;
	const uint64_t low = a->latent ? MAX((uint64_t)m->q_rank, (uint64_t)m->kv_rank + m->rope_dim) : 0;
	const uint64_t latent = a->latent ? t * heads * m->kv_rank : 0;
	const uint64_t pairs = MAX(t * a->router.topk, (uint64_t)a->n_moe_layers * p->choice_pitch);
	const struct {
		uint64_t *at, words;
	} arrays[] = {
		{&p->input, sizeof(struct pass_input) / 4 + t},
		{&p->x, wide},
		{&p->normed, wide},
		{&p->out, wide},
		{&p->part, wide},
		{&p->gate, t * inter},
		{&p->up, t * inter},
		{&p->share, t},
		{&p->query, t * heads * head},
		{&p->key, a->latent ? 0 : t * p->key_width},
		{&p->value, a->latent ? 0 : t * p->value_width},
		{&p->mixed, t * heads * (a->latent ? m->value_dim : head)},
		{&p->low, t * low},
		{&p->latent, latent},
		{&p->gathered, latent},
		{&p->scores, t * a->router.n_experts},
		{&p->choices, pairs},
		{&p->shares, pairs},
		{&p->keys, (uint64_t)a->n_layers * p->positions * p->key_width},
		{&p->values, (uint64_t)a->n_layers * p->positions * p->value_width},
		{&p->logits, (uint64_t)PASS_LOGITS_MAX * a->vocab},
	};
	uint64_t used = 0;

	for (size_t i = 0; i < ARRAY_LEN(arrays); i++) {
		*arrays[i].at = base + used;
		used += ALIGN_UP(arrays[i].words * 4, 256);
	}
	return used;
}

int pass_new(struct pass **ret, struct gpu *gpu, const struct arch *arch, const struct placed *placed,
	     uint32_t positions, uint32_t tokens_max, struct moe_error *err)
{
	int r = check(arch, err);
	struct pass *p;
	uint64_t base;

	if (r < 0)
		return r;
	p = calloc(1, sizeof(*p));
	if (!p)
		return moe_error_set(err, -ENOMEM, "no memory for a pass");
	*p = (struct pass){
		.gpu = gpu, .arch = arch, .placed = placed, .positions = positions, .tokens_max = tokens_max};
	set_widths(p);
	r = gpu_alloc(gpu, cut(p, 0), &base, err);
	if (r < 0) {
		pass_free(p);
		return r;
	}
	cut(p, base);
	*ret = p;
	return 0;
}

struct pass *pass_free(struct pass *p)
{
	free(p);
	return NULL;
}

/* -- launches ----------------------------------------------------------------------------------------------------- */

static uint64_t position_of(const struct pass *p)
{
	return p->input + offsetof(struct pass_input, position);
}

/* `batches` products side by side; of one, the steps between them do not matter. */
static void product(const struct pass *p, struct dense_product q, uint32_t batches)
{
	q.tiles = (q.w.rows + DENSE_ROWS - 1) / DENSE_ROWS;
	q.groups = (q.tokens + DENSE_TOKENS - 1) / DENSE_TOKENS;
	gpu_launch(p->gpu, DENSE_KERNEL_worker_product, (uint64_t)batches * q.tiles * q.groups, &q);
}

/* y = w x + bias, dense rows on both sides. */
static void multiply(const struct pass *p, uint64_t y, uint64_t x, const struct dense_matrix *w, uint64_t bias,
		     uint32_t tokens)
{
	product(p,
		(struct dense_product){.y = y,
				       .x = x,
				       .bias = bias,
				       .w = *w,
				       .y_pitch = w->rows,
				       .x_pitch = w->cols,
				       .tokens = tokens},
		1);
}

static void norm(const struct pass *p, uint64_t y, uint64_t x, uint64_t weight, uint32_t cols, uint32_t rows)
{
	const struct dense_norm q = {.y = y,
				     .x = x,
				     .weight = weight,
				     .x_pitch = cols,
				     .y_pitch = cols,
				     .cols = cols,
				     .epsilon = p->arch->epsilon};

	gpu_launch(p->gpu, DENSE_KERNEL_worker_norm, rows, &q);
}

static void join(const struct pass *p, uint64_t y, uint64_t share, uint32_t tokens)
{
	const struct dense_join q = {.x = p->x, .y = y, .share = share, .cols = p->arch->hidden};

	gpu_launch(p->gpu, DENSE_KERNEL_worker_join, tokens, &q);
}

static void rotate(const struct pass *p, struct dense_rotate q, uint32_t tokens)
{
	q.cos = p->placed->cos;
	q.sin = p->placed->sin;
	q.position = position_of(p);
	q.interleaved = p->arch->rope.interleaved;
	gpu_launch(p->gpu, DENSE_KERNEL_worker_rotate, tokens, &q);
}

static uint64_t keys_of(const struct pass *p, uint32_t layer)
{
	return p->keys + (uint64_t)layer * p->positions * p->key_width * sizeof(float);
}

static uint64_t values_of(const struct pass *p, uint32_t layer)
{
	return p->values + (uint64_t)layer * p->positions * p->value_width * sizeof(float);
}

/* -- grouped-query attention -------------------------------------------------------------------------------------- */

/* Queries, or keys, in place. */
static void norm_heads(const struct pass *p, uint64_t rows, uint64_t weight, uint32_t heads, uint32_t tokens)
{
	const struct arch_gqa *g = &p->arch->gqa;

	if (g->norm == ARCH_NORM_FULL)
		norm(p, rows, rows, weight, heads * g->head_dim, tokens);
	else if (g->norm == ARCH_NORM_HEAD)
		norm(p, rows, rows, weight, g->head_dim, tokens * heads);
}

/* Clips, rotates where `rope` is not 0, and brings rows to y, which is the same place or a cache. */
static void rotate_heads(const struct pass *p, uint64_t y, uint64_t x, uint32_t heads, uint32_t rope, uint32_t tokens)
{
	const struct arch_gqa *g = &p->arch->gqa;

	rotate(p,
	       (struct dense_rotate){.y = y,
				     .x = x,
				     .x_pitch = (uint64_t)heads * g->head_dim,
				     .y_pitch = (uint64_t)heads * g->head_dim,
				     .heads = heads,
				     .dim = g->head_dim,
				     .rope = rope,
				     .moves = y != x,
				     .clip = g->clip},
	       tokens);
}

static void run_gqa(const struct pass *p, uint32_t layer, uint32_t tokens)
{
	const struct placed_layer *w = &p->placed->layers[layer];
	const struct arch_gqa *g = &p->arch->gqa;
	const uint32_t width = g->heads * g->head_dim, rope = p->arch->rope.dim;
	const struct dense_attend q = {
		.out = p->mixed,
		.query = p->query,
		.keys = keys_of(p, layer),
		.values = values_of(p, layer),
		.position = position_of(p),
		.out_pitch = width,
		.query_pitch = width,
		.key_pitch = p->key_width,
		.value_pitch = p->value_width,
		.out_step = g->head_dim,
		.query_step = g->head_dim,
		.key_step = g->head_dim,
		.value_step = g->head_dim,
		.heads = g->heads,
		.group = g->heads / g->kv_heads,
		.key_dim = g->head_dim,
		.value_dim = g->head_dim,
		.window = g->window,
		.scale = p->arch->attention_scale,
	};

	multiply(p, p->query, p->normed, &w->q, w->q_bias, tokens);
	multiply(p, p->key, p->normed, &w->k, w->k_bias, tokens);
	multiply(p, p->value, p->normed, &w->v, w->v_bias, tokens);
	norm_heads(p, p->query, w->q_norm, g->heads, tokens);
	norm_heads(p, p->key, w->k_norm, g->kv_heads, tokens);
	rotate_heads(p, p->query, p->query, g->heads, rope, tokens);
	rotate_heads(p, q.keys, p->key, g->kv_heads, rope, tokens);
	rotate_heads(p, q.values, p->value, g->kv_heads, 0, tokens);
	gpu_launch(p->gpu, DENSE_KERNEL_worker_attend, (uint64_t)tokens * g->heads, &q);
	multiply(p, p->out, p->mixed, &w->o, w->o_bias, tokens);
}

/* -- latent attention --------------------------------------------------------------------------------------------- */

static void latent_queries(const struct pass *p, const struct placed_layer *w, uint32_t tokens)
{
	const struct arch_mla *m = &p->arch->mla;
	const uint32_t head = m->plain_dim + m->rope_dim;

	if (m->q_rank) {
		const struct dense_norm q = {.y = p->low,
					     .x = p->low,
					     .weight = w->q_a_norm,
					     .x_pitch = m->q_rank,
					     .y_pitch = m->q_rank,
					     .cols = m->q_rank,
					     .epsilon = LATENT_EPSILON};

		multiply(p, p->low, p->normed, &w->q_a, w->q_a_bias, tokens);
		gpu_launch(p->gpu, DENSE_KERNEL_worker_norm, tokens, &q);
		multiply(p, p->query, p->low, &w->q_b, 0, tokens);
	} else {
		multiply(p, p->query, p->normed, &w->q, 0, tokens);
	}
	rotate(p,
	       (struct dense_rotate){.y = p->query,
				     .x = p->query,
				     .x_pitch = (uint64_t)m->heads * head,
				     .y_pitch = (uint64_t)m->heads * head,
				     .heads = m->heads,
				     .dim = head,
				     .offset = m->plain_dim,
				     .rope = m->rope_dim},
	       tokens);
}

static void new_latents(const struct pass *p, uint32_t layer, const struct placed_layer *w, uint32_t tokens)
{
	const struct arch_mla *m = &p->arch->mla;
	const uint64_t width = (uint64_t)m->kv_rank + m->rope_dim;
	const struct dense_norm q = {.y = keys_of(p, layer),
				     .x = p->low,
				     .weight = w->kv_a_norm,
				     .position = position_of(p),
				     .x_pitch = width,
				     .y_pitch = m->kv_rank,
				     .cols = m->kv_rank,
				     .epsilon = LATENT_EPSILON};

	multiply(p, p->low, p->normed, &w->kv_a, w->kv_a_bias, tokens);
	gpu_launch(p->gpu, DENSE_KERNEL_worker_norm, tokens, &q);
	rotate(p,
	       (struct dense_rotate){.y = values_of(p, layer),
				     .x = p->low + m->kv_rank * sizeof(float),
				     .x_pitch = width,
				     .y_pitch = m->rope_dim,
				     .heads = 1,
				     .dim = m->rope_dim,
				     .rope = m->rope_dim,
				     .moves = 1},
	       tokens);
}

/* Plain queries into the latent space: the first plain_dim rows of each head of kv_b. */
static void carry_queries(const struct pass *p, const struct placed_layer *w, uint32_t tokens)
{
	const struct arch_mla *m = &p->arch->mla;
	const uint32_t head = m->plain_dim + m->rope_dim;
	struct dense_carry q = {.y = p->latent,
				.x = p->query,
				.w = w->kv_b,
				.y_pitch = (uint64_t)m->heads * m->kv_rank,
				.x_pitch = (uint64_t)m->heads * head,
				.y_batch = m->kv_rank,
				.x_batch = head,
				.w_batch = (m->plain_dim + m->value_dim) * w->kv_b.pitch,
				.tokens = tokens,
				.tiles = (m->kv_rank + DENSE_THREADS - 1) / DENSE_THREADS};

	q.w.rows = m->plain_dim;
	gpu_launch(p->gpu, DENSE_KERNEL_worker_carry, (uint64_t)m->heads * tokens * q.tiles, &q);
}

/* What was gathered of latent rows out of the latent space: the other rows of each head. */
static void carry_values(const struct pass *p, const struct placed_layer *w, uint32_t tokens)
{
	const struct arch_mla *m = &p->arch->mla;
	struct dense_product q = {.y = p->mixed,
				  .x = p->gathered,
				  .w = w->kv_b,
				  .y_pitch = (uint64_t)m->heads * m->value_dim,
				  .x_pitch = (uint64_t)m->heads * m->kv_rank,
				  .y_batch = m->value_dim,
				  .x_batch = m->kv_rank,
				  .w_batch = (m->plain_dim + m->value_dim) * w->kv_b.pitch,
				  .tokens = tokens};

	q.w.data += m->plain_dim * w->kv_b.pitch;
	q.w.rows = m->value_dim;
	product(p, q, m->heads);
}

static void run_mla(const struct pass *p, uint32_t layer, uint32_t tokens)
{
	const struct placed_layer *w = &p->placed->layers[layer];
	const struct arch_mla *m = &p->arch->mla;
	const uint32_t head = m->plain_dim + m->rope_dim;
	const struct dense_attend q = {
		.out = p->gathered,
		.query = p->latent,
		.turned = p->query + m->plain_dim * sizeof(float),
		.keys = keys_of(p, layer),
		.values = keys_of(p, layer),
		.extra = values_of(p, layer),
		.position = position_of(p),
		.out_pitch = (uint64_t)m->heads * m->kv_rank,
		.query_pitch = (uint64_t)m->heads * m->kv_rank,
		.turned_pitch = (uint64_t)m->heads * head,
		.key_pitch = m->kv_rank,
		.value_pitch = m->kv_rank,
		.extra_pitch = m->rope_dim,
		.out_step = m->kv_rank,
		.query_step = m->kv_rank,
		.turned_step = head,
		.heads = m->heads,
		.group = m->heads,
		.key_dim = m->kv_rank,
		.extra_dim = m->rope_dim,
		.value_dim = m->kv_rank,
		.scale = p->arch->attention_scale,
	};

	latent_queries(p, w, tokens);
	new_latents(p, layer, w, tokens);
	carry_queries(p, w, tokens);
	gpu_launch(p->gpu, DENSE_KERNEL_worker_attend, (uint64_t)tokens * m->heads, &q);
	carry_values(p, w, tokens);
	multiply(p, p->out, p->mixed, &w->o, w->o_bias, tokens);
}

/* -- the parts of a pass ------------------------------------------------------------------------------------------ */

void pass_embed(const struct pass *p, uint32_t tokens)
{
	const struct dense_embed q = {
		.x = p->x, .ids = p->input + offsetof(struct pass_input, ids), .matrix = p->placed->embedding};

	gpu_launch(p->gpu, DENSE_KERNEL_worker_embed, tokens, &q);
}

void pass_attend(const struct pass *p, uint32_t layer, uint32_t tokens)
{
	const struct placed_layer *w = &p->placed->layers[layer];

	norm(p, p->normed, p->x, w->attention_norm, p->arch->hidden, tokens);
	if (p->arch->latent)
		run_mla(p, layer, tokens);
	else
		run_gqa(p, layer, tokens);
	join(p, p->out, 0, tokens);
	norm(p, p->normed, p->x, w->mlp_norm, p->arch->hidden, tokens);
}

uint64_t pass_row(const struct pass *p, uint32_t row)
{
	return (uint64_t)row * p->choice_pitch * sizeof(int32_t);
}

void pass_route(const struct pass *p, uint32_t layer, uint32_t tokens, uint32_t row)
{
	static const uint32_t scores[] = {[ROUTER_SOFTMAX] = DENSE_SOFTMAX, [ROUTER_SIGMOID] = DENSE_SIGMOID};
	static const uint32_t groups[] = {[ROUTER_GROUP_NONE] = DENSE_GROUP_NONE,
					  [ROUTER_GROUP_MAX] = DENSE_GROUP_MAX,
					  [ROUTER_GROUP_TOP2] = DENSE_GROUP_TOP2};
	const struct placed_layer *w = &p->placed->layers[layer];
	const struct router_config *r = &p->arch->router;
	const struct dense_route q = {
		.logits = p->scores,
		.bias = w->router_bias,
		.ids = p->choices + pass_row(p, row),
		.shares = p->shares + pass_row(p, row),
		.failed = p->input + offsetof(struct pass_input, failed),
		.n_experts = r->n_experts,
		.topk = r->topk,
		.pitch = r->topk,
		.layer = layer,
		.score = scores[r->score],
		.group = groups[r->group],
		.n_groups = r->n_groups,
		.topk_groups = r->topk_groups,
		.renormalise = r->renormalise,
		.epsilon = r->renormalise_epsilon,
		.scale = r->scale,
	};

	multiply(p, p->scores, p->normed, &w->router, 0, tokens);
	gpu_launch(p->gpu, DENSE_KERNEL_worker_route, tokens, &q);
}

static uint32_t activation_of(const struct arch *a)
{
	return a->activation == MOE_ACTIVATION_GELU        ? DENSE_GELU
	       : a->activation == MOE_ACTIVATION_GELU_TANH ? DENSE_GELU_TANH
							   : DENSE_SILU;
}

void pass_mlp(const struct pass *p, uint32_t layer, uint32_t tokens)
{
	const struct placed_layer *w = &p->placed->layers[layer];
	const uint64_t n = (uint64_t)tokens * w->mlp.gate.rows;
	const struct dense_gate q = {.gate = p->gate, .up = p->up, .n = n, .activation = activation_of(p->arch)};

	if (!w->mlp.gate.data)
		return;
	multiply(p, p->gate, p->normed, &w->mlp.gate, 0, tokens);
	multiply(p, p->up, p->normed, &w->mlp.up, 0, tokens);
	gpu_launch(p->gpu, DENSE_KERNEL_worker_gate, MIN((n + DENSE_THREADS - 1) / DENSE_THREADS, 4096u), &q);
	multiply(p, p->out, p->gate, &w->mlp.down, 0, tokens);
	if (w->shared_gate.data)
		multiply(p, p->share, p->normed, &w->shared_gate, 0, tokens);
	join(p, p->out, w->shared_gate.data ? p->share : 0, tokens);
}

void pass_join(const struct pass *p, uint32_t tokens)
{
	join(p, p->part, 0, tokens);
}

void pass_end(const struct pass *p, uint32_t tokens)
{
	norm(p, p->x, p->x, p->placed->norm, p->arch->hidden, tokens);
}

void pass_output(const struct pass *p, uint32_t first, uint32_t n)
{
	multiply(p, p->logits, p->x + (uint64_t)first * p->arch->hidden * sizeof(float), &p->placed->output, 0, n);
}
