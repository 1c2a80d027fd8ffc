/* SPDX-License-Identifier: MIT */
/* gguf-names - what llama.cpp's converter calls architectures, metadata and tensors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "tools/mkmodel/gguf-model.h"

#define QUANTIZATION_VERSION 2
#define GATING_SOFTMAX 1
#define GATING_SIGMOID 2

const char *gguf_model_architecture(enum model_family family)
{
	switch (family) {
	case FAMILY_MIXTRAL:
		return "llama";
	case FAMILY_QWEN2_MOE:
		return "qwen2moe";
	case FAMILY_QWEN3_MOE:
		return "qwen3moe";
	case FAMILY_OLMOE:
		return "olmoe";
	case FAMILY_DEEPSEEK_V2:
	case FAMILY_DEEPSEEK_V3:
	case FAMILY_KIMI_K2:
		return "deepseek2";
	case FAMILY_GPT_OSS:
		return "gpt-oss";
	default:
		return NULL;
	}
}

/* A field of config.json and the metadata key after the architecture's name. */
struct pair {
	const char *field, *key;
};

static const struct pair integers[] = {
	{"num_hidden_layers", "block_count"},
	{"max_position_embeddings", "context_length"},
	{"hidden_size", "embedding_length"},
	{"intermediate_size", "feed_forward_length"},
	{"num_attention_heads", "attention.head_count"},
	{"num_key_value_heads", "attention.head_count_kv"},
	{"moe_intermediate_size", "expert_feed_forward_length"},
	{"shared_expert_intermediate_size", "expert_shared_feed_forward_length"},
	{"vocab_size", "vocab_size"},
};

static const struct pair head_sizes[] = {
	{"head_dim", "attention.key_length"},
	{"head_dim", "attention.value_length"},
};

/* Of latent attention and its kin. */
static const struct pair latent[] = {
	{"first_k_dense_replace", "leading_dense_block_count"},
	{"n_shared_experts", "expert_shared_count"},
	{"n_group", "expert_group_count"},
	{"topk_group", "expert_group_used_count"},
	{"q_lora_rank", "attention.q_lora_rank"},
	{"kv_lora_rank", "attention.kv_lora_rank"},
	{"v_head_dim", "attention.value_length"},
	{"qk_rope_head_dim", "rope.dimension_count"},
};

static const struct pair reals[] = {
	{"rope_theta", "rope.freq_base"},
	{"rms_norm_eps", "attention.layer_norm_rms_epsilon"},
};

static const struct pair yarn_reals[] = {
	{"factor", "rope.scaling.factor"},
	{"beta_fast", "rope.scaling.yarn_beta_fast"},
	{"beta_slow", "rope.scaling.yarn_beta_slow"},
};

struct keys {
	struct gguf_writer *writer;
	const char *architecture;
};

static const char *key(const struct keys *k, const char *name, char ret[96])
{
	snprintf(ret, 96, "%s.%s", k->architecture, name);
	return ret;
}

static void put_u32(const struct keys *k, const json_t *from, const char *field, const char *name)
{
	const json_t *value = json_object_get(from, field);
	char text[96];

	if (json_is_integer(value))
		gguf_writer_u32(k->writer, key(k, name, text), (uint32_t)json_integer_value(value));
}

static void put_f32(const struct keys *k, const json_t *from, const char *field, const char *name)
{
	const json_t *value = json_object_get(from, field);
	char text[96];

	if (json_is_number(value))
		gguf_writer_f32(k->writer, key(k, name, text), json_number_value(value));
}

static void put_rope(const struct keys *k, const struct model_config *c)
{
	const json_t *scaling = json_object_get(c->json, "rope_scaling");
	const json_t *kind = json_object_get(scaling, "rope_type");
	const char *type = json_string_value(kind ? kind : json_object_get(scaling, "type"));
	const json_t *head = json_object_get(c->json, "head_dim"),
		     *heads = json_object_get(c->json, "num_attention_heads");
	char text[96];

	if (c->family == FAMILY_MIXTRAL && (json_is_integer(head) || json_integer_value(heads) > 0))
		gguf_writer_u32(k->writer, key(k, "rope.dimension_count", text),
				(uint32_t)(json_is_integer(head) ? json_integer_value(head)
								 : c->hidden / json_integer_value(heads)));
	if (!type || strcmp(type, "yarn") != 0)
		return;
	gguf_writer_string(k->writer, key(k, "rope.scaling.type", text), "yarn");
	for (size_t i = 0; i < ARRAY_LEN(yarn_reals); i++)
		put_f32(k, scaling, yarn_reals[i].field, yarn_reals[i].key);
	put_u32(k, scaling, "original_max_position_embeddings", "rope.scaling.original_context_length");
}

static void put_latent(const struct keys *k, const struct model_config *c)
{
	const json_t *all = json_object_get(json_object_get(c->json, "rope_scaling"), "mscale_all_dim");
	const char *score = json_string_value(json_object_get(c->json, "scoring_func"));
	char text[96];

	for (size_t i = 0; i < ARRAY_LEN(latent); i++)
		put_u32(k, c->json, latent[i].field, latent[i].key);
	gguf_writer_u32(k->writer, key(k, "attention.key_length", text),
			(uint32_t)(json_integer_value(json_object_get(c->json, "qk_nope_head_dim")) +
				   json_integer_value(json_object_get(c->json, "qk_rope_head_dim"))));
	put_f32(k, c->json, "routed_scaling_factor", "expert_weights_scale");
	gguf_writer_bool(k->writer, key(k, "expert_weights_norm", text),
			 json_is_true(json_object_get(c->json, "norm_topk_prob")));
	gguf_writer_u32(k->writer, key(k, "expert_gating_func", text),
			score && strcmp(score, "sigmoid") == 0 ? GATING_SIGMOID : GATING_SOFTMAX);
	if (json_is_number(all))
		gguf_writer_f32(k->writer, key(k, "rope.scaling.yarn_log_multiplier", text),
				0.1 * json_number_value(all));
}

void gguf_model_metadata(struct gguf_writer *writer, const struct model_config *c, const char *name, uint32_t file_type)
{
	const struct keys k = {writer, gguf_model_architecture(c->family)};
	char text[96];

	gguf_writer_string(writer, "general.architecture", k.architecture);
	gguf_writer_string(writer, "general.type", "model");
	gguf_writer_string(writer, "general.name", name);
	for (size_t i = 0; i < ARRAY_LEN(integers); i++)
		put_u32(&k, c->json, integers[i].field, integers[i].key);
	if (strcmp(k.architecture, "deepseek2") == 0)
		put_latent(&k, c);
	else
		for (size_t i = 0; i < ARRAY_LEN(head_sizes); i++)
			put_u32(&k, c->json, head_sizes[i].field, head_sizes[i].key);
	for (size_t i = 0; i < ARRAY_LEN(reals); i++)
		put_f32(&k, c->json, reals[i].field, reals[i].key);
	gguf_writer_u32(writer, key(&k, "expert_count", text), c->n_experts);
	gguf_writer_u32(writer, key(&k, "expert_used_count", text), c->topk);
	put_rope(&k, c);
	if (c->family == FAMILY_GPT_OSS) {
		put_u32(&k, c->json, "sliding_window", "attention.sliding_window");
		put_u32(&k, c->json, "intermediate_size", "expert_feed_forward_length");
	}
	gguf_writer_u32(writer, "general.file_type", file_type);
	gguf_writer_string(writer, "tokenizer.ggml.model", "none");
	gguf_writer_u32(writer, "general.quantization_version", QUANTIZATION_VERSION);
}

static const struct pair outside[] = {
	{"model.embed_tokens.weight", "token_embd.weight"},
	{"model.norm.weight", "output_norm.weight"},
	{"lm_head.weight", "output.weight"},
};

/* Within a layer, without ".weight" and ".bias". */
static const struct pair within[] = {
	{"input_layernorm", "attn_norm"},
	{"post_attention_layernorm", "ffn_norm"},
	{"self_attn.q_proj", "attn_q"},
	{"self_attn.k_proj", "attn_k"},
	{"self_attn.v_proj", "attn_v"},
	{"self_attn.o_proj", "attn_output"},
	{"self_attn.q_a_proj", "attn_q_a"},
	{"self_attn.q_a_layernorm", "attn_q_a_norm"},
	{"self_attn.q_b_proj", "attn_q_b"},
	{"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
	{"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
	{"self_attn.kv_b_proj", "attn_kv_b"}, /* in one piece, as converters wrote it at first */
	{"self_attn.q_norm", "attn_q_norm"},
	{"self_attn.k_norm", "attn_k_norm"},
	{"block_sparse_moe.gate", "ffn_gate_inp"},
	{"mlp.gate", "ffn_gate_inp"},
	{"mlp.router", "ffn_gate_inp"},
	{"mlp.gate_proj", "ffn_gate"},
	{"mlp.up_proj", "ffn_up"},
	{"mlp.down_proj", "ffn_down"},
	{"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
	{"mlp.shared_expert.up_proj", "ffn_up_shexp"},
	{"mlp.shared_expert.down_proj", "ffn_down_shexp"},
	{"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
	{"mlp.shared_experts.up_proj", "ffn_up_shexp"},
	{"mlp.shared_experts.down_proj", "ffn_down_shexp"},
	{"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
};

static char *layer_name(uint32_t layer, const char *name, const char *end)
{
	char *ret;

	return asprintf(&ret, "blk.%u.%s%s", layer, name, end) < 0 ? NULL : ret;
}

char *gguf_model_name(enum model_family family, const char *name)
{
	const char *end;
	uint32_t layer;
	int at = 0;

	for (size_t i = 0; i < ARRAY_LEN(outside); i++)
		if (strcmp(name, outside[i].field) == 0)
			return strdup(outside[i].key);
	if (sscanf(name, "model.layers.%u.%n", &layer, &at) != 1 || at == 0)
		return NULL;
	name += at;
	if (strcmp(name, "self_attn.sinks") == 0)
		return layer_name(layer, "attn_sinks", ".weight");
	if (strcmp(name, "mlp.gate.e_score_correction_bias") == 0)
		return layer_name(layer, "exp_probs_b", ".bias");
	if (family == FAMILY_GPT_OSS && strcmp(name, "post_attention_layernorm.weight") == 0)
		return layer_name(layer, "post_attention_norm", ".weight");
	end = strrchr(name, '.');
	for (size_t i = 0; end && i < ARRAY_LEN(within); i++)
		if (strlen(within[i].field) == (size_t)(end - name) &&
		    strncmp(name, within[i].field, (size_t)(end - name)) == 0)
			return layer_name(layer, within[i].key, end);
	return NULL;
}
