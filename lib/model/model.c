/* SPDX-License-Identifier: MIT */
#include "model/model.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "model/family.h"
#include "model/file.h"
#include "model/index.h"

#define CONFIG_FILE "config.json"
#define SINGLE_FILE "model.safetensors"
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
		return moe_error_sys(err, -errno, "%s", path);
	if (!S_ISDIR(st.st_mode))
		return moe_error_set(err, -ENOTDIR,
				     "%s: not a folder; expected a model folder with config.json and safetensors files",
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

static int check_type(const struct model *model, const struct tensor *t, enum tensor_type type, struct moe_error *err)
{
	const char *path = model->shards[t->shard].path;

	if (t->type != TENSOR_BF16 && t->type != TENSOR_F16)
		return moe_error_set(
			err, -ENOTSUP,
			"%s: tensor %s: found dtype %s; expected BF16 or F16 experts: take a BF16 release of "
			"this model or convert it",
			path, t->name, tensor_type_name(t->type));
	if (t->type != type)
		return moe_error_set(
			err, -ENOTSUP,
			"%s: tensor %s: found dtype %s; expected %s as for the experts before it: mixed types "
			"are not served",
			path, t->name, tensor_type_name(t->type), tensor_type_name(type));
	return 0;
}

static int check_shape(const struct model *model, const struct tensor *t, enum expert_part part, struct moe_error *err)
{
	const struct model_config *c = &model->config;
	const char *inter = family_spec(c->family)->inter;
	uint64_t rows = part == PART_DOWN ? c->hidden : c->inter;
	uint64_t cols = part == PART_DOWN ? c->inter : c->hidden;
	char found[64] = "";

	if (t->n_dims == 2 && t->dims[0] == rows && t->dims[1] == cols)
		return 0;
	for (uint32_t i = 0, used = 0; i < t->n_dims && used < sizeof found; i++)
		used += (uint32_t)snprintf(found + used, sizeof found - used, "%s%" PRIu64, i ? ", " : "", t->dims[i]);
	return moe_error_set(err, -EINVAL,
			     "%s: tensor %s: found shape [%s]; expected [%" PRIu64 ", %" PRIu64
			     "] from hidden_size %u and %s %u of " CONFIG_FILE,
			     model->shards[t->shard].path, t->name, found, rows, cols, c->hidden, inter, c->inter);
}

static int find_expert(const struct model *model, uint32_t layer, uint32_t expert, enum expert_part part,
		       const struct tensor **ret, struct moe_error *err)
{
	char name[128];

	model_expert_name(name, sizeof name, model->config.family, layer, expert, part);
	*ret = model_tensor(model, name);
	if (!*ret)
		return moe_error_set(err, -ENOENT,
				     "%s: tensor %s is missing; expected experts 0 to %u in layer %u, as " CONFIG_FILE
				     " says for %s",
				     model->path, name, model->config.n_experts - 1, layer, model->config.model_type);
	return 0;
}

int model_expert_tensor(const struct model *model, uint32_t layer, uint32_t expert, enum expert_part part,
			enum tensor_type type, const struct tensor **ret, struct moe_error *err)
{
	const struct tensor *t;
	int r;

	assert(layer < model->config.n_layers && model->config.is_moe[layer] && expert < model->config.n_experts);
	r = find_expert(model, layer, expert, part, &t, err);
	if (r < 0)
		return r;
	r = check_type(model, t, type, err);
	if (r < 0)
		return r;
	r = check_shape(model, t, part, err);
	if (r < 0)
		return r;
	*ret = t;
	return 0;
}

static int check_experts(struct model *model, struct moe_error *err)
{
	const struct model_config *c = &model->config;
	const struct tensor *t;
	bool first = true;
	int ret;

	for (uint32_t layer = 0; layer < c->n_layers; layer++) {
		for (uint32_t i = 0; c->is_moe[layer] && i < c->n_experts * PARTS; i++) {
			if (first) {
				ret = find_expert(model, layer, 0, PART_GATE, &t, err);
				if (ret < 0)
					return ret;
				model->expert_type = t->type;
				first = false;
			}
			ret = model_expert_tensor(model, layer, i / PARTS, (enum expert_part)(i % PARTS),
						  model->expert_type, &t, err);
			if (ret < 0)
				return ret;
		}
	}
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

static int check_no_expert_beyond(const struct model *model, struct moe_error *err)
{
	const struct model_config *c = &model->config;

	for (uint32_t layer = 0; layer < c->n_layers; layer++) {
		const uint32_t first = c->is_moe[layer] ? c->n_experts : 0;
		const struct tensor *t;
		char name[128];

		model_expert_name(name, sizeof name, c->family, layer, first, PART_GATE);
		t = model_tensor(model, name);
		if (t)
			return moe_error_set(
				err, -EINVAL,
				"%s: tensor %s: found expert %u; expected %u experts in layer %u from " CONFIG_FILE,
				model->shards[t->shard].path, name, first, first, layer);
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

int model_open(struct model **ret, const char *path, struct moe_error *err)
{
	_cleanup_(cleanup_model) struct model *model = NULL;
	_cleanup_(index_free) struct index index = {0};
	int r;

	r = open_folder(path, err);
	if (r < 0)
		return r;
	model = calloc(1, sizeof *model);
	if (!model)
		return moe_error_sys(err, -ENOMEM, "%s", path);
	model->path = strdup(path);
	if (!model->path)
		return moe_error_sys(err, -ENOMEM, "%s", path);
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
	r = check_experts(model, err);
	if (r < 0)
		return r;
	r = check_surplus(model, err);
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
	free(model->path);
	free(model);
	return NULL;
}
