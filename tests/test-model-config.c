/* SPDX-License-Identifier: MIT */
/* config.json and the index: the published models' own numbers, every refusal in its words, and mutations. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/util.h"
#include "model/index.h"
#include "model/model.h"
#include "tests/tap.h"
#include "uapi/moe_manifest.h"
#include "uapi/moe_ring.h"

_Static_assert(MODEL_TOPK_MAX == MOE_TOPK_MAX, "one limit");
_Static_assert((int)MODEL_SILU == MOE_ACTIVATION_SILU && (int)MODEL_GELU == MOE_ACTIVATION_GELU &&
		       (int)MODEL_GELU_TANH == MOE_ACTIVATION_GELU_TANH &&
		       (int)MODEL_SWIGLU_CLAMPED == MOE_ACTIVATION_SWIGLU_CLAMPED,
	       "one numbering");

/* The fields that matter here, as the named models publish them. */
static const struct published {
	const char *model, *text;
	enum model_family family;
	uint32_t layers, moe_layers, first_moe, experts, topk, hidden, inter;
	const char *gate, *up, *down; /* names of expert 7's parts in the last layer */
} published[] = {
	{"Mixtral-8x7B",
	 "{\"architectures\":[\"MixtralForCausalLM\"],\"hidden_act\":\"silu\",\"hidden_size\":4096,"
	 "\"intermediate_size\":14336,\"model_type\":\"mixtral\",\"num_attention_heads\":32,\"num_experts_per_tok\":2,"
	 "\"num_hidden_layers\":32,\"num_key_value_heads\":8,\"num_local_experts\":8,\"rms_norm_eps\":1e-05,"
	 "\"sliding_window\":null,\"torch_dtype\":\"bfloat16\"}",
	 FAMILY_MIXTRAL, 32, 32, 0, 8, 2, 4096, 14336, "model.layers.31.block_sparse_moe.experts.7.w1.weight",
	 "model.layers.31.block_sparse_moe.experts.7.w3.weight",
	 "model.layers.31.block_sparse_moe.experts.7.w2.weight"},
	{"Qwen1.5-MoE-A2.7B",
	 "{\"decoder_sparse_step\":1,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":5632,"
	 "\"model_type\":\"qwen2_moe\",\"moe_intermediate_size\":1408,\"norm_topk_prob\":false,\"num_experts\":60,"
	 "\"num_experts_per_tok\":4,\"num_hidden_layers\":24,\"shared_expert_intermediate_size\":5632}",
	 FAMILY_QWEN2_MOE, 24, 24, 0, 60, 4, 2048, 1408, "model.layers.23.mlp.experts.7.gate_proj.weight",
	 "model.layers.23.mlp.experts.7.up_proj.weight", "model.layers.23.mlp.experts.7.down_proj.weight"},
	{"Qwen3-30B-A3B",
	 "{\"attention_bias\":false,\"decoder_sparse_step\":1,\"head_dim\":128,\"hidden_act\":\"silu\","
	 "\"hidden_size\":2048,\"intermediate_size\":6144,\"mlp_only_layers\":[],\"model_type\":\"qwen3_moe\","
	 "\"moe_intermediate_size\":768,\"norm_topk_prob\":true,\"num_experts\":128,\"num_experts_per_tok\":8,"
	 "\"num_hidden_layers\":48,\"rope_scaling\":null}",
	 FAMILY_QWEN3_MOE, 48, 48, 0, 128, 8, 2048, 768, "model.layers.47.mlp.experts.7.gate_proj.weight",
	 "model.layers.47.mlp.experts.7.up_proj.weight", "model.layers.47.mlp.experts.7.down_proj.weight"},
	{"Qwen3-30B-A3B as newer writers save it",
	 "{\"decoder_sparse_step\":1,\"dtype\":\"bfloat16\",\"hidden_act\":\"silu\",\"hidden_size\":2048,"
	 "\"intermediate_size\":6144,\"mlp_only_layers\":[],\"model_type\":\"qwen3_moe\",\"moe_intermediate_size\":768,"
	 "\"num_experts_per_tok\":8,\"num_hidden_layers\":48,\"num_local_experts\":128,\"quantization_config\":null}",
	 FAMILY_QWEN3_MOE, 48, 48, 0, 128, 8, 2048, 768, "model.layers.47.mlp.experts.7.gate_proj.weight",
	 "model.layers.47.mlp.experts.7.up_proj.weight", "model.layers.47.mlp.experts.7.down_proj.weight"},
	{"OLMoE-1B-7B-0924",
	 "{\"clip_qkv\":null,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":1024,"
	 "\"model_type\":\"olmoe\",\"norm_topk_prob\":false,\"num_experts\":64,\"num_experts_per_tok\":8,"
	 "\"num_hidden_layers\":16}",
	 FAMILY_OLMOE, 16, 16, 0, 64, 8, 2048, 1024, "model.layers.15.mlp.experts.7.gate_proj.weight",
	 "model.layers.15.mlp.experts.7.up_proj.weight", "model.layers.15.mlp.experts.7.down_proj.weight"},
	{"DeepSeek-V2-Lite",
	 "{\"first_k_dense_replace\":1,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":10944,"
	 "\"kv_lora_rank\":512,\"model_type\":\"deepseek_v2\",\"moe_intermediate_size\":1408,\"moe_layer_freq\":1,"
	 "\"n_group\":1,\"n_routed_experts\":64,\"n_shared_experts\":2,\"num_experts_per_tok\":6,"
	 "\"num_hidden_layers\":27,\"q_lora_rank\":null}",
	 FAMILY_DEEPSEEK_V2, 27, 26, 1, 64, 6, 2048, 1408, "model.layers.26.mlp.experts.7.gate_proj.weight",
	 "model.layers.26.mlp.experts.7.up_proj.weight", "model.layers.26.mlp.experts.7.down_proj.weight"},
	{"DeepSeek-V3 in BF16",
	 "{\"first_k_dense_replace\":3,\"hidden_act\":\"silu\",\"hidden_size\":7168,\"intermediate_size\":18432,"
	 "\"model_type\":\"deepseek_v3\",\"moe_intermediate_size\":2048,\"moe_layer_freq\":1,\"n_group\":8,"
	 "\"n_routed_experts\":256,\"n_shared_experts\":1,\"num_experts_per_tok\":8,\"num_hidden_layers\":61,"
	 "\"num_nextn_predict_layers\":1,\"rope_scaling\":{\"beta_fast\":32,\"type\":\"yarn\"}}",
	 FAMILY_DEEPSEEK_V3, 61, 58, 3, 256, 8, 7168, 2048, "model.layers.60.mlp.experts.7.gate_proj.weight",
	 "model.layers.60.mlp.experts.7.up_proj.weight", "model.layers.60.mlp.experts.7.down_proj.weight"},
	{"Kimi-K2 in BF16",
	 "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"first_k_dense_replace\":1,\"hidden_act\":\"silu\","
	 "\"hidden_size\":7168,\"model_type\":\"kimi_k2\",\"moe_intermediate_size\":2048,\"moe_layer_freq\":1,"
	 "\"n_group\":1,\"n_routed_experts\":384,\"num_experts_per_tok\":8,\"num_hidden_layers\":61}",
	 FAMILY_KIMI_K2, 61, 60, 1, 384, 8, 7168, 2048, "model.layers.60.mlp.experts.7.gate_proj.weight",
	 "model.layers.60.mlp.experts.7.up_proj.weight", "model.layers.60.mlp.experts.7.down_proj.weight"},
	{"GLM-4.5-Air",
	 "{\"first_k_dense_replace\":1,\"hidden_act\":\"silu\",\"hidden_size\":4096,\"intermediate_size\":10944,"
	 "\"model_type\":\"glm4_moe\",\"moe_intermediate_size\":1408,\"n_group\":1,\"n_routed_experts\":128,"
	 "\"n_shared_experts\":1,\"num_experts_per_tok\":8,\"num_hidden_layers\":46,\"use_qk_norm\":false}",
	 FAMILY_GLM4_MOE, 46, 45, 1, 128, 8, 4096, 1408, "model.layers.45.mlp.experts.7.gate_proj.weight",
	 "model.layers.45.mlp.experts.7.up_proj.weight", "model.layers.45.mlp.experts.7.down_proj.weight"},
	{"gpt-oss-20b",
	 "{\"architectures\":[\"GptOssForCausalLM\"],\"experts_per_token\":4,\"hidden_act\":\"silu\",\"hidden_size\":"
	 "2880,"
	 "\"intermediate_size\":2880,\"model_type\":\"gpt_oss\",\"num_experts_per_tok\":4,\"num_hidden_layers\":24,"
	 "\"num_local_experts\":32,\"quantization_config\":{\"modules_to_not_convert\":[\"model.layers.*.self_attn\","
	 "\"model.layers.*.mlp.router\",\"model.embed_tokens\",\"lm_head\"],\"quant_method\":\"mxfp4\"},"
	 "\"swiglu_limit\":7.0}",
	 FAMILY_GPT_OSS, 24, 24, 0, 32, 4, 2880, 2880, "model.layers.23.mlp.experts.gate_up_proj.weight",
	 "model.layers.23.mlp.experts.gate_up_proj.weight", "model.layers.23.mlp.experts.down_proj.weight"},
};

static int parse(const char *text, size_t bytes, struct model_config *config, struct moe_error *err)
{
	return model_config_parse("dir/config.json", text, bytes, config, err);
}

static bool named(const struct published *p, enum expert_part part, const char *name)
{
	char found[128];

	model_expert_name(found, sizeof found, p->family, p->layers - 1, 7, part);
	return strcmp(found, name) == 0;
}

static void test_published(void)
{
	for (size_t i = 0; i < ARRAY_LEN(published); i++) {
		const struct published *p = &published[i];
		struct model_config c = {0};
		struct moe_error err = {0};

		require(parse(p->text, strlen(p->text), &c, &err) == 0, "%s %s", p->model, err.text);
		ok(c.family == p->family && strcmp(c.model_type, model_family_name(p->family)) == 0 &&
			   c.n_layers == p->layers && c.n_moe_layers == p->moe_layers && c.n_experts == p->experts &&
			   c.topk == p->topk && c.hidden == p->hidden && c.inter == p->inter &&
			   c.activation == (p->family == FAMILY_GPT_OSS ? MODEL_SWIGLU_CLAMPED : MODEL_SILU) &&
			   c.limit == (p->family == FAMILY_GPT_OSS ? 7.0f : 0.0f),
		   "%s: its numbers", p->model);
		ok(c.is_moe[p->first_moe] && (p->first_moe == 0 || !c.is_moe[p->first_moe - 1]) &&
			   c.is_moe[p->layers - 1],
		   "%s: experts from layer %u on", p->model, p->first_moe);
		ok(named(p, PART_GATE, p->gate) && named(p, PART_UP, p->up) && named(p, PART_DOWN, p->down), "%s: %s",
		   p->model, p->down);
		ok(json_object_get(c.json, "model_type"), "%s: the whole file is kept", p->model);
		model_config_free(&c);
	}
}

/* The fields of a good config; a case replaces one by text of its own ("": leaves it out). */
struct replacement {
	const char *what, *base, *field, *value;
	int code;
	const char *word;
};

static const char *const bases[][9][2] = {
	{{"model_type", "\"mixtral\""},
	 {"hidden_size", "64"},
	 {"intermediate_size", "48"},
	 {"num_hidden_layers", "4"},
	 {"num_local_experts", "8"},
	 {"num_experts_per_tok", "2"},
	 {"hidden_act", "\"silu\""}},
	{{"model_type", "\"qwen3_moe\""},
	 {"hidden_size", "64"},
	 {"moe_intermediate_size", "48"},
	 {"num_hidden_layers", "4"},
	 {"num_experts", "8"},
	 {"num_experts_per_tok", "2"},
	 {"decoder_sparse_step", "2"},
	 {"mlp_only_layers", "[1]"}},
	{{"model_type", "\"deepseek_v3\""},
	 {"hidden_size", "64"},
	 {"moe_intermediate_size", "48"},
	 {"num_hidden_layers", "4"},
	 {"n_routed_experts", "8"},
	 {"num_experts_per_tok", "2"},
	 {"first_k_dense_replace", "1"},
	 {"moe_layer_freq", "2"}},
};

#define Q(fields) "\"silu\",\"quantization_config\":{" fields "}"
#define MXFP4 "\"quantization_config\":{\"quant_method\":\"mxfp4\"}"
#define GPTQ "\"desc_act\":false," GPTQ_ANY
#define GPTQ_ANY "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128,\"sym\":true"
#define AWQ "\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128"
#define COMPRESSED(weights)                                                                                            \
	Q("\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"group_0\":{\"weights\":{" weights "}}}")

static const struct replacement replacements[] = {
	{"mixtral", "mixtral", "", "", 0, ""},
	{"qwen3_moe", "qwen3_moe", "", "", 0, ""},
	{"deepseek_v3", "deepseek_v3", "", "", 0, ""},
	{"no hidden_act", "mixtral", "hidden_act", "", 0, ""},
	{"a null is as good as nothing", "qwen3_moe", "mlp_only_layers", "null", 0, ""},
	{"no moe_layer_freq", "deepseek_v3", "moe_layer_freq", "", 0, ""},
	{"as many choices as experts", "mixtral", "num_experts_per_tok", "8", 0, ""},
	{"gelu", "mixtral", "hidden_act", "\"gelu_pytorch_tanh\"", 0, ""},

	{"no model_type", "mixtral", "model_type", "", -EINVAL, "\"model_type\" is missing"},
	{"a model_type that is a number", "mixtral", "model_type", "7", -EINVAL, "model_type"},
	{"a family that is not served", "mixtral", "model_type", "\"llama\"", -ENOTSUP, "found the string \"llama\""},
	{"a model_type with an escape in it", "mixtral", "model_type", "\"\\u001b[31m\"", -ENOTSUP, "\"?[31m\""},
	{"no hidden_size", "mixtral", "hidden_size", "", -EINVAL, "\"hidden_size\" is missing"},
	{"a hidden_size that is null", "mixtral", "hidden_size", "null", -EINVAL, "\"hidden_size\" is missing"},
	{"a hidden_size of 0", "mixtral", "hidden_size", "0", -EINVAL, "found 0; expected an integer from 1"},
	{"a negative hidden_size", "mixtral", "hidden_size", "-64", -EINVAL, "found -64"},
	{"a hidden_size that is text", "mixtral", "hidden_size", "\"64\"", -EINVAL, "the string \"64\""},
	{"a hidden_size that is a fraction", "mixtral", "hidden_size", "64.5", -EINVAL, "64.50"},
	{"a hidden_size beyond 2^20", "mixtral", "hidden_size", "1048577", -EINVAL, "1048576"},
	{"a hidden_size of 2^32 + 64", "mixtral", "hidden_size", "4294967360", -EINVAL, "found 4294967360"},
	{"no intermediate_size", "mixtral", "intermediate_size", "", -EINVAL, "intermediate_size"},
	{"an intermediate_size that is a list", "mixtral", "intermediate_size", "[48]", -EINVAL, "an array of 1"},
	{"no moe_intermediate_size", "qwen3_moe", "moe_intermediate_size", "", -EINVAL, "moe_intermediate_size"},
	{"no layers", "mixtral", "num_hidden_layers", "0", -EINVAL, "num_hidden_layers"},
	{"1,025 layers", "mixtral", "num_hidden_layers", "1025", -EINVAL, "from 1 to 1024"},
	{"no num_local_experts", "mixtral", "num_local_experts", "", -EINVAL, "num_local_experts"},
	{"no num_experts", "qwen3_moe", "num_experts", "", -EINVAL, "\"num_experts\" is missing"},
	{"no n_routed_experts", "deepseek_v3", "n_routed_experts", "", -EINVAL, "n_routed_experts"},
	{"experts that are null", "deepseek_v3", "n_routed_experts", "null", -EINVAL, "n_routed_experts"},
	{"4,097 experts", "mixtral", "num_local_experts", "4097", -EINVAL, "from 1 to 4096"},
	{"experts that are true", "mixtral", "num_local_experts", "true", -EINVAL, "found true"},
	{"no choice", "mixtral", "num_experts_per_tok", "0", -EINVAL, "num_experts_per_tok"},
	{"more choices than experts", "mixtral", "num_experts_per_tok", "9", -EINVAL, "from 1 to 8"},
	{"an unknown activation", "mixtral", "hidden_act", "\"relu\"", -ENOTSUP, "relu"},
	{"an activation that is an object", "mixtral", "hidden_act", "{}", -EINVAL, "hidden_act"},
	{"a sparse step of 0", "qwen3_moe", "decoder_sparse_step", "0", -EINVAL, "decoder_sparse_step"},
	{"a sparse step behind the last layer", "qwen3_moe", "decoder_sparse_step", "5", -EINVAL,
	 "none of the 4 layers"},
	{"mlp_only_layers that is a number", "qwen3_moe", "mlp_only_layers", "1", -EINVAL, "mlp_only_layers"},
	{"mlp_only_layers with text", "qwen3_moe", "mlp_only_layers", "[\"1\"]", -EINVAL, "mlp_only_layers"},
	{"mlp_only_layers beyond the last", "qwen3_moe", "mlp_only_layers", "[4]", -EINVAL, "from 0 to 3"},
	{"all layers dense", "qwen3_moe", "mlp_only_layers", "[0,1,2,3]", -EINVAL, "none of the 4 layers"},
	{"no first_k_dense_replace", "deepseek_v3", "first_k_dense_replace", "", -EINVAL, "first_k_dense_replace"},
	{"all layers dense at first", "deepseek_v3", "first_k_dense_replace", "4", -EINVAL, "none of the 4 layers"},
	{"a layer frequency of 0", "deepseek_v3", "moe_layer_freq", "0", -EINVAL, "moe_layer_freq"},
	{"GPTQ by another name", "mixtral", "hidden_act", Q("\"quant_method\":\"gptq2\""), -ENOTSUP,
	 "found the string \"gptq2\"; expected fp8, compressed-tensors, gptq, awq or mxfp4"},
	{"groups that nobody says how to read", "deepseek_v3", "moe_layer_freq",
	 "1,\"compression_config\":{\"config_groups\":{}}", -ENOTSUP,
	 "\"compression_config.quant_method\": found none"},
	{"an MLX checkpoint", "deepseek_v3", "moe_layer_freq", "1,\"quantization\":{\"bits\":4}", -ENOTSUP,
	 "\"quantization.quant_method\": found none"},
	{"quantization that is a string", "deepseek_v3", "moe_layer_freq", "1,\"quantization_config\":\"x\"", -ENOTSUP,
	 "quantization_config"},
	{"FP8 blocks", "mixtral", "hidden_act", Q("\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]"), 0, ""},
	{"FP8 blocks of another size", "mixtral", "hidden_act",
	 Q("\"quant_method\":\"fp8\",\"weight_block_size\":[64,128]"), -ENOTSUP, "expected [128, 128]"},
	{"FP8 blocks of three sizes", "mixtral", "hidden_act",
	 Q("\"quant_method\":\"fp8\",\"weight_block_size\":[128,128,128]"), -ENOTSUP, "weight_block_size"},
	{"FP8 of the other kind", "mixtral", "hidden_act", Q("\"quant_method\":\"fp8\",\"fmt\":\"e5m2\""), -ENOTSUP,
	 "expected e4m3"},
	{"MXFP4 of another family", "mixtral", "hidden_act", Q("\"quant_method\":\"mxfp4\""), -ENOTSUP,
	 "found mxfp4 for mixtral"},
	{"gpt_oss in BF16", "mixtral", "model_type", "\"gpt_oss\"", -ENOTSUP, "for gpt_oss; expected mxfp4"},
	{"gpt_oss", "mixtral", "model_type", "\"gpt_oss\"," MXFP4, 0, ""},
	{"gpt_oss with another limit", "mixtral", "model_type", "\"gpt_oss\"," MXFP4 ",\"swiglu_limit\":6", 0, ""},
	{"a limit of 0", "mixtral", "model_type", "\"gpt_oss\"," MXFP4 ",\"swiglu_limit\":0", -EINVAL,
	 "\"swiglu_limit\": found 0"},
	{"a limit that is text", "mixtral", "model_type", "\"gpt_oss\"," MXFP4 ",\"swiglu_limit\":\"7\"", -EINVAL,
	 "swiglu_limit"},
	{"a limit beyond reason", "mixtral", "model_type", "\"gpt_oss\"," MXFP4 ",\"swiglu_limit\":1e300", -EINVAL,
	 "swiglu_limit"},
	{"GPTQ", "mixtral", "hidden_act", Q(GPTQ), 0, ""},
	{"GPTQ of 8 bits", "mixtral", "hidden_act",
	 Q("\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":32,\"sym\":true"), -ENOTSUP,
	 "\"quantization_config.bits\": found 8; expected 4"},
	{"GPTQ in one group", "mixtral", "hidden_act",
	 Q("\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":-1,\"sym\":true"), -ENOTSUP,
	 "found -1; expected groups of 32, 64 or 128"},
	{"GPTQ without symmetry", "mixtral", "hidden_act", Q("\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32"),
	 -ENOTSUP, "\"quantization_config.sym\": found none"},
	{"GPTQ in the order of activations", "mixtral", "hidden_act", Q(GPTQ_ANY ",\"desc_act\":true"), -ENOTSUP,
	 "\"quantization_config.desc_act\": found true; expected false"},
	{"GPTQ in who knows which order", "mixtral", "hidden_act", Q(GPTQ_ANY), -ENOTSUP, "desc_act\": found none"},
	{"GPTQ for Marlin by its other name", "mixtral", "hidden_act", Q(GPTQ ",\"format\":\"marlin\""), -ENOTSUP,
	 "quantization_config.format"},
	{"GPTQ for Marlin", "mixtral", "hidden_act", Q(GPTQ ",\"checkpoint_format\":\"marlin\""), -ENOTSUP, "gptq_v2"},
	{"GPTQ with rules that leave modules out", "mixtral", "hidden_act", Q(GPTQ ",\"dynamic\":{\"-:.*gate\":{}}"), 0,
	 ""},
	{"GPTQ with rules of another kind", "mixtral", "hidden_act",
	 Q(GPTQ ",\"dynamic\":{\"-:.*gate\":{},\"+:.*down.*\":{\"bits\":8}}"), -ENOTSUP, "dynamic"},
	{"AWQ", "mixtral", "hidden_act", Q(AWQ ",\"version\":\"GEMM\",\"zero_point\":true"), 0, ""},
	{"AWQ for matrices by vectors", "mixtral", "hidden_act", Q(AWQ ",\"version\":\"gemv\",\"zero_point\":true"),
	 -ENOTSUP, "expected gemm"},
	{"AWQ without zero points", "mixtral", "hidden_act", Q(AWQ ",\"version\":\"gemm\",\"zero_point\":false"),
	 -ENOTSUP, "zero_point"},
	{"compressed-tensors without groups", "mixtral", "hidden_act", Q("\"quant_method\":\"compressed-tensors\""),
	 -ENOTSUP, "config_groups"},
	{"compressed-tensors of activations only", "mixtral", "hidden_act", COMPRESSED(""), -ENOTSUP, "symmetric"},
	{"compressed-tensors of 3 bits", "mixtral", "hidden_act", COMPRESSED("\"symmetric\":true,\"num_bits\":3"),
	 -ENOTSUP, "num_bits\": found 3"},
	{"FP4", "mixtral", "hidden_act", COMPRESSED("\"symmetric\":true,\"num_bits\":4,\"type\":\"float\""), -ENOTSUP,
	 "type\": found the string \"float\"; expected int"},
	{"a scale for each row of 4 bits", "mixtral", "hidden_act",
	 COMPRESSED("\"symmetric\":true,\"num_bits\":4,\"type\":\"int\",\"strategy\":\"channel\""), -ENOTSUP,
	 "strategy\": found the string \"channel\"; expected group"},
	{"groups of 16", "mixtral", "hidden_act",
	 COMPRESSED("\"symmetric\":true,\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":16"),
	 -ENOTSUP, "found 16; expected groups of 32, 64 or 128"},
	{"groups in the order of activations", "mixtral", "hidden_act",
	 COMPRESSED("\"symmetric\":true,\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":32,"
		    "\"actorder\":\"group\""),
	 -ENOTSUP, "actorder"},
	{"8 bits with zero points", "mixtral", "hidden_act",
	 COMPRESSED("\"symmetric\":false,\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\""), -ENOTSUP,
	 "symmetric\": found false"},
	{"several groups", "mixtral", "hidden_act",
	 Q("\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"a\":{\"weights\":{\"symmetric\":true}},"
	   "\"b\":{\"weights\":{\"symmetric\":true}}}"),
	 0, ""},
	{"several groups, one with zero points", "mixtral", "hidden_act",
	 Q("\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"a\":{\"weights\":{\"symmetric\":true}},"
	   "\"b\":{\"weights\":{\"symmetric\":false}}}"),
	 -ENOTSUP, "several groups"},
	{"sparse weights", "mixtral", "hidden_act",
	 Q("\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"a\":{}},\"sparsity_config\":{\"format\":"
	   "\"sparse-24-bitmask\"}"),
	 -ENOTSUP, "sparsity_config.format"},
	{"rotated weights", "mixtral", "hidden_act",
	 Q("\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"a\":{\"weights\":{\"symmetric\":true}},"
	   "\"b\":{\"weights\":{\"symmetric\":true}}},\"transform_config\":{\"config_groups\":{\"u\":{}}}"),
	 -ENOTSUP, "transform_config"},
	{"rotated weights, as an early release calls it", "mixtral", "hidden_act",
	 Q("\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"a\":{\"weights\":{\"symmetric\":true}},"
	   "\"b\":{\"weights\":{\"symmetric\":true}}},\"transforms_config\":{\"transform_groups\":{\"u\":{}}}"),
	 -ENOTSUP, "transforms_config"},
	{"nothing rotated", "mixtral", "hidden_act",
	 Q("\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"a\":{\"weights\":{\"symmetric\":true}},"
	   "\"b\":{\"weights\":{\"symmetric\":true}}},\"transform_config\":{},\"transforms_config\":null"),
	 0, ""},
	{"the same field twice", "mixtral", "hidden_size", "64,\"hidden_size\":32", -EINVAL, "duplicate"},
	{"text that is no JSON", "mixtral", "hidden_size", "sixty-four", -EINVAL, "not valid JSON"},
};

static char *build_config(const struct replacement *r)
{
	char *text = NULL;
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);
	const char *separator = "{";

	for (size_t b = 0; b < ARRAY_LEN(bases); b++) {
		if (!strstr(bases[b][0][1], r->base))
			continue;
		for (size_t i = 0; i < ARRAY_LEN(bases[b]) && bases[b][i][0]; i++) {
			const char *value = strcmp(bases[b][i][0], r->field) == 0 ? r->value : bases[b][i][1];

			if (!*value)
				continue;
			fprintf(f, "%s\"%s\":%s", separator, bases[b][i][0], value);
			separator = ",\n";
		}
	}
	fputc('}', f);
	fclose(f);
	return text;
}

static void test_replacements(void)
{
	for (size_t i = 0; i < ARRAY_LEN(replacements); i++) {
		const struct replacement *c = &replacements[i];
		char *text = build_config(c);
		struct model_config config = {.n_layers = 77};
		struct moe_error err = {0};
		int r = parse(text, strlen(text), &config, &err);

		ok(r == c->code && (r == 0 || (config.n_layers == 77 && !config.json && err.code == r &&
					       strstr(err.text, "dir/config.json") && strstr(err.text, c->word))),
		   "%s: %d, %s", c->what, r, r ? err.text : "taken");
		if (r == 0)
			model_config_free(&config);
		free(text);
	}
}

static bool layers_are(const char *base, const char *field, const char *value, const char *expected)
{
	const struct replacement r = {.base = base, .field = field, .value = value};
	char *text = build_config(&r);
	struct model_config c = {0};
	bool same = parse(text, strlen(text), &c, NULL) == 0;

	for (uint32_t i = 0; same && i < c.n_layers; i++)
		same = c.is_moe[i] == (expected[i] == 'x');
	model_config_free(&c);
	free(text);
	return same;
}

static void test_layers(void)
{
	ok(layers_are("qwen3_moe", "mlp_only_layers", "", ".x.x"), "each second layer");
	ok(layers_are("qwen3_moe", "", "", "...x"), "each second layer but layer 1");
	ok(layers_are("qwen3_moe", "decoder_sparse_step", "", "x.xx"), "all but layer 1");
	ok(layers_are("deepseek_v3", "moe_layer_freq", "", ".xxx"), "all but the first");
	ok(layers_are("deepseek_v3", "", "", "..x."), "each even layer but the first");
	ok(layers_are("deepseek_v3", "first_k_dense_replace", "0", "x.x."), "each even layer");
	ok(layers_are("mixtral", "", "", "xxxx"), "all");
}

static const struct {
	const char *what, *text;
	int code;
	uint32_t shards;
	const char *word;
} indexes[] = {
	{"one shard", "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-1.safetensors\"}}", 0, 1, ""},
	{"two shards", "{\"metadata\":{},\"weight_map\":{\"a\":\"m-2.safetensors\",\"b\":\"m-1.safetensors\"}}", 0, 2,
	 ""},
	{"no JSON", "weight_map", -EINVAL, 0, "not valid JSON"},
	{"an array", "[]", -EINVAL, 0, "expected a JSON object"},
	{"no weight_map", "{}", -EINVAL, 0, "found none"},
	{"a weight_map that is a list", "{\"weight_map\":[\"a\"]}", -EINVAL, 0, "an array of 1"},
	{"an empty weight_map", "{\"weight_map\":{}}", -EINVAL, 0, "an empty object"},
	{"a file name that is a number", "{\"weight_map\":{\"a\":1}}", -EINVAL, 0, "found 1; expected a file name"},
	{"a path out of the folder", "{\"weight_map\":{\"a\":\"../m.safetensors\"}}", -EINVAL, 0, "plain file name"},
	{"an absolute path", "{\"weight_map\":{\"a\":\"/m.safetensors\"}}", -EINVAL, 0, "plain file name"},
	{"a path into a folder", "{\"weight_map\":{\"a\":\"x/m.safetensors\"}}", -EINVAL, 0, "plain file name"},
	{"two dots", "{\"weight_map\":{\"a\":\"..\"}}", -EINVAL, 0, "plain file name"},
	{"a hidden file", "{\"weight_map\":{\"a\":\".safetensors\"}}", -EINVAL, 0, "plain file name"},
	{"an empty name", "{\"weight_map\":{\"a\":\"\"}}", -EINVAL, 0, "ends in .safetensors"},
	{"a pickle", "{\"weight_map\":{\"a\":\"pytorch_model.bin\"}}", -EINVAL, 0, "ends in .safetensors"},
	{"a line break in a name", "{\"weight_map\":{\"a\":\"a\\nb.safetensors\"}}", -EINVAL, 0, "control characters"},
	{"a tensor twice", "{\"weight_map\":{\"a\":\"m.safetensors\",\"a\":\"n.safetensors\"}}", -EINVAL, 0,
	 "duplicate"},
};

static void test_indexes(void)
{
	for (size_t i = 0; i < ARRAY_LEN(indexes); i++) {
		struct index index = {0};
		struct moe_error err = {0};
		int r = index_parse(&index, "dir/index", indexes[i].text, strlen(indexes[i].text), &err);

		ok(r == indexes[i].code && index.n_shards == indexes[i].shards &&
			   (r == 0 || (strstr(err.text, indexes[i].word) && strstr(err.text, "dir/index"))),
		   "index, %s: %d, %s", indexes[i].what, r, r ? err.text : "taken");
		if (r == 0 && index.n_shards == 2)
			ok(strcmp(index.shards[0], "m-1.safetensors") == 0 &&
				   strcmp(index.shards[1], "m-2.safetensors") == 0,
			   "shards come sorted");
		index_free(&index);
	}
}

static void test_long_name(void)
{
	char text[400], name[300];
	struct index index = {0};
	struct moe_error err = {0};

	memset(name, 'm', sizeof name);
	strcpy(name + 260, ".safetensors");
	snprintf(text, sizeof text, "{\"weight_map\":{\"a\":\"%s\"}}", name);
	ok(index_parse(&index, "dir/index", text, strlen(text), &err) == -EINVAL && strstr(err.text, "..."),
	   "index, a name of 272 bytes: %s", err.text);
}

/* `part` again and again, # being a number, between head and tail. malloc'ed. */
static char *repeat(const char *head, const char *part, const char *tail, unsigned times)
{
	char *text = NULL;
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);

	fputs(head, f);
	for (unsigned i = 0; i < times; i++)
		for (const char *c = part; *c; c++)
			if (*c == '#')
				fprintf(f, "%x", i);
			else
				fputc(*c, f);
	fputs(tail, f);
	fclose(f);
	return text;
}

static uint64_t rss_max_kib(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (uint64_t)usage.ru_maxrss;
}

static const struct {
	const char *what, *head, *part, *tail;
	unsigned times;
	bool is_index;
	int code;
	const char *word;
} many[] = {
	{"lists in an index", "{\"weight_map\":[[]", ",[]", "]}", 2000000, true, -EINVAL, "expected at most 64"},
	{"objects in an index", "{\"weight_map\":{\"first\":{}", ",\"#\":{}", "}}", 200000, true, -EINVAL,
	 "expected at most 64"},
	{"an index that never ends", "", "[", "", 2000000, true, -EINVAL, "expected at most 64"},
	{"tensors in an index", "{\"weight_map\":{\"first\":\"m.safetensors\"", ",\"#\":\"\"", "}}", 1100000, true,
	 -E2BIG, "expected at most 1048576"},
	{"brackets in an index's names", "{\"weight_map\":{\"first\":\"m.safetensors\"",
	 ",\"[{#,\\\"{[\":\"m.safetensors\"", "}}", 1000, true, 0, ""},
	{"lists in a config", "{\"x\":[[]", ",[]", "]}", 2000000, false, -E2BIG, "expected at most 262144"},
	{"numbers in a config", "{\"x\":[0", ",0", "]}", 2000000, false, -E2BIG, "expected at most 1048576"},
};

/* Whoever made a file decides over its bytes, not over many times as much memory of whoever reads it. */
static void test_many_values(void)
{
	const uint64_t before = rss_max_kib();

	for (size_t i = 0; i < ARRAY_LEN(many); i++) {
		char *text = repeat(many[i].head, many[i].part, many[i].tail, many[i].times);
		struct index index = {0};
		struct model_config config = {0};
		struct moe_error err = {0};
		int r = many[i].is_index ? index_parse(&index, "dir/index", text, strlen(text), &err)
					 : parse(text, strlen(text), &config, &err);

		ok(r == many[i].code && (r == 0 || strstr(err.text, many[i].word)), "many %s: %d, %s", many[i].what, r,
		   r ? err.text : "taken");
		index_free(&index);
		free(text);
	}
	ok(getenv("MOE_SANITIZED") || rss_max_kib() < before + (96u << 10),
	   "none of them took 96 MiB: %llu KiB, before %llu", (unsigned long long)rss_max_kib(),
	   (unsigned long long)before);
}

/* Bytes changed, left out and doubled, of each published config and of an index. */
static void test_mutations(void)
{
	unsigned long long state = tap_seed(), taken = 0, wrong = 0;

	for (int i = 0; i < 20000; i++) {
		const char *from = i % 4 ? published[(size_t)i % ARRAY_LEN(published)].text : indexes[1].text;
		size_t bytes = strlen(from);
		struct model_config config = {0};
		struct index index = {0};
		struct moe_error err = {0};
		char *text = malloc(bytes + 1);
		int r;

		memcpy(text, from, bytes);
		for (unsigned long long n = 1 + tap_random(&state) % 3; n--;) {
			size_t at = tap_random(&state) % bytes, piece = tap_random(&state) % MIN(bytes - at, 20);

			if (tap_random(&state) % 3 == 0) {
				memmove(text + at, text + at + piece, bytes - at - piece);
				bytes -= piece;
			} else {
				text[at] = "0123456789-.,:{}[]\"\\e\xff"[tap_random(&state) % 23];
			}
		}
		text = realloc(text, bytes); /* so that a read behind it is a fault under ASan */
		r = i % 4 ? parse(text, bytes, &config, &err) : index_parse(&index, "dir/index", text, bytes, &err);
		taken += r == 0;
		wrong += r == 0 ? i % 4 && (!config.n_moe_layers || config.topk > config.n_experts)
				: err.code != r || !err.text[0] || strchr(err.text, '\n') || config.json;
		model_config_free(&config);
		index_free(&index);
		free(text);
	}
	ok(wrong == 0, "20,000 mutations: %llu taken and sound, the others refused in one line", taken);
	ok(taken > 100 && taken < 15000, "and both happen");
}

int main(void)
{
	test_published();
	test_replacements();
	test_layers();
	test_indexes();
	test_long_name();
	test_many_values();
	test_mutations();
	return tap_done();
}
