/* SPDX-License-Identifier: MIT */
/*
 * config - config.json's text becomes a struct model_config in which every number has been checked.
 *
 * A field that the shape of the experts depends on has no default here: writers of the same family have changed
 * defaults over time, so a missing field is an error. Fields with one meaning when absent (hidden_act, moe_layer_freq,
 * decoder_sparse_step, mlp_only_layers) take it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "model/family.h"
#include "model/file.h"
#include "model/model.h"
#include "model/quant.h"

#define SWIGLU_LIMIT 7.0
#define SWIGLU_LIMIT_MIN 1e-3
#define SWIGLU_LIMIT_MAX 1e6

struct reader {
	const char *file;
	const json_t *json;
	struct moe_error *err;
};

/* The value, or NULL when it is absent or null. */
static const json_t *field(const struct reader *r, const char *name)
{
	const json_t *value = json_object_get(r->json, name);

	return json_is_null(value) ? NULL : value;
}

static int check_u32(const struct reader *r, const char *name, const json_t *value, uint32_t min, uint32_t max,
		     uint32_t *ret)
{
	char found[80];

	if (!value)
		return moe_error_set(r->err, -EINVAL, "%s: field \"%s\" is missing; expected an integer from %u to %u",
				     r->file, name, min, max);
	if (!json_is_integer(value) || json_integer_value(value) < min || json_integer_value(value) > max)
		return moe_error_set(r->err, -EINVAL, "%s: field \"%s\": found %s; expected an integer from %u to %u",
				     r->file, name, file_describe(found, sizeof found, value), min, max);
	*ret = (uint32_t)json_integer_value(value);
	return 0;
}

static int read_u32(const struct reader *r, const char *name, uint32_t min, uint32_t max, uint32_t *ret)
{
	return check_u32(r, name, field(r, name), min, max, ret);
}

static int read_u32_or(const struct reader *r, const char *name, uint32_t absent, uint32_t min, uint32_t max,
		       uint32_t *ret)
{
	const json_t *value = field(r, name);

	if (!value) {
		*ret = absent;
		return 0;
	}
	return check_u32(r, name, value, min, max, ret);
}

static int read_family(const struct reader *r, struct model_config *config)
{
	const json_t *value = field(r, "model_type");
	char families[160], found[80];

	family_list(families, sizeof families);
	if (!value)
		return moe_error_set(r->err, -EINVAL, "%s: field \"model_type\" is missing; expected one of: %s",
				     r->file, families);
	if (!json_is_string(value))
		return moe_error_set(r->err, -EINVAL, "%s: field \"model_type\": found %s; expected one of: %s",
				     r->file, file_describe(found, sizeof found, value), families);
	if (family_from_model_type(&config->family, json_string_value(value)) < 0)
		return moe_error_set(r->err, -ENOTSUP,
				     "%s: field \"model_type\": found %s; expected a family that is served: %s",
				     r->file, file_describe(found, sizeof found, value), families);
	strcpy(config->model_type, model_family_name(config->family));
	return 0;
}

static int read_activation(const struct reader *r, uint32_t *ret)
{
	static const struct {
		const char *name;
		enum model_activation activation;
	} names[] = {{"silu", MODEL_SILU},           {"swish", MODEL_SILU},
		     {"gelu", MODEL_GELU},           {"gelu_new", MODEL_GELU_TANH},
		     {"gelu_fast", MODEL_GELU_TANH}, {"gelu_pytorch_tanh", MODEL_GELU_TANH}};
	const json_t *value = field(r, "hidden_act");
	char found[80];

	if (!value) {
		*ret = MODEL_SILU;
		return 0;
	}
	for (size_t i = 0; json_is_string(value) && i < ARRAY_LEN(names); i++) {
		if (strcmp(json_string_value(value), names[i].name) == 0) {
			*ret = names[i].activation;
			return 0;
		}
	}
	return moe_error_set(r->err, json_is_string(value) ? -ENOTSUP : -EINVAL,
			     "%s: field \"hidden_act\": found %s; expected silu, gelu or gelu_pytorch_tanh", r->file,
			     file_describe(found, sizeof found, value));
}

/* Families that publish all experts of a layer in one tensor do so in MXFP4, and nobody else does. */
static int check_fused(const struct reader *r, const struct family_spec *spec, const struct model_config *config)
{
	if ((config->quant.method == QUANT_MXFP4) == spec->fused)
		return 0;
	return moe_error_set(
		r->err, -ENOTSUP,
		"%s: field \"quantization_config\": found %s for %s; expected %s: take the %s release of this "
		"model",
		r->file, config->quant.method == QUANT_MXFP4 ? "mxfp4" : "something else than mxfp4", spec->model_type,
		spec->fused ? "mxfp4" : "another method", spec->fused ? "published MXFP4" : "BF16");
}

static int read_limit(const struct reader *r, struct model_config *config)
{
	const json_t *value = field(r, "swiglu_limit");
	const double limit = value ? json_number_value(value) : SWIGLU_LIMIT;
	char found[80];

	if (!(limit >= SWIGLU_LIMIT_MIN && limit <= SWIGLU_LIMIT_MAX))
		return moe_error_set(r->err, -EINVAL,
				     "%s: field \"swiglu_limit\": found %s; expected a number from %g to %g", r->file,
				     file_describe(found, sizeof found, value), SWIGLU_LIMIT_MIN, SWIGLU_LIMIT_MAX);
	config->activation = MODEL_SWIGLU_CLAMPED;
	config->limit = (float)limit;
	return 0;
}

static int layers_sparse_step(const struct reader *r, struct model_config *config)
{
	const json_t *only = field(r, "mlp_only_layers");
	uint32_t step = 1, layer;
	char found[80];
	size_t i;
	int ret;

	ret = read_u32_or(r, "decoder_sparse_step", 1, 1, MODEL_LAYERS_MAX, &step);
	if (ret < 0)
		return ret;
	for (layer = 0; layer < config->n_layers; layer++)
		config->is_moe[layer] = (layer + 1) % step == 0;
	if (only && !json_is_array(only))
		return moe_error_set(r->err, -EINVAL, "%s: field \"mlp_only_layers\": found %s; expected an array",
				     r->file, file_describe(found, sizeof found, only));
	for (i = 0; i < json_array_size(only); i++) {
		ret = check_u32(r, "mlp_only_layers[]", json_array_get(only, i), 0, config->n_layers - 1, &layer);
		if (ret < 0)
			return ret;
		config->is_moe[layer] = false;
	}
	return 0;
}

static int layers_first_dense(const struct reader *r, struct model_config *config)
{
	uint32_t dense, frequency = 1, layer;
	int ret;

	ret = read_u32(r, "first_k_dense_replace", 0, MODEL_LAYERS_MAX, &dense);
	if (ret < 0)
		return ret;
	ret = read_u32_or(r, "moe_layer_freq", 1, 1, MODEL_LAYERS_MAX, &frequency);
	if (ret < 0)
		return ret;
	for (layer = 0; layer < config->n_layers; layer++)
		config->is_moe[layer] = layer >= dense && layer % frequency == 0;
	return 0;
}

static int read_layers(const struct reader *r, const struct family_spec *spec, struct model_config *config)
{
	int ret = 0;

	config->is_moe = calloc(config->n_layers, sizeof *config->is_moe);
	if (!config->is_moe)
		return moe_error_sys(r->err, -ENOMEM, "%s", r->file);
	switch (spec->layers) {
	case LAYERS_ALL:
		memset(config->is_moe, true, config->n_layers * sizeof *config->is_moe);
		break;
	case LAYERS_SPARSE_STEP:
		ret = layers_sparse_step(r, config);
		break;
	case LAYERS_FIRST_DENSE:
		ret = layers_first_dense(r, config);
		break;
	}
	if (ret < 0)
		return ret;
	for (uint32_t layer = 0; layer < config->n_layers; layer++)
		config->n_moe_layers += config->is_moe[layer];
	if (config->n_moe_layers == 0)
		return moe_error_set(r->err, -EINVAL,
				     "%s: none of the %u layers carries experts; expected at least one%s", r->file,
				     config->n_layers,
				     spec->layers == LAYERS_FIRST_DENSE ? " (first_k_dense_replace, moe_layer_freq)"
									: " (decoder_sparse_step, mlp_only_layers)");
	return 0;
}

static int read_numbers(const struct reader *r, const struct family_spec *spec, struct model_config *config)
{
	const char *experts = spec->experts;
	int ret;

	if (!field(r, experts) && spec->experts_alias && field(r, spec->experts_alias))
		experts = spec->experts_alias;
	ret = read_u32(r, "num_hidden_layers", 1, MODEL_LAYERS_MAX, &config->n_layers);
	if (ret < 0)
		return ret;
	ret = read_u32(r, "hidden_size", 1, MODEL_DIM_MAX, &config->hidden);
	if (ret < 0)
		return ret;
	ret = read_u32(r, spec->inter, 1, MODEL_DIM_MAX, &config->inter);
	if (ret < 0)
		return ret;
	ret = read_u32(r, experts, 1, MODEL_EXPERTS_MAX, &config->n_experts);
	if (ret < 0)
		return ret;
	return read_u32(r, "num_experts_per_tok", 1, MIN(config->n_experts, MODEL_TOPK_MAX), &config->topk);
}

static int read_all(const struct reader *r, struct model_config *config)
{
	const struct family_spec *spec;
	int ret;

	ret = read_family(r, config);
	if (ret < 0)
		return ret;
	ret = quant_parse(r->file, r->json, &config->quant, r->err);
	if (ret < 0)
		return ret;
	spec = family_spec(config->family);
	ret = check_fused(r, spec, config);
	if (ret < 0)
		return ret;
	ret = read_numbers(r, spec, config);
	if (ret < 0)
		return ret;
	ret = spec->clamped ? read_limit(r, config) : read_activation(r, &config->activation);
	if (ret < 0)
		return ret;
	return read_layers(r, spec, config);
}

int model_config_parse(const char *file, const char *text, size_t bytes, struct model_config *ret,
		       struct moe_error *err)
{
	struct model_config config = {0};
	struct reader reader = {.file = file, .err = err};
	int r;

	r = file_parse_object(&config.json, file, text, bytes, err);
	if (r < 0)
		return r;
	reader.json = config.json;
	r = read_all(&reader, &config);
	if (r < 0) {
		model_config_free(&config);
		return r;
	}
	*ret = config;
	return 0;
}

void model_config_free(struct model_config *config)
{
	if (!config)
		return;
	free(config->is_moe);
	json_decref(config->json);
	memset(config, 0, sizeof *config);
}
