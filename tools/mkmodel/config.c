/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/config.h"

#include "base/cleanup.h"
#include "model/file.h"

struct writer {
	json_t *json;
	const struct spec *spec;
	bool failed;
};

/* Takes the value over; NULL (memory was short) is remembered. */
static void set(struct writer *w, const char *name, json_t *value)
{
	if (json_object_set_new(w->json, name, value) < 0)
		w->failed = true;
}

static void set_common(struct writer *w)
{
	const struct spec *s = w->spec;
	const struct traits *t = spec_traits(s->family);

	set(w, "architectures", json_pack("[s]", t->architecture));
	set(w, "attention_dropout", json_real(0.0));
	set(w, "bos_token_id", json_integer(0));
	set(w, "eos_token_id", json_integer(0));
	set(w, "hidden_act", json_string("silu"));
	set(w, "hidden_size", json_integer(s->hidden));
	set(w, "initializer_range", json_real(0.02));
	set(w, "max_position_embeddings", json_integer(s->max_position));
	set(w, "model_type", json_string(model_family_name(s->family)));
	set(w, "num_attention_heads", json_integer(s->heads));
	set(w, "num_experts_per_tok", json_integer(s->topk));
	set(w, "num_hidden_layers", json_integer(s->layers));
	set(w, "num_key_value_heads", json_integer(t->mla ? s->heads : s->kv_heads));
	set(w, "rms_norm_eps", json_real(t->norm_eps));
	set(w, "rope_theta", json_real(s->rope_theta));
	set(w, "tie_word_embeddings", json_boolean(s->tie_embeddings));
	set(w, "torch_dtype", json_string(s->type == TENSOR_BF16 ? "bfloat16" : "float16"));
	set(w, "use_cache", json_true());
	set(w, "vocab_size", json_integer(s->vocab));
}

/* null, or the family's way to write YaRN. */
static void set_rope_scaling(struct writer *w)
{
	const struct spec *s = w->spec;
	double mscale = s->family == FAMILY_DEEPSEEK_V2 ? 0.707 : 1.0;
	int original = s->yarn != 0 ? (int)(s->max_position / s->yarn) : 0;

	if (s->yarn == 0)
		set(w, "rope_scaling", json_null());
	else if (s->family == FAMILY_GPT_OSS)
		set(w, "rope_scaling",
		    json_pack("{s:f, s:f, s:f, s:i, s:s, s:b}", "beta_fast", 32.0, "beta_slow", 1.0, "factor", s->yarn,
			      "original_max_position_embeddings", original, "rope_type", "yarn", "truncate", 0));
	else if (s->family == FAMILY_QWEN3_MOE)
		set(w, "rope_scaling",
		    json_pack("{s:f, s:i, s:s}", "factor", s->yarn, "original_max_position_embeddings", original,
			      "rope_type", "yarn"));
	else
		set(w, "rope_scaling",
		    json_pack("{s:f, s:f, s:f, s:f, s:f, s:i, s:s}", "beta_fast",
			      s->family == FAMILY_KIMI_K2 ? 1.0 : 32.0, "beta_slow", 1.0, "factor", s->yarn, "mscale",
			      mscale, "mscale_all_dim", mscale, "original_max_position_embeddings", original, "type",
			      "yarn"));
}

static void set_mixtral(struct writer *w)
{
	const struct spec *s = w->spec;

	if (s->heads * s->head_dim != s->hidden) /* the published ones leave it out */
		set(w, "head_dim", json_integer(s->head_dim));
	set(w, "intermediate_size", json_integer(s->inter));
	set(w, "num_local_experts", json_integer(s->experts));
	set(w, "output_router_logits", json_false());
	set(w, "router_aux_loss_coef", json_real(0.02));
	set(w, "sliding_window", json_null());
}

static void set_qwen(struct writer *w)
{
	const struct spec *s = w->spec;
	json_t *only = json_array();

	for (uint32_t i = 0; i < s->dense_layers; i++)
		if (json_array_append_new(only, json_integer(i)) < 0)
			w->failed = true;
	set(w, "decoder_sparse_step", json_integer(s->sparse_step));
	set(w, "intermediate_size", json_integer(s->dense_inter));
	set(w, "max_window_layers", json_integer(s->layers));
	set(w, "mlp_only_layers", only);
	set(w, "moe_intermediate_size", json_integer(s->inter));
	set(w, "norm_topk_prob", json_boolean(s->norm_topk_prob));
	set(w, "num_experts", json_integer(s->experts));
	set(w, "output_router_logits", json_false());
	set(w, "router_aux_loss_coef", json_real(0.001));
	set(w, "sliding_window", s->family == FAMILY_QWEN2_MOE ? json_integer(32768) : json_null());
	set(w, "use_sliding_window", json_false());
	if (s->family == FAMILY_QWEN2_MOE) {
		set(w, "shared_expert_intermediate_size", json_integer(s->shared_inter));
		return;
	}
	set(w, "attention_bias", json_false());
	set(w, "head_dim", json_integer(s->head_dim));
	set_rope_scaling(w);
}

static void set_olmoe(struct writer *w)
{
	const struct spec *s = w->spec;

	set(w, "attention_bias", json_false());
	set(w, "clip_qkv", json_null());
	set(w, "intermediate_size", json_integer(s->inter));
	set(w, "norm_topk_prob", json_boolean(s->norm_topk_prob));
	set(w, "num_experts", json_integer(s->experts));
	set(w, "output_router_logits", json_false());
	set(w, "rope_scaling", json_null());
	set(w, "router_aux_loss_coef", json_real(0.01));
}

/* What DeepSeek, Kimi and GLM have in common. */
static void set_grouped(struct writer *w)
{
	const struct spec *s = w->spec;

	set(w, "first_k_dense_replace", json_integer(s->dense_layers));
	set(w, "intermediate_size", json_integer(s->dense_inter));
	set(w, "moe_intermediate_size", json_integer(s->inter));
	set(w, "n_group", json_integer(s->n_group));
	set(w, "n_routed_experts", json_integer(s->experts));
	set(w, "n_shared_experts", json_integer(s->shared_experts));
	set(w, "norm_topk_prob", json_boolean(s->norm_topk_prob));
	set(w, "routed_scaling_factor", json_real(s->routed_scaling));
	set(w, "topk_group", json_integer(s->topk_group));
	if (s->family != FAMILY_DEEPSEEK_V2)
		set(w, "num_nextn_predict_layers", json_integer(s->nextn_layers));
	set_rope_scaling(w);
}

static void set_deepseek(struct writer *w)
{
	const struct spec *s = w->spec;
	bool sigmoid = spec_traits(s->family)->sigmoid;

	set_grouped(w);
	set(w, "attention_bias", json_false());
	set(w, "aux_loss_alpha", json_real(0.001));
	set(w, "ep_size", json_integer(1));
	set(w, "kv_lora_rank", json_integer(s->kv_lora_rank));
	set(w, "moe_layer_freq", json_integer(1));
	set(w, "pretraining_tp", json_integer(1));
	set(w, "q_lora_rank", s->q_lora_rank ? json_integer(s->q_lora_rank) : json_null());
	set(w, "qk_nope_head_dim", json_integer(s->qk_nope_head_dim));
	set(w, "qk_rope_head_dim", json_integer(s->qk_rope_head_dim));
	set(w, "scoring_func", json_string(sigmoid ? "sigmoid" : "softmax"));
	set(w, "seq_aux", json_true());
	set(w, "topk_method", json_string(sigmoid ? "noaux_tc" : s->n_group > 1 ? "group_limited_greedy" : "greedy"));
	set(w, "v_head_dim", json_integer(s->v_head_dim));
}

static void set_glm(struct writer *w)
{
	const struct spec *s = w->spec;

	set_grouped(w);
	set(w, "attention_bias", json_true());
	set(w, "head_dim", json_integer(s->head_dim));
	set(w, "partial_rotary_factor", json_real(0.5));
	set(w, "use_qk_norm", json_boolean(s->qk_norm));
}

/* Every second layer sees a window only, the first one included. */
static void set_gpt_oss(struct writer *w)
{
	const struct spec *s = w->spec;
	json_t *types = json_array();

	for (uint32_t i = 0; i < s->layers; i++)
		if (json_array_append_new(types, json_string(i % 2 ? "full_attention" : "sliding_attention")) < 0)
			w->failed = true;
	set(w, "attention_bias", json_true());
	set(w, "experts_per_token", json_integer(s->topk));
	set(w, "head_dim", json_integer(s->head_dim));
	set(w, "initial_context_length",
	    json_integer(s->yarn != 0 ? (json_int_t)(s->max_position / s->yarn) : (json_int_t)s->max_position));
	set(w, "intermediate_size", json_integer(s->inter));
	set(w, "layer_types", types);
	set(w, "num_local_experts", json_integer(s->experts));
	set(w, "output_router_logits", json_false());
	set(w, "quantization_config",
	    json_pack("{s:s, s:[s, s, s, s]}", "quant_method", "mxfp4", "modules_to_not_convert",
		      "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"));
	set(w, "router_aux_loss_coef", json_real(0.9));
	set(w, "sliding_window", json_integer(128));
	set(w, "swiglu_limit", json_real(7.0));
	set_rope_scaling(w);
}

json_t *config_new(const struct spec *spec)
{
	_cleanup_json_ json_t *json = json_object();
	struct writer w = {.json = json, .spec = spec};

	set_common(&w);
	switch (spec->family) {
	case FAMILY_MIXTRAL:
		set_mixtral(&w);
		break;
	case FAMILY_QWEN2_MOE:
	case FAMILY_QWEN3_MOE:
		set_qwen(&w);
		break;
	case FAMILY_OLMOE:
		set_olmoe(&w);
		break;
	case FAMILY_DEEPSEEK_V2:
	case FAMILY_DEEPSEEK_V3:
	case FAMILY_KIMI_K2:
		set_deepseek(&w);
		break;
	case FAMILY_GLM4_MOE:
		set_glm(&w);
		break;
	case FAMILY_GPT_OSS:
		set_gpt_oss(&w);
		break;
	case FAMILY_COUNT:
		break;
	}
	return w.failed ? NULL : steal_ptr(json);
}
