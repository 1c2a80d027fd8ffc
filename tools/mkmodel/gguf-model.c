/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/gguf-model.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "tools/mkmodel/gguf-merged.h"
#include "tools/mkmodel/number.h"

struct maker {
	const struct reader *reader;
	const struct gguf_choice *choice;
	struct gguf_writer *writer;
	uint64_t n_tensors, bytes;
};

static const char *const part_names[PARTS] = {"gate", "up", "down"};

static void add(struct maker *m, const char *name, const uint64_t *dims, uint32_t n_dims, uint32_t type, uint64_t bytes)
{
	gguf_writer_tensor(m->writer, name, dims, n_dims, type, bytes);
	m->n_tensors++;
	m->bytes += bytes;
}

/* Vectors, norms and routers are read by code that knows F32 only. */
static uint32_t dense_type(const struct tensor *t, const char *name)
{
	const char *end = strrchr(name, '.');
	const bool norm = strstr(name, "_norm.") != NULL, router = strstr(name, ".ffn_gate_inp") != NULL;

	if (t->n_dims == 1 || norm || router || strcmp(end, ".weight") != 0 || t->type == TENSOR_F32)
		return GGML_TYPE_F32;
	return t->type == TENSOR_F16 ? GGML_TYPE_F16 : GGML_TYPE_BF16;
}

static int add_dense(struct maker *m, const struct tensor *t, struct moe_error *err)
{
	const struct model *model = m->reader->model;
	_cleanup_free_ char *name = gguf_model_name(model->config.family, t->name);
	uint64_t dims[2];
	uint32_t type;

	if (!name || t->n_dims < 1 || t->n_dims > 2)
		return moe_error_set(
			err, -ENOTSUP,
			"%s: tensor %s: found a tensor of %u dimensions that has no place in a GGUF file of "
			"architecture %s",
			model->path, t->name, t->n_dims, gguf_model_architecture(model->config.family));
	dims[0] = t->dims[t->n_dims - 1];
	dims[1] = t->dims[0];
	type = dense_type(t, name);
	add(m, name, dims, t->n_dims, type, reader_elements(t) * (type == GGML_TYPE_F32 ? 4 : 2));
	return 0;
}

/*
 * Within a head, transformers rotates row i with row i + n / 2; llama.cpp, for architecture llama, row 2 i with
 * 2 i + 1: the rows of queries and keys are put into that order.
 */
static bool is_permuted(const struct model *model, const struct tensor *t, uint32_t *ret_heads)
{
	const bool q = strstr(t->name, "self_attn.q_proj."), k = strstr(t->name, "self_attn.k_proj.");
	const char *field = q ? "num_attention_heads" : "num_key_value_heads";
	const json_t *heads = json_object_get(model->config.json, field);

	if (model->config.family != FAMILY_MIXTRAL || (!q && !k))
		return false;
	if (!json_is_integer(heads))
		heads = json_object_get(model->config.json, "num_attention_heads");
	*ret_heads = (uint32_t)json_integer_value(heads);
	return *ret_heads > 0 && t->dims[0] % (2 * (uint64_t)*ret_heads) == 0;
}

static int permute(float *w, const struct tensor *t, uint32_t heads, struct moe_error *err)
{
	const uint64_t rows = t->dims[0], cols = reader_elements(t) / rows, head = rows / heads;
	float *copy = malloc(rows * cols * sizeof *copy + 1);

	if (!copy)
		return moe_error_sys(err, -ENOMEM, "tensor %s", t->name);
	memcpy(copy, w, rows * cols * sizeof *copy);
	for (uint64_t row = 0; row < rows; row++) {
		const uint64_t first = row / head * head, i = row - first;

		memcpy(w + row * cols, copy + (first + i / 2 + i % 2 * (head / 2)) * cols, cols * sizeof *w);
	}
	free(copy);
	return 0;
}

static int write_dense(struct maker *m, const struct tensor *t, struct moe_error *err)
{
	const uint64_t n = reader_elements(t);
	_cleanup_free_ char *name = gguf_model_name(m->reader->model->config.family, t->name);
	_cleanup_free_ float *w = malloc(n * sizeof *w + 1);
	uint8_t *to = (uint8_t *)w;
	uint32_t heads, type;
	int r;

	if (!name || !w)
		return moe_error_sys(err, -ENOMEM, "tensor %s", t->name);
	r = reader_floats(m->reader, t, w, err);
	if (r == 0 && is_permuted(m->reader->model, t, &heads))
		r = permute(w, t, heads, err);
	if (r < 0)
		return r;
	type = dense_type(t, name);
	for (uint64_t i = 0; i < n; i++) /* no wider than a float: writes behind what is read */
		to += number_store(type == GGML_TYPE_F32   ? TENSOR_F32
				   : type == GGML_TYPE_F16 ? TENSOR_F16
							   : TENSOR_BF16,
				   w[i], to);
	return gguf_writer_data(m->writer, w, (uint64_t)(to - (uint8_t *)w), err);
}

static const struct ggml_type *type_of(const struct maker *m, uint32_t layer, enum expert_part part)
{
	const struct gguf_choice *c = m->choice;

	return part == PART_DOWN && c->down && layer % c->down_every == 0 ? c->down : c->type;
}

/* The experts' matrices of one part of a layer. */
static int add_experts(struct maker *m, uint32_t layer, enum expert_part part, struct moe_error *err)
{
	const struct model_config *c = &m->reader->model->config;
	const struct ggml_type *type = type_of(m, layer, part);
	const uint64_t dims[3] = {part == PART_DOWN ? c->inter : c->hidden, part == PART_DOWN ? c->hidden : c->inter,
				  c->n_experts};
	char name[64];

	snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.weight", layer, part_names[part]);
	if (dims[0] % type->cols)
		return moe_error_set(err, -EINVAL,
				     "%s: %s: found %" PRIu64
				     " columns; expected a multiple of %u for %s: make the model "
				     "wider first (moe-mkmodel widen)",
				     m->reader->model->path, name, dims[0], type->cols, type->name);
	add(m, name, dims, 3, type->number, dims[0] / type->cols * type->bytes * dims[1] * dims[2]);
	return 0;
}

static int write_expert(struct maker *m, const struct tensor *t, const struct ggml_type *type, struct moe_error *err)
{
	const uint64_t blocks = reader_elements(t) / type->cols;
	_cleanup_free_ float *w = malloc(reader_elements(t) * sizeof *w + 1);
	_cleanup_free_ uint8_t *to = malloc(blocks * type->bytes + 1);
	int r;

	if (!w || !to)
		return moe_error_sys(err, -ENOMEM, "tensor %s", t->name);
	r = reader_floats(m->reader, t, w, err);
	if (r < 0)
		return r;
	for (uint64_t i = 0; i < blocks; i++)
		type->block(w + i * type->cols, to + i * type->bytes);
	return gguf_writer_data(m->writer, to, blocks * type->bytes, err);
}

static int write_experts(struct maker *m, uint32_t layer, enum expert_part part, struct moe_error *err)
{
	const struct model *model = m->reader->model;
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < model->config.n_experts; i++) {
		char name[128];

		model_expert_name(name, sizeof name, model->config.family, layer, i, part);
		r = write_expert(m, model_tensor(model, name), type_of(m, layer, part), err);
	}
	return r;
}

/* Layers behind the last one only predict further tokens: as converters do, they are left out, experts and all. */
static bool is_further(const struct model *model, const struct tensor *t)
{
	uint32_t layer;

	return sscanf(t->name, "model.layers.%u.", &layer) == 1 && layer >= model->config.n_layers;
}

/* Calls one of the two for every tensor beside the experts, in the order of their names. */
static int for_dense(struct maker *m, int (*each)(struct maker *m, const struct tensor *t, struct moe_error *err),
		     struct moe_error *err)
{
	const struct model *model = m->reader->model;
	int r = 0;

	for (uint64_t i = 0; r == 0 && i < model->n_tensors; i++)
		if (!reader_is_expert(m->reader, &model->tensors[i]) && !gguf_merged_is(&model->tensors[i]) &&
		    !is_further(model, &model->tensors[i]))
			r = each(m, &model->tensors[i], err);
	return r;
}

static int for_experts(struct maker *m,
		       int (*each)(struct maker *m, uint32_t layer, enum expert_part part, struct moe_error *err),
		       struct moe_error *err)
{
	const struct model_config *c = &m->reader->model->config;
	int r = 0;

	for (uint32_t layer = 0; layer < c->n_layers; layer++)
		for (int part = 0; r == 0 && c->is_moe[layer] && part < PARTS; part++)
			r = each(m, layer, (enum expert_part)part, err);
	return r;
}

/* The types that ggml's users call "_M" are mixed, and have the next number. */
static uint32_t file_type(const struct gguf_choice *choice)
{
	const bool mixed = choice->down && (choice->type->cols == 256 && choice->type->number < 14);

	return choice->type->file_type + mixed;
}

static int list(struct maker *m, const char *name, struct moe_error *err)
{
	const struct model_config *c = &m->reader->model->config;
	int r = for_dense(m, add_dense, err);

	gguf_model_metadata(m->writer, c, name, file_type(m->choice));
	if (r < 0)
		return r;
	if (c->family == FAMILY_GPT_OSS)
		return gguf_merged_add(m->reader, m->writer, &m->n_tensors, &m->bytes, err);
	return for_experts(m, add_experts, err);
}

static int write_all(struct maker *m, bool progress, struct moe_error *err)
{
	int r = gguf_writer_begin(m->writer, progress, err);

	if (r == 0)
		r = for_dense(m, write_dense, err);
	if (r == 0 && m->reader->model->config.family == FAMILY_GPT_OSS)
		r = gguf_merged_write(m->reader, m->writer, err);
	else if (r == 0)
		r = for_experts(m, write_experts, err);
	return gguf_writer_end(m->writer, r, err);
}

static int check(const struct maker *m, struct moe_error *err)
{
	const struct model_config *c = &m->reader->model->config;
	const bool mxfp4 = strcmp(m->choice->type->name, "mxfp4") == 0 && !m->choice->down;

	if (!gguf_model_architecture(c->family))
		return moe_error_set(
			err, -ENOTSUP,
			"%s: found a model of family %s; expected mixtral, qwen2_moe, qwen3_moe, olmoe, deepseek_v2, "
			"deepseek_v3, kimi_k2 or gpt_oss for a GGUF file",
			m->reader->model->path, model_family_name(c->family));
	if (c->family == FAMILY_GPT_OSS && !mxfp4)
		return moe_error_set(
			err, -ENOTSUP,
			"--format: found %s for a model of family gpt_oss; expected mxfp4, as its experts are",
			m->choice->type->name);
	return 0;
}

static void cleanup_writer(struct gguf_writer **writer)
{
	gguf_writer_free(*writer);
}

int gguf_model_write(const struct reader *reader, const char *path, const struct gguf_choice *choice, bool progress,
		     uint64_t *ret_tensors, uint64_t *ret_bytes, struct moe_error *err)
{
	_cleanup_(cleanup_writer) struct gguf_writer *writer = NULL;
	struct maker m = {.reader = reader, .choice = choice};
	const char *name = strrchr(reader->model->path, '/');
	int r = check(&m, err);

	if (r < 0)
		return r;
	r = gguf_writer_new(&writer, path, err);
	if (r < 0)
		return r;
	m.writer = writer;
	r = list(&m, name && name[1] ? name + 1 : reader->model->path, err);
	if (r == 0)
		r = write_all(&m, progress, err);
	if (r < 0)
		return r;
	*ret_tensors = m.n_tensors;
	*ret_bytes = m.bytes;
	return 0;
}
