/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/spec.h"

#include <errno.h>

#include "base/error.h"

static const struct traits traits[FAMILY_COUNT] = {
	[FAMILY_MIXTRAL] = {.architecture = "MixtralForCausalLM", .head_dim_free = true, .norm_eps = 1e-5},
	[FAMILY_QWEN2_MOE] = {.architecture = "Qwen2MoeForCausalLM", .qkv_bias = true, .norm_eps = 1e-6},
	[FAMILY_QWEN3_MOE] = {.architecture = "Qwen3MoeForCausalLM",
			      .head_dim_free = true,
			      .qk_norm = QK_NORM_HEAD,
			      .norm_eps = 1e-6},
	[FAMILY_OLMOE] = {.architecture = "OlmoeForCausalLM", .qk_norm = QK_NORM_FULL, .norm_eps = 1e-5},
	[FAMILY_DEEPSEEK_V2] = {.architecture = "DeepseekV2ForCausalLM", .mla = true, .norm_eps = 1e-6},
	[FAMILY_DEEPSEEK_V3] = {.architecture = "DeepseekV3ForCausalLM",
				.mla = true,
				.sigmoid = true,
				.norm_eps = 1e-6},
	[FAMILY_KIMI_K2] = {.architecture = "DeepseekV3ForCausalLM", .mla = true, .sigmoid = true, .norm_eps = 1e-6},
	[FAMILY_GLM4_MOE] = {.architecture = "Glm4MoeForCausalLM",
			     .qkv_bias = true,
			     .head_dim_free = true,
			     .sigmoid = true,
			     .qk_norm = QK_NORM_HEAD,
			     .norm_eps = 1e-5},
	[FAMILY_GPT_OSS] = {.architecture = "GptOssForCausalLM",
			    .qkv_bias = true,
			    .head_dim_free = true,
			    .sinks = true,
			    .merged = true,
			    .norm_eps = 1e-5},
};

const struct traits *spec_traits(enum model_family family)
{
	return &traits[family];
}

/* Attention and routing as each family's published models have them, at a hundredth of the size. */
static void set_family(struct spec *s)
{
	if (spec_traits(s->family)->mla) {
		s->kv_heads = s->heads;
		s->q_lora_rank = s->family == FAMILY_DEEPSEEK_V2 ? 0 : 24;
		s->kv_lora_rank = 32;
		s->qk_nope_head_dim = 16;
		s->qk_rope_head_dim = 8;
		s->v_head_dim = 16;
	}
	if (FAMILIES_GROUPED >> s->family & 1) {
		s->layers = 3;
		s->dense_layers = 1;
		s->shared_experts = 1;
		s->n_group = s->topk_group = 1;
		s->routed_scaling = 1.0;
	}
	switch (s->family) {
	case FAMILY_MIXTRAL:
		s->experts = 8;
		s->topk = 2;
		break;
	case FAMILY_QWEN2_MOE:
		s->norm_topk_prob = false;
		s->shared_inter = 96;
		break;
	case FAMILY_OLMOE:
		s->norm_topk_prob = false;
		s->kv_heads = s->heads;
		s->rope_theta = 1e4;
		break;
	case FAMILY_DEEPSEEK_V2:
		s->norm_topk_prob = false;
		s->shared_experts = 2;
		s->rope_theta = 1e4;
		break;
	case FAMILY_DEEPSEEK_V3:
		s->n_group = 4;
		s->topk_group = 2;
		s->routed_scaling = 2.5;
		s->rope_theta = 1e4;
		break;
	case FAMILY_KIMI_K2:
		s->routed_scaling = 2.827;
		s->rope_theta = 5e4;
		break;
	case FAMILY_GLM4_MOE:
		s->routed_scaling = 2.5;
		s->qk_norm = true;
		break;
	case FAMILY_GPT_OSS:
		s->inter = 64;
		s->rope_theta = 1.5e5;
		s->yarn = 32;
		break;
	case FAMILY_QWEN3_MOE:
	case FAMILY_COUNT:
		break;
	}
}

struct spec spec_defaults(enum model_family family)
{
	struct spec s = {.family = family,
			 .type = TENSOR_BF16,
			 .seed = 1,
			 .shards = 2,
			 .vocab = 256,
			 .max_position = 4096,
			 .layers = 2,
			 .sparse_step = 1,
			 .hidden = 64,
			 .inter = 48,
			 .dense_inter = 128,
			 .experts = 16,
			 .topk = 4,
			 .heads = 4,
			 .kv_heads = 2,
			 .head_dim = 16,
			 .norm_topk_prob = true,
			 .rope_theta = 1e6};

	set_family(&s);
	return s;
}

static int check_attention(const struct spec *s, const struct traits *t, struct moe_error *err)
{
	uint32_t rotary = t->mla ? s->qk_rope_head_dim : s->head_dim;

	if (!t->mla && s->heads % s->kv_heads)
		return moe_error_set(err, -EINVAL, "--heads %u is not a multiple of --kv-heads %u", s->heads,
				     s->kv_heads);
	if (!t->mla && !t->head_dim_free && s->heads * s->head_dim != s->hidden)
		return moe_error_set(err, -EINVAL,
				     "--hidden %u is not --heads %u times %u: this family has no head size of its own",
				     s->hidden, s->heads, s->head_dim);
	/* Rotation works on pairs; GLM rotates half of the head (partial_rotary_factor 0.5). */
	if (rotary % (s->family == FAMILY_GLM4_MOE ? 4 : 2))
		return moe_error_set(err, -EINVAL, "%s %u is not a multiple of %d",
				     t->mla ? "--qk-rope-head-dim" : "--head-dim", rotary,
				     s->family == FAMILY_GLM4_MOE ? 4 : 2);
	return 0;
}

static int check_routing(const struct spec *s, struct moe_error *err)
{
	if (s->topk > s->experts)
		return moe_error_set(err, -EINVAL, "--topk %u is more than --experts %u", s->topk, s->experts);
	if (s->n_group == 0)
		return 0;
	if (s->experts % s->n_group)
		return moe_error_set(err, -EINVAL, "--experts %u is not a multiple of --n-group %u", s->experts,
				     s->n_group);
	if (s->topk_group > s->n_group)
		return moe_error_set(err, -EINVAL, "--topk-group %u is more than --n-group %u", s->topk_group,
				     s->n_group);
	if (s->n_group > 1 && s->topk > s->experts / s->n_group * s->topk_group)
		return moe_error_set(err, -EINVAL, "--topk %u is more than the %u experts of --topk-group %u groups",
				     s->topk, s->experts / s->n_group * s->topk_group, s->topk_group);
	/* A group's score is the sum of its two best experts (topk_method noaux_tc). */
	if (s->n_group > 1 && spec_traits(s->family)->sigmoid && s->experts / s->n_group < 2)
		return moe_error_set(err, -EINVAL, "--n-group %u leaves one expert a group; at least 2 are needed",
				     s->n_group);
	return 0;
}

static int check_blocks(const struct spec *s, struct moe_error *err)
{
	if (spec_traits(s->family)->merged && (s->hidden % 32 || s->inter % 32))
		return moe_error_set(
			err, -EINVAL,
			"--hidden %u, --inter %u: both must be multiples of 32, the weights of an MXFP4 block",
			s->hidden, s->inter);
	return 0;
}

int spec_check(const struct spec *spec, struct moe_error *err)
{
	bool any = false;
	int ret;

	ret = check_blocks(spec, err);
	if (ret < 0)
		return ret;

	ret = check_attention(spec, spec_traits(spec->family), err);
	if (ret < 0)
		return ret;
	ret = check_routing(spec, err);
	if (ret < 0)
		return ret;
	for (uint32_t layer = 0; layer < spec->layers; layer++)
		any |= spec_layer_is_moe(spec, layer);
	if (!any)
		return moe_error_set(err, -EINVAL, "none of --layers %u would carry experts (--dense-layers %u)",
				     spec->layers, spec->dense_layers);
	if (spec->yarn != 0 && spec->max_position / spec->yarn < 1)
		return moe_error_set(err, -EINVAL, "--yarn %g is more than --max-position %u", spec->yarn,
				     spec->max_position);
	return 0;
}

bool spec_layer_is_moe(const struct spec *spec, uint32_t layer)
{
	if (layer >= spec->layers)
		return true;
	return layer >= spec->dense_layers && (layer + 1) % spec->sparse_step == 0;
}
