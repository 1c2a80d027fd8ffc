/* SPDX-License-Identifier: MIT */
#include "tools/worker/experts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "kernels/record.h"
#include "tools/worker/records.h"
#include "tools/worker/vector.h"

/* The rank's share of an expert: matrices in the shards, or in `decoded`, which is filled when the expert is first
 * asked for. */
struct local_expert {
	struct gated_mlp mlp; /* gate.data NULL: not decoded yet */
	const float *bias[MOE_PARTS];
	float *decoded;
};

struct experts_local {
	struct experts base;
	const struct arch *arch;
	struct records records;
	struct local_expert *table; /* [n_layers][n_experts], the rank's share; dense layers' rows are empty */
	uint32_t rank, size;
	struct experts_step step;
	uint32_t *members; /* tokens of one expert */
	float *shares;     /* and their weights for it */
	float *x, *gate, *up, *y;
};

/* -- the rank's share of an expert -------------------------------------------------------------------------------- */

/* Rows first .. first + rows and columns col .. col + cols of a decoded matrix. */
static struct matrix decode_matrix(float *to, const struct kernel_matrix *from, uint32_t rows, uint32_t cols)
{
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t c = 0; c < cols; c++)
			to[(size_t)r * cols + c] = (float)kernel_weight(from, r, c);
	return (struct matrix){.data = (const uint8_t *)to,
			       .type = MATRIX_F32,
			       .rows = rows,
			       .cols = cols,
			       .pitch = cols * sizeof(float)};
}

/* Any format, by its definition: the record is built and each weight of the rank's slice widened to FP32. */
static int decode_expert(struct experts_local *l, struct local_expert *ret, uint32_t layer, uint32_t expert,
			 struct moe_error *err)
{
	const uint32_t hidden = l->arch->hidden;
	struct kernel_matrix part[MOE_PARTS];
	struct moe_layout layout;
	struct moe_slice slice;
	const uint8_t *record;
	float *at;
	int r = records_build(&l->records, layer, expert, &layout, &record, err);

	if (r < 0)
		return r;
	moe_slice_of(&slice, &layout, l->rank, l->size);
	ret->decoded = calloc(3 * ((size_t)slice.inter * hidden + MAX(slice.inter, hidden)), sizeof(float));
	if (!ret->decoded)
		return moe_error_set(err, -ENOMEM, "no memory for expert %u of layer %u in FP32", expert, layer);
	at = ret->decoded;
	for (int i = 0; i < MOE_PARTS; i++) {
		const uint32_t rows = i == MOE_PART_DOWN ? hidden : slice.inter;

		part[i] = record_matrix(record, &layout, &slice, (enum moe_part_name)i, RECORD_IN_POOL);
		if (part[i].bias) {
			ret->bias[i] = memcpy(at, part[i].bias, rows * sizeof(float));
			at += rows;
		}
	}
	ret->mlp.up = decode_matrix(at, &part[MOE_PART_UP], slice.inter, hidden);
	at += (size_t)slice.inter * hidden;
	ret->mlp.down = decode_matrix(at, &part[MOE_PART_DOWN], hidden, slice.inter);
	at += (size_t)slice.inter * hidden;
	ret->mlp.gate = decode_matrix(at, &part[MOE_PART_GATE], slice.inter, hidden);
	return 0;
}

/* Published matrices of 16 bits are used where they lie in the shards: no code is shared with those who lay records
 * out or compute with them. */
static bool plain(const struct moe_layout *layout)
{
	for (int i = 0; i < MOE_PARTS; i++)
		if (moe_formats[layout->part[i].format].bits != 16 || layout->part[i].plane[MOE_PLANE_BIAS])
			return false;
	return true;
}

static void plain_expert(const struct experts_local *l, struct gated_mlp *ret, const struct moe_layout *layout,
			 uint32_t layer, uint32_t expert)
{
	struct expert_source sources[EXPERT_SOURCES_MAX];
	const uint32_t n = expert_sources(l->records.model, layer, expert, sources);
	struct matrix part[MOE_PARTS] = {0};
	struct moe_slice slice;

	for (uint32_t i = 0; i < n; i++) {
		const struct moe_part *p = &layout->part[sources[i].repack.part];

		part[sources[i].repack.part] = (struct matrix){.data = records_source(&l->records, &sources[i]),
							       .type = p->format == MOE_FORMAT_BF16 ? MATRIX_BF16
												    : MATRIX_F16,
							       .rows = p->rows,
							       .cols = p->cols,
							       .pitch = (uint64_t)p->cols * 2};
	}
	moe_slice_of(&slice, layout, l->rank, l->size);
	ret->gate = matrix_rows(part[MOE_PART_GATE], slice.first, slice.inter);
	ret->up = matrix_rows(part[MOE_PART_UP], slice.first, slice.inter);
	ret->down = matrix_cols(part[MOE_PART_DOWN], slice.first, slice.inter);
}

/* -- steps -------------------------------------------------------------------------------------------------------- */

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
		struct local_expert *expert = &l->table[(size_t)l->step.layer * n_experts + e];
		const struct gated_mlp *mlp = &expert->mlp;
		const uint32_t n = gather(l, (int32_t)e);
		uint32_t inter;
		int r;

		if (n == 0)
			continue;
		r = mlp->gate.data ? 0 : decode_expert(l, expert, l->step.layer, e, err);
		if (r < 0)
			return r;
		inter = mlp->gate.rows;
		matrix_multiply(l->gate, inter, l->x, hidden, n, &mlp->gate, expert->bias[MOE_PART_GATE]);
		matrix_multiply(l->up, inter, l->x, hidden, n, &mlp->up, expert->bias[MOE_PART_UP]);
		vector_gate(l->gate, l->up, (size_t)n * inter, arch->activation);
		matrix_multiply(l->y, hidden, l->gate, inter, n, &mlp->down, expert->bias[MOE_PART_DOWN]);
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

	for (size_t i = 0; l->table && i < (size_t)l->arch->n_layers * l->arch->router.n_experts; i++)
		free(l->table[i].decoded);
	free(l->table);
	records_close(&l->records);
	free(l->members);
	free(l->shares);
	free(l->x);
	free(l->gate);
	free(l->up);
	free(l->y);
	free(l);
	return NULL;
}

static void cleanup_experts(struct experts **experts)
{
	experts_free(*experts);
}

int experts_local_new(struct experts **ret, const struct model *model, const struct arch *arch,
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
	l->rank = group->rank;
	l->size = group->size;
	l->table = calloc((size_t)arch->n_layers * n_experts, sizeof(*l->table));
	l->members = calloc(tokens_max, sizeof(*l->members));
	l->shares = calloc(tokens_max, sizeof(*l->shares));
	l->x = malloc(wide * sizeof(float));
	l->y = malloc(wide * sizeof(float));
	l->gate = malloc(inner * sizeof(float));
	l->up = malloc(inner * sizeof(float));
	if (!l->table || !l->members || !l->shares || !l->x || !l->y || !l->gate || !l->up)
		return moe_error_set(err, -ENOMEM, "no memory for the local experts of %u tokens", tokens_max);
	r = records_open(&l->records, model, err);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < arch->n_layers; i++) {
		struct moe_layout layout;

		if (!arch->is_moe[i])
			continue;
		expert_layout(model, i, &layout);
		for (uint32_t e = 0; plain(&layout) && e < n_experts; e++)
			plain_expert(l, &l->table[(size_t)i * n_experts + e].mlp, &layout, i, e);
	}
	*ret = steal_ptr(base);
	return 0;
}
