/* SPDX-License-Identifier: MIT */
#include "tools/worker/forward.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "tools/worker/mlp.h"
#include "tools/worker/vector.h"

static void cleanup_forward(struct forward **forward)
{
	forward_free(*forward);
}

int forward_new(struct forward **ret, const struct arch *arch, const struct weights *weights, struct experts *experts,
		struct group *group, uint32_t positions, uint32_t tokens_max, struct moe_error *err)
{
	_cleanup_(cleanup_forward) struct forward *f = calloc(1, sizeof(*f));
	const size_t wide = (size_t)tokens_max * arch->hidden, pairs = (size_t)tokens_max * arch->router.topk;
	int r;

	if (!f)
		return moe_error_set(err, -ENOMEM, "no memory for a forward pass");
	*f = (struct forward){.arch = arch,
			      .weights = weights,
			      .experts = experts,
			      .group = group,
			      .positions = positions,
			      .tokens_max = tokens_max};
	r = attention_new(&f->attention, arch, positions, tokens_max, err);
	if (r < 0)
		return r;
	f->x = malloc(wide * sizeof(float));
	f->normed = malloc(wide * sizeof(float));
	f->part = malloc(wide * sizeof(float));
	f->scratch = malloc(2 * (size_t)tokens_max * MAX(MAX(arch->dense_inter, arch->shared_inter), 1u) *
			    sizeof(float));
	f->scores = malloc((size_t)tokens_max * arch->router.n_experts * sizeof(float));
	f->choice = malloc(arch->router.n_experts * sizeof(float));
	f->shares = malloc(pairs * sizeof(float));
	f->choices = malloc(pairs * sizeof(int32_t));
	if (!f->x || !f->normed || !f->part || !f->scratch || !f->scores || !f->choice || !f->shares || !f->choices)
		return moe_error_set(err, -ENOMEM, "no memory for steps of %u tokens", tokens_max);
	*ret = steal_ptr(f);
	return 0;
}

struct forward *forward_free(struct forward *f)
{
	if (!f)
		return NULL;
	attention_free(f->attention);
	free(f->x);
	free(f->normed);
	free(f->part);
	free(f->scratch);
	free(f->scores);
	free(f->choice);
	free(f->shares);
	free(f->choices);
	free(f);
	return NULL;
}

void forward_reset(struct forward *f)
{
	f->used = 0;
}

static void norm_rows(const struct forward *f, float *y, const float *weight, uint32_t tokens)
{
	const uint32_t hidden = f->arch->hidden;

	for (uint32_t t = 0; t < tokens; t++)
		vector_rms_norm(y + (size_t)t * hidden, f->x + (size_t)t * hidden, weight, hidden, f->arch->epsilon);
}

static int route(struct forward *f, uint32_t layer, const struct layer_weights *w, uint32_t tokens,
		 struct moe_error *err)
{
	const struct router_config *router = &f->arch->router;
	const uint32_t topk = router->topk;

	matrix_multiply(f->scores, router->n_experts, f->normed, f->arch->hidden, tokens, &w->router, NULL);
	for (uint32_t t = 0; t < tokens; t++) {
		int32_t *ids = f->choices + (size_t)t * topk;

		router_route(router, f->scores + (size_t)t * router->n_experts, f->choice, w->router_bias, ids,
			     f->shares + (size_t)t * topk);
		if (ids[topk - 1] < 0)
			return moe_error_set(err, -EDOM, "layer %u, position %u: the router's scores are not numbers",
					     layer, f->used + t);
	}
	return 0;
}

/* x += shared experts of the normed rows. */
static void add_shared(struct forward *f, const struct layer_weights *w, uint32_t tokens)
{
	const uint32_t hidden = f->arch->hidden;

	mlp_run(&w->mlp, f->arch->activation, f->normed, tokens, f->scratch, f->part);
	for (uint32_t t = 0; t < tokens; t++) {
		float share = 1.0f;

		if (w->shared_gate.data) {
			matrix_multiply(&share, 1, f->normed + (size_t)t * hidden, hidden, 1, &w->shared_gate, NULL);
			share = sigmoid(share);
		}
		vector_axpy(f->x + (size_t)t * hidden, share, f->part + (size_t)t * hidden, hidden);
	}
}

static int run_moe(struct forward *f, uint32_t layer, const struct layer_weights *w, uint32_t tokens,
		   struct moe_error *err)
{
	const struct experts_step step = {
		.layer = layer, .tokens = tokens, .ids = f->choices, .weights = f->shares, .x = f->normed};
	int r;

	if ((r = route(f, layer, w, tokens, err)) < 0 || (r = f->experts->begin(f->experts, &step, err)) < 0)
		return r;
	if (w->mlp.gate.data)
		add_shared(f, w, tokens); /* meanwhile the routed experts are computed */
	if ((r = f->experts->end(f->experts, f->part, err)) < 0 ||
	    (r = group_sum(f->group, f->part, (uint64_t)tokens * f->arch->hidden, err)) < 0)
		return r;
	vector_axpy(f->x, 1.0f, f->part, (size_t)tokens * f->arch->hidden);
	return 0;
}

static int run_layer(struct forward *f, uint32_t layer, uint32_t tokens, struct moe_error *err)
{
	const struct layer_weights *w = &f->weights->layers[layer];
	const size_t wide = (size_t)tokens * f->arch->hidden;

	norm_rows(f, f->normed, w->attention_norm, tokens);
	attention_run(f->attention, layer, w, f->normed, tokens, f->used, f->part);
	vector_axpy(f->x, 1.0f, f->part, wide);
	norm_rows(f, f->normed, w->mlp_norm, tokens);
	if (f->arch->is_moe[layer])
		return run_moe(f, layer, w, tokens, err);
	mlp_run(&w->mlp, f->arch->activation, f->normed, tokens, f->scratch, f->part);
	vector_axpy(f->x, 1.0f, f->part, wide);
	return 0;
}

int forward_step(struct forward *f, const int32_t *ids, uint32_t tokens, enum moe_step_phase phase,
		 struct moe_error *err)
{
	const uint32_t hidden = f->arch->hidden;
	int r;

	if (tokens == 0 || tokens > f->tokens_max || tokens > f->positions - f->used)
		return moe_error_set(err, -EINVAL, "a step of %u tokens at position %u; expected 1 to %u, %u positions",
				     tokens, f->used, f->tokens_max, f->positions);
	r = f->experts->phase(f->experts, phase, f->steps, err);
	if (r < 0)
		return r;
	for (uint32_t t = 0; t < tokens; t++)
		matrix_widen(f->x + (size_t)t * hidden, &f->weights->embedding, (uint32_t)ids[t], 0, hidden);
	for (uint32_t i = 0; i < f->arch->n_layers; i++) {
		r = run_layer(f, i, tokens, err);
		if (r < 0)
			return r;
	}
	norm_rows(f, f->x, f->weights->norm, tokens);
	f->used += tokens;
	f->tokens += tokens;
	f->steps++;
	return 0;
}

void forward_logits(const struct forward *f, uint32_t first, uint32_t n, float *logits)
{
	matrix_multiply(logits, f->arch->vocab, f->x + (size_t)first * f->arch->hidden, f->arch->hidden, n,
			&f->weights->output, NULL);
}
