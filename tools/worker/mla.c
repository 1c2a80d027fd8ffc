/* SPDX-License-Identifier: MIT */
/*
 * Of one head, with u and v the head's rows of kv_b (u for the plain part of keys, v for values) and c the latent row
 * of a position: query . (u c) = (u^T query) . c, and sum p (v c) = v (sum p c). The right-hand sides are computed.
 */
#include "tools/worker/attention.h"

#include <string.h>

#include "base/util.h"
#include "tools/worker/vector.h"

/* The published implementations have this constant in the norms of the latent spaces, whatever rms_norm_eps says. */
#define LATENT_EPSILON 1e-6f

static void new_queries(struct attention *a, const struct layer_weights *w, const float *x, uint32_t tokens,
			uint32_t first)
{
	const struct arch_mla *m = &a->arch->mla;
	const uint32_t hidden = a->arch->hidden, head = m->plain_dim + m->rope_dim, width = m->heads * head;

	if (m->q_rank) {
		matrix_multiply(a->low, m->q_rank, x, hidden, tokens, &w->q_a, w->q_a_bias);
		for (uint32_t t = 0; t < tokens; t++) {
			float *row = a->low + (size_t)t * m->q_rank;

			vector_rms_norm(row, row, w->q_a_norm, m->q_rank, LATENT_EPSILON);
		}
		matrix_multiply(a->query, width, a->low, m->q_rank, tokens, &w->q_b, NULL);
	} else {
		matrix_multiply(a->query, width, x, hidden, tokens, &w->q, NULL);
	}
	for (uint32_t t = 0; t < tokens; t++)
		for (uint32_t h = 0; h < m->heads; h++)
			rope_apply(a->rope, a->query + (size_t)t * width + h * head + m->plain_dim, first + t);
}

static void new_latents(struct attention *a, uint32_t layer, const struct layer_weights *w, const float *x,
			uint32_t tokens, uint32_t first)
{
	const struct arch_mla *m = &a->arch->mla;
	const uint32_t width = m->kv_rank + m->rope_dim;

	matrix_multiply(a->low, width, x, a->arch->hidden, tokens, &w->kv_a, w->kv_a_bias);
	for (uint32_t t = 0; t < tokens; t++) {
		const float *row = a->low + (size_t)t * width;
		float *rotated = a->values[layer] + (size_t)(first + t) * m->rope_dim;

		vector_rms_norm(a->keys[layer] + (size_t)(first + t) * m->kv_rank, row, w->kv_a_norm, m->kv_rank,
				LATENT_EPSILON);
		memcpy(rotated, row + m->kv_rank, m->rope_dim * sizeof(float));
		rope_apply(a->rope, rotated, first + t);
	}
}

/* One query (latent and rotated part) at `position`: out = sum over positions of softmax(score) * latent row. */
static void attend(struct attention *a, uint32_t layer, const float *latent, const float *rotated, uint32_t position,
		   float *out)
{
	const struct arch_mla *m = &a->arch->mla;
	const float *keys = a->keys[layer], *turned = a->values[layer];

	for (uint32_t p = 0; p <= position; p++)
		a->scores[p] = a->arch->attention_scale *
			       (vector_dot(latent, keys + (size_t)p * m->kv_rank, m->kv_rank) +
				vector_dot(rotated, turned + (size_t)p * m->rope_dim, m->rope_dim));
	vector_softmax(a->scores, position + 1);
	memset(out, 0, m->kv_rank * sizeof(float));
	for (uint32_t p = 0; p <= position; p++)
		vector_axpy(out, a->scores[p], keys + (size_t)p * m->kv_rank, m->kv_rank);
}

void mla_run(struct attention *a, uint32_t layer, const struct layer_weights *w, const float *x, uint32_t tokens,
	     uint32_t first, float *y)
{
	const struct arch_mla *m = &a->arch->mla;
	const uint32_t head = m->plain_dim + m->rope_dim, width = m->heads * head, out = m->heads * m->value_dim;
	float *latent = a->carried, *gathered = a->carried + (size_t)a->tokens * m->kv_rank;

	new_queries(a, w, x, tokens, first);
	new_latents(a, layer, w, x, tokens, first);
	for (uint32_t h = 0; h < m->heads; h++) {
		const uint32_t row = h * (m->plain_dim + m->value_dim);
		const struct matrix into = matrix_rows(w->kv_b, row, m->plain_dim);
		const struct matrix out_of = matrix_rows(w->kv_b, row + m->plain_dim, m->value_dim);
		const float *query = a->query + h * head;

		matrix_multiply_transposed(latent, m->kv_rank, query, width, tokens, &into);
		for (uint32_t t = 0; t < tokens; t++)
			attend(a, layer, latent + (size_t)t * m->kv_rank, query + (size_t)t * width + m->plain_dim,
			       first + t, gathered + (size_t)t * m->kv_rank);
		matrix_multiply(a->mixed + h * m->value_dim, out, gathered, m->kv_rank, tokens, &out_of, NULL);
	}
	matrix_multiply(y, a->arch->hidden, a->mixed, out, tokens, &w->o, w->o_bias);
}
