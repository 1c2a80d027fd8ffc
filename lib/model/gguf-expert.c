/* SPDX-License-Identifier: MIT */
/*
 * The experts of an opened model: that they are all there as they should be, how their records are laid out, and where
 * the bytes come from.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "model/gguf.h"
#include "model/repack-gguf.h"
#include "model/repack.h"

#define NAME_MAX_BYTES 128

#define BOTH "gate_up"

static const char *const part_names[PARTS] = {"gate", "up", "down"};

static uint32_t part_rows(const struct model_config *c, int part)
{
	return part == PART_DOWN ? c->hidden : c->inter;
}

static uint32_t part_cols(const struct model_config *c, int part)
{
	return part == PART_DOWN ? c->inter : c->hidden;
}

static const struct tensor *expert_tensor(const struct model *model, uint32_t layer, const char *part, const char *what)
{
	char name[NAME_MAX_BYTES];

	snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.%s", layer, part, what);
	return model_tensor(model, name);
}

/* Where a part of the experts lies: of the tensor's `rows` rows for each expert, those from `first` on. */
struct place {
	const struct tensor *tensor; /* NULL: nowhere */
	uint32_t first, rows;
};

/* In a tensor of its own, or gate and up in one: an expert's gate, then its up. */
static struct place find_place(const struct model *model, uint32_t layer, int part, const char *what)
{
	const uint32_t rows = part_rows(&model->config, part);
	const struct tensor *t = expert_tensor(model, layer, part_names[part], what);

	if (t || part == PART_DOWN)
		return (struct place){t, 0, rows};
	return (struct place){expert_tensor(model, layer, BOTH, what), part == PART_UP ? rows : 0, 2 * rows};
}

static int check_shape(const struct model *model, const struct tensor *t, uint32_t n_dims, const uint64_t *dims,
		       struct moe_error *err)
{
	char found[96] = "", expected[96] = "";

	if (t->n_dims == n_dims && memcmp(t->dims, dims, n_dims * sizeof *dims) == 0)
		return 0;
	for (uint32_t i = 0, at = 0; i < t->n_dims && at < sizeof found; i++)
		at += (uint32_t)snprintf(found + at, sizeof found - at, "%s%" PRIu64, i ? ", " : "", t->dims[i]);
	for (uint32_t i = 0, at = 0; i < n_dims && at < sizeof expected; i++)
		at += (uint32_t)snprintf(expected + at, sizeof expected - at, "%s%" PRIu64, i ? ", " : "", dims[i]);
	return moe_error_set(err, -EINVAL,
			     "%s: tensor %s: found shape [%s], slowest first; expected [%s] from expert_count, "
			     "embedding_length and the experts' feed_forward_length of the metadata",
			     model->shards[t->shard].path, t->name, found, expected);
}

static int check_bias(const struct model *model, uint32_t layer, int part, struct moe_error *err)
{
	const struct place place = find_place(model, layer, part, "bias");
	const struct tensor *bias = place.tensor;
	const uint64_t dims[2] = {model->config.n_experts, place.rows};

	if (!bias)
		return 0;
	if (bias->type != TENSOR_F32)
		return moe_error_set(err, -ENOTSUP, "%s: tensor %s: found type %s; expected F32",
				     model->shards[bias->shard].path, bias->name, tensor_type_name(bias->type));
	return check_shape(model, bias, ARRAY_LEN(dims), dims, err);
}

static int check_part_of_layer(const struct model *model, uint32_t layer, int part, struct moe_error *err)
{
	const struct model_config *c = &model->config;
	const struct place place = find_place(model, layer, part, "weight");
	const struct tensor *t = place.tensor, *scale = find_place(model, layer, part, "scale").tensor;
	const uint64_t dims[3] = {c->n_experts, place.rows, part_cols(c, part)};

	if (!t)
		return moe_error_set(
			err, -ENOENT,
			"%s: tensor blk.%u.ffn_%s_exps.weight is missing; expected gate, up and down, each "
			"one tensor for all experts, or gate_up and down",
			model->path, layer, part_names[part]);
	if (scale)
		return moe_error_set(err, -ENOTSUP,
				     "%s: tensor %s: found scales beside the experts' weights; expected none: they are "
				     "not served",
				     model->shards[scale->shard].path, scale->name);
	if (!gguf_tensor_type(t->type)->format)
		return moe_error_set(
			err, -ENOTSUP,
			"%s: tensor %s: found type %s; expected BF16, F16, Q8_0, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K, "
			"IQ4_XS or MXFP4: take another file of this model",
			model->shards[t->shard].path, t->name, tensor_type_name(t->type));
	return check_shape(model, t, ARRAY_LEN(dims), dims, err);
}

/* Gate and up lie in one tensor or in two. */
static int check_both(const struct model *model, uint32_t layer, struct moe_error *err)
{
	static const char *const whats[] = {"weight", "bias"};

	for (size_t i = 0; i < ARRAY_LEN(whats); i++) {
		const struct tensor *both = expert_tensor(model, layer, BOTH, whats[i]);

		for (int part = 0; both && part < PART_DOWN; part++) {
			const struct tensor *t = expert_tensor(model, layer, part_names[part], whats[i]);

			if (t)
				return moe_error_set(err, -EINVAL,
						     "%s: tensor %s: found it beside %s; expected gate and up in one "
						     "tensor or in two",
						     model->shards[t->shard].path, t->name, both->name);
		}
	}
	return 0;
}

static int check_layer(const struct model *model, uint32_t layer, struct moe_error *err)
{
	const struct tensor *gate, *up;
	int r = check_both(model, layer, err);

	for (int part = 0; part < PARTS && r == 0; part++) {
		r = check_part_of_layer(model, layer, part, err);
		if (r == 0)
			r = check_bias(model, layer, part, err);
	}
	if (r < 0)
		return r;
	gate = find_place(model, layer, PART_GATE, "weight").tensor;
	up = find_place(model, layer, PART_UP, "weight").tensor;
	if (gate->type != up->type)
		return moe_error_set(err, -ENOTSUP,
				     "%s: tensor %s: found type %s; expected %s as %s has: take another file of this "
				     "model",
				     model->shards[up->shard].path, up->name, tensor_type_name(up->type),
				     tensor_type_name(gate->type), gate->name);
	return 0;
}

/* Old files have a tensor for each expert: they are not served. */
static int refuse_single(const struct model *model, uint32_t layer, struct moe_error *err)
{
	const struct tensor *t;
	char name[NAME_MAX_BYTES];

	snprintf(name, sizeof name, "blk.%u.ffn_gate.0.weight", layer);
	t = model_tensor(model, name);
	if (!t)
		return 0;
	return moe_error_set(err, -ENOTSUP,
			     "%s: tensor %s: found experts written that way; expected blk.%u.ffn_gate_exps.weight, up "
			     "and down, each one tensor for all experts: take a file of another converter",
			     model->shards[t->shard].path, t->name, layer);
}

/* A layer carries experts when it has any of their tensors; a layer without must have a dense part instead. */
static int look_at_layer(const struct model *model, uint32_t layer, bool *ret, struct moe_error *err)
{
	char name[NAME_MAX_BYTES];
	int r;

	r = refuse_single(model, layer, err);
	if (r < 0)
		return r;
	*ret = false;
	for (int part = 0; part < PARTS; part++)
		*ret |= find_place(model, layer, part, "weight").tensor != NULL;
	if (*ret)
		return check_layer(model, layer, err);
	snprintf(name, sizeof name, "blk.%u.ffn_up.weight", layer);
	if (!model_tensor(model, name))
		return moe_error_set(err, -ENOENT,
				     "%s: tensor blk.%u.ffn_gate_exps.weight is missing, and so is %s; expected one of "
				     "them in each of the %u layers",
				     model->path, layer, name, model->config.n_layers);
	return 0;
}

int gguf_check_experts(struct model *model, struct moe_error *err)
{
	struct model_config *c = &model->config;
	int r;

	c->is_moe = calloc(c->n_layers, sizeof *c->is_moe);
	if (!c->is_moe)
		return moe_error_sys(err, -ENOMEM, "%s", model->path);
	for (uint32_t layer = 0; layer < c->n_layers; layer++) {
		r = look_at_layer(model, layer, &c->is_moe[layer], err);
		if (r < 0)
			return r;
		c->n_moe_layers += c->is_moe[layer];
	}
	if (c->n_moe_layers == 0)
		return moe_error_set(err, -EINVAL, "%s: none of the %u layers carries experts; expected at least one",
				     model->path, c->n_layers);
	return 0;
}

void gguf_expert_layout(const struct model *model, uint32_t layer, struct moe_layout *ret)
{
	uint32_t format[PARTS];
	bool bias[PARTS];
	int r;

	for (int part = 0; part < PARTS; part++) {
		format[part] = gguf_tensor_type(find_place(model, layer, part, "weight").tensor->type)->format;
		bias[part] = find_place(model, layer, part, "bias").tensor != NULL;
	}
	/* the types' blocks divide the rows, and no product of checked sizes is too large */
	r = layout_place(ret, format, bias, model->config.hidden, model->config.inter);
	assert(r == 0);
	(void)r;
}

/* The expert's share of a tensor that holds all of them. */
static void add_source(const struct model *model, struct expert_source *ret, const struct place *place, int part,
		       uint32_t expert, enum moe_plane plane)
{
	const struct tensor *t = place->tensor;
	const struct gguf_type *type = gguf_tensor_type(t->type);
	const uint32_t rows = part_rows(&model->config, part), cols = part_cols(&model->config, part);
	const uint64_t row_bytes = t->bytes / ((uint64_t)model->config.n_experts * place->rows);
	const bool copy = plane == MOE_PLANE_BIAS || !moe_formats[type->format].panel;

	*ret = (struct expert_source){
		.offset = t->offset + ((uint64_t)expert * place->rows + place->first) * row_bytes,
		.shard = t->shard,
		.repack = {.kind = copy ? REPACK_COPY : REPACK_GGUF,
			   .part = (uint32_t)part,
			   .granule_bytes = copy ? 1 : repack_gguf_granule(rows) * row_bytes,
			   .bytes = rows * row_bytes,
			   .rows = rows,
			   .cols = cols,
			   .parameter = {copy ? plane : 0}},
	};
}

uint32_t gguf_expert_sources(const struct model *model, uint32_t layer, uint32_t expert,
			     struct expert_source ret[EXPERT_SOURCES_MAX])
{
	uint32_t n = 0;

	for (int part = 0; part < PARTS; part++) {
		const struct place weight = find_place(model, layer, part, "weight");
		const struct place bias = find_place(model, layer, part, "bias");

		add_source(model, &ret[n++], &weight, part, expert, MOE_PLANE_CODES);
		if (bias.tensor)
			add_source(model, &ret[n++], &bias, part, expert, MOE_PLANE_BIAS);
	}
	return n;
}
