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

struct forward_host {
	struct forward base;
	const struct weights *weights;
	struct experts *experts;
	struct group *group;
	struct attention *attention;
	float *x;         /* [tokens_max][hidden]: the residual stream; after a step the normed output */
	float *normed;    /* [tokens_max][hidden] */
	float *part;      /* [tokens_max][hidden]: what a layer's part adds */
	float *scratch;   /* of dense and shared experts */
	float *scores;    /* [tokens_max][n_experts] */
	float *choice;    /* [n_experts] */
	float *shares;    /* [tokens_max][topk] */
	int32_t *choices; /* [tokens_max][topk] */
};

static void norm_rows(const struct forward_host *f, float *y, const float *weight, uint32_t tokens)
{
	const uint32_t hidden = f->base.arch->hidden;

	for (uint32_t t = 0; t < tokens; t++)
		vector_rms_norm(y + (size_t)t * hidden, f->x + (size_t)t * hidden, weight, hidden,
				f->base.arch->epsilon);
}

static int route(struct forward_host *f, uint32_t layer, const struct layer_weights *w, uint32_t tokens,
		 struct moe_error *err)
{
	const struct router_config *router = &f->base.arch->router;
	const uint32_t topk = router->topk;

	matrix_multiply(f->scores, router->n_experts, f->normed, f->base.arch->hidden, tokens, &w->router, NULL);
	for (uint32_t t = 0; t < tokens; t++) {
		int32_t *ids = f->choices + (size_t)t * topk;

		router_route(router, f->scores + (size_t)t * router->n_experts, f->choice, w->router_bias, ids,
			     f->shares + (size_t)t * topk);
		if (ids[topk - 1] < 0)
			return moe_error_set(err, -EDOM, "layer %u, position %u: the router's scores are not numbers",
					     layer, f->base.used + t);
	}
	return 0;
}

/* x += shared experts of the normed rows. */
static void add_shared(struct forward_host *f, const struct layer_weights *w, uint32_t tokens)
{
	const uint32_t hidden = f->base.arch->hidden;

	mlp_run(&w->mlp, f->base.arch->activation, f->normed, tokens, f->scratch, f->part);
	for (uint32_t t = 0; t < tokens; t++) {
		float share = 1.0f;

		if (w->shared_gate.data) {
			matrix_multiply(&share, 1, f->normed + (size_t)t * hidden, hidden, 1, &w->shared_gate, NULL);
			share = sigmoid(share);
		}
		vector_axpy(f->x + (size_t)t * hidden, share, f->part + (size_t)t * hidden, hidden);
	}
}

static int run_moe(struct forward_host *f, uint32_t layer, const struct layer_weights *w, uint32_t tokens,
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
	    (r = group_sum(f->group, f->part, (uint64_t)tokens * f->base.arch->hidden, err)) < 0)
		return r;
	vector_axpy(f->x, 1.0f, f->part, (size_t)tokens * f->base.arch->hidden);
	return 0;
}

static int run_layer(struct forward_host *f, uint32_t layer, uint32_t tokens, struct moe_error *err)
{
	const struct layer_weights *w = &f->weights->layers[layer];
	const size_t wide = (size_t)tokens * f->base.arch->hidden;

	norm_rows(f, f->normed, w->attention_norm, tokens);
	attention_run(f->attention, layer, w, f->normed, tokens, f->base.used, f->part);
	vector_axpy(f->x, 1.0f, f->part, wide);
	norm_rows(f, f->normed, w->mlp_norm, tokens);
	if (f->base.arch->is_moe[layer])
		return run_moe(f, layer, w, tokens, err);
	mlp_run(&w->mlp, f->base.arch->activation, f->normed, tokens, f->scratch, f->part);
	vector_axpy(f->x, 1.0f, f->part, wide);
	return 0;
}

static int host_step(struct forward *base, const int32_t *ids, uint32_t tokens, enum moe_step_phase phase,
		     struct moe_error *err)
{
	struct forward_host *f = (struct forward_host *)base;
	const uint32_t hidden = base->arch->hidden;
	int r = f->experts->phase(f->experts, phase, base->steps, err);

	if (r < 0)
		return r;
	for (uint32_t t = 0; t < tokens; t++)
		matrix_widen(f->x + (size_t)t * hidden, &f->weights->embedding, (uint32_t)ids[t], 0, hidden);
	for (uint32_t i = 0; i < base->arch->n_layers; i++) {
		r = run_layer(f, i, tokens, err);
		if (r < 0)
			return r;
	}
	norm_rows(f, f->x, f->weights->norm, tokens);
	return 0;
}

static int host_logits(struct forward *base, uint32_t first, uint32_t n, float *logits, struct moe_error *err)
{
	const struct forward_host *f = (struct forward_host *)base;
	const uint32_t hidden = base->arch->hidden;

	matrix_multiply(logits, base->arch->vocab, f->x + (size_t)first * hidden, hidden, n, &f->weights->output, NULL);
	return 0;
}

static struct forward *host_free(struct forward *base)
{
	struct forward_host *f = (struct forward_host *)base;

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

static void cleanup_forward(struct forward **forward)
{
	forward_free(*forward);
}

int forward_host_new(struct forward **ret, const struct arch *arch, const struct weights *weights,
		     struct experts *experts, struct group *group, uint32_t positions, uint32_t tokens_max,
		     struct moe_error *err)
{
	_cleanup_(cleanup_forward) struct forward *base = NULL;
	struct forward_host *f = calloc(1, sizeof(*f));
	const size_t wide = (size_t)tokens_max * arch->hidden, pairs = (size_t)tokens_max * arch->router.topk;
	int r;

	if (!f)
		return moe_error_set(err, -ENOMEM, "no memory for a forward pass");
	base = &f->base;
	*base = (struct forward){.arch = arch,
				 .where = "the CPU",
				 .positions = positions,
				 .tokens_max = tokens_max,
				 .step = host_step,
				 .logits = host_logits,
				 .free = host_free};
	f->weights = weights;
	f->experts = experts;
	f->group = group;
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
	*ret = steal_ptr(base);
	return 0;
}
