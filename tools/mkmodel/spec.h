/* SPDX-License-Identifier: MIT */
/*
 * spec - the numbers of one model to be made, and which of them a family has at all.
 *
 * A spec that spec_check() has passed describes a model that the published implementations of its family would accept:
 * the rest of the program relies on it and checks nothing again.
 */
#ifndef MKMODEL_SPEC_H
#define MKMODEL_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"
#include "moe-error.h"

enum qk_norm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_FULL }; /* none, one weight per head_dim, one over all heads */

/* What the family's code fixes, whatever the configuration says. */
struct traits {
	const char *architecture; /* config.json: architectures[0] */
	bool mla;                 /* multi-head latent attention instead of q, k, v projections */
	bool qkv_bias;
	bool head_dim_free; /* config.json has head_dim; else it is hidden_size / num_attention_heads */
	bool sinks;         /* each head has one, and the output of attention a bias */
	bool merged;        /* MXFP4 experts, all in one tensor */
	bool sigmoid;       /* router scores by sigmoid with a correction bias, not softmax */
	enum qk_norm qk_norm;
	double norm_eps;
};

struct spec {
	enum model_family family;
	enum tensor_type type; /* TENSOR_BF16 or TENSOR_F16 */
	uint64_t seed;
	uint32_t shards; /* 0: by size */
	uint32_t vocab, max_position;

	uint32_t layers, dense_layers, sparse_step, nextn_layers;
	uint32_t hidden, inter, dense_inter;
	uint32_t experts, topk, n_group, topk_group;
	uint32_t shared_experts, shared_inter; /* DeepSeek and its kin count them; Qwen2 gives one a size */

	uint32_t heads, kv_heads, head_dim;
	uint32_t q_lora_rank; /* 0: q_proj in one piece */
	uint32_t kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim;

	bool qk_norm, norm_topk_prob, tie_embeddings;
	double rope_theta, routed_scaling, yarn; /* yarn: factor, 0 none */
};

const struct traits *spec_traits(enum model_family family);

/* A small model of the family: a few layers, a byte vocabulary. */
struct spec spec_defaults(enum model_family family);

/* -EINVAL and the two options that contradict each other. */
int spec_check(const struct spec *spec, struct moe_error *err);

/* Does this layer carry experts? Layers at `layers` and beyond are the next-token predictors, which do. */
bool spec_layer_is_moe(const struct spec *spec, uint32_t layer);

/* Options that only some families have: bit FAMILY_x of each mask. */
#define FAMILIES_ALL ((1u << FAMILY_COUNT) - 1)
#define FAMILIES_QWEN (1u << FAMILY_QWEN2_MOE | 1u << FAMILY_QWEN3_MOE)
#define FAMILIES_MLA (1u << FAMILY_DEEPSEEK_V2 | 1u << FAMILY_DEEPSEEK_V3 | 1u << FAMILY_KIMI_K2)
#define FAMILIES_GLM (1u << FAMILY_GLM4_MOE)
#define FAMILIES_GROUPED (FAMILIES_MLA | FAMILIES_GLM)
#define FAMILIES_NEXTN (FAMILIES_GROUPED & ~(1u << FAMILY_DEEPSEEK_V2))
#define FAMILIES_DENSE (FAMILIES_QWEN | FAMILIES_GROUPED)
#define FAMILIES_MERGED (1u << FAMILY_GPT_OSS)
#define FAMILIES_HEAD_DIM (1u << FAMILY_MIXTRAL | 1u << FAMILY_QWEN3_MOE | FAMILIES_GLM | FAMILIES_MERGED)
#define FAMILIES_YARN (1u << FAMILY_QWEN3_MOE | FAMILIES_MLA | FAMILIES_MERGED)
#define FAMILIES_NORM_TOPK (FAMILIES_ALL & ~(1u << FAMILY_MIXTRAL) & ~FAMILIES_MERGED) /* the others always do */

#endif
