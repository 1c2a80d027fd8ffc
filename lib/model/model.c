/* SPDX-License-Identifier: MIT */
#include "model/model.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "model/family.h"
#include "model/file.h"
#include "model/gguf.h"
#include "model/index.h"
#include "model/packing.h"

#define CONFIG_FILE "config.json"
#define CONFIG_BYTES_MAX (16u << 20)

static int compare_tensors(const void *a, const void *b)
{
	return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

const struct tensor *model_tensor(const struct model *model, const char *name)
{
	const struct tensor key = {.name = name};

	if (model->n_tensors == 0)
		return NULL;
	return bsearch(&key, model->tensors, model->n_tensors, sizeof key, compare_tensors);
}

static int open_folder(const char *path, struct moe_error *err)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return moe_error_sys(err, -errno,
				     "%s: a folder with config.json and safetensors files, or a GGUF file, expected",
				     path);
	if (!S_ISDIR(st.st_mode))
		return moe_error_set(err, -ENOTDIR,
				     "%s: neither a folder with config.json and safetensors files nor a GGUF file (it "
				     "does not begin with \"GGUF\")",
				     path);
	return 0;
}

static int read_config(struct model *model, struct moe_error *err)
{
	_cleanup_free_ char *path = file_join(model->path, CONFIG_FILE);
	_cleanup_free_ char *text = NULL;
	size_t bytes;
	int ret;

	if (!path)
		return moe_error_sys(err, -ENOMEM, "%s", model->path);
	ret = file_read(&text, &bytes, path, CONFIG_BYTES_MAX, err);
	if (ret == -ENOENT)
		return moe_error_set(err, ret,
				     "%s: there is none; is %s the folder of a model, as published on Hugging Face?",
				     path, model->path);
	if (ret < 0)
		return ret;
	return model_config_parse(path, text, bytes, &model->config, err);
}

/* An empty index (n_shards 0) when the folder holds a single model.safetensors instead. */
static int read_index(const struct model *model, struct index *ret, struct moe_error *err)
{
	_cleanup_free_ char *path = file_join(model->path, INDEX_FILE);
	_cleanup_free_ char *single = file_join(model->path, SINGLE_FILE);
	_cleanup_free_ char *text = NULL;
	size_t bytes;
	int r;

	if (!path || !single)
		return moe_error_sys(err, -ENOMEM, "%s", model->path);
	if (access(path, F_OK) < 0 && errno == ENOENT) {
		if (access(single, F_OK) < 0)
			return moe_error_set(err, -ENOENT,
					     "%s: found neither " INDEX_FILE " nor " SINGLE_FILE
					     "; expected a published folder in safetensors format",
					     model->path);
		return 0;
	}
	r = file_read(&text, &bytes, path, INDEX_BYTES_MAX, err);
	if (r < 0)
		return r;
	return index_parse(ret, path, text, bytes, err);
}

static int list_shards(struct model *model, const struct index *index, struct moe_error *err)
{
	uint32_t n = index->n_shards ? index->n_shards : 1;

	model->shards = calloc(n, sizeof *model->shards);
	if (!model->shards)
		return moe_error_sys(err, -ENOMEM, "%s", model->path);
	model->n_shards = n;
	for (uint32_t i = 0; i < n; i++) {
		struct shard *shard = &model->shards[i];

		shard->path = file_join(model->path, index->n_shards ? index->shards[i] : SINGLE_FILE);
		if (!shard->path)
			return moe_error_sys(err, -ENOMEM, "%s", model->path);
		if (access(shard->path, F_OK) < 0 && errno == ENOENT)
			return moe_error_set(err, -ENOENT,
					     "%s: this shard is missing, " INDEX_FILE " names it; expected all %" PRIu32
					     " shards (is the download complete?)",
					     shard->path, n);
	}
	return 0;
}

/* Drops the tensors from `first` on that the index does not give to this shard. */
static void keep_indexed(struct model *model, const struct index *index, uint32_t shard, uint64_t first)
{
	uint64_t kept = first;

	for (uint64_t i = first; i < model->n_tensors; i++) {
		struct tensor *t = &model->tensors[i];
		const char *owner = json_string_value(json_object_get(index->weight_map, t->name));

		if (owner && strcmp(owner, index->shards[shard]) == 0)
			model->tensors[kept++] = *t;
		else
			free((char *)t->name);
	}
	model->n_tensors = kept;
}

static int read_shards(struct model *model, const struct index *index, struct moe_error *err)
{
	int ret;

	for (uint32_t i = 0; i < model->n_shards; i++) {
		uint64_t first = model->n_tensors;

		/* Before its header: whoever replaces it meanwhile is found out. */
		model->shards[i].id = file_identify(model->shards[i].path);
		ret = safetensors_read(model->shards[i].path, i, &model->shards[i].bytes, &model->tensors,
				       &model->n_tensors, err);
		if (ret < 0)
			return ret;
		if (index->n_shards)
			keep_indexed(model, index, i, first);
	}
	qsort(model->tensors, model->n_tensors, sizeof *model->tensors, compare_tensors);
	return 0;
}

/* Each tensor of the index was found in its shard. No name can be there twice: the index gives each to one shard. */
static int check_indexed(const struct model *model, const struct index *index, struct moe_error *err)
{
	const char *name;
	json_t *value;
	char words[128];

	if (index->n_shards == 0 || model->n_tensors == json_object_size(index->weight_map))
		return 0;
	json_object_foreach (index->weight_map, name, value)
		if (!model_tensor(model, name))
			return moe_error_set(err, -EINVAL,
					     "%s/%s: tensor %s is not in this shard, where " INDEX_FILE
					     " says it is (do index and shards belong together?)",
					     model->path, json_string_value(value),
					     file_clean(words, sizeof words, name));
	return 0;
}

/* A config that says less than the shards hold describes another model. */
static int check_no_layer_beyond(const struct model *model, uint32_t nextn, struct moe_error *err)
{
	static const char prefix[] = "model.layers.";

	for (uint64_t i = 0; i < model->n_tensors; i++) {
		const struct tensor *t = &model->tensors[i];
		unsigned long long layer;
		char *end;

		if (strncmp(t->name, prefix, sizeof prefix - 1) != 0)
			continue;
		layer = strtoull(t->name + sizeof prefix - 1, &end, 10);
		if (end == t->name + sizeof prefix - 1 || layer < (uint64_t)model->config.n_layers + nextn)
			continue;
		return moe_error_set(err, -EINVAL,
				     "%s: tensor %s: found layer %llu; expected 0 to %" PRIu64
				     " from num_hidden_layers %u%s of " CONFIG_FILE,
				     model->shards[t->shard].path, t->name, layer,
				     (uint64_t)model->config.n_layers + nextn - 1, model->config.n_layers,
				     nextn ? " and num_nextn_predict_layers" : "");
	}
	return 0;
}

/* The tensors that begin an expert under any of the packings. */
static const struct tensor *any_of_expert(const struct model *model, uint32_t layer, uint32_t expert)
{
	static const char *const suffixes[] = {".weight", ".weight_packed", ".qweight", "_blocks"};
	const struct tensor *t = NULL;
	char name[160], stem[128];

	model_expert_stem(stem, sizeof stem, model->config.family, layer, expert, PART_GATE);
	for (size_t i = 0; i < ARRAY_LEN(suffixes) && !t; i++) {
		snprintf(name, sizeof name, "%s%s", stem, suffixes[i]);
		t = model_tensor(model, name);
	}
	return t;
}

static int check_no_expert_beyond(const struct model *model, struct moe_error *err)
{
	const struct model_config *c = &model->config;

	for (uint32_t layer = 0; layer < c->n_layers; layer++) {
		const uint32_t first = c->is_moe[layer] ? c->n_experts : 0;
		const struct tensor *t = any_of_expert(model, layer, first);

		if (t && !(family_spec(c->family)->fused && c->is_moe[layer]))
			return moe_error_set(
				err, -EINVAL,
				"%s: tensor %s: found expert %u; expected %u experts in layer %u from " CONFIG_FILE,
				model->shards[t->shard].path, t->name, first, first, layer);
	}
	return 0;
}

static int check_surplus(const struct model *model, struct moe_error *err)
{
	const json_int_t nextn = json_integer_value(json_object_get(model->config.json, "num_nextn_predict_layers"));
	int r = check_no_layer_beyond(model, nextn > 0 && nextn <= MODEL_LAYERS_MAX ? (uint32_t)nextn : 0, err);

	return r < 0 ? r : check_no_expert_beyond(model, err);
}

static void cleanup_model(struct model **model)
{
	model_free(*model);
}

static int open_published(struct model *model, struct moe_error *err)
{
	_cleanup_(index_free) struct index index = {0};
	int r;

	r = open_folder(model->path, err);
	if (r < 0)
		return r;
	r = read_config(model, err);
	if (r < 0)
		return r;
	r = read_index(model, &index, err);
	if (r < 0)
		return r;
	r = list_shards(model, &index, err);
	if (r < 0)
		return r;
	r = read_shards(model, &index, err);
	if (r < 0)
		return r;
	r = check_indexed(model, &index, err);
	if (r < 0)
		return r;
	r = packing_check(model, err);
	return r < 0 ? r : check_surplus(model, err);
}

int model_open(struct model **ret, const char *path, struct moe_error *err)
{
	_cleanup_(cleanup_model) struct model *model = calloc(1, sizeof *model);
	int r;

	if (!model)
		return moe_error_sys(err, -ENOMEM, "%s", path);
	model->path = strdup(path);
	if (!model->path)
		return moe_error_sys(err, -ENOMEM, "%s", path);
	r = gguf_is(path) ? gguf_open(model, path, err) : open_published(model, err);
	if (r < 0)
		return r;
	*ret = steal_ptr(model);
	return 0;
}

struct model *model_free(struct model *model)
{
	if (!model)
		return NULL;
	for (uint32_t i = 0; i < model->n_shards; i++)
		free(model->shards[i].path);
	free(model->shards);
	tensors_free(model->tensors, model->n_tensors);
	model_config_free(&model->config);
	gguf_free(model->gguf);
	free(model->path);
	free(model);
	return NULL;
}
