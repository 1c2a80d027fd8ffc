/* SPDX-License-Identifier: MIT */
/*
 * GGUF files that moe-mkmodel makes of published folders: types, metadata, names and order of rows are those of
 * llama.cpp's converter, and the experts that the daemon's readers find are the folder's.
 */
#include "tests/converted.h"
#include "tools/mkmodel/widen.h"

static const struct {
	const char *name;
	double most;
	uint32_t format;
} types[] = {
	{"q8_0", 0.0055, MOE_FORMAT_Q8_0},   {"q4_0", 0.085, MOE_FORMAT_Q4_0},  {"q4_1", 0.075, MOE_FORMAT_Q4_1},
	{"q4_k", 0.075, MOE_FORMAT_Q4_K},    {"q5_k", 0.037, MOE_FORMAT_Q5_K},  {"q6_k", 0.019, MOE_FORMAT_Q6_K},
	{"iq4_xs", 0.08, MOE_FORMAT_IQ4_XS}, {"mxfp4", 0.12, MOE_FORMAT_MXFP4}, {"bf16", 1e-9, MOE_FORMAT_BF16},
	{"f16", 0.0001, MOE_FORMAT_F16},
};

static void test_types(const char *from)
{
	struct model *a = open_model(from);
	char name[32];

	for (size_t i = 0; a && i < ARRAY_LEN(types); i++) {
		struct moe_layout layout;
		struct model *b;
		const char *out;
		double d;

		snprintf(name, sizeof name, "%s.gguf", types[i].name);
		out = in_work(name);
		b = convert(from, out, types[i].name, NULL, 0) ? open_model(out) : NULL;
		if (!ok(b, "%s: it is written and opens", name))
			continue;
		expert_layout(b, 1, &layout);
		d = difference(a, b);
		ok(layout.part[0].format == types[i].format && layout.part[2].format == types[i].format,
		   "%s: it is read as %s", name, moe_formats[layout.part[0].format].name);
		ok(d <= types[i].most, "%s: the weights differ by %.5f, at most %.5f", name, d, types[i].most);
		model_free(b);
		unlink(out);
	}
	model_free(a);
}

static void test_mixed(const char *from)
{
	const char *out = in_work("mixed.gguf");
	struct moe_layout layouts[2];
	struct model *a = open_model(from), *b;
	uint32_t kind = 0, length = 0;

	require(convert(from, out, "q4_k", "q6_k", 2), "a mixed file");
	b = open_model(out);
	require(a && b, "it opens");
	expert_layout(b, 0, &layouts[0]);
	expert_layout(b, 1, &layouts[1]);
	ok(layouts[0].part[PART_DOWN].format == MOE_FORMAT_Q6_K &&
		   layouts[1].part[PART_DOWN].format == MOE_FORMAT_Q4_K &&
		   layouts[0].part[PART_UP].format == MOE_FORMAT_Q4_K,
	   "down is finer in each second layer");
	ok(difference(a, b) < 0.075, "and the weights are near");
	ok(gguf_u32(b, ".embedding_length", &length) && length == 256 && gguf_u32(b, ".expert_used_count", &kind) &&
		   kind == 2,
	   "the metadata has the model's numbers");
	ok(!convert(from, out, "q4_k", NULL, 0), "a file that is there is not overwritten");
	model_free(a);
	model_free(b);
}

static void test_dense(const char *from)
{
	const char *out = in_work("dense.gguf");
	struct model *a = open_model(from), *b;
	const struct tensor *q, *v, *norm, *router;
	unsigned wrong = 0, rotated = 0;

	require(convert(from, out, "q8_0", NULL, 0), "a file");
	b = open_model(out);
	require(a && b, "it opens");
	for (uint64_t i = 0; i < b->n_tensors; i++)
		wrong += b->tensors[i].offset % 32 != 0;
	ok(wrong == 0 && model_tensor(b, "token_embd.weight") && model_tensor(b, "output.weight"),
	   "tensors begin on multiples of 32, under llama.cpp's names");
	q = model_tensor(b, "blk.1.attn_q.weight");
	v = model_tensor(b, "blk.1.attn_v.weight");
	norm = model_tensor(b, "blk.0.ffn_norm.weight");
	router = model_tensor(b, "blk.0.ffn_gate_inp.weight");
	require(q && v && norm && router, "projections, norm, router");
	wrong = 0;
	for (uint64_t row = 0; row < 64; row++) { /* heads of 32 rows */
		const uint64_t in = row % 32, was = row - in + in / 2 + in % 2 * 16;
		uint16_t bits;

		read_at(b, q->shard, q->offset + 2 * (row * 256 + 3), 2, &bits);
		rotated += was != row;
		wrong += number_from_bf16(bits) != element(a, "model.layers.1.self_attn.q_proj.weight", was, 3);
		read_at(b, v->shard, v->offset + 2 * (row * 256 + 3), 2, &bits);
		wrong += number_from_bf16(bits) != element(a, "model.layers.1.self_attn.v_proj.weight", row, 3);
	}
	ok(wrong == 0 && rotated > 30, "queries have llama.cpp's order of rows, values their own (%u wrong)", wrong);
	require(norm->bytes == 256 * 4 && router->bytes == 4 * 256 * 4, "norm and router are F32");
	for (uint64_t i = 0; i < 8; i++) {
		float x[2];

		read_at(b, norm->shard, norm->offset + 4 * i, 4, &x[0]);
		read_at(b, router->shard, router->offset + 4 * (256 + i), 4, &x[1]);
		wrong += x[0] != element(a, "model.layers.0.post_attention_layernorm.weight", i, 0);
		wrong += x[1] != element(a, "model.layers.0.block_sparse_moe.gate.weight", 1, i);
	}
	ok(wrong == 0, "norms and routers keep their numbers");
	model_free(a);
	model_free(b);
}

/* gpt-oss: the file has the folder's very numbers. */
static void test_merged(void)
{
	const char *folder = in_work("gptoss"), *out = in_work("gptoss.gguf");
	struct moe_layout layouts[2];
	struct model *a, *b;
	unsigned wrong = 0;

	make_model(folder, FAMILY_GPT_OSS, 96);
	require(convert(folder, out, "mxfp4", NULL, 0), "a file of it");
	a = open_model(folder);
	b = open_model(out);
	require(a && b, "both open");
	for (uint32_t i = 0; i < 2 * a->config.n_experts; i++) {
		uint8_t *x = read_record(a, i % 2, i / 2, &layouts[0]), *y = read_record(b, i % 2, i / 2, &layouts[1]);

		wrong += memcmp(&layouts[0], &layouts[1], sizeof layouts[0]) != 0 ||
			 memcmp(x, y, layouts[0].record_bytes) != 0;
		free(x);
		free(y);
	}
	ok(wrong == 0 && layouts[0].part[0].format == MOE_FORMAT_MXFP4 && layouts[0].part[2].plane[MOE_PLANE_BIAS],
	   "folder and file have the same records, biases included (%u differ)", wrong);
	ok(!convert(folder, in_work("no"), "int8", NULL, 0) && !convert(folder, in_work("no.gguf"), "q8_0", NULL, 0),
	   "its experts are not quantized anew");
	model_free(a);
	model_free(b);
}

/* DeepSeek: two dense layers lead, a layer that only predicts follows, and shared experts are the worker's alone. */
static void make_latent(const char *path, enum model_family family)
{
	struct spec spec = spec_defaults(family);
	struct folder_result result;
	struct moe_error err = {0};

	spec.layers = 4;
	spec.dense_layers = 2;
	spec.experts = 6;
	spec.topk = 3;
	spec.n_group = 3;
	spec.topk_group = 2;
	spec.inter = spec.hidden = 64;
	spec.shared_experts = 2;
	spec.vocab = 64;
	spec.yarn = 4;
	spec.routed_scaling = family == FAMILY_DEEPSEEK_V2 ? 1 : 2.5;
	spec.nextn_layers = family != FAMILY_DEEPSEEK_V2;
	require(spec_check(&spec, &err) == 0 && folder_write(path, &spec, false, &result, &err) == 0,
		"a model of family %s %s", model_family_name(family), err.text);
}

static void check_latent_metadata(const struct model *m, bool v2)
{
	static const struct {
		const char *key;
		uint32_t value;
	} numbers[] = {{".block_count", 4},
		       {".leading_dense_block_count", 2},
		       {".expert_count", 6},
		       {".expert_used_count", 3},
		       {".expert_shared_count", 2},
		       {".expert_group_count", 3},
		       {".expert_group_used_count", 2},
		       {".expert_feed_forward_length", 64},
		       {".feed_forward_length", 128},
		       {".attention.kv_lora_rank", 32},
		       {".attention.key_length", 24},
		       {".attention.value_length", 16},
		       {".rope.dimension_count", 8}};
	uint32_t n = 0, wrong = 0;
	float scale = 0, stretch = 0;
	bool norm = v2;

	for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
		if (!gguf_u32(m, numbers[i].key, &n) || n != numbers[i].value) {
			diag("%s: %u, expected %u", numbers[i].key, n, numbers[i].value);
			wrong++;
		}
	ok(wrong == 0 && strcmp(gguf_string(m, "general.architecture"), "deepseek2") == 0, "the metadata's numbers");
	ok(gguf_u32(m, ".expert_gating_func", &n) && n == (v2 ? 1 : 2) &&
		   gguf_u32(m, ".attention.q_lora_rank", &n) == !v2 && gguf_f32(m, ".expert_weights_scale", &scale) &&
		   scale == (v2 ? 1.0f : 2.5f) && gguf_bool(m, ".expert_weights_norm", &norm) && norm == !v2,
	   "what the versions differ in");
	ok(strcmp(gguf_string(m, ".rope.scaling.type"), "yarn") == 0 &&
		   gguf_f32(m, ".rope.scaling.yarn_log_multiplier", &stretch) &&
		   fabsf(stretch - (v2 ? 0.0707f : 0.1f)) < 1e-6f,
	   "how positions are stretched");
}

/* The shared experts' matrices stand there as they were, and no routed expert is read from them. */
static void check_shared(const struct model *a, const struct model *b)
{
	static const char *const parts[] = {"gate", "up", "down"};
	unsigned wrong = 0;

	for (uint32_t i = 0; i < 2 * PARTS; i++) {
		const uint32_t layer = 2 + i / PARTS;
		const struct tensor *x, *y;
		uint8_t bytes[2][128 * 64 * 2];
		char name[96];

		snprintf(name, sizeof name, "model.layers.%u.mlp.shared_experts.%s_proj.weight", layer,
			 parts[i % PARTS]);
		x = model_tensor(a, name);
		snprintf(name, sizeof name, "blk.%u.ffn_%s_shexp.weight", layer, parts[i % PARTS]);
		y = model_tensor(b, name);
		require(x && y && x->bytes == sizeof bytes[0] && y->bytes == x->bytes && y->type == x->type,
			"%s is as large as it was", name);
		read_at(a, x->shard, x->offset, x->bytes, bytes[0]);
		read_at(b, y->shard, y->offset, y->bytes, bytes[1]);
		wrong += memcmp(bytes[0], bytes[1], x->bytes) != 0;
		for (uint32_t e = 0; e < b->config.n_experts; e++) {
			struct expert_source sources[EXPERT_SOURCES_MAX];
			const uint32_t n = expert_sources(b, layer, e, sources);

			for (uint32_t s = 0; s < n; s++)
				wrong += sources[s].offset < y->offset + y->bytes &&
					 y->offset < sources[s].offset + sources[s].repack.bytes;
		}
	}
	ok(wrong == 0, "shared experts are left alone (%u wrong)", wrong);
}

static void test_latent(enum model_family family)
{
	const char *folder = in_work("latent"), *out = in_work("latent.gguf");
	const bool v2 = family == FAMILY_DEEPSEEK_V2;
	const struct tensor *bias, *was;
	struct model *a, *b;
	unsigned further = 0;

	make_latent(folder, family);
	require(convert(folder, out, "q8_0", NULL, 0), "a file of it");
	a = open_model(folder);
	b = open_model(out);
	require(a && b, "both open");
	ok((family == FAMILY_KIMI_K2 || b->config.family == family) && b->config.n_layers == 4 &&
		   b->config.n_moe_layers == 2 && !b->config.is_moe[0] && !b->config.is_moe[1] && b->config.is_moe[2] &&
		   b->config.is_moe[3] && b->config.n_experts == 6 && b->config.inter == 64,
	   "two layers of six routed experts behind two dense ones");
	check_latent_metadata(b, v2);
	ok(model_tensor(b, "blk.0.ffn_gate.weight") && model_tensor(b, "blk.1.ffn_down.weight") &&
		   !model_tensor(b, "blk.2.ffn_down.weight") && model_tensor(b, "blk.3.attn_kv_a_mqa.weight") &&
		   model_tensor(b, "blk.3.attn_kv_a_norm.weight") && model_tensor(b, "blk.3.attn_kv_b.weight") &&
		   !model_tensor(b, "blk.3.attn_q.weight") == !v2,
	   "the dense layers and the latent attention by their names");
	for (uint64_t i = 0; i < b->n_tensors; i++)
		further += strncmp(b->tensors[i].name, "blk.4.", 6) == 0;
	ok(further == 0 && !model_tensor(a, "model.layers.4.eh_proj.weight") == v2,
	   "the layer that only predicts is left out");
	ok(difference(a, b) < 0.0055, "the experts are near");
	check_shared(a, b);
	bias = model_tensor(b, "blk.2.exp_probs_b.bias");
	was = model_tensor(a, "model.layers.2.mlp.gate.e_score_correction_bias");
	if (!v2) {
		float x[6], y[6];

		require(bias && was && bias->bytes == sizeof x && was->bytes == sizeof y, "the router's bias");
		read_at(b, bias->shard, bias->offset, sizeof x, x);
		read_at(a, was->shard, was->offset, sizeof y, y);
		ok(memcmp(x, y, sizeof x) == 0, "keeps its numbers");
	} else {
		ok(!bias && !was, "the router has no bias");
	}
	model_free(a);
	model_free(b);
	remove_all(folder);
	unlink(out);
}

int main(void)
{
	char narrow[128], wide[128];
	struct folder_result result;
	struct moe_error err = {0};

	require(mkdtemp(tap_tmp(work, "test-convert.XXXXXX")), "a working folder");
	snprintf(narrow, sizeof narrow, "%s/narrow", work);
	snprintf(wide, sizeof wide, "%s/wide", work);
	make_model(narrow, FAMILY_MIXTRAL, 128);
	require(widen(narrow, wide, 256, 512, false, &result, &err) == 0, "a model wide enough for every type %s",
		err.text);
	test_types(wide);
	test_mixed(wide);
	test_dense(wide);
	test_merged();
	test_latent(FAMILY_DEEPSEEK_V2);
	test_latent(FAMILY_DEEPSEEK_V3);
	test_latent(FAMILY_KIMI_K2);
	remove_all(work);
	return tap_done();
}
