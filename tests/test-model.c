/* SPDX-License-Identifier: MIT */
/* Model folders as a whole: each family opens, and each way in which files can disagree is told apart. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
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

#define SHARD_1 "model-00001-of-00002.safetensors"
#define SHARD_2 "model-00002-of-00002.safetensors"
#define INDEX "model.safetensors.index.json"

static char work[TAP_TMP];

/* A path in the working folder; valid until the fourth call after it. */
static const char *in_work(const char *folder, const char *name)
{
	static char paths[4][512];
	static unsigned next;
	char *path = paths[next++ % 4];

	snprintf(path, sizeof paths[0], "%s/%s%s%s", work, folder, name ? "/" : "", name ? name : "");
	return path;
}

static void make(const char *folder, const struct spec *spec)
{
	struct folder_result result;
	struct moe_error err = {0};

	if (folder_write(in_work(folder, NULL), spec, false, &result, &err) < 0) {
		diag("%s", err.text);
		require(false, "a model in %s", folder);
	}
}

static char *slurp(const char *path, size_t *ret_bytes)
{
	FILE *f = fopen(path, "r");
	char *text = NULL;
	size_t bytes = 0, room = 0;

	while (f && !feof(f)) {
		if (bytes == room)
			text = realloc(text, (room = room ? room * 2 : 65536) + 1);
		bytes += fread(text + bytes, 1, room - bytes, f);
	}
	require(f && text, "%s", path);
	fclose(f);
	text[bytes] = '\0';
	*ret_bytes = bytes;
	return text;
}

/*
 * Replaces the first `from` by `to`. In a shard (`from` stands in its header) the header is padded again and its length
 * corrected, so that nothing else is wrong with the file.
 */
static void edit(const char *path, const char *from, const char *to)
{
	size_t bytes, length, header = 0;
	char *text = slurp(path, &bytes), *at = memmem(text, bytes, from, strlen(from));
	bool shard = strstr(path, ".safetensors") && !strstr(path, ".json");
	FILE *f;

	require(at, "the text to replace stands in %s", path);
	length = bytes - strlen(from) + strlen(to);
	if (shard) {
		memcpy(&header, text, 8);
		header += strlen(to) - strlen(from);
		memcpy(text, &header, 8);
	}
	f = fopen(path, "w");
	fwrite(text, 1, (size_t)(at - text), f);
	fputs(to, f);
	fwrite(at + strlen(from), 1, bytes - (size_t)(at - text) - strlen(from), f);
	require(ftell(f) == (long)length && fclose(f) == 0, "edited");
	free(text);
}

static int try_open(const char *path, struct moe_error *err)
{
	struct model *model = (struct model *)err; /* must stay as it is on failure */
	int r = model_open(&model, path, err);

	if (r == 0)
		model_free(model);
	else if (model != (struct model *)err)
		return 1;
	return r;
}

static void check(const char *what, const char *path, int code, const char *word1, const char *word2)
{
	struct moe_error err = {0};
	int r = try_open(path, &err);

	ok(r == code && (r == 0 || (err.code == r && strstr(err.text, word1) && strstr(err.text, word2) &&
				    !strchr(err.text, '\n'))),
	   "%s: %d, %s", what, r, r ? err.text : "opens");
}

/* All parts of all experts, at places that lie in their shards and do not overlap. */
static bool sound(const struct model *m, const struct spec *spec)
{
	const struct model_config *c = &m->config;
	uint64_t found = 0;

	for (uint32_t layer = 0; layer < c->n_layers; layer++) {
		for (uint32_t i = 0; c->is_moe[layer] && i < c->n_experts * PARTS; i++, found++) {
			enum expert_part part = (enum expert_part)(i % PARTS);
			const struct tensor *t;
			char name[128];

			model_expert_name(name, sizeof name, c->family, layer, i / PARTS, part);
			t = model_tensor(m, name);
			if (!t || t->type != spec->type || t->dims[part == PART_DOWN] != c->inter ||
			    t->dims[part != PART_DOWN] != c->hidden || t->bytes != 2ull * c->inter * c->hidden ||
			    t->offset + t->bytes > m->shards[t->shard].bytes)
				return false;
		}
	}
	for (uint64_t i = 1; i < m->n_tensors; i++)
		if (strcmp(m->tensors[i - 1].name, m->tensors[i].name) >= 0)
			return false;
	return found == (uint64_t)c->n_moe_layers * c->n_experts * PARTS;
}

static void test_families(void)
{
	for (unsigned family = 0; family < FAMILY_COUNT; family++) {
		struct spec spec = spec_defaults((enum model_family)family);
		const char *name = model_family_name(spec.family);
		struct model *m = NULL;
		struct moe_error err = {0};

		if (family == FAMILY_GPT_OSS)
			continue; /* never published plain: test-expert */
		spec.type = family % 2 ? TENSOR_F16 : TENSOR_BF16;
		make(name, &spec);
		if (!ok(model_open(&m, in_work(name, NULL), &err) == 0, "%s opens %s", name, err.text))
			continue;
		ok(m->config.family == spec.family && m->config.n_layers == spec.layers &&
			   m->config.n_moe_layers == spec.layers - spec.dense_layers &&
			   m->config.n_experts == spec.experts && m->config.topk == spec.topk &&
			   m->config.hidden == spec.hidden && m->config.inter == spec.inter,
		   "%s: its numbers", name);
		ok(sound(m, &spec), "%s: every expert is found and checked", name);
		ok(model_tensor(m, "model.embed_tokens.weight") && model_tensor(m, "lm_head.weight") &&
			   !model_tensor(m, "lm_head.weigh") && !model_tensor(m, ""),
		   "%s: other tensors by name", name);
		model_free(m);
	}
}

static struct spec small(void)
{
	struct spec spec = spec_defaults(FAMILY_QWEN3_MOE);

	spec.experts = 4;
	spec.topk = 2;
	return spec;
}

#define EXPERT "model.layers.0.mlp.experts.1.up_proj.weight"
#define DENSE "model.layers.0.input_layernorm.weight"

/* One edit each to a folder that is sound otherwise. */
static const struct defect {
	const char *what, *file, *from, *to;
	int code;
	const char *word1, *word2;
} defects[] = {
	{"an expert more than the files hold", "config.json", "\"num_experts\": 4", "\"num_experts\": 5", -ENOENT,
	 "experts.4.gate_proj.weight is missing", "experts 0 to 4"},
	{"another hidden size", "config.json", "\"hidden_size\": 64", "\"hidden_size\": 128", -EINVAL,
	 "found shape [48, 64]; expected [48, 128]", "model-0000"},
	{"another intermediate size", "config.json", "\"moe_intermediate_size\": 48", "\"moe_intermediate_size\": 96",
	 -EINVAL, "found shape [48, 64]; expected [96, 64]", "moe_intermediate_size 96"},
	{"another family", "config.json", "\"qwen3_moe\"", "\"mixtral\"", -EINVAL, "config.json", "num_local_experts"},
	{"config.json cut short", "config.json", "256\n}", "256", -EINVAL, "config.json", "not valid JSON"},
	{"a config quantized who knows how", "config.json", "\"hidden_act\"",
	 "\"quantization_config\":{},\"hidden_act\"", -ENOTSUP, "\"quantization_config.quant_method\": found none",
	 "fp8, compressed-tensors, gptq, awq or mxfp4"},
	{"plain experts although quantized", "config.json", "\"hidden_act\"",
	 "\"quantization_config\":{\"quant_method\":\"fp8\"},\"hidden_act\"", 0, "", ""},
	{"a shard by another name", INDEX, "\"" DENSE "\": \"model-00001", "\"" DENSE "\": \"model-00009", -ENOENT,
	 "model-00009-of-00002.safetensors", "shard is missing"},
	{"a path out of the folder", INDEX, "\"" DENSE "\": \"model", "\"" DENSE "\": \"../model", -EINVAL, INDEX,
	 "plain file name"},
	{"a tensor that no shard holds", INDEX, DENSE, "model.layers.0.no.weight", -EINVAL, "model.layers.0.no.weight",
	 "not in this shard"},
	{"a tensor in the other shard", INDEX, "\"" DENSE "\": \"" SHARD_1, "\"" DENSE "\": \"" SHARD_2, -EINVAL,
	 SHARD_2, "not in this shard"},
	{"an index without the expert", INDEX, "\"" EXPERT "\": \"" SHARD_1 "\",", "", -ENOENT, EXPERT, "missing"},
	{"an index cut short", INDEX, "}\n}", "", -EINVAL, INDEX, "not valid JSON"},
	{"one expert of the other type", SHARD_1, EXPERT "\":{\"dtype\":\"BF16\"", EXPERT "\":{\"dtype\":\"F16\"",
	 -ENOTSUP, "found format f16; expected bf16 as of its gate", "mixed formats"},
	{"one expert in FP8", SHARD_1, EXPERT "\":{\"dtype\":\"BF16\",\"shape\":[48,64]",
	 EXPERT "\":{\"dtype\":\"F8_E4M3\",\"shape\":[96,64]", -ENOTSUP, "found dtype F8_E4M3; expected F16 or BF16",
	 "has no quantization_config"},
	{"one expert in F32", SHARD_1, EXPERT "\":{\"dtype\":\"BF16\",\"shape\":[48,64]",
	 EXPERT "\":{\"dtype\":\"F32\",\"shape\":[24,64]", -ENOTSUP, "found dtype F32", "F16 or BF16"},
	{"a type that nobody knows", SHARD_1, DENSE "\":{\"dtype\":\"BF16\"", DENSE "\":{\"dtype\":\"F6_E3M2\"",
	 -ENOTSUP, "unknown dtype", "F6_E3M2"},
	{"one expert turned round", SHARD_1, EXPERT "\":{\"dtype\":\"BF16\",\"shape\":[48,64]",
	 EXPERT "\":{\"dtype\":\"BF16\",\"shape\":[64,48]", -EINVAL, "found shape [64, 48]; expected [48, 64]", EXPERT},
	{"one expert in three dimensions", SHARD_1, EXPERT "\":{\"dtype\":\"BF16\",\"shape\":[48,64]",
	 EXPERT "\":{\"dtype\":\"BF16\",\"shape\":[1,48,64]", -EINVAL, "found shape [1, 48, 64]", EXPERT},
	{"a tensor by another name", SHARD_1, EXPERT, "model.layers.0.mlp.experts.1.up_proj.weighs", -EINVAL, EXPERT,
	 "not in this shard"},
	{"a tensor that the index does not name", INDEX, "\"" DENSE "\": \"" SHARD_1 "\",", "", 0, "", ""},
	{"a header of another length", SHARD_1, "{\"__metadata__\"", "{ \"__metadata__\"", 0, "", ""},
};

static void test_defects(void)
{
	const struct spec spec = small();

	for (size_t i = 0; i < ARRAY_LEN(defects); i++) {
		const struct defect *d = &defects[i];

		make("defect", &spec);
		edit(in_work("defect", d->file), d->from, d->to);
		check(d->what, in_work("defect", NULL), d->code, d->word1, d->word2);
		remove_all(in_work("defect", NULL));
	}
}

static void test_files(void)
{
	const struct spec spec = small();
	struct stat st;

	check("no folder", in_work("none", NULL), -ENOENT, "none", "No such file");
	make("files", &spec);
	check("a file in place of the folder", in_work("files", "config.json"), -ENOTDIR, "config.json",
	      "nor a GGUF file");
	check("the folder", in_work("files", NULL), 0, "", "");

	require(stat(in_work("files", SHARD_2), &st) == 0 && truncate(in_work("files", SHARD_2), st.st_size - 1) == 0,
		"one byte less");
	check("a shard cut short", in_work("files", NULL), -EINVAL, SHARD_2, "truncated");
	require(truncate(in_work("files", SHARD_2), st.st_size + 1) == 0, "one byte more");
	check("a shard with a byte too many", in_work("files", NULL), -EINVAL, SHARD_2, "1 bytes belong to no tensor");
	require(truncate(in_work("files", SHARD_2), 4) == 0, "four bytes");
	check("a shard of four bytes", in_work("files", NULL), -EINVAL, SHARD_2, "truncated");
	require(unlink(in_work("files", SHARD_2)) == 0, "a shard gone");
	check("a shard gone", in_work("files", NULL), -ENOENT, SHARD_2, "all 2 shards");
	require(mkdir(in_work("files", SHARD_2), 0700) == 0, "a folder");
	check("a folder in place of a shard", in_work("files", NULL), -EINVAL, SHARD_2, "not a regular file");
	rmdir(in_work("files", SHARD_2));
	require(mkfifo(in_work("files", SHARD_2), 0600) == 0, "a FIFO");
	check("a FIFO in place of a shard", in_work("files", NULL), -EINVAL, SHARD_2, "not a regular file");

	require(unlink(in_work("files", INDEX)) == 0, "the index gone");
	check("shards without an index", in_work("files", NULL), -ENOENT, "neither", INDEX);
	require(truncate(in_work("files", "config.json"), 17 << 20) == 0, "a large config.json");
	check("a config.json of 17 MiB", in_work("files", NULL), -E2BIG, "config.json", "at most 16777216");
	unlink(in_work("files", "config.json"));
	check("no config.json", in_work("files", NULL), -ENOENT, "config.json", "the folder of a model");
}

/* The Hugging Face cache: snapshots/x/NAME -> ../../blobs/HASH. */
static void test_links(void)
{
	static const char *const names[] = {"config.json", INDEX, SHARD_1, SHARD_2};
	const struct spec spec = small();

	make("blobs", &spec);
	require(mkdir(in_work("snapshots", NULL), 0700) == 0 && mkdir(in_work("snapshots", "x"), 0700) == 0, "a cache");
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		char from[64], to[64], target[64];

		snprintf(from, sizeof from, "%s", names[i]);
		snprintf(to, sizeof to, "%zu", i);
		snprintf(target, sizeof target, "../../blobs/%zu", i);
		require(rename(in_work("blobs", from), in_work("blobs", to)) == 0, "a blob");
		require(symlink(target, in_work("snapshots/x", from)) == 0, "a link to it");
	}
	check("a folder of symbolic links", in_work("snapshots/x", NULL), 0, "", "");
	unlink(in_work("blobs", "3"));
	check("a link whose blob is gone", in_work("snapshots/x", NULL), -ENOENT, SHARD_2, "missing");
}

static void test_single(void)
{
	struct spec spec = small();
	struct model *m = NULL;

	spec.shards = 1;
	make("single", &spec);
	require(access(in_work("single", "model.safetensors"), R_OK) == 0 && access(in_work("single", INDEX), F_OK) < 0,
		"one file, no index");
	require(model_open(&m, in_work("single", NULL), NULL) == 0, "it opens");
	ok(m->n_shards == 1 && sound(m, &spec), "and is whole");
	model_free(m);
	ok(model_free(NULL) == NULL, "model_free takes NULL");
}

static void test_sample(void)
{
	const char *source = getenv("MOE_SOURCE");
	char path[1024];
	struct model *m = NULL;
	struct moe_error err = {0};

	snprintf(path, sizeof path, "%s/models/tinymoe", source ? source : "");
	if (!source || access(path, F_OK) < 0) {
		tap_skip("the sample model: %s",
			 source ? "models/tinymoe is not in the source tree" : "MOE_SOURCE is not set");
		return;
	}
	if (!ok(model_open(&m, path, &err) == 0, "the sample model opens %s", err.text))
		return;
	ok(m->config.family == FAMILY_MIXTRAL && m->config.n_layers == 6 && m->config.n_experts == 32 &&
		   m->config.topk == 4 && m->config.hidden == 128 && m->config.inter == 128 && m->n_shards == 2,
	   "the sample model's numbers");
	model_free(m);
}

/* The shape of DeepSeek-V3 in BF16, its sizes apart: 46,000 tensors in 163 shards. */
static void test_scale(void)
{
	struct spec spec = spec_defaults(FAMILY_DEEPSEEK_V3);
	struct timespec from, to;
	struct model *m = NULL;
	double seconds;

	spec.layers = 61;
	spec.dense_layers = 3;
	spec.experts = 256;
	spec.topk = 8;
	spec.n_group = 8;
	spec.topk_group = 4;
	spec.hidden = spec.inter = 8;
	spec.shards = 163;
	spec.nextn_layers = 1;
	require(spec_check(&spec, NULL) == 0, "a large spec");
	make("scale", &spec);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
	require(model_open(&m, in_work("scale", NULL), NULL) == 0, "it opens");
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
	seconds = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
	diag("%" PRIu64 " tensors in %u shards: %.0f ms of CPU time", m->n_tensors, m->n_shards, seconds * 1e3);
	ok(seconds < 5, "in less than 5 s, even under a sanitizer");
	ok(m->n_shards == 163 && m->n_tensors > 46000 && m->config.n_moe_layers == 58, "and is whole");
	ok(model_tensor(m, "model.layers.61.eh_proj.weight"),
	   "the predictor's layer is there and no layer of the model");
	model_free(m);
}

int main(void)
{
	require(mkdtemp(tap_tmp(work, "test-model.XXXXXX")), "a working folder");
	test_families();
	test_defects();
	test_files();
	test_links();
	test_single();
	test_sample();
	test_scale();
	remove_all(work);
	return tap_done();
}
