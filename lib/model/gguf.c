/* SPDX-License-Identifier: MIT */
#include "model/gguf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "model/file.h"

#define ARCHITECTURE_KEY "general.architecture"
#define NAME_MAX_BYTES 128
#define GPT_OSS_LIMIT 7.0f
#define GATING_SIGMOID 2 /* expert_gating_func */

/* One row for each architecture. `dense_inter`: an expert's size may stand where a dense layer's would. */
static const struct architecture {
	const char *name;
	enum model_family family;
	bool dense_inter;
} architectures[] = {
	{"llama", FAMILY_MIXTRAL, true},          {"qwen2moe", FAMILY_QWEN2_MOE, false},
	{"qwen3moe", FAMILY_QWEN3_MOE, false},    {"olmoe", FAMILY_OLMOE, true},
	{"deepseek2", FAMILY_DEEPSEEK_V2, false}, {"glm4moe", FAMILY_GLM4_MOE, false},
	{"gpt-oss", FAMILY_GPT_OSS, false},
};

/* -- metadata ----------------------------------------------------------------------------------------------------- */

static const struct gguf_value *find(const struct model *model, const char *key)
{
	const struct gguf_value *architecture;
	char whole[512];

	if (key[0] != '.')
		return gguf_find(model->gguf, key);
	architecture = gguf_find(model->gguf, ARCHITECTURE_KEY);
	if (!architecture || architecture->kind != GGUF_STRING)
		return NULL;
	snprintf(whole, sizeof whole, "%s%s", architecture->string, key);
	return gguf_find(model->gguf, whole);
}

bool gguf_u32(const struct model *model, const char *key, uint32_t *ret)
{
	const struct gguf_value *value = find(model, key);

	if (!value || (value->kind != GGUF_UNSIGNED && (value->kind != GGUF_SIGNED || value->i < 0)) ||
	    value->u > UINT32_MAX)
		return false;
	*ret = (uint32_t)value->u;
	return true;
}

bool gguf_f32(const struct model *model, const char *key, float *ret)
{
	const struct gguf_value *value = find(model, key);

	if (!value || value->kind == GGUF_STRING || value->kind == GGUF_BOOL)
		return false;
	if (value->kind == GGUF_FLOAT)
		*ret = (float)value->f;
	else
		*ret = value->kind == GGUF_SIGNED ? (float)value->i : (float)value->u;
	return true;
}

bool gguf_bool(const struct model *model, const char *key, bool *ret)
{
	const struct gguf_value *value = find(model, key);

	if (!value || value->kind != GGUF_BOOL)
		return false;
	*ret = value->u;
	return true;
}

const char *gguf_string(const struct model *model, const char *key)
{
	const struct gguf_value *value = find(model, key);

	return value && value->kind == GGUF_STRING ? value->string : NULL;
}

static int read_u32(const struct model *model, const char *key, uint32_t min, uint32_t max, uint32_t *ret,
		    struct moe_error *err)
{
	const char *file = model->shards[0].path, *architecture = gguf_string(model, ARCHITECTURE_KEY);
	uint32_t value;

	if (!find(model, key))
		return moe_error_set(err, -EINVAL,
				     "%s: metadata \"%s%s\" is missing; expected an integer from %u to %u", file,
				     architecture, key, min, max);
	if (!gguf_u32(model, key, &value))
		return moe_error_set(err, -EINVAL,
				     "%s: metadata \"%s%s\": found no integer of 32 bits; expected one from %u to %u",
				     file, architecture, key, min, max);
	if (value < min || value > max)
		return moe_error_set(err, -EINVAL, "%s: metadata \"%s%s\": found %u; expected an integer from %u to %u",
				     file, architecture, key, value, min, max);
	*ret = value;
	return 0;
}

/* -- files -------------------------------------------------------------------------------------------------------- */

/* A part says which one it is; a file of its own says nothing, or that it is the only one. */
static int check_part(struct model *model, const struct gguf *gguf, uint32_t i, struct moe_error *err)
{
	const struct gguf_value *no = gguf_find(gguf, "split.no"), *count = gguf_find(gguf, "split.count");
	const char *file = model->shards[i].path;

	if (model->n_shards == 1 && (!count || count->u <= 1))
		return 0;
	if (!count || !no || count->kind == GGUF_STRING || no->kind == GGUF_STRING || count->u != model->n_shards ||
	    no->u != i)
		return moe_error_set(
			err, -EINVAL,
			"%s: metadata \"split.no\", \"split.count\": found %lld of %lld; expected %u of %u "
			"from the file's name: parts must keep their names, NAME-00001-of-0000N.gguf",
			file, no ? (long long)no->i : -1, count ? (long long)count->i : -1, i, model->n_shards);
	return 0;
}

static int append(struct model *model, struct gguf *gguf, struct moe_error *err)
{
	const uint64_t n = model->n_tensors + gguf->n_tensors; /* each file's is bounded, and so is their number */
	struct tensor *grown = realloc(model->tensors, (n ? n : 1) * sizeof *grown);

	if (!grown)
		return moe_error_sys(err, -ENOMEM, "%s", model->path);
	model->tensors = grown;
	memcpy(grown + model->n_tensors, gguf->tensors, gguf->n_tensors * sizeof *grown);
	model->n_tensors = n;
	free(gguf->tensors); /* the names live on */
	gguf->tensors = NULL;
	gguf->n_tensors = 0;
	return 0;
}

/* The first part's metadata are the model's. */
static int read_part(struct model *model, uint32_t i, struct moe_error *err)
{
	_cleanup_(gguf_clear) struct gguf gguf = {0};
	struct shard *shard = &model->shards[i];
	int r;

	shard->id = file_identify(shard->path); /* before its header: whoever replaces it meanwhile is found out */
	r = gguf_read(shard->path, i, &shard->bytes, &gguf, err);
	if (r < 0)
		return r;
	r = check_part(model, &gguf, i, err);
	if (r < 0)
		return r;
	r = append(model, &gguf, err);
	if (r < 0 || i > 0)
		return r;
	*model->gguf = gguf;
	gguf = (struct gguf){0};
	return 0;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static int check_tensors(struct model *model, struct moe_error *err)
{
	const struct gguf_value *count = gguf_find(model->gguf, "split.tensors.count");
	const struct tensor *t = model->tensors;

	qsort(model->tensors, model->n_tensors, sizeof *model->tensors, compare_names);
	for (uint64_t i = 1; i < model->n_tensors; i++)
		if (compare_names(&t[i - 1], &t[i]) == 0)
			return moe_error_set(
				err, -EINVAL, "%s: tensor %s: found it twice, also in %s; expected each tensor once",
				model->shards[t[i].shard].path, t[i].name, model->shards[t[i - 1].shard].path);
	if (model->n_shards > 1 && count && count->kind != GGUF_STRING && count->u != model->n_tensors)
		return moe_error_set(err, -EINVAL,
				     "%s: metadata \"split.tensors.count\": found %lld; expected %llu, what the parts "
				     "hold (do they belong together?)",
				     model->shards[0].path, (long long)count->i, (unsigned long long)model->n_tensors);
	return 0;
}

static int read_files(struct model *model, const char *path, struct moe_error *err)
{
	char **files;
	uint32_t n;
	int r;

	r = gguf_files(path, &files, &n, err);
	if (r < 0)
		return r;
	model->gguf = calloc(1, sizeof *model->gguf);
	model->shards = calloc(n, sizeof *model->shards);
	for (uint32_t i = 0; model->shards && i < n; i++)
		model->shards[i].path = steal_ptr(files[i]);
	gguf_files_free(files, n);
	if (!model->gguf || !model->shards)
		return moe_error_sys(err, -ENOMEM, "%s", path);
	model->n_shards = n;
	for (uint32_t i = 0; i < n; i++) {
		r = read_part(model, i, err);
		if (r < 0)
			return r;
	}
	return check_tensors(model, err);
}

/* -- configuration ------------------------------------------------------------------------------------------------ */

static int find_architecture(const struct model *model, const struct architecture **ret, struct moe_error *err)
{
	const char *name = gguf_string(model, ARCHITECTURE_KEY);
	char list[160] = "", words[48];

	for (size_t i = 0; name && i < ARRAY_LEN(architectures); i++) {
		if (strcmp(name, architectures[i].name) == 0) {
			*ret = &architectures[i];
			return 0;
		}
	}
	for (size_t i = 0, at = 0; i < ARRAY_LEN(architectures); i++)
		at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", architectures[i].name);
	return moe_error_set(err, name ? -ENOTSUP : -EINVAL,
			     "%s: metadata \"" ARCHITECTURE_KEY "\": found %s; expected one that is served: %s",
			     model->shards[0].path, name ? file_clean(words, sizeof words, name) : "none", list);
}

/* One architecture of the files is several families of published folders. */
static enum model_family family_of(const struct model *model, const struct architecture *architecture)
{
	uint32_t gating;

	if (architecture->family == FAMILY_DEEPSEEK_V2 && gguf_u32(model, ".expert_gating_func", &gating) &&
	    gating == GATING_SIGMOID)
		return model->config.n_experts > 256 ? FAMILY_KIMI_K2 : FAMILY_DEEPSEEK_V3;
	return architecture->family;
}

/* Layers that only predict further tokens are counted in block_count and come last. They are not served. */
static bool predicts_only(const struct model *model, uint32_t layer)
{
	char name[NAME_MAX_BYTES];

	snprintf(name, sizeof name, "blk.%u.nextn.eh_proj.weight", layer);
	return model_tensor(model, name) != NULL;
}

static int read_layers(struct model *model, struct moe_error *err)
{
	struct model_config *c = &model->config;
	uint32_t blocks, further = 0;
	int r;

	r = read_u32(model, ".block_count", 1, MODEL_LAYERS_MAX, &blocks, err);
	if (r < 0)
		return r;
	/* glm4moe counts them even where a converter has left their tensors out */
	if (c->family == FAMILY_GLM4_MOE && gguf_u32(model, ".nextn_predict_layers", &further))
		blocks -= MIN(further, blocks);
	while (blocks > 0 && predicts_only(model, blocks - 1))
		blocks--;
	if (blocks == 0)
		return moe_error_set(err, -EINVAL,
				     "%s: metadata \"block_count\": found only layers that predict further tokens; "
				     "expected at least one other",
				     model->shards[0].path);
	c->n_layers = blocks;
	return 0;
}

static int read_numbers(struct model *model, const struct architecture *architecture, struct moe_error *err)
{
	struct model_config *c = &model->config;
	const char *inter = ".expert_feed_forward_length";
	int r;

	if (architecture->dense_inter && !find(model, inter))
		inter = ".feed_forward_length";
	if (!find(model, ".expert_count"))
		return moe_error_set(err, -ENOTSUP,
				     "%s: metadata \"%s.expert_count\" is missing; expected a model with experts: a "
				     "dense one is not served",
				     model->shards[0].path, architecture->name);
	r = read_u32(model, ".expert_count", 1, MODEL_EXPERTS_MAX, &c->n_experts, err);
	if (r < 0)
		return r;
	r = read_u32(model, ".expert_used_count", 1, MIN(c->n_experts, MODEL_TOPK_MAX), &c->topk, err);
	if (r < 0)
		return r;
	r = read_u32(model, ".embedding_length", 1, MODEL_DIM_MAX, &c->hidden, err);
	if (r < 0)
		return r;
	return read_u32(model, inter, 1, MODEL_DIM_MAX, &c->inter, err);
}

static int read_config(struct model *model, struct moe_error *err)
{
	struct model_config *c = &model->config;
	const struct architecture *architecture = NULL;
	int r;

	r = find_architecture(model, &architecture, err);
	if (r < 0)
		return r;
	r = read_numbers(model, architecture, err);
	if (r < 0)
		return r;
	c->family = family_of(model, architecture);
	snprintf(c->model_type, sizeof c->model_type, "%s", model_family_name(c->family));
	c->activation = MODEL_SILU;
	if (c->family == FAMILY_GPT_OSS) {
		c->activation = MODEL_SWIGLU_CLAMPED;
		c->limit = GPT_OSS_LIMIT;
	}
	return read_layers(model, err);
}

int gguf_open(struct model *model, const char *path, struct moe_error *err)
{
	int r;

	r = read_files(model, path, err);
	if (r < 0)
		return r;
	r = read_config(model, err);
	return r < 0 ? r : gguf_check_experts(model, err);
}
