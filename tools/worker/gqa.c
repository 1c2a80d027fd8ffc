/* SPDX-License-Identifier: MIT */
#include "tools/worker/attention.h"

#include <string.h>

#include "base/util.h"
#include "tools/worker/vector.h"

/* Queries, or keys: normalised as the family does, then clipped. `heads` rows of head_dim each. */
static void norm_row(const struct arch *arch, float *row, const float *weight, uint32_t heads)
{
	const uint32_t dim = arch->gqa.head_dim;

	if (arch->gqa.norm == ARCH_NORM_FULL)
		vector_rms_norm(row, row, weight, (size_t)heads * dim, arch->epsilon);
	else if (arch->gqa.norm == ARCH_NORM_HEAD)
		for (uint32_t h = 0; h < heads; h++)
			vector_rms_norm(row + h * dim, row + h * dim, weight, dim, arch->epsilon);
}

static void clip_row(const struct arch *arch, float *row, size_t n)
{
	const float most = arch->gqa.clip;

	for (size_t i = 0; most > 0 && i < n; i++)
		row[i] = MIN(MAX(row[i], -most), most);
}

static void rotate_heads(const struct attention *a, float *row, uint32_t heads, uint32_t position)
{
	for (uint32_t h = 0; h < heads; h++)
		rope_apply(a->rope, row + h * a->arch->gqa.head_dim, position);
}

/* One query head at `position` over the keys and values of its key/value head. */
static void attend(struct attention *a, const float *query, const float *keys, const float *values, uint32_t position,
		   float *out)
{
	const struct arch_gqa *g = &a->arch->gqa;
	const uint32_t from = g->window && position >= g->window ? position + 1 - g->window : 0;
	const size_t pitch = a->key_width;

	for (uint32_t p = from; p <= position; p++)
		a->scores[p] = a->arch->attention_scale * vector_dot(query, keys + p * pitch, g->head_dim);
	vector_softmax(a->scores + from, position + 1 - from);
	memset(out, 0, g->head_dim * sizeof(float));
	for (uint32_t p = from; p <= position; p++)
		vector_axpy(out, a->scores[p], values + p * pitch, g->head_dim);
}

void gqa_run(struct attention *a, uint32_t layer, const struct layer_weights *w, const float *x, uint32_t tokens,
	     uint32_t first, float *y)
{
	const struct arch *arch = a->arch;
	const struct arch_gqa *g = &arch->gqa;
	const uint32_t width = g->heads * g->head_dim, group = g->heads / g->kv_heads;
	float *keys = a->keys[layer], *values = a->values[layer];
	float *new_keys = keys + (size_t)first * a->key_width, *new_values = values + (size_t)first * a->value_width;

	matrix_multiply(a->query, width, x, arch->hidden, tokens, &w->q, w->q_bias);
	matrix_multiply(new_keys, a->key_width, x, arch->hidden, tokens, &w->k, w->k_bias);
	matrix_multiply(new_values, a->value_width, x, arch->hidden, tokens, &w->v, w->v_bias);
	for (uint32_t t = 0; t < tokens; t++) {
		float *query = a->query + (size_t)t * width, *key = new_keys + (size_t)t * a->key_width;

		norm_row(arch, query, w->q_norm, g->heads);
		norm_row(arch, key, w->k_norm, g->kv_heads);
		clip_row(arch, query, width);
		clip_row(arch, key, a->key_width);
		clip_row(arch, new_values + (size_t)t * a->value_width, a->value_width);
		rotate_heads(a, query, g->heads, first + t);
		rotate_heads(a, key, g->kv_heads, first + t);
	}
	for (uint32_t t = 0; t < tokens; t++) {
		for (uint32_t h = 0; h < g->heads; h++) {
			const size_t at = (size_t)t * width + h * g->head_dim,
				     shared = (size_t)(h / group) * g->head_dim;

			attend(a, a->query + at, keys + shared, values + shared, first + t, a->mixed + at);
		}
	}
	matrix_multiply(y, arch->hidden, a->mixed, width, tokens, &w->o, w->o_bias);
}
