/* SPDX-License-Identifier: MIT */
#include "tools/worker/experts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "tools/worker/vector.h"

struct experts_local {
	struct experts base;
	const struct arch *arch;
	struct gated_mlp *table; /* [n_layers][n_experts], the rank's share; dense layers' rows are empty */
	struct experts_step step;
	uint32_t *members; /* tokens of one expert */
	float *shares;     /* and their weights for it */
	float *x, *gate, *up, *y;
};

static int local_phase(struct experts *base, enum moe_step_phase phase, uint64_t number, struct moe_error *err)
{
	return 0;
}

static int local_begin(struct experts *base, const struct experts_step *step, struct moe_error *err)
{
	((struct experts_local *)base)->step = *step;
	return 0;
}

/* The tokens that chose `expert`, gathered; how many there are. An expert stands at most once per token. */
static uint32_t gather(struct experts_local *l, int32_t expert)
{
	const struct experts_step *s = &l->step;
	const uint32_t topk = l->arch->router.topk, hidden = l->arch->hidden;
	uint32_t n = 0;

	for (uint32_t t = 0; t < s->tokens; t++) {
		for (uint32_t k = 0; k < topk; k++) {
			if (s->ids[t * topk + k] != expert)
				continue;
			l->members[n] = t;
			l->shares[n] = s->weights[t * topk + k];
			memcpy(l->x + (size_t)n * hidden, s->x + (size_t)t * hidden, hidden * sizeof(float));
			n++;
			break;
		}
	}
	return n;
}

static int local_end(struct experts *base, float *y, struct moe_error *err)
{
	struct experts_local *l = (struct experts_local *)base;
	const struct arch *arch = l->arch;
	const uint32_t hidden = arch->hidden, n_experts = arch->router.n_experts;

	memset(y, 0, (size_t)l->step.tokens * hidden * sizeof(float));
	for (uint32_t e = 0; e < n_experts; e++) {
		const struct gated_mlp *mlp = &l->table[(size_t)l->step.layer * n_experts + e];
		const uint32_t n = gather(l, (int32_t)e), inter = mlp->gate.rows;

		if (n == 0)
			continue;
		matrix_multiply(l->gate, inter, l->x, hidden, n, &mlp->gate, NULL);
		matrix_multiply(l->up, inter, l->x, hidden, n, &mlp->up, NULL);
		vector_gate(l->gate, l->up, (size_t)n * inter, arch->activation);
		matrix_multiply(l->y, hidden, l->gate, inter, n, &mlp->down, NULL);
		for (uint32_t i = 0; i < n; i++)
			vector_axpy(y + (size_t)l->members[i] * hidden, l->shares[i], l->y + (size_t)i * hidden,
				    hidden);
		l->base.stats.local += n;
	}
	return 0;
}

static struct experts *local_free(struct experts *base)
{
	struct experts_local *l = (struct experts_local *)base;

	free(l->table);
	free(l->members);
	free(l->shares);
	free(l->x);
	free(l->gate);
	free(l->up);
	free(l->y);
	free(l);
	return NULL;
}

static int part_matrix(struct matrix *ret, const struct weights *weights, uint32_t layer, uint32_t expert,
		       enum expert_part part, struct moe_error *err)
{
	const struct model_config *c = &weights->model->config;
	const struct tensor *tensor;
	char name[192];

	model_expert_name(name, sizeof(name), c->family, layer, expert, part);
	tensor = model_tensor(weights->model, name);
	if (!tensor)
		return moe_error_set(err, -EINVAL, "%s: no tensor %s", weights->model->path, name);
	return weights_matrix(weights, tensor, ret, err);
}

/* The rows of gate and up, and the columns of down, that belong to this rank. */
static int read_expert(struct gated_mlp *ret, const struct weights *weights, const struct arch *arch,
		       const struct group *group, uint32_t layer, uint32_t expert, struct moe_error *err)
{
	const uint64_t inter = arch->expert_inter;
	const uint32_t from = (uint32_t)(inter * group->rank / group->size);
	const uint32_t n = (uint32_t)(inter * (group->rank + 1) / group->size) - from;
	struct gated_mlp mlp;
	int r;

	if ((r = part_matrix(&mlp.gate, weights, layer, expert, PART_GATE, err)) < 0 ||
	    (r = part_matrix(&mlp.up, weights, layer, expert, PART_UP, err)) < 0 ||
	    (r = part_matrix(&mlp.down, weights, layer, expert, PART_DOWN, err)) < 0)
		return r;
	if (mlp.gate.rows != inter || mlp.gate.cols != arch->hidden || mlp.up.rows != inter ||
	    mlp.up.cols != arch->hidden || mlp.down.rows != arch->hidden || mlp.down.cols != inter)
		return moe_error_set(err, -EINVAL,
				     "%s: expert %u of layer %u: gate [%u, %u], up [%u, %u], down [%u, %u]; expected "
				     "[%llu, %u] twice and [%u, %llu]",
				     weights->model->path, expert, layer, mlp.gate.rows, mlp.gate.cols, mlp.up.rows,
				     mlp.up.cols, mlp.down.rows, mlp.down.cols, (unsigned long long)inter, arch->hidden,
				     arch->hidden, (unsigned long long)inter);
	ret->gate = matrix_rows(mlp.gate, from, n);
	ret->up = matrix_rows(mlp.up, from, n);
	ret->down = matrix_cols(mlp.down, from, n);
	return 0;
}

static void cleanup_experts(struct experts **experts)
{
	experts_free(*experts);
}

int experts_local_new(struct experts **ret, const struct weights *weights, const struct arch *arch,
		      const struct group *group, uint32_t tokens_max, struct moe_error *err)
{
	_cleanup_(cleanup_experts) struct experts *base = NULL;
	struct experts_local *l = calloc(1, sizeof(*l));
	const uint32_t n_experts = arch->router.n_experts;
	const size_t wide = (size_t)tokens_max * arch->hidden, inner = (size_t)tokens_max * arch->expert_inter;
	int r;

	if (!l)
		return moe_error_set(err, -ENOMEM, "no memory for the local experts");
	base = &l->base;
	*base = (struct experts){.phase = local_phase, .begin = local_begin, .end = local_end, .free = local_free};
	l->arch = arch;
	l->table = calloc((size_t)arch->n_layers * n_experts, sizeof(*l->table));
	l->members = calloc(tokens_max, sizeof(*l->members));
	l->shares = calloc(tokens_max, sizeof(*l->shares));
	l->x = malloc(wide * sizeof(float));
	l->y = malloc(wide * sizeof(float));
	l->gate = malloc(inner * sizeof(float));
	l->up = malloc(inner * sizeof(float));
	if (!l->table || !l->members || !l->shares || !l->x || !l->y || !l->gate || !l->up)
		return moe_error_set(err, -ENOMEM, "no memory for the local experts of %u tokens", tokens_max);
	for (uint32_t i = 0; i < arch->n_layers; i++) {
		for (uint32_t e = 0; arch->is_moe[i] && e < n_experts; e++) {
			r = read_expert(&l->table[(size_t)i * n_experts + e], weights, arch, group, i, e, err);
			if (r < 0)
				return r;
		}
	}
	*ret = steal_ptr(base);
	return 0;
}
