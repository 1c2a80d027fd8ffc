/* SPDX-License-Identifier: MIT */
/* moe-mkmodel: random valid models of every family are written and read again, and wrong orders are refused. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "model/model.h"
#include "tests/remove.h"
#include "tests/tap.h"
#include "tools/mkmodel/folder.h"
#include "tools/mkmodel/normal.h"
#include "tools/mkmodel/options.h"

static char work[TAP_TMP];

static struct model *write_and_open(const char *path, const struct spec *spec)
{
	struct folder_result result;
	struct moe_error err = {0};
	struct model *m = NULL;

	if (folder_write(path, spec, false, &result, &err) < 0 || model_open(&m, path, &err) < 0)
		diag("%s", err.text);
	return m;
}

/* name[dim,dim] dtype */
static bool has(const struct model *m, const char *name, enum tensor_type type, uint64_t rows, uint64_t cols)
{
	const struct tensor *t = model_tensor(m, name);
	bool good = t && t->type == type && t->dims[0] == rows && t->n_dims == (cols ? 2u : 1u) &&
		    (!cols || t->dims[1] == cols);

	if (!good)
		diag("%s: %s", name, t ? "another type or shape" : "missing");
	return good;
}

struct expected {
	const char *name;
	uint32_t rows, cols;
};

/* What stands beside the experts, by family, in the default sizes: hidden 64, 4 heads of 16 (2 for keys), inter 48. */
static const struct {
	enum model_family family;
	uint64_t n_tensors;
	struct expected tensors[12];
} contents[] = {
	{FAMILY_MIXTRAL,
	 3 + 2 * (2 + 4 + 1 + 8 * 3),
	 {{"model.embed_tokens.weight", 256, 64},
	  {"model.norm.weight", 64, 0},
	  {"lm_head.weight", 256, 64},
	  {"model.layers.1.input_layernorm.weight", 64, 0},
	  {"model.layers.1.post_attention_layernorm.weight", 64, 0},
	  {"model.layers.1.self_attn.q_proj.weight", 64, 64},
	  {"model.layers.1.self_attn.k_proj.weight", 32, 64},
	  {"model.layers.1.self_attn.v_proj.weight", 32, 64},
	  {"model.layers.1.self_attn.o_proj.weight", 64, 64},
	  {"model.layers.1.block_sparse_moe.gate.weight", 8, 64}}},
	{FAMILY_QWEN2_MOE,
	 3 + 2 * (2 + 4 + 3 + 1 + 4 + 16 * 3),
	 {{"model.layers.0.self_attn.q_proj.bias", 64, 0},
	  {"model.layers.0.self_attn.k_proj.bias", 32, 0},
	  {"model.layers.0.self_attn.v_proj.bias", 32, 0},
	  {"model.layers.0.mlp.gate.weight", 16, 64},
	  {"model.layers.0.mlp.shared_expert.gate_proj.weight", 96, 64},
	  {"model.layers.0.mlp.shared_expert.up_proj.weight", 96, 64},
	  {"model.layers.0.mlp.shared_expert.down_proj.weight", 64, 96},
	  {"model.layers.0.mlp.shared_expert_gate.weight", 1, 64}}},
	{FAMILY_QWEN3_MOE,
	 3 + 2 * (2 + 4 + 2 + 1 + 16 * 3),
	 {{"model.layers.0.self_attn.q_norm.weight", 16, 0}, {"model.layers.0.self_attn.k_norm.weight", 16, 0}}},
	{FAMILY_OLMOE,
	 3 + 2 * (2 + 4 + 2 + 1 + 16 * 3),
	 {{"model.layers.0.self_attn.q_norm.weight", 64, 0}, {"model.layers.0.self_attn.k_norm.weight", 64, 0}}},
	{FAMILY_DEEPSEEK_V2,
	 3 + 3 * (2 + 5) + 3 + 2 * (1 + 3 + 16 * 3),
	 {{"model.layers.0.self_attn.q_proj.weight", 96, 64},
	  {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", 40, 64},
	  {"model.layers.0.self_attn.kv_a_layernorm.weight", 32, 0},
	  {"model.layers.0.self_attn.kv_b_proj.weight", 128, 32},
	  {"model.layers.0.self_attn.o_proj.weight", 64, 64},
	  {"model.layers.0.mlp.gate_proj.weight", 128, 64},
	  {"model.layers.0.mlp.down_proj.weight", 64, 128},
	  {"model.layers.1.mlp.shared_experts.up_proj.weight", 96, 64},
	  {"model.layers.1.mlp.shared_experts.down_proj.weight", 64, 96}}},
	{FAMILY_DEEPSEEK_V3,
	 3 + 3 * (2 + 7) + 3 + 2 * (2 + 3 + 16 * 3),
	 {{"model.layers.0.self_attn.q_a_proj.weight", 24, 64},
	  {"model.layers.0.self_attn.q_a_layernorm.weight", 24, 0},
	  {"model.layers.0.self_attn.q_b_proj.weight", 96, 24},
	  {"model.layers.2.mlp.gate.weight", 16, 64}}},
	{FAMILY_KIMI_K2,
	 3 + 3 * (2 + 7) + 3 + 2 * (2 + 3 + 16 * 3),
	 {{"model.layers.0.self_attn.q_b_proj.weight", 96, 24},
	  {"model.layers.2.mlp.shared_experts.gate_proj.weight", 48, 64}}},
	{FAMILY_GLM4_MOE,
	 3 + 3 * (2 + 4 + 3 + 2) + 3 + 2 * (2 + 3 + 16 * 3),
	 {{"model.layers.0.self_attn.q_proj.bias", 64, 0},
	  {"model.layers.0.self_attn.q_norm.weight", 16, 0},
	  {"model.layers.0.mlp.up_proj.weight", 128, 64},
	  {"model.layers.1.mlp.shared_experts.gate_proj.weight", 48, 64}}},
	{FAMILY_GPT_OSS,
	 3 + 2 * (2 + 4 + 4 + 1 + 2 + 2 * 3),
	 {{"model.layers.0.self_attn.q_proj.weight", 64, 64},
	  {"model.layers.0.self_attn.k_proj.bias", 32, 0},
	  {"model.layers.0.self_attn.o_proj.bias", 64, 0},
	  {"model.layers.0.self_attn.sinks", 4, 0},
	  {"model.layers.1.mlp.router.weight", 16, 64},
	  {"model.layers.1.mlp.router.bias", 16, 0},
	  {"model.layers.1.mlp.experts.gate_up_proj_bias", 16, 128},
	  {"model.layers.1.mlp.experts.down_proj_bias", 16, 64}}},
};

static void test_contents(void)
{
	for (size_t i = 0; i < ARRAY_LEN(contents); i++) {
		struct spec spec = spec_defaults(contents[i].family);
		const char *name = model_family_name(spec.family);
		struct model *m = NULL;
		bool good = true;
		char path[128];

		snprintf(path, sizeof path, "%s/%s", work, name);
		m = write_and_open(path, &spec);
		if (!ok(m, "%s is written and opens", name))
			continue;
		for (const struct expected *e = contents[i].tensors; e->name; e++)
			good &= has(m, e->name, TENSOR_BF16, e->rows, e->cols);
		if (spec_traits(spec.family)->sigmoid)
			good &= has(m, "model.layers.1.mlp.gate.e_score_correction_bias", TENSOR_F32, spec.experts, 0);
		ok(good && m->n_tensors == contents[i].n_tensors, "%s: %" PRIu64 " tensors by their names and shapes",
		   name, m->n_tensors);
		for (uint32_t s = 0; s < m->n_shards; s++)
			for (uint64_t t = 0, first = UINT64_MAX; t < m->n_tensors; t++) {
				if (m->tensors[t].shard == s && m->tensors[t].offset < first)
					first = m->tensors[t].offset;
				if (t == m->n_tensors - 1)
					good &= first % 16 == 8;
			}
		ok(good, "%s: data begins off the grain", name);
		model_free(m);
		remove_all(path);
	}
}

/* gpt-oss: all experts in one tensor, blocks of 32 numbers in 16 bytes, and exponents near those of other weights. */
static void test_merged(void)
{
	struct spec spec = spec_defaults(FAMILY_GPT_OSS);
	const struct tensor *blocks, *scales;
	const char *limit = "swiglu_limit";
	uint8_t bytes[64];
	struct model *m;
	char path[128];
	unsigned wrong = 0;
	int fd;

	spec.hidden = 96;
	snprintf(path, sizeof path, "%s/merged", work);
	m = write_and_open(path, &spec);
	require(m, "a model of merged experts");
	blocks = model_tensor(m, "model.layers.1.mlp.experts.gate_up_proj_blocks");
	scales = model_tensor(m, "model.layers.1.mlp.experts.down_proj_scales");
	ok(blocks && blocks->type == TENSOR_U8 && blocks->n_dims == 4 && blocks->dims[0] == 16 &&
		   blocks->dims[1] == 128 && blocks->dims[2] == 3 && blocks->dims[3] == 16,
	   "gate and up: [experts][2 inter][hidden / 32][16]");
	require(scales && scales->n_dims == 3 && scales->dims[1] == 96 && scales->dims[2] == 2,
		"exponents of down: [experts][hidden][inter / 32]");
	fd = open(m->shards[scales->shard].path, O_RDONLY | O_CLOEXEC);
	require(fd >= 0 && pread(fd, bytes, sizeof bytes, (off_t)scales->offset) == sizeof bytes, "they are read");
	close(fd);
	for (size_t i = 0; i < sizeof bytes; i++)
		wrong += bytes[i] < 127 - 6 || bytes[i] > 127 - 2;
	ok(wrong == 0 && memcmp(bytes, bytes + 1, sizeof bytes - 1) != 0, "exponents differ and are small (%u wrong)",
	   wrong);
	ok(json_number_value(json_object_get(m->config.json, limit)) == 7, "%s is there", limit);
	model_free(m);
	remove_all(path);
	spec.inter = 48;
	ok(spec_check(&spec, NULL) == -EINVAL, "48 columns are no whole blocks");
}

static uint32_t pick(unsigned long long *state, uint32_t from, uint32_t to)
{
	return from + (uint32_t)(tap_random(state) % (to - from + 1));
}

static struct spec random_spec(unsigned long long *state)
{
	struct spec s = spec_defaults((enum model_family)(tap_random(state) % FAMILY_COUNT));
	const struct traits *t = spec_traits(s.family);

	s.type = pick(state, 0, 1) ? TENSOR_BF16 : TENSOR_F16;
	s.seed = tap_random(state);
	s.shards = pick(state, 1, 7);
	s.vocab = pick(state, 1, 300);
	s.layers = pick(state, 1, 5);
	s.hidden = 8 * pick(state, 1, 9);
	s.inter = pick(state, 1, 70);
	s.dense_inter = pick(state, 1, 70);
	s.experts = pick(state, 1, 40);
	s.topk = pick(state, 1, MIN(s.experts, 9));
	s.n_group = s.topk_group = s.n_group ? 1 : 0;
	s.head_dim = t->head_dim_free ? 4 * pick(state, 1, 6) : s.hidden / s.heads;
	s.tie_embeddings = pick(state, 0, 1);
	s.qk_norm = pick(state, 0, 1);
	if (FAMILIES_DENSE >> s.family & 1)
		s.dense_layers = pick(state, 0, s.layers - 1);
	if (FAMILIES_QWEN >> s.family & 1)
		s.sparse_step = pick(state, 1, 3);
	if (FAMILIES_NEXTN >> s.family & 1)
		s.nextn_layers = pick(state, 0, 1);
	if (t->mla)
		s.q_lora_rank = pick(state, 0, 20);
	if (t->merged) {
		s.hidden = 32 * pick(state, 1, 3);
		s.inter = 32 * pick(state, 1, 3);
	}
	return s;
}

static void test_random(void)
{
	unsigned long long state = tap_seed();
	unsigned opened = 0, refused = 0, wrong = 0;

	for (int i = 0; i < 60; i++) {
		struct spec s = random_spec(&state);
		struct model *m;
		char path[128];

		if (spec_check(&s, NULL) < 0) {
			refused++;
			continue;
		}
		snprintf(path, sizeof path, "%s/random", work);
		m = write_and_open(path, &s);
		opened += m != NULL;
		for (uint32_t layer = 0; m && layer < s.layers; layer++)
			wrong += m->config.is_moe[layer] != spec_layer_is_moe(&s, layer);
		wrong += !m || m->config.family != s.family || m->config.n_experts != s.experts ||
			 m->config.topk != s.topk || m->config.inter != s.inter ||
			 model_tensor(m, "model.norm.weight")->type != s.type || m->n_shards != s.shards ||
			 !model_tensor(m, "lm_head.weight") != s.tie_embeddings;
		model_free(m);
		remove_all(path);
	}
	ok(opened + refused == 60 && opened > 30 && wrong == 0,
	   "60 random specs: %u open again, %u have no expert layer", opened, refused);
}

/* XOR-and-multiply over a tensor's bytes, enough to tell two apart. */
static uint64_t tensor_sum(const struct model *m, const char *name)
{
	const struct tensor *t = model_tensor(m, name);
	uint64_t sum = 14695981039346656037u;
	uint8_t *bytes = t ? malloc(t->bytes) : NULL;
	int fd = t ? open(m->shards[t->shard].path, O_RDONLY | O_CLOEXEC) : -1;

	require(fd >= 0 && pread(fd, bytes, t->bytes, (off_t)t->offset) == (ssize_t)t->bytes, "%s is read", name);
	for (uint64_t i = 0; i < t->bytes; i++)
		sum = (sum ^ bytes[i]) * 1099511628211u;
	close(fd);
	free(bytes);
	return sum;
}

static void test_seed(void)
{
	static const char *const names[] = {"model.layers.1.mlp.experts.3.down_proj.weight", "model.norm.weight"};
	struct spec a = spec_defaults(FAMILY_OLMOE), b = a, c = a;
	char paths[3][128];
	struct model *m[3];

	b.shards = 5;
	c.seed = a.seed + 1;
	for (int i = 0; i < 3; i++) {
		snprintf(paths[i], sizeof paths[i], "%s/seed%d", work, i);
		m[i] = write_and_open(paths[i], i == 0 ? &a : i == 1 ? &b : &c);
		require(m[i], "a model");
	}
	for (int i = 0; i < 2; i++) {
		ok(tensor_sum(m[0], names[i]) == tensor_sum(m[1], names[i]), "same seed, other shards: same %s",
		   names[i]);
		ok(tensor_sum(m[0], names[i]) != tensor_sum(m[2], names[i]), "other seed: other %s", names[i]);
	}
	ok(tensor_sum(m[0], names[0]) != tensor_sum(m[0], "model.layers.1.mlp.experts.2.down_proj.weight"),
	   "experts differ");
	for (int i = 0; i < 3; i++)
		model_free(m[i]);
}

static void test_normal(void)
{
	enum { COUNT = 400000 };
	struct normal *normal = NULL;
	float *values = malloc(COUNT * sizeof *values);
	uint64_t state = normal_state(1, "x");
	double sum = 0, squares = 0, within = 0;

	require(values && normal_new(&normal, NULL) == 0, "a generator");
	normal_select(normal, TENSOR_F32, 3, 0.5f);
	normal_fill(normal, &state, values, COUNT);
	for (int i = 0; i < COUNT; i++) {
		sum += values[i];
		squares += (values[i] - 3.0) * (values[i] - 3.0);
		within += fabs(values[i] - 3.0) < 0.5;
	}
	ok(fabs(sum / COUNT - 3) < 0.005 && fabs(sqrt(squares / COUNT) - 0.5) < 0.003, "mean %.4f, deviation %.4f",
	   sum / COUNT, sqrt(squares / COUNT));
	ok(fabs(within / COUNT - 0.6827) < 0.004, "%.4f within one deviation", within / COUNT);
	normal_free(normal);
	free(values);
}

static void test_refused(void)
{
	struct spec spec = spec_defaults(FAMILY_MIXTRAL);
	struct folder_result result;
	struct moe_error err = {0};
	char path[128], file[192];
	FILE *f;

	snprintf(path, sizeof path, "%s/taken", work);
	snprintf(file, sizeof file, "%s/model-00002-of-00002.safetensors", path);
	require(mkdir(path, 0700) == 0, "a folder");
	ok(folder_write(path, &spec, false, &result, &err) == 0, "an empty folder is taken %s", err.text);
	ok(folder_write(path, &spec, false, &result, &err) == -ENOTEMPTY && strstr(err.text, "not empty"), "%s",
	   err.text);
	ok(access(file, R_OK) == 0, "and what is in it stays");
	remove_all(path);

	snprintf(path, sizeof path, "%s/missing/folder", work);
	ok(folder_write(path, &spec, false, &result, &err) == -ENOENT, "%s", err.text);
	spec.shards = 1000;
	snprintf(path, sizeof path, "%s/many", work);
	ok(folder_write(path, &spec, false, &result, &err) == -EINVAL && access(path, F_OK) < 0, "%s", err.text);
	snprintf(path, sizeof path, "%s/a-file", work);
	f = fopen(path, "w");
	require(f && fclose(f) == 0, "a file");
	spec.shards = 1;
	ok(folder_write(path, &spec, false, &result, &err) == -ENOTDIR, "%s", err.text);
	spec.experts = 512; /* 7 PB */
	spec.hidden = spec.inter = 1u << 20;
	snprintf(path, sizeof path, "%s/vast", work);
	ok(folder_write(path, &spec, false, &result, &err) == -ENOSPC && access(path, F_OK) < 0, "%s", err.text);
}

static const struct {
	const char *line;
	int code;
	const char *word;
} lines[] = {
	{"--out x --family mixtral", 0, ""},
	{"--out x --family mixtral --experts 1", 0, ""},
	{"--out x --family deepseek_v3 --experts 6 --layers 1", 0, ""},
	{"--out x --family deepseek_v2 --n-group 8 --topk-group 3 --q-lora-rank 12 --yarn 40", 0, ""},
	{"--out x --family qwen3_moe --heads 3 --dtype f16 --norm-topk-prob no --rope-theta 5e5", 0, ""},
	{"--out x --family glm4_moe --qk-norm no --nextn-layers 1 --tie-word-embeddings yes", 0, ""},
	{"", -EINVAL, "--out is missing"},
	{"--out x", -EINVAL, "--family is missing"},
	{"--out x --family", -EINVAL, "--family: a value is missing"},
	{"--out x --family llama", -EINVAL, "found \"llama\"; expected one of: mixtral"},
	{"--out x --family mixtral --expert-count 3", -EINVAL, "no such option"},
	{"--out x --family mixtral extra", -EINVAL, "\"extra\""},
	{"--out x --family mixtral --dense-layers 1", -EINVAL, "have no such number"},
	{"--out x --family mixtral --kv-lora-rank 1", -EINVAL, "have no such number"},
	{"--out x --family mixtral --experts 0", -EINVAL, "from 1 to 4096"},
	{"--out x --family mixtral --experts -1", -EINVAL, "found \"-1\""},
	{"--out x --family mixtral --experts 4x", -EINVAL, "found \"4x\""},
	{"--out x --family mixtral --layers 99999999999999999999", -EINVAL, "--layers"},
	{"--out x --family mixtral --dtype f32", -EINVAL, "bf16|f16"},
	{"--out x --family mixtral --seed one", -EINVAL, "--seed"},
	{"--out x --family olmoe --norm-topk-prob maybe", -EINVAL, "yes|no"},
	{"--out x --family mixtral --rope-theta 0", -EINVAL, "greater than 0"},
	{"--out x --family mixtral --rope-theta nan", -EINVAL, "greater than 0"},
	{"--out x --family mixtral --topk 9", -EINVAL, "--topk 9 is more than --experts 8"},
	{"--out x --family mixtral --heads 4 --kv-heads 3", -EINVAL, "not a multiple of --kv-heads 3"},
	{"--out x --family mixtral --head-dim 15", -EINVAL, "--head-dim 15"},
	{"--out x --family glm4_moe --head-dim 18", -EINVAL, "multiple of 4"},
	{"--out x --family olmoe --hidden 66", -EINVAL, "no head size of its own"},
	{"--out x --family deepseek_v3 --qk-rope-head-dim 7", -EINVAL, "--qk-rope-head-dim 7"},
	{"--out x --family deepseek_v3 --n-group 3", -EINVAL, "not a multiple of --n-group 3"},
	{"--out x --family deepseek_v3 --topk-group 5", -EINVAL, "more than --n-group 4"},
	{"--out x --family deepseek_v3 --topk 9 --n-group 4 --topk-group 2", -EINVAL, "8 experts"},
	{"--out x --family deepseek_v3 --n-group 16 --topk-group 16", -EINVAL, "one expert a group"},
	{"--out x --family kimi_k2 --layers 2 --dense-layers 2", -EINVAL, "none of --layers 2"},
	{"--out x --family qwen3_moe --sparse-step 3", -EINVAL, "none of --layers 2"},
	{"--out x --family kimi_k2 --yarn 5000", -EINVAL, "--yarn 5000"},
	{"--out x --family gpt_oss --hidden 96 --head-dim 32", 0, ""},
	{"--out x --family gpt_oss --inter 48", -EINVAL, "multiples of 32"},
	{"--out x --family gpt_oss --norm-topk-prob no", -EINVAL, "have no such number"},
};

static void test_options(void)
{
	for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
		char text[160], program[] = "moe-mkmodel", *argv[32] = {program}, *save = NULL;
		struct spec spec = {.seed = 77};
		struct moe_error err = {0};
		enum options_verdict verdict;
		const char *out = NULL;
		int argc = 1, r;

		snprintf(text, sizeof text, "%s", lines[i].line);
		for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save))
			argv[argc++] = word;
		r = options_parse(argc, argv, &spec, &out, &verdict, &err);
		ok(r == lines[i].code && (r == 0 ? strcmp(out, "x") == 0 && verdict == OPTIONS_RUN
						 : spec.seed == 77 && strstr(err.text, lines[i].word)),
		   "%s: %s", lines[i].line, r ? err.text : "taken");
	}
}

int main(void)
{
	require(mkdtemp(tap_tmp(work, "test-mkmodel.XXXXXX")), "a working folder");
	test_contents();
	test_merged();
	test_random();
	test_seed();
	test_normal();
	test_refused();
	test_options();
	remove_all(work);
	return tap_done();
}
