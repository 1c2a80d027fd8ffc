/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/catalog.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"

/*
 * Spreads that keep activations near 1 in any depth: a matrix divides by the root of its inputs, norms stay around 1.
 * The router's scores get a spread of 2, so that tokens differ clearly in their choice, and the correction bias of
 * sigmoid routers one that changes some choices and decides none alone.
 */
#define NORM_DEVIATION 0.1f
#define BIAS_DEVIATION 0.1f
#define ROUTER_GAIN 2.0f
#define SCORE_BIAS_DEVIATION 0.05f

/* The root of the mean square of the sixteen E2M1 numbers. */
#define E2M1_DEVIATION 2.926f

struct builder {
	struct catalog *catalog;
	uint64_t room;
	const struct spec *spec;
	const struct traits *traits;
	char prefix[64]; /* "model.layers.3." */
	int failed;      /* the first -errno; later additions do nothing */
};

__attribute__((format(printf, 2, 3))) static struct item *add(struct builder *b, const char *format, ...)
{
	struct catalog *c = b->catalog;
	struct item *item;
	va_list args;
	char *name;

	if (b->failed)
		return NULL;
	if (c->n_items == b->room) {
		uint64_t room = b->room ? b->room * 2 : 256;
		struct item *grown = realloc(c->items, room * sizeof *grown);

		if (!grown) {
			b->failed = -ENOMEM;
			return NULL;
		}
		c->items = grown;
		b->room = room;
	}
	va_start(args, format);
	if (vasprintf(&name, format, args) < 0) {
		b->failed = -ENOMEM;
		name = NULL;
	}
	va_end(args);
	if (!name)
		return NULL;
	item = &c->items[c->n_items++];
	*item = (struct item){.name = name, .type = b->spec->type};
	return item;
}

/* The dimensions end with the first 0. */
static void set_dims(struct builder *b, struct item *item, const uint64_t dims[ITEM_DIMS_MAX])
{
	uint64_t bytes = tensor_type_bytes(item->type);
	bool good = true;

	for (item->n_dims = 0; item->n_dims < ITEM_DIMS_MAX && dims[item->n_dims]; item->n_dims++) {
		item->dims[item->n_dims] = dims[item->n_dims];
		good = good && checked_mul(&bytes, bytes, dims[item->n_dims]);
	}
	if (!good || !checked_add(&b->catalog->bytes, b->catalog->bytes, bytes))
		b->failed = -EOVERFLOW;
	item->bytes = bytes;
}

static void set_size(struct builder *b, struct item *item, uint32_t rows, uint32_t cols)
{
	set_dims(b, item, (uint64_t[ITEM_DIMS_MAX]){rows, cols});
}

/* `name` under the current prefix. */
static void add_matrix(struct builder *b, const char *name, uint32_t rows, uint32_t cols, float gain)
{
	struct item *item = add(b, "%s%s", b->prefix, name);

	if (!item)
		return;
	set_size(b, item, rows, cols);
	item->deviation = gain / sqrtf((float)cols);
}

static void add_vector(struct builder *b, const char *name, uint32_t size, float mean, float deviation)
{
	struct item *item = add(b, "%s%s", b->prefix, name);

	if (!item)
		return;
	set_size(b, item, size, 0);
	item->mean = mean;
	item->deviation = deviation;
}

static void add_norm(struct builder *b, const char *name, uint32_t size)
{
	add_vector(b, name, size, 1.0f, NORM_DEVIATION);
}

static void add_embedding(struct builder *b)
{
	struct item *item = add(b, "%sembed_tokens.weight", b->prefix);

	if (!item)
		return;
	set_size(b, item, b->spec->vocab, b->spec->hidden);
	item->deviation = 1.0f;
}

static void add_mlp(struct builder *b, const char *module, uint32_t inter)
{
	char name[64];

	snprintf(name, sizeof name, "%s.gate_proj.weight", module);
	add_matrix(b, name, inter, b->spec->hidden, 1);
	snprintf(name, sizeof name, "%s.up_proj.weight", module);
	add_matrix(b, name, inter, b->spec->hidden, 1);
	snprintf(name, sizeof name, "%s.down_proj.weight", module);
	add_matrix(b, name, b->spec->hidden, inter, 1);
}

static void add_attention(struct builder *b)
{
	const struct spec *s = b->spec;
	uint32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
	bool full = b->traits->qk_norm == QK_NORM_FULL;

	add_matrix(b, "self_attn.q_proj.weight", q, s->hidden, 1);
	add_matrix(b, "self_attn.k_proj.weight", kv, s->hidden, 1);
	add_matrix(b, "self_attn.v_proj.weight", kv, s->hidden, 1);
	add_matrix(b, "self_attn.o_proj.weight", s->hidden, q, 1);
	if (b->traits->qkv_bias) {
		add_vector(b, "self_attn.q_proj.bias", q, 0, BIAS_DEVIATION);
		add_vector(b, "self_attn.k_proj.bias", kv, 0, BIAS_DEVIATION);
		add_vector(b, "self_attn.v_proj.bias", kv, 0, BIAS_DEVIATION);
	}
	if (b->traits->sinks) {
		add_vector(b, "self_attn.o_proj.bias", s->hidden, 0, BIAS_DEVIATION);
		add_vector(b, "self_attn.sinks", s->heads, 0, 1);
	}
	if (b->traits->qk_norm != QK_NORM_NONE && (s->family != FAMILY_GLM4_MOE || s->qk_norm)) {
		add_norm(b, "self_attn.q_norm.weight", full ? q : s->head_dim);
		add_norm(b, "self_attn.k_norm.weight", full ? kv : s->head_dim);
	}
}

static void add_latent_attention(struct builder *b)
{
	const struct spec *s = b->spec;
	uint32_t q = s->heads * (s->qk_nope_head_dim + s->qk_rope_head_dim);

	if (s->q_lora_rank) {
		add_matrix(b, "self_attn.q_a_proj.weight", s->q_lora_rank, s->hidden, 1);
		add_norm(b, "self_attn.q_a_layernorm.weight", s->q_lora_rank);
		add_matrix(b, "self_attn.q_b_proj.weight", q, s->q_lora_rank, 1);
	} else {
		add_matrix(b, "self_attn.q_proj.weight", q, s->hidden, 1);
	}
	add_matrix(b, "self_attn.kv_a_proj_with_mqa.weight", s->kv_lora_rank + s->qk_rope_head_dim, s->hidden, 1);
	add_norm(b, "self_attn.kv_a_layernorm.weight", s->kv_lora_rank);
	add_matrix(b, "self_attn.kv_b_proj.weight", s->heads * (s->qk_nope_head_dim + s->v_head_dim), s->kv_lora_rank,
		   1);
	add_matrix(b, "self_attn.o_proj.weight", s->hidden, s->heads * s->v_head_dim, 1);
}

static void add_experts(struct builder *b, uint32_t layer)
{
	const struct spec *s = b->spec;

	for (uint32_t i = 0; i < s->experts * PARTS && !b->failed; i++) {
		enum expert_part part = (enum expert_part)(i % PARTS);
		uint32_t rows = part == PART_DOWN ? s->hidden : s->inter;
		uint32_t cols = part == PART_DOWN ? s->inter : s->hidden;
		struct item *item;
		char name[128];

		model_expert_name(name, sizeof name, s->family, layer, i / PARTS, part);
		item = add(b, "%s", name);
		if (!item)
			return;
		set_size(b, item, rows, cols);
		item->deviation = 1 / sqrtf((float)cols);
	}
}

/* All experts' matrices of one kind: [experts][rows][cols] as blocks of 32 E2M1 numbers, their exponents, a bias. */
static void add_merged(struct builder *b, const char *name, uint32_t rows, uint32_t cols)
{
	const uint64_t experts = b->spec->experts;
	struct item *item = add(b, "%s%s_blocks", b->prefix, name);

	if (!item)
		return;
	item->type = TENSOR_U8;
	item->draw = DRAW_BYTES;
	item->mask = 0xff;
	set_dims(b, item, (uint64_t[ITEM_DIMS_MAX]){experts, rows, cols / 32, 16});
	item = add(b, "%s%s_scales", b->prefix, name);
	if (!item)
		return;
	item->type = TENSOR_U8;
	item->draw = DRAW_BYTES;
	item->first = (uint8_t)(127 + (int)floorf(log2f(1 / (E2M1_DEVIATION * sqrtf((float)cols)))));
	item->mask = 1;
	set_dims(b, item, (uint64_t[ITEM_DIMS_MAX]){experts, rows, cols / 32});
	item = add(b, "%s%s_bias", b->prefix, name);
	if (!item)
		return;
	item->deviation = BIAS_DEVIATION;
	set_dims(b, item, (uint64_t[ITEM_DIMS_MAX]){experts, rows});
}

static void add_moe(struct builder *b, uint32_t layer)
{
	const struct spec *s = b->spec;
	struct item *item;

	if (b->traits->merged) { /* row 2 i of gate_up is gate's row i, row 2 i + 1 up's */
		add_matrix(b, "mlp.router.weight", s->experts, s->hidden, ROUTER_GAIN);
		add_vector(b, "mlp.router.bias", s->experts, 0, BIAS_DEVIATION);
		add_merged(b, "mlp.experts.gate_up_proj", 2 * s->inter, s->hidden);
		add_merged(b, "mlp.experts.down_proj", s->hidden, s->inter);
		return;
	}
	add_matrix(b, s->family == FAMILY_MIXTRAL ? "block_sparse_moe.gate.weight" : "mlp.gate.weight", s->experts,
		   s->hidden, ROUTER_GAIN);
	if (b->traits->sigmoid) {
		item = add(b, "%smlp.gate.e_score_correction_bias", b->prefix);
		if (!item)
			return;
		item->type = TENSOR_F32; /* as published, whatever the weights are */
		item->deviation = SCORE_BIAS_DEVIATION;
		set_size(b, item, s->experts, 0);
	}
	add_experts(b, layer);
	if (s->shared_experts)
		add_mlp(b, "mlp.shared_experts", s->shared_experts * s->inter);
	if (s->shared_inter) {
		add_mlp(b, "mlp.shared_expert", s->shared_inter);
		add_matrix(b, "mlp.shared_expert_gate.weight", 1, s->hidden, 1);
	}
}

static void add_layer(struct builder *b, uint32_t layer)
{
	snprintf(b->prefix, sizeof b->prefix, "model.layers.%u.", layer);
	add_norm(b, "input_layernorm.weight", b->spec->hidden);
	if (b->traits->mla)
		add_latent_attention(b);
	else
		add_attention(b);
	add_norm(b, "post_attention_layernorm.weight", b->spec->hidden);
	if (spec_layer_is_moe(b->spec, layer))
		add_moe(b, layer);
	else
		add_mlp(b, "mlp", b->spec->dense_inter);
}

/* A next-token predictor is a layer after the last one, with an embedding, a mixing matrix and a head of its own. */
static void add_predictor(struct builder *b, uint32_t layer)
{
	const struct spec *s = b->spec;

	add_layer(b, layer);
	add_embedding(b);
	add_norm(b, "enorm.weight", s->hidden);
	add_norm(b, "hnorm.weight", s->hidden);
	add_matrix(b, "eh_proj.weight", s->hidden, 2 * s->hidden, 1);
	add_norm(b, "shared_head.norm.weight", s->hidden);
	add_matrix(b, "shared_head.head.weight", s->vocab, s->hidden, 1);
}

static void add_all(struct builder *b)
{
	const struct spec *s = b->spec;

	snprintf(b->prefix, sizeof b->prefix, "model.");
	add_embedding(b);
	for (uint32_t layer = 0; layer < s->layers; layer++)
		add_layer(b, layer);
	snprintf(b->prefix, sizeof b->prefix, "model.");
	add_norm(b, "norm.weight", s->hidden);
	b->prefix[0] = '\0';
	if (!s->tie_embeddings)
		add_matrix(b, "lm_head.weight", s->vocab, s->hidden, 1);
	for (uint32_t i = 0; i < s->nextn_layers; i++)
		add_predictor(b, s->layers + i);
}

static void cleanup_catalog(struct catalog **catalog)
{
	catalog_free(*catalog);
}

int catalog_new(struct catalog **ret, const struct spec *spec, struct moe_error *err)
{
	_cleanup_(cleanup_catalog) struct catalog *catalog = calloc(1, sizeof *catalog);
	struct builder builder = {.catalog = catalog, .spec = spec, .traits = spec_traits(spec->family)};

	if (!catalog)
		return moe_error_sys(err, -ENOMEM, "list of tensors");
	add_all(&builder);
	if (builder.failed)
		return moe_error_sys(err, builder.failed, "list of tensors");
	*ret = steal_ptr(catalog);
	return 0;
}

struct catalog *catalog_free(struct catalog *catalog)
{
	if (!catalog)
		return NULL;
	for (uint64_t i = 0; i < catalog->n_items; i++)
		free(catalog->items[i].name);
	free(catalog->items);
	free(catalog);
	return NULL;
}
