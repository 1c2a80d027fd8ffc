/* SPDX-License-Identifier: MIT */
#include "model/quant.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/util.h"
#include "model/file.h"

#define FP8_BLOCK 128

struct reader {
	const char *file, *field; /* of config.json; the field that holds the object */
	const json_t *json;
	struct moe_error *err;
};

static const json_t *field(const json_t *json, const char *name)
{
	const json_t *value = json_object_get(json, name);

	return json_is_null(value) ? NULL : value;
}

static bool is_text(const json_t *value, const char *text)
{
	return json_is_string(value) && strcasecmp(json_string_value(value), text) == 0;
}

static int refuse(const struct reader *r, const char *name, const json_t *value, const char *expected)
{
	char found[80];

	return moe_error_set(
		r->err, -ENOTSUP,
		"%s: field \"%s.%s\": found %s; expected %s: take another release of this model, or its BF16 "
		"release",
		r->file, r->field, name, value ? file_describe(found, sizeof found, value) : "none", expected);
}

static int expect_number(const struct reader *r, const json_t *json, const char *name, json_int_t number,
			 const char *expected)
{
	const json_t *value = field(json, name);

	if (json_is_integer(value) && json_integer_value(value) == number)
		return 0;
	return refuse(r, name, value, expected);
}

static int read_group(const struct reader *r, const json_t *json, const char *name, uint32_t *ret)
{
	const json_t *value = field(json, name);
	const json_int_t n = json_integer_value(value);

	if (!json_is_integer(value) || (n != 32 && n != 64 && n != 128))
		return refuse(r, name, value, "groups of 32, 64 or 128");
	*ret = (uint32_t)n;
	return 0;
}

static int read_bool(const struct reader *r, const json_t *json, const char *name, bool *ret)
{
	const json_t *value = field(json, name);

	if (!json_is_boolean(value))
		return refuse(r, name, value, "true or false");
	*ret = json_is_true(value);
	return 0;
}

static int read_block(const struct reader *r, const json_t *json, const char *name, struct model_quant *ret)
{
	const json_t *value = field(json, name);

	for (size_t i = 0; i < 2; i++)
		if (!json_is_array(value) || json_array_size(value) != 2 ||
		    json_integer_value(json_array_get(value, i)) != FP8_BLOCK)
			return refuse(r, name, value, "[128, 128]");
	ret->block[0] = ret->block[1] = FP8_BLOCK;
	return 0;
}

/* -- one function per method -------------------------------------------------------------------------------------- */

static int read_fp8(const struct reader *r, struct model_quant *ret)
{
	const json_t *fmt = field(r->json, "fmt");

	ret->method = QUANT_FP8;
	ret->symmetric = true;
	ret->bits = 8;
	if (fmt && !is_text(fmt, "e4m3"))
		return refuse(r, "fmt", fmt, "e4m3");
	return field(r->json, "weight_block_size") ? read_block(r, r->json, "weight_block_size", ret) : 0;
}

/* Names as compressed-tensors has them; those of fields begin with this. */
#define WEIGHTS "config_groups[].weights."

static int read_weights4(const struct reader *r, const json_t *weights, struct model_quant *ret)
{
	const json_t *type = field(weights, "type"), *strategy = field(weights, "strategy");
	const json_t *order = field(weights, "actorder");

	if (!is_text(type, "int"))
		return refuse(r, WEIGHTS "type", type, "int");
	if (!is_text(strategy, "group"))
		return refuse(r, WEIGHTS "strategy", strategy, "group");
	if (order && !is_text(order, "weight") && !is_text(order, "static"))
		return refuse(r, WEIGHTS "actorder", order, "null, weight or static");
	return read_group(r, weights, "group_size", &ret->group);
}

static int read_weights8(const struct reader *r, const json_t *weights, struct model_quant *ret)
{
	const json_t *type = field(weights, "type"), *strategy = field(weights, "strategy");
	const json_t *format = field(r->json, "format");

	if (!is_text(type, "int") && !is_text(type, "float"))
		return refuse(r, WEIGHTS "type", type, "int or float");
	if (is_text(format, "pack-quantized"))
		return refuse(r, "format", format, "int-quantized or float-quantized for 8 bits");
	if (!ret->symmetric)
		return refuse(r, WEIGHTS "symmetric", field(weights, "symmetric"), "true for 8 bits");
	if (is_text(strategy, "block") && is_text(type, "float"))
		return read_block(r, weights, "block_structure", ret);
	if (!is_text(strategy, "channel") && !is_text(strategy, "tensor"))
		return refuse(r, WEIGHTS "strategy", strategy, "channel, tensor or block");
	return 0;
}

/* What one of config_groups says about weights. */
static int read_weights(const struct reader *r, const json_t *weights, struct model_quant *ret)
{
	const json_t *bits = field(weights, "num_bits");
	const int error = read_bool(r, weights, "symmetric", &ret->symmetric);

	if (error < 0)
		return error;
	if (!json_is_integer(bits) || (json_integer_value(bits) != 4 && json_integer_value(bits) != 8))
		return refuse(r, WEIGHTS "num_bits", bits, "4 or 8");
	ret->bits = (uint32_t)json_integer_value(bits);
	return ret->bits == 4 ? read_weights4(r, weights, ret) : read_weights8(r, weights, ret);
}

static int read_compressed(const struct reader *r, struct model_quant *ret)
{
	/* Rotations, whose inverse a model applies to activations as it runs: nothing in the tensors tells of them */
	static const char *const transforms[] = {"transform_config", "transforms_config"};
	const json_t *groups = field(r->json, "config_groups"), *group;
	const json_t *sparsity = field(field(r->json, "sparsity_config"), "format");
	const bool one = json_object_size(groups) == 1;
	bool asymmetric = false;
	const char *name;

	ret->method = QUANT_COMPRESSED;
	ret->symmetric = true;
	if (!json_is_object(groups) || json_object_size(groups) == 0)
		return refuse(r, "config_groups", groups, "an object of groups");
	if (sparsity && !is_text(sparsity, "dense"))
		return refuse(r, "sparsity_config.format", sparsity, "dense");
	for (size_t i = 0; i < sizeof transforms / sizeof *transforms; i++)
		if (json_object_size(field(r->json, transforms[i])) > 0)
			return refuse(r, transforms[i], field(r->json, transforms[i]), "none");
	json_object_foreach ((json_t *)groups, name, group) {
		const json_t *weights = field(group, "weights");
		struct model_quant found = {.method = QUANT_COMPRESSED};

		if (one) {
			const int error = weights ? read_weights(r, weights, &found)
						  : refuse(r, "config_groups[].weights", weights, "an object");

			*ret = found;
			return error;
		}
		asymmetric |= weights && !json_is_true(field(weights, "symmetric"));
	}
	/* Which of several groups the experts belong to shows in the shapes of their tensors, but not their symmetry */
	return asymmetric ? refuse(r, WEIGHTS "symmetric", json_false(), "true in each of several groups") : 0;
}

static int read_gptq(const struct reader *r, struct model_quant *ret)
{
	const char *name = field(r->json, "checkpoint_format") ? "checkpoint_format" : "format", *rule;
	const json_t *format = field(r->json, name), *dynamic = field(r->json, "dynamic"), *value;
	bool order = false;
	int error;

	ret->method = QUANT_GPTQ;
	error = expect_number(r, r->json, "bits", 4, "4");
	if (error == 0)
		error = read_group(r, r->json, "group_size", &ret->group);
	if (error == 0)
		error = read_bool(r, r->json, "sym", &ret->symmetric);
	if (error == 0)
		error = read_bool(r, r->json, "desc_act", &order);
	if (error < 0)
		return error;
	ret->bits = 4;
	if (order)
		return refuse(r, "desc_act", field(r->json, "desc_act"),
			      "false: columns in the order of their activations are not served");
	if (json_is_true(field(r->json, "is_marlin_format")))
		return refuse(r, "is_marlin_format", field(r->json, "is_marlin_format"), "false");
	if (format && !is_text(format, "gptq") && !is_text(format, "gptq_v2"))
		return refuse(r, name, format, "gptq or gptq_v2");
	ret->zeros_less_one = !is_text(format, "gptq_v2");
	json_object_foreach ((json_t *)dynamic, rule, value)
		if (strncmp(rule, "-:", 2) != 0)
			return refuse(r, "dynamic", dynamic, "only rules that leave modules out (\"-:...\")");
	return 0;
}

static int read_awq(const struct reader *r, struct model_quant *ret)
{
	const json_t *version = field(r->json, "version"), *zero = field(r->json, "zero_point");
	const char *bits = field(r->json, "bits") ? "bits" : "w_bit";
	const char *group = field(r->json, "group_size") ? "group_size" : "q_group_size";
	int error = expect_number(r, r->json, bits, 4, "4");

	ret->method = QUANT_AWQ;
	ret->bits = 4;
	if (error == 0)
		error = read_group(r, r->json, group, &ret->group);
	if (error < 0)
		return error;
	if (version && !is_text(version, "gemm"))
		return refuse(r, "version", version, "gemm");
	return json_is_true(zero) ? 0 : refuse(r, "zero_point", zero, "true");
}

static int read_mxfp4(const struct reader *r, struct model_quant *ret)
{
	(void)r;
	ret->method = QUANT_MXFP4;
	ret->symmetric = true;
	ret->bits = 4;
	ret->group = 32;
	return 0;
}

static const struct {
	const char *name;
	int (*read)(const struct reader *r, struct model_quant *ret);
} methods[] = {
	{"fp8", read_fp8},     {"compressed-tensors", read_compressed}, {"gptq", read_gptq}, {"awq", read_awq},
	{"mxfp4", read_mxfp4},
};

int quant_parse(const char *file, const json_t *json, struct model_quant *ret, struct moe_error *err)
{
	static const char *const fields[] = {"quantization_config", "compression_config", "quantization"};
	struct reader r = {.file = file, .err = err};
	struct model_quant quant = {0};
	const json_t *method;

	for (size_t i = 0; i < ARRAY_LEN(fields) && !r.json; i++) {
		r.field = fields[i];
		r.json = field(json, fields[i]);
	}
	method = field(r.json, "quant_method");
	for (size_t i = 0; i < ARRAY_LEN(methods) && r.json; i++) {
		int error;

		if (!is_text(method, methods[i].name))
			continue;
		error = methods[i].read(&r, &quant);
		if (error == 0)
			*ret = quant;
		return error;
	}
	if (r.json)
		return refuse(&r, "quant_method", method, "fp8, compressed-tensors, gptq, awq or mxfp4");
	*ret = quant;
	return 0;
}
