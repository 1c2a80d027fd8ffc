/* SPDX-License-Identifier: MIT */
#include "model/family.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PROJECTIONS                                                                                                    \
	{                                                                                                              \
		"gate_proj", "up_proj", "down_proj"                                                                    \
	}

static const struct family_spec specs[FAMILY_COUNT] = {
	[FAMILY_MIXTRAL] = {.model_type = "mixtral",
			    .experts = "num_local_experts",
			    .inter = "intermediate_size",
			    .layers = LAYERS_ALL,
			    .module = "block_sparse_moe",
			    .part = {"w1", "w3", "w2"}},
	[FAMILY_QWEN2_MOE] = {.model_type = "qwen2_moe",
			      .experts = "num_experts",
			      .experts_alias = "num_local_experts",
			      .inter = "moe_intermediate_size",
			      .layers = LAYERS_SPARSE_STEP,
			      .module = "mlp",
			      .part = PROJECTIONS},
	[FAMILY_QWEN3_MOE] = {.model_type = "qwen3_moe",
			      .experts = "num_experts",
			      .experts_alias = "num_local_experts",
			      .inter = "moe_intermediate_size",
			      .layers = LAYERS_SPARSE_STEP,
			      .module = "mlp",
			      .part = PROJECTIONS},
	[FAMILY_OLMOE] = {.model_type = "olmoe",
			  .experts = "num_experts",
			  .experts_alias = "num_local_experts",
			  .inter = "intermediate_size",
			  .layers = LAYERS_ALL,
			  .module = "mlp",
			  .part = PROJECTIONS},
	[FAMILY_DEEPSEEK_V2] = {.model_type = "deepseek_v2",
				.experts = "n_routed_experts",
				.inter = "moe_intermediate_size",
				.layers = LAYERS_FIRST_DENSE,
				.module = "mlp",
				.part = PROJECTIONS},
	[FAMILY_DEEPSEEK_V3] = {.model_type = "deepseek_v3",
				.experts = "n_routed_experts",
				.inter = "moe_intermediate_size",
				.layers = LAYERS_FIRST_DENSE,
				.module = "mlp",
				.part = PROJECTIONS},
	[FAMILY_KIMI_K2] = {.model_type = "kimi_k2",
			    .experts = "n_routed_experts",
			    .inter = "moe_intermediate_size",
			    .layers = LAYERS_FIRST_DENSE,
			    .module = "mlp",
			    .part = PROJECTIONS},
	[FAMILY_GLM4_MOE] = {.model_type = "glm4_moe",
			     .experts = "n_routed_experts",
			     .inter = "moe_intermediate_size",
			     .layers = LAYERS_FIRST_DENSE,
			     .module = "mlp",
			     .part = PROJECTIONS},
	[FAMILY_GPT_OSS] = {.model_type = "gpt_oss",
			    .experts = "num_local_experts",
			    .inter = "intermediate_size",
			    .layers = LAYERS_ALL,
			    .module = "mlp",
			    .part = {"gate_up_proj", "gate_up_proj", "down_proj"},
			    .fused = true,
			    .clamped = true},
};

const struct family_spec *family_spec(enum model_family family)
{
	return &specs[family];
}

const char *model_family_name(enum model_family family)
{
	return specs[family].model_type;
}

int family_from_model_type(enum model_family *ret, const char *model_type)
{
	for (unsigned i = 0; i < FAMILY_COUNT; i++) {
		if (strcmp(specs[i].model_type, model_type) == 0) {
			*ret = (enum model_family)i;
			return 0;
		}
	}
	return -ENOTSUP;
}

void family_list(char *ret, size_t size)
{
	size_t used = 0;

	ret[0] = '\0';
	for (unsigned i = 0; i < FAMILY_COUNT && used < size; i++)
		used += (size_t)snprintf(ret + used, size - used, "%s%s", i ? ", " : "", specs[i].model_type);
}

void model_expert_stem(char *ret, size_t size, enum model_family family, uint32_t layer, uint32_t expert,
		       enum expert_part part)
{
	const struct family_spec *spec = &specs[family];

	if (spec->fused)
		snprintf(ret, size, "model.layers.%u.%s.experts.%s", layer, spec->module, spec->part[part]);
	else
		snprintf(ret, size, "model.layers.%u.%s.experts.%u.%s", layer, spec->module, expert, spec->part[part]);
}

void model_expert_name(char *ret, size_t size, enum model_family family, uint32_t layer, uint32_t expert,
		       enum expert_part part)
{
	model_expert_stem(ret, size, family, layer, expert, part);
	if (strlen(ret) + sizeof ".weight" <= size)
		strcat(ret, ".weight");
}
