/* SPDX-License-Identifier: MIT */
/* GGUF files become models: each architecture's metadata, parts, folders, and what is refused and how. */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/expert.h"
#include "model/gguf.h"
#include "tests/gguf-file.h"

#define HIDDEN 64u
#define INTER 32u
#define EXPERTS 4u

static char folder[TAP_TMP];
static char path[128];

/* A path in the folder; what was there is gone. */
static const char *at(const char *name)
{
	snprintf(path, sizeof path, "%s/%s", folder, name);
	return path;
}

static struct model *must_open(const char *where, const char *what)
{
	struct moe_error err = {0};
	struct model *model = NULL;
	const int r = model_open(&model, where, &err);

	ok(r == 0 && model->gguf, "%s%s%s", what, r < 0 ? ": " : "", err.text);
	return model;
}

/* Opening fails with `code`, and the line names the file and all the words (separated by |). */
static void refused(const char *where, int code, const char *words, const char *what)
{
	struct moe_error err = {0};
	struct model *model = NULL;
	const int r = model_open(&model, where, &err);
	char *list = strdup(words), *rest = list, *word;
	bool named = true;

	while ((word = strsep(&rest, "|")))
		if (!strstr(err.text, word)) {
			diag("\"%s\" is missing in: %s", word, err.text);
			named = false;
		}
	ok(r == code && !model && named, "%s: %d, \"%s\"", what, r, err.text);
	model_free(model);
	free(list);
}

/* A sound qwen3moe of two layers, to which a test adds what makes it unsound. */
static struct gguf_file sound(void)
{
	struct gguf_file f = gf_new(7);

	gf_config(&f, "qwen3moe", 2, HIDDEN, EXPERTS, 2, "expert_feed_forward_length", INTER);
	gf_strings(&f, "tokenizer.ggml.tokens", 20);
	return f;
}

static struct gguf_file sound_with_experts(void)
{
	struct gguf_file f = sound();

	gf_experts(&f, 0, GF_Q8_0, GF_Q8_0, HIDDEN, INTER, EXPERTS);
	gf_experts(&f, 1, GF_Q4_0, GF_Q8_0, HIDDEN, INTER, EXPERTS);
	return f;
}

static void refuse_file(struct gguf_file *f, int code, const char *words, const char *what)
{
	gf_write(f, at("m.gguf"));
	refused(path, code, words, what);
	gf_free(f);
	unlink(path);
}

/* -- what is opened ----------------------------------------------------------------------------------------------- */

static void test_architectures(void)
{
	static const struct {
		const char *name, *inter;
		uint32_t gating;
		enum model_family family;
	} rows[] = {{"llama", "feed_forward_length", 0, FAMILY_MIXTRAL},
		    {"llama", "expert_feed_forward_length", 0, FAMILY_MIXTRAL},
		    {"qwen2moe", "expert_feed_forward_length", 0, FAMILY_QWEN2_MOE},
		    {"qwen3moe", "expert_feed_forward_length", 0, FAMILY_QWEN3_MOE},
		    {"olmoe", "feed_forward_length", 0, FAMILY_OLMOE},
		    {"deepseek2", "expert_feed_forward_length", 1, FAMILY_DEEPSEEK_V2},
		    {"deepseek2", "expert_feed_forward_length", 2, FAMILY_DEEPSEEK_V3},
		    {"glm4moe", "expert_feed_forward_length", 2, FAMILY_GLM4_MOE},
		    {"gpt-oss", "expert_feed_forward_length", 0, FAMILY_GPT_OSS}};

	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		const bool oss = rows[i].family == FAMILY_GPT_OSS;
		struct gguf_file f = gf_new(i);
		struct model *m;
		char key[64];

		gf_config(&f, rows[i].name, 3, HIDDEN, EXPERTS, 2, rows[i].inter, INTER);
		snprintf(key, sizeof key, "%s.expert_gating_func", rows[i].name);
		if (rows[i].gating)
			gf_u32(&f, key, rows[i].gating);
		gf_tensor(&f, "blk.0.ffn_up.weight", GF_F32, 2, (uint64_t[]){HIDDEN, 8});
		gf_experts(&f, 1, GF_MXFP4, GF_Q8_0, HIDDEN, INTER, EXPERTS);
		gf_experts(&f, 2, GF_BF16, GF_F16, HIDDEN, INTER, EXPERTS);
		gf_write(&f, at("m.gguf"));
		m = must_open(path, rows[i].name);
		ok(m && m->config.family == rows[i].family && m->config.n_layers == 3 &&
			   m->config.n_experts == EXPERTS && m->config.topk == 2 && m->config.hidden == HIDDEN &&
			   m->config.inter == INTER && m->config.n_moe_layers == 2 && !m->config.is_moe[0] &&
			   m->config.is_moe[2],
		   "its numbers");
		ok(m && m->config.activation == (oss ? MODEL_SWIGLU_CLAMPED : MODEL_SILU) &&
			   m->config.limit == (oss ? 7.0f : 0.0f) &&
			   strcmp(m->config.model_type, model_family_name(rows[i].family)) == 0,
		   "its activation and name");
		model_free(m);
		gf_free(&f);
	}
}

static void test_metadata(void)
{
	struct gguf_file f = sound_with_experts();
	struct model *m;
	uint32_t u = 99;
	float x = 0;
	bool b = false;

	gf_f32(&f, "qwen3moe.rope.freq_base", 1e6f);
	gf_bool(&f, "qwen3moe.expert_weights_norm", true);
	gf_value(&f, "qwen3moe.minus", 5, &(int32_t){-3}, 4);
	gf_value(&f, "qwen3moe.wide", 10, &(uint64_t){1ULL << 40}, 8);
	gf_value(&f, "qwen3moe.byte", 0, &(uint8_t){200}, 1);
	gf_string(&f, "general.name", "A Name");
	gf_write(&f, at("m.gguf"));
	m = must_open(path, "a file with more metadata");
	require(m, "it is there");
	ok(gguf_f32(m, ".rope.freq_base", &x) && x == 1e6f, "a float");
	ok(gguf_f32(m, "qwen3moe.minus", &x) && x == -3, "a negative integer is a float as well");
	ok(gguf_bool(m, ".expert_weights_norm", &b) && b, "a bool");
	ok(gguf_u32(m, ".byte", &u) && u == 200, "a byte");
	ok(!gguf_u32(m, ".minus", &u) && !gguf_u32(m, ".wide", &u) && !gguf_u32(m, ".none", &u) &&
		   !gguf_u32(m, "general.name", &u) && !gguf_u32(m, ".rope.freq_base", &u) && u == 200,
	   "what does not fit leaves the number alone");
	ok(gguf_string(m, "general.name") && strcmp(gguf_string(m, "general.name"), "A Name") == 0 &&
		   !gguf_string(m, ".byte") && !gguf_string(m, "tokenizer.ggml.tokens"),
	   "a string");
	ok(model_tensor(m, "blk.1.ffn_gate_exps.weight") &&
		   model_tensor(m, "blk.1.ffn_gate_exps.weight")->dims[0] == EXPERTS &&
		   strcmp(tensor_type_name(model_tensor(m, "blk.1.ffn_gate_exps.weight")->type), "Q4_0") == 0 &&
		   model_tensor(m, "blk.0.ffn_down_exps.weight")->bytes == EXPERTS * HIDDEN * 34,
	   "tensors: sizes slowest first, ggml's types by name");
	model_free(m);
	gf_free(&f);
}

/* Old and new versions, other alignments, a header longer than the first read. */
static void test_variants(void)
{
	struct gguf_file f = sound_with_experts();
	struct model *m;

	f.version = 2;
	gf_write(&f, at("m.gguf"));
	model_free(must_open(path, "version 2"));
	gf_free(&f);
	f = sound();
	f.alignment = 4096;
	gf_u32(&f, "general.alignment", 4096);
	gf_strings(&f, "tokenizer.ggml.merges", 200000);
	gf_experts(&f, 0, GF_Q8_0, GF_Q8_0, HIDDEN, INTER, EXPERTS);
	gf_experts(&f, 1, GF_Q4_0, GF_Q8_0, HIDDEN, INTER, EXPERTS);
	gf_write(&f, at("m"));
	unlink(at("m.gguf"));
	ok(gguf_is(at("m")) && !gguf_is(folder) && !gguf_is(at("none")),
	   "the first bytes tell; no name ends in .gguf here");
	m = must_open(at("m"), "a header of megabytes, another alignment");
	ok(m && m->shards[0].bytes > 3 << 20 && model_tensor(m, "blk.0.ffn_gate_exps.weight")->offset % 4096 == 0,
	   "it is long");
	model_free(m);
	unlink(at("m"));
	gf_free(&f);
}

/* Layers that predict further tokens are counted but not served. */
static void test_further_layers(void)
{
	struct gguf_file f = gf_new(3);
	struct model *m;

	gf_config(&f, "glm4moe", 3, HIDDEN, EXPERTS, 2, "expert_feed_forward_length", INTER);
	gf_u32(&f, "glm4moe.nextn_predict_layers", 1);
	gf_experts(&f, 0, GF_Q8_0, GF_Q8_0, HIDDEN, INTER, EXPERTS);
	gf_experts(&f, 1, GF_Q8_0, GF_Q8_0, HIDDEN, INTER, EXPERTS);
	gf_write(&f, at("m.gguf"));
	m = must_open(path, "glm4moe whose last layer was left out");
	ok(m && m->config.n_layers == 2, "two layers are served");
	model_free(m);
	gf_experts(&f, 2, GF_Q8_0, GF_Q8_0, HIDDEN, INTER, EXPERTS);
	gf_tensor(&f, "blk.2.nextn.eh_proj.weight", GF_F32, 1, (uint64_t[]){8});
	gf_write(&f, at("m.gguf"));
	m = must_open(path, "glm4moe with it");
	ok(m && m->config.n_layers == 2, "two layers are served");
	model_free(m);
	gf_free(&f);
	f = gf_new(4);
	gf_config(&f, "deepseek2", 2, HIDDEN, 257, 2, "expert_feed_forward_length", INTER);
	gf_u32(&f, "deepseek2.expert_gating_func", 2);
	gf_experts(&f, 0, GF_Q8_0, GF_Q8_0, HIDDEN, INTER, 257);
	gf_tensor(&f, "blk.1.nextn.eh_proj.weight", GF_F32, 1, (uint64_t[]){8});
	gf_write(&f, at("m.gguf"));
	m = must_open(path, "deepseek2 with such a layer");
	ok(m && m->config.n_layers == 1 && m->config.family == FAMILY_KIMI_K2,
	   "one layer is served; of so many experts it is Kimi");
	model_free(m);
	gf_free(&f);
}

/* -- parts and folders -------------------------------------------------------------------------------------------- */

static void write_part(uint32_t i, uint32_t n, uint16_t no, uint16_t count, uint32_t tensors)
{
	struct gguf_file f = i == 1 ? sound() : gf_new(i);
	char name[64];

	gf_u16(&f, "split.no", no);
	gf_u16(&f, "split.count", count);
	gf_value(&f, "split.tensors.count", 5, &tensors, 4);
	if (i > 1)
		gf_experts(&f, i - 2, GF_Q8_0, GF_Q8_0, HIDDEN, INTER, EXPERTS);
	snprintf(name, sizeof name, "big-%05u-of-%05u.gguf", i, n);
	gf_write(&f, at(name));
	gf_free(&f);
}

static void test_parts(void)
{
	struct model *m;

	for (uint32_t i = 1; i <= 3; i++)
		write_part(i, 3, (uint16_t)(i - 1), 3, 6);
	m = must_open(at("big-00001-of-00003.gguf"), "three parts, by the first one");
	ok(m && m->n_shards == 3 && m->n_tensors == 6 && model_tensor(m, "blk.1.ffn_up_exps.weight")->shard == 2,
	   "all of them");
	model_free(m);
	model_free(must_open(at("big-00003-of-00003.gguf"), "by the last one"));
	ok(gguf_is(folder), "a folder with a GGUF model");
	gf_write_bytes(at("mmproj-big.gguf"), "x", 1);
	model_free(must_open(folder, "by the folder, beside a projector"));
	unlink(at("mmproj-big.gguf"));
	gf_write_bytes(at("other.gguf"), "x", 1);
	refused(folder, -EINVAL, "several GGUF models|other.gguf|give the file", "two models in a folder");
	unlink(at("other.gguf"));
	write_part(2, 3, 0, 3, 6);
	refused(folder, -EINVAL, "big-00002-of-00003.gguf|split.no|found 0 of 3; expected 1 of 3", "a part renamed");
	write_part(2, 3, 1, 4, 6);
	refused(folder, -EINVAL, "big-00002-of-00003.gguf|found 1 of 4; expected 1 of 3", "a part of another model");
	write_part(2, 3, 1, 3, 6);
	write_part(1, 3, 0, 3, 7);
	refused(folder, -EINVAL, "split.tensors.count|found 7; expected 6", "tensors are missing");
	write_part(1, 3, 0, 3, 6);
	write_part(3, 3, 2, 3, 6);
	unlink(at("big-00002-of-00003.gguf"));
	refused(at("big-00001-of-00003.gguf"), -ENOENT, "big-00002-of-00003.gguf|is missing|all 3 parts",
		"a part is missing");
	gf_write_bytes(at("config.json"), "{}", 2);
	ok(gguf_is(folder), "a folder with config.json is one as well");
	for (int i = 0; i < 2; i++) {
		const char *const weights = at(i ? "model.safetensors" : "model.safetensors.index.json");

		gf_write_bytes(weights, "{}", 2);
		ok(!gguf_is(folder), "but not with %s", strrchr(weights, '/') + 1);
		unlink(weights);
	}
	unlink(at("config.json"));
	unlink(at("big-00001-of-00003.gguf"));
	unlink(at("big-00003-of-00003.gguf"));
}

static void test_twice(void)
{
	struct gguf_file f;

	for (uint32_t i = 1; i <= 2; i++) {
		f = i == 1 ? sound_with_experts() : gf_new(1);
		gf_u16(&f, "split.no", (uint16_t)(i - 1));
		gf_u16(&f, "split.count", 2);
		gf_tensor(&f, "output.weight", GF_F32, 1, (uint64_t[]){8});
		gf_write(&f, at(i == 1 ? "a-00001-of-00002.gguf" : "a-00002-of-00002.gguf"));
		gf_free(&f);
	}
	refused(folder, -EINVAL, "output.weight|twice|a-00001-of-00002|a-00002-of-00002", "a tensor in two parts");
	unlink(at("a-00001-of-00002.gguf"));
	unlink(at("a-00002-of-00002.gguf"));
}

/* -- what is refused ---------------------------------------------------------------------------------------------- */

static void test_header(void)
{
	const uint64_t dims[2] = {32, 4};
	struct gguf_file f = sound();

	f.version = 1;
	refuse_file(&f, -ENOTSUP, "m.gguf|version 1|2 or 3", "version 1");
	f = sound();
	f.version = 3u << 24;
	refuse_file(&f, -ENOTSUP, "big-endian", "a big-endian file");
	gf_write_bytes(at("m.gguf"), "GGML and more", 13);
	refused(path, -EINVAL, "m.gguf|47 47 4d 4c|is this a GGUF file", "another format");
	f = sound_with_experts();
	gf_u32(&f, "general.name", 1);
	gf_u32(&f, "general.name", 1);
	refuse_file(&f, -EINVAL, "general.name|twice", "a key twice");
	f = sound_with_experts();
	gf_u32(&f, "general.alignment", 24);
	refuse_file(&f, -EINVAL, "general.alignment|found 24|power of two", "an odd alignment");
	f = sound_with_experts();
	gf_value(&f, "x", 9, (uint32_t[]){9, 1, 0}, 12);
	refuse_file(&f, -ENOTSUP, "\"x\"|array of type 9", "an array of arrays");
	f = sound_with_experts();
	gf_value(&f, "x", 9, (uint32_t[]){4, 0, 1u << 30}, 12);
	refuse_file(&f, -EINVAL, "\"x\"|array of 4611686018427387904|truncated", "an array longer than the file");
	f = sound_with_experts();
	gf_value(&f, "x", 13, "", 1);
	refuse_file(&f, -EINVAL, "\"x\"|found type 13", "a value of no type");
	f = sound_with_experts();
	gf_describe(&f, "far", GF_F32, 2, dims, 1 << 20);
	refuse_file(&f, -EINVAL, "tensor far|512 bytes at byte 1048576|complete", "a tensor beyond the file");
	f = sound_with_experts();
	gf_describe(&f, "odd", GF_F32, 2, dims, 33);
	refuse_file(&f, -EINVAL, "tensor odd|offset 33|multiple of 32", "a tensor at an odd place");
	f = sound_with_experts();
	gf_describe(&f, "over", GF_F32, 2, dims, 32);
	refuse_file(&f, -EINVAL, "over overlaps blk.0.ffn_gate_exps.weight", "tensors overlap");
	f = sound_with_experts();
	gf_describe(&f, "huge", GF_F32, 2, (uint64_t[]){1ULL << 40, 1ULL << 40}, 0);
	refuse_file(&f, -EINVAL, "tensor huge|1099511627776", "a product beyond 64 bits");
	f = sound_with_experts();
	gf_describe(&f, "none", GF_F32, 2, (uint64_t[]){0, 4}, 0);
	refuse_file(&f, -EINVAL, "tensor none|size 0", "a size of nothing");
	f = sound_with_experts();
	gf_describe(&f, "part", GF_Q8_0, 2, (uint64_t[]){33, 4}, 0);
	refuse_file(&f, -EINVAL, "tensor part|rows of 33|32, the block of Q8_0", "a row of a part of a block");
	f = sound_with_experts();
	gf_describe(&f, "new", 77, 2, dims, 0);
	refuse_file(&f, -ENOTSUP, "tensor new|number 77", "an unknown type");
	f = sound_with_experts();
	gf_describe(&f, "five", GF_F32, 5, (uint64_t[]){1, 1, 1, 1, 1}, 0);
	refuse_file(&f, -EINVAL, "tensor five|5 dimensions", "five dimensions");
	f = sound_with_experts();
	gf_describe(&f, "a\nb", GF_F32, 2, dims, 0);
	refuse_file(&f, -EINVAL, "tensor name|0x0a", "a name of two lines");
	f = sound_with_experts();
	f.n_tensors = 1 << 20;
	refuse_file(&f, -E2BIG, "1048576 tensors|65536", "too many tensors");
	f = sound_with_experts();
	f.n_values = 60000;
	refuse_file(&f, -EINVAL, "60000 metadata values", "more values than the file has room for");
}

static void test_config(void)
{
	struct gguf_file f = gf_new(1);

	gf_config(&f, "llama4", 1, HIDDEN, EXPERTS, 2, "expert_feed_forward_length", INTER);
	refuse_file(&f, -ENOTSUP, "general.architecture|llama4|gpt-oss", "another architecture");
	f = gf_new(1);
	refuse_file(&f, -EINVAL, "general.architecture|none", "no architecture");
	gf_string(&f, "general.architecture", "llama");
	refuse_file(&f, -ENOTSUP, "llama.expert_count|dense", "a dense model");
	gf_config(&f, "qwen3moe", 1, HIDDEN, EXPERTS, 5, "expert_feed_forward_length", INTER);
	refuse_file(&f, -EINVAL, "qwen3moe.expert_used_count|found 5|1 to 4", "more experts used than there are");
	gf_config(&f, "qwen3moe", 1, HIDDEN, EXPERTS, 2, "feed_forward_length", INTER);
	refuse_file(&f, -EINVAL, "qwen3moe.expert_feed_forward_length|missing", "no size of an expert");
	gf_config(&f, "qwen3moe", 100000, HIDDEN, EXPERTS, 2, "expert_feed_forward_length", INTER);
	refuse_file(&f, -EINVAL, "qwen3moe.block_count|found 100000|1024", "absurdly many layers");
}

/* Layer 0 is sound; layer 1 is what the test makes of it. */
static struct gguf_file half_sound(enum gf_type gate, enum gf_type up, uint64_t down_rows)
{
	struct gguf_file f = sound();

	gf_experts(&f, 0, GF_Q8_0, GF_Q8_0, HIDDEN, INTER, EXPERTS);
	gf_tensor(&f, "blk.1.ffn_gate_exps.weight", gate, 3, (uint64_t[]){HIDDEN, INTER, EXPERTS});
	gf_tensor(&f, "blk.1.ffn_up_exps.weight", up, 3, (uint64_t[]){HIDDEN, INTER, EXPERTS});
	if (down_rows)
		gf_tensor(&f, "blk.1.ffn_down_exps.weight", GF_Q8_0, 3, (uint64_t[]){INTER, down_rows, EXPERTS});
	return f;
}

/* Layer 1 has gate and up in one tensor, of `rows` rows for each expert. */
static struct gguf_file half_fused(uint64_t rows)
{
	struct gguf_file f = sound();

	gf_experts(&f, 0, GF_Q8_0, GF_Q8_0, HIDDEN, INTER, EXPERTS);
	gf_tensor(&f, "blk.1.ffn_gate_up_exps.weight", GF_Q8_0, 3, (uint64_t[]){HIDDEN, rows, EXPERTS});
	return f;
}

static void test_experts(void)
{
	struct gguf_file f = half_sound(GF_F32, GF_F32, HIDDEN);

	refuse_file(&f, -ENOTSUP, "m.gguf|blk.1.ffn_gate_exps.weight|found type F32|MXFP4", "experts of F32");
	f = half_sound(GF_Q5_0, GF_Q5_0, HIDDEN);
	refuse_file(&f, -ENOTSUP, "blk.1.ffn_gate_exps.weight|found type Q5_0", "experts of Q5_0");
	f = half_sound(GF_Q8_0, GF_Q4_0, HIDDEN);
	refuse_file(&f, -ENOTSUP, "blk.1.ffn_up_exps.weight|found type Q4_0; expected Q8_0", "gate and up differ");
	f = half_sound(GF_Q8_0, GF_Q8_0, 0);
	refuse_file(&f, -ENOENT, "blk.1.ffn_down_exps.weight is missing", "no down");
	f = half_sound(GF_Q8_0, GF_Q8_0, HIDDEN + 1);
	refuse_file(&f, -EINVAL, "blk.1.ffn_down_exps.weight|[4, 65, 32]|[4, 64, 32]", "another shape");
	f = half_sound(GF_Q8_0, GF_Q8_0, HIDDEN);
	gf_tensor(&f, "blk.1.ffn_up_exps.bias", GF_F16, 2, (uint64_t[]){INTER, EXPERTS});
	refuse_file(&f, -ENOTSUP, "blk.1.ffn_up_exps.bias|found type F16; expected F32", "a bias of F16");
	f = half_sound(GF_Q8_0, GF_Q8_0, HIDDEN);
	gf_tensor(&f, "blk.1.ffn_up_exps.bias", GF_F32, 2, (uint64_t[]){HIDDEN, EXPERTS});
	refuse_file(&f, -EINVAL, "blk.1.ffn_up_exps.bias|[4, 64]|[4, 32]", "a bias of another shape");
	f = half_sound(GF_Q8_0, GF_Q8_0, HIDDEN);
	gf_tensor(&f, "blk.1.ffn_up_exps.scale", GF_F32, 1, (uint64_t[]){EXPERTS});
	refuse_file(&f, -ENOTSUP, "blk.1.ffn_up_exps.scale", "scales beside the weights");
	f = sound();
	gf_experts(&f, 0, GF_Q8_0, GF_Q8_0, HIDDEN, INTER, EXPERTS);
	refuse_file(&f, -ENOENT, "blk.1.ffn_gate_exps.weight is missing|blk.1.ffn_up.weight", "a layer of nothing");
	f = sound();
	gf_tensor(&f, "blk.0.ffn_gate.0.weight", GF_Q8_0, 2, (uint64_t[]){HIDDEN, INTER});
	refuse_file(&f, -ENOTSUP, "blk.0.ffn_gate.0.weight|one tensor for all experts", "a tensor for each expert");
	f = half_fused(2 * INTER);
	refuse_file(&f, -ENOENT, "blk.1.ffn_down_exps.weight is missing|or gate_up and down",
		    "gate and up in one, no down");
	f = half_fused(INTER);
	gf_tensor(&f, "blk.1.ffn_down_exps.weight", GF_Q8_0, 3, (uint64_t[]){INTER, HIDDEN, EXPERTS});
	refuse_file(&f, -EINVAL, "blk.1.ffn_gate_up_exps.weight|[4, 32, 64]|[4, 64, 64]",
		    "gate and up of too few rows");
	f = half_fused(2 * INTER);
	gf_tensor(&f, "blk.1.ffn_up_exps.weight", GF_Q8_0, 3, (uint64_t[]){HIDDEN, INTER, EXPERTS});
	refuse_file(&f, -EINVAL, "blk.1.ffn_up_exps.weight|beside blk.1.ffn_gate_up_exps.weight", "up twice");
	f = half_fused(2 * INTER);
	gf_tensor(&f, "blk.1.ffn_gate_up_exps.scale", GF_F32, 1, (uint64_t[]){EXPERTS});
	refuse_file(&f, -ENOTSUP, "blk.1.ffn_gate_up_exps.scale", "scales beside gate and up in one");
	f = sound();
	gf_tensor(&f, "blk.0.ffn_up.weight", GF_Q8_0, 2, (uint64_t[]){HIDDEN, INTER});
	gf_tensor(&f, "blk.1.ffn_up.weight", GF_Q8_0, 2, (uint64_t[]){HIDDEN, INTER});
	refuse_file(&f, -EINVAL, "none of the 2 layers", "experts nowhere");
}

int main(void)
{
	require(mkdtemp(tap_tmp(folder, "moe-test-XXXXXX")), "a working folder");
	test_architectures();
	test_metadata();
	unlink(at("m.gguf"));
	test_variants();
	unlink(at("m.gguf"));
	test_further_layers();
	unlink(at("m.gguf"));
	test_parts();
	test_twice();
	test_header();
	unlink(at("m.gguf"));
	test_config();
	test_experts();
	ok(rmdir(folder) == 0, "nothing is left behind");
	return tap_done();
}
