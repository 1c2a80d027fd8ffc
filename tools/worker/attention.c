/* SPDX-License-Identifier: MIT */
#include "tools/worker/attention.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"

static void cleanup_attention(struct attention **attention)
{
	attention_free(*attention);
}

static float *new_floats(uint64_t a, uint64_t b)
{
	return malloc(MAX(a * b, 1u) * sizeof(float));
}

static bool new_scratch(struct attention *a)
{
	const struct arch *arch = a->arch;
	const struct arch_mla *m = &arch->mla;
	uint64_t query, mixed;

	if (arch->latent) {
		query = (uint64_t)m->heads * (m->plain_dim + m->rope_dim);
		mixed = (uint64_t)m->heads * m->value_dim;
		a->low = new_floats(a->tokens, MAX((uint64_t)m->q_rank, (uint64_t)m->kv_rank + m->rope_dim));
		a->carried = new_floats(2ull * a->tokens, m->kv_rank);
		if (!a->low || !a->carried)
			return false;
	} else {
		query = mixed = (uint64_t)arch->gqa.heads * arch->gqa.head_dim;
	}
	a->query = new_floats(a->tokens, query);
	a->mixed = new_floats(a->tokens, mixed);
	a->scores = new_floats(1, a->positions);
	return a->query && a->mixed && a->scores;
}

int attention_new(struct attention **ret, const struct arch *arch, uint32_t positions, uint32_t tokens,
		  struct moe_error *err)
{
	_cleanup_(cleanup_attention) struct attention *a = calloc(1, sizeof(*a));
	bool good;
	int r;

	if (!a)
		return moe_error_set(err, -ENOMEM, "no memory for attention");
	a->arch = arch;
	a->positions = positions;
	a->tokens = tokens;
	a->key_width = arch->latent ? arch->mla.kv_rank : arch->gqa.kv_heads * arch->gqa.head_dim;
	a->value_width = arch->latent ? arch->mla.rope_dim : a->key_width;
	r = rope_new(&a->rope, &arch->rope, positions, err);
	if (r < 0)
		return r;
	a->keys = calloc(arch->n_layers, sizeof(*a->keys));
	a->values = calloc(arch->n_layers, sizeof(*a->values));
	good = a->keys && a->values && new_scratch(a);
	for (uint32_t i = 0; good && i < arch->n_layers; i++) {
		a->keys[i] = new_floats(positions, a->key_width);
		a->values[i] = new_floats(positions, a->value_width);
		good = a->keys[i] && a->values[i];
	}
	if (!good)
		return moe_error_set(err, -ENOMEM, "no memory for keys and values of %u positions in %u layers",
				     positions, arch->n_layers);
	*ret = steal_ptr(a);
	return 0;
}

struct attention *attention_free(struct attention *a)
{
	if (!a)
		return NULL;
	for (uint32_t i = 0; i < a->arch->n_layers; i++) {
		if (a->keys)
			free(a->keys[i]);
		if (a->values)
			free(a->values[i]);
	}
	rope_free(a->rope);
	free(a->keys);
	free(a->values);
	free(a->query);
	free(a->mixed);
	free(a->low);
	free(a->carried);
	free(a->scores);
	free(a);
	return NULL;
}

void attention_run(struct attention *a, uint32_t layer, const struct layer_weights *w, const float *x, uint32_t tokens,
		   uint32_t first, float *y)
{
	if (a->arch->latent)
		mla_run(a, layer, w, x, tokens, first, y);
	else
		gqa_run(a, layer, w, x, tokens, first, y);
}
