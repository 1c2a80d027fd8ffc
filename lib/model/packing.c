/* SPDX-License-Identifier: MIT */
#include "model/packing.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "model/family.h"
#include "uapi/moe_format.h"

#define CONFIG_FILE "config.json"
#define NAME_BYTES 160
#define IS(type) (1u << (type))
#define HALVES (IS(TENSOR_BF16) | IS(TENSOR_F16))
#define FLOATS (HALVES | IS(TENSOR_F32))

/* The part in question. */
struct search {
	const struct model *model;
	uint32_t layer, expert, rows, cols;
	enum expert_part part;
	char stem[NAME_BYTES - 24];
	struct moe_error *err;
};

struct shape {
	uint32_t n;
	uint64_t dims[4];
};

uint32_t packing_rows(const struct model_config *config, enum expert_part part)
{
	return part == PART_DOWN ? config->hidden : config->inter;
}

uint32_t packing_cols(const struct model_config *config, enum expert_part part)
{
	return part == PART_DOWN ? config->inter : config->hidden;
}

static const char *path_of(const struct search *s, const struct tensor *t)
{
	return s->model->shards[t->shard].path;
}

static const struct tensor *look_up(const struct search *s, const char *suffix)
{
	char name[NAME_BYTES];

	snprintf(name, sizeof name, "%s%s", s->stem, suffix);
	return model_tensor(s->model, name);
}

static int find(const struct search *s, const char *suffix, const struct tensor **ret)
{
	*ret = look_up(s, suffix);
	if (*ret)
		return 0;
	return moe_error_set(
		s->err, -ENOENT,
		"%s: tensor %s%s is missing; expected experts 0 to %u in layer %u, as " CONFIG_FILE " says for %s",
		s->model->path, s->stem, suffix, s->model->config.n_experts - 1, s->layer, s->model->config.model_type);
}

static const char *list_types(char *ret, size_t size, uint32_t types)
{
	size_t used = 0;

	for (uint32_t i = 0; i <= TENSOR_BOOL && used < size; i++)
		if (types & IS(i))
			used += (size_t)snprintf(ret + used, size - used, "%s%s", used ? " or " : "",
						 tensor_type_name((enum tensor_type)i));
	return ret;
}

static int check_type(const struct search *s, const struct tensor *t, uint32_t types)
{
	char words[64];

	if (types & IS(t->type))
		return 0;
	return moe_error_set(s->err, -ENOTSUP, "%s: tensor %s: found dtype %s; expected %s%s", path_of(s, t), t->name,
			     tensor_type_name(t->type), list_types(words, sizeof words, types),
			     s->model->config.quant.method == QUANT_NONE
				     ? ": " CONFIG_FILE
				       " has no quantization_config that says how to read anything else"
				     : " as quantization_config of " CONFIG_FILE " says");
}

static void list_dims(char *ret, size_t size, const uint64_t *dims, uint32_t n)
{
	ret[0] = '\0';
	for (size_t i = 0, used = 0; i < n && used < size; i++)
		used += (size_t)snprintf(ret + used, size - used, "%s%" PRIu64, i ? ", " : "", dims[i]);
}

static bool has_shape(const struct tensor *t, const struct shape *shape)
{
	return t->n_dims == shape->n && memcmp(t->dims, shape->dims, shape->n * sizeof *shape->dims) == 0;
}

static int check_shape(const struct search *s, const struct tensor *t, const struct shape *shape)
{
	const struct model_config *c = &s->model->config;
	char found[64], expected[64], group[32] = "";

	if (has_shape(t, shape))
		return 0;
	list_dims(found, sizeof found, t->dims, t->n_dims);
	list_dims(expected, sizeof expected, shape->dims, shape->n);
	if (c->quant.group)
		snprintf(group, sizeof group, " and groups of %u", c->quant.group);
	return moe_error_set(
		s->err, -EINVAL,
		"%s: tensor %s: found shape [%s]; expected [%s] from hidden_size %u and %s %u%s of " CONFIG_FILE,
		path_of(s, t), t->name, found, expected, c->hidden, family_spec(c->family)->inter, c->inter, group);
}

static int take(const struct search *s, const char *suffix, uint32_t types, struct shape shape,
		const struct tensor **ret)
{
	int r = find(s, suffix, ret);

	if (r == 0)
		r = check_type(s, *ret, types);
	return r < 0 ? r : check_shape(s, *ret, &shape);
}

#define SHAPE(...)                                                                                                     \
	(struct shape)                                                                                                 \
	{                                                                                                              \
		.n = sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), .dims = { __VA_ARGS__ }                     \
	}

/* -- one function per packing ------------------------------------------------------------------------------------- */

static int find_plain(const struct search *s, struct packed_part *ret)
{
	const int r = take(s, ".weight", HALVES, SHAPE(s->rows, s->cols), &ret->codes);

	if (r < 0)
		return r;
	ret->packing = PACKING_PLAIN;
	ret->format = ret->codes->type == TENSOR_F16 ? MOE_FORMAT_F16 : MOE_FORMAT_BF16;
	return 0;
}

/* A scale for each row, or one for all. */
static int take_row_scales(const struct search *s, const char *suffix, const struct tensor **ret)
{
	const struct shape others[] = {{1, {s->rows}}, {1, {1}}, {0, {0}}};
	int r = find(s, suffix, ret);

	if (r == 0)
		r = check_type(s, *ret, FLOATS);
	if (r < 0)
		return r;
	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		if (has_shape(*ret, &others[i]))
			return 0;
	return check_shape(s, *ret, &SHAPE(s->rows, 1));
}

/* FP8 and INT8: one byte a code, and scales for blocks, rows or all of it. */
static int find_bytes(const struct search *s, struct packed_part *ret)
{
	const struct model_quant *q = &s->model->config.quant;
	const char *scale = q->method == QUANT_FP8 && q->block[0] ? ".weight_scale_inv" : ".weight_scale";
	const uint32_t types = IS(TENSOR_F8_E4M3) | (q->method == QUANT_FP8 ? 0 : IS(TENSOR_I8));
	const struct tensor *zeros = look_up(s, ".weight_zero_point");
	int r = take(s, ".weight", types, SHAPE(s->rows, s->cols), &ret->codes);

	if (r < 0)
		return r;
	ret->packing = PACKING_PLAIN;
	if (zeros && !q->symmetric)
		return moe_error_set(
			s->err, -ENOTSUP,
			"%s: tensor %s: found zero points for codes of 8 bits; expected symmetric ones: take "
			"another release of this model",
			path_of(s, zeros), zeros->name);
	if (ret->codes->type == TENSOR_I8) {
		ret->format = MOE_FORMAT_INT8;
		return take_row_scales(s, scale, &ret->scales);
	}
	if (!q->block[0]) {
		ret->format = MOE_FORMAT_FP8_ROW;
		return take_row_scales(s, scale, &ret->scales);
	}
	ret->format = MOE_FORMAT_FP8_BLOCK;
	return take(s, scale, FLOATS, SHAPE(DIV_UP(s->rows, q->block[0]), DIV_UP(s->cols, q->block[1])), &ret->scales);
}

static uint32_t int4_format(uint32_t group, enum tensor_type scale, bool zeros)
{
	return MOE_FORMAT_INT4_G32_F16 +
	       (group == 64    ? 1u
		: group == 128 ? 2u
			       : 0u) +
	       (scale == TENSOR_BF16 ? MOE_FORMAT_INT4_G32_BF16 - MOE_FORMAT_INT4_G32_F16 : 0u) +
	       (zeros ? MOE_FORMAT_INT4_G32_F16_ZP - MOE_FORMAT_INT4_G32_F16 : 0u);
}

static int check_divides(const struct search *s, const struct tensor *t, const char *what, uint32_t n, uint32_t by)
{
	if (n % by == 0)
		return 0;
	return moe_error_set(s->err, -ENOTSUP, "%s: tensor %s: found %u %s of the matrix; expected a multiple of %u",
			     path_of(s, t), t->name, n, what, by);
}

/* The group that config.json says, or the one that the scales' shape shows. */
static uint32_t group_of(const struct search *s, const struct tensor *scales)
{
	const uint32_t group = s->model->config.quant.group;

	if (group)
		return group;
	for (uint32_t g = 32; g <= 128; g *= 2)
		if (scales->n_dims == 2 && s->cols % g == 0 && scales->dims[1] == s->cols / g)
			return g;
	return 128;
}

static int find_rows(const struct search *s, struct packed_part *ret)
{
	const struct tensor *order = look_up(s, ".weight_g_idx");
	uint32_t group;
	int r = find(s, ".weight_packed", &ret->codes);

	if (r == 0)
		r = find(s, ".weight_scale", &ret->scales);
	if (r < 0)
		return r;
	ret->packing = PACKING_ROWS;
	group = group_of(s, ret->scales);
	if (order)
		return moe_error_set(
			s->err, -ENOTSUP,
			"%s: tensor %s: found columns in the order of their activations; expected groups of "
			"consecutive columns: take another release of this model",
			path_of(s, order), order->name);
	r = check_divides(s, ret->scales, "columns", s->cols, group);
	if (r == 0)
		r = take(s, ".weight_packed", IS(TENSOR_I32), SHAPE(s->rows, s->cols / 8), &ret->codes);
	if (r == 0)
		r = take(s, ".weight_scale", HALVES, SHAPE(s->rows, s->cols / group), &ret->scales);
	if (r == 0 && !s->model->config.quant.symmetric)
		r = take(s, ".weight_zero_point", IS(TENSOR_I32), SHAPE(DIV_UP(s->rows, 8), s->cols / group),
			 &ret->zeros);
	if (r == 0)
		ret->format = int4_format(group, ret->scales->type, ret->zeros);
	return r;
}

static int find_columns(const struct search *s, struct packed_part *ret)
{
	const struct model_quant *q = &s->model->config.quant;
	const bool awq = q->method == QUANT_AWQ;
	int r = find(s, ".qweight", &ret->codes);

	if (r < 0)
		return r;
	ret->packing = awq ? PACKING_AWQ : PACKING_GPTQ;
	r = check_divides(s, ret->codes, "columns", s->cols, q->group);
	if (r == 0 && awq)
		r = check_divides(s, ret->codes, "rows", s->rows, 8);
	if (r == 0)
		r = take(s, ".qweight", IS(TENSOR_I32), awq ? SHAPE(s->cols, s->rows / 8) : SHAPE(s->cols / 8, s->rows),
			 &ret->codes);
	if (r == 0)
		r = take(s, ".scales", HALVES, SHAPE(s->cols / q->group, s->rows), &ret->scales);
	if (r == 0 && !q->symmetric)
		r = take(s, ".qzeros", IS(TENSOR_I32), SHAPE(s->cols / q->group, DIV_UP(s->rows, 8)), &ret->zeros);
	if (r == 0)
		ret->format = int4_format(q->group, ret->scales->type, ret->zeros);
	return r;
}

static int find_fused(const struct search *s, struct packed_part *ret)
{
	const struct model_config *c = &s->model->config;
	const uint64_t experts = c->n_experts, rows = s->part == PART_DOWN ? s->rows : 2 * (uint64_t)s->rows;
	const struct tensor *plain = look_up(s, "");
	int r;

	if (plain)
		return moe_error_set(
			s->err, -ENOTSUP,
			"%s: tensor %s: found %s experts of %s in one transposed tensor; expected %s_blocks in "
			"MXFP4: take the published MXFP4 release of this model",
			path_of(s, plain), plain->name, tensor_type_name(plain->type), c->model_type, s->stem);
	r = find(s, "_blocks", &ret->codes);
	if (r == 0)
		r = check_divides(s, ret->codes, "columns", s->cols, 32);
	if (r == 0)
		r = take(s, "_blocks", IS(TENSOR_U8), SHAPE(experts, rows, s->cols / 32, 16), &ret->codes);
	if (r == 0)
		r = take(s, "_scales", IS(TENSOR_U8), SHAPE(experts, rows, s->cols / 32), &ret->scales);
	if (r == 0)
		r = take(s, "_bias", FLOATS, SHAPE(experts, rows), &ret->bias);
	ret->packing = PACKING_FUSED;
	ret->format = MOE_FORMAT_MXFP4;
	return r;
}

static int find_any(const struct search *s, struct packed_part *ret)
{
	const struct tensor *weight;

	if (family_spec(s->model->config.family)->fused)
		return find_fused(s, ret);
	weight = look_up(s, ".weight");
	if (weight && (IS(weight->type) & HALVES))
		return find_plain(s, ret);
	switch (s->model->config.quant.method) {
	case QUANT_FP8:
		return find_bytes(s, ret);
	case QUANT_COMPRESSED:
		return weight || s->model->config.quant.bits == 8 ? find_bytes(s, ret) : find_rows(s, ret);
	case QUANT_GPTQ:
	case QUANT_AWQ:
		return find_columns(s, ret);
	default:
		return find_plain(s, ret);
	}
}

int packing_find(const struct model *model, uint32_t layer, uint32_t expert, enum expert_part part,
		 struct packed_part *ret, struct moe_error *err)
{
	const struct model_config *c = &model->config;
	struct search s = {.model = model, .layer = layer, .expert = expert, .part = part, .err = err};
	struct packed_part found = {0};
	int r;

	assert(layer < c->n_layers && c->is_moe[layer] && expert < c->n_experts);
	s.rows = packing_rows(c, part);
	s.cols = packing_cols(c, part);
	model_expert_stem(s.stem, sizeof s.stem, c->family, layer, expert, part);
	r = find_any(&s, &found);
	if (r < 0)
		return r;
	*ret = found;
	return 0;
}

static int check_layer(const struct model *model, uint32_t layer, struct moe_error *err)
{
	static const char *const whose[PARTS] = {"expert 0", "its gate", "expert 0"};
	const uint32_t n = family_spec(model->config.family)->fused ? 1 : model->config.n_experts;
	uint32_t format[PARTS] = {0};

	for (uint32_t i = 0; i < n * PARTS; i++) {
		const uint32_t part = i % PARTS, like = part == PART_UP ? PART_GATE : part;
		struct packed_part p;
		const int r = packing_find(model, layer, i / PARTS, (enum expert_part)part, &p, err);

		if (r < 0)
			return r;
		if (i < PARTS)
			format[part] = p.format;
		if (p.format != format[like])
			return moe_error_set(err, -ENOTSUP,
					     "%s: tensor %s: found format %s; expected %s as of %s in layer %u: mixed "
					     "formats within a layer are not served",
					     model->shards[p.codes->shard].path, p.codes->name,
					     moe_formats[p.format].name, moe_formats[format[like]].name, whose[part],
					     layer);
	}
	return 0;
}

int packing_check(const struct model *model, struct moe_error *err)
{
	for (uint32_t layer = 0; layer < model->config.n_layers; layer++) {
		const int r = model->config.is_moe[layer] ? check_layer(model, layer, err) : 0;

		if (r < 0)
			return r;
	}
	return 0;
}
