/* SPDX-License-Identifier: MIT */
/* form-config - what config.json says about a quantized folder, field by field as the tools that make such folders. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/mkmodel/form.h"

static json_t *fp8_block(json_t *plain)
{
	return json_pack("{s:s, s:s, s:s, s:[i, i], s:O}", "activation_scheme", "dynamic", "fmt", "e4m3",
			 "quant_method", "fp8", "weight_block_size", 128, 128, "modules_to_not_convert", plain);
}

/* Of weights (`strategy` channel or group) or of activations (token). */
static json_t *numbers(const char *type, int bits, const char *strategy, json_t *group, bool dynamic, bool symmetric)
{
	return json_pack("{s:n, s:n, s:b, s:o, s:i, s:s?, s:{}, s:s, s:b, s:s}", "actorder", "block_structure",
			 "dynamic", (int)dynamic, "group_size", group, "num_bits", bits, "observer",
			 dynamic ? NULL : "minmax", "observer_kwargs", "strategy", strategy, "symmetric",
			 (int)symmetric, "type", type);
}

static json_t *compressed(const struct form *form, json_t *plain)
{
	const bool four = form->kind == FORM_INT4, floats = form->kind == FORM_FP8_CHANNEL;
	const char *type = floats ? "float" : "int";
	json_t *group = four ? json_integer(form->group) : json_null();
	json_t *weights = numbers(type, four ? 4 : 8, four ? "group" : "channel", group, false, !form->zeros);
	json_t *inputs = four ? json_null() : numbers(type, 8, "token", json_null(), true, true);

	return json_pack("{s:{s:{s:o, s:n, s:[s], s:o}}, s:s, s:n, s:O, s:n, s:s, s:s}", "config_groups", "group_0",
			 "input_activations", inputs, "output_activations", "targets", "Linear", "weights", weights,
			 "format",
			 four     ? "pack-quantized"
			 : floats ? "float-quantized"
				  : "int-quantized",
			 "global_compression_ratio", "ignore", plain, "kv_cache_scheme", "quant_method",
			 "compressed-tensors", "quantization_status", "compressed");
}

/* A module's name as the regular expression that marks it as not quantized, or NULL. */
static char *exclusion(const char *name)
{
	char *text = NULL;
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);

	if (!f)
		return NULL;
	fputs("-:^", f);
	for (; *name; name++)
		fprintf(f, "%s%c", *name == '.' ? "\\" : "", *name);
	fputc('$', f);
	return fclose(f) == 0 ? text : NULL;
}

static json_t *gptq(const struct form *form, json_t *plain)
{
	json_t *dynamic = json_object(), *name;
	size_t i;

	json_array_foreach (plain, i, name) {
		char *text = exclusion(json_string_value(name));

		if (!text || json_object_set_new(dynamic, text, json_object()) < 0) {
			free(text);
			json_decref(dynamic);
			return NULL;
		}
		free(text);
	}
	return json_pack("{s:i, s:s, s:f, s:b, s:o, s:i, s:b, s:s, s:b, s:b, s:b}", "bits", 4, "checkpoint_format",
			 "gptq", "damp_percent", 0.1, "desc_act", 0, "dynamic", dynamic, "group_size", (int)form->group,
			 "lm_head", 0, "quant_method", "gptq", "static_groups", 0, "sym", (int)!form->zeros,
			 "true_sequential", 1);
}

static json_t *awq(const struct form *form, json_t *plain)
{
	return json_pack("{s:i, s:i, s:O, s:s, s:s, s:b}", "bits", 4, "group_size", (int)form->group,
			 "modules_to_not_convert", plain, "quant_method", "awq", "version", "gemm", "zero_point", 1);
}

json_t *form_config(const struct form *form, json_t *plain)
{
	switch (form->kind) {
	case FORM_FP8_BLOCK:
		return fp8_block(plain);
	case FORM_FP8_CHANNEL:
	case FORM_INT8:
	case FORM_INT4:
		return compressed(form, plain);
	case FORM_GPTQ:
		return gptq(form, plain);
	case FORM_AWQ:
		return awq(form, plain);
	}
	return NULL;
}
