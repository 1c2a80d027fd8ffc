/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/quantize.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "model/file.h"
#include "tools/mkmodel/form.h"
#include "tools/mkmodel/ggml.h"
#include "tools/mkmodel/gguf-model.h"
#include "tools/mkmodel/reader.h"
#include "tools/mkmodel/rewrite.h"

struct context {
	const struct form *form;
	const struct reader *reader;
	enum tensor_type type; /* the model's */
};

static int plan(void *context, const struct tensor *t, struct item ret[REWRITE_ITEMS_MAX], struct moe_error *err)
{
	const struct context *c = context;
	struct form_tensor tensors[FORM_TENSORS_MAX];
	const size_t stem = strlen(t->name) - strlen(".weight");
	int n;

	if (!reader_is_expert(c->reader, t))
		return 0;
	n = form_tensors(c->form, (uint32_t)t->dims[0], (uint32_t)t->dims[1], c->type, tensors, err);
	for (int i = 0; i < n; i++) {
		const struct form_tensor *from = &tensors[i];

		ret[i] = (struct item){.type = from->type, .n_dims = from->n_dims, .bytes = from->bytes};
		memcpy(ret[i].dims, from->dims, sizeof from->dims);
		if (asprintf(&ret[i].name, "%.*s%s", (int)stem, t->name, from->suffix) < 0) {
			ret[i].name = NULL;
			return moe_error_sys(err, -ENOMEM, "tensor %s", t->name);
		}
	}
	return n;
}

static int make(void *context, const struct reader *reader, const struct tensor *t, uint8_t *ret, struct moe_error *err)
{
	const struct context *c = context;
	_cleanup_free_ float *w = malloc(reader_elements(t) * sizeof *w + 1);
	int r = w ? reader_floats(reader, t, w, err) : moe_error_sys(err, -ENOMEM, "tensor %s", t->name);

	if (r == 0)
		form_quantize(c->form, w, (uint32_t)t->dims[0], (uint32_t)t->dims[1], c->type, ret);
	return r;
}

/* The names of the modules that stay as they are: matrices beside the experts, without ".weight". */
static json_t *list_plain(const struct reader *reader)
{
	json_t *list = json_array();

	for (uint64_t i = 0; i < reader->model->n_tensors; i++) {
		const struct tensor *t = &reader->model->tensors[i];
		const char *end = strstr(t->name, ".weight");

		if (t->n_dims == 2 && end && !reader_is_expert(reader, t) && !strstr(t->name, "embed_tokens"))
			json_array_append_new(list, json_stringn(t->name, (size_t)(end - t->name)));
	}
	return list;
}

static int quantize_folder(const struct quantize_request *request, const struct form *form, const struct reader *reader,
			   struct quantize_result *ret, struct moe_error *err)
{
	struct context context = {.form = form, .reader = reader, .type = reader_type(reader)};
	const struct rewrite_rule rule = {.context = &context, .plan = plan, .make = make};
	_cleanup_json_ json_t *config = json_deep_copy(reader->model->config.json);
	_cleanup_json_ json_t *plain = list_plain(reader);
	struct folder_result result;
	int r;

	if (reader->model->config.family == FAMILY_GPT_OSS)
		return moe_error_set(
			err, -ENOTSUP, "%s: found a folder of family gpt_oss, which is quantized as it is %s",
			request->folder, "made (MXFP4); expected another family, or a GGUF file as output");
	if (!config || json_object_set_new(config, "quantization_config", form_config(form, plain)) < 0)
		return moe_error_sys(err, -ENOMEM, "%s", request->folder);
	r = rewrite_folder(reader, request->out, config, &rule, request->progress, &result, err);
	if (r == 0)
		*ret = (struct quantize_result){result.n_tensors, result.bytes};
	return r;
}

static bool is_gguf(const char *out)
{
	const char *end = strrchr(out, '.');

	return end && strcmp(end, ".gguf") == 0;
}

static int unknown_format(const struct quantize_request *request, bool gguf, struct moe_error *err)
{
	char names[256];

	if (!gguf && ggml_find(request->format))
		return moe_error_set(err, -EINVAL,
				     "--format: found %s, a type of GGUF files, for the folder %s; expected %s",
				     request->format, request->out, "an output named x.gguf, or a format of folders");
	if (gguf)
		ggml_list(names, sizeof names);
	else
		form_list(names, sizeof names);
	return moe_error_set(err, -EINVAL, "--format: found \"%s\"; expected for a %s one of: %s", request->format,
			     gguf ? "GGUF file" : "folder", names);
}

static int quantize_file(const struct quantize_request *request, const struct reader *reader,
			 struct quantize_result *ret, struct moe_error *err)
{
	struct gguf_choice choice = {.type = ggml_find(request->format),
				     .down = request->down_format ? ggml_find(request->down_format) : NULL,
				     .down_every = request->down_every ? request->down_every : 1};

	if (!choice.type)
		return unknown_format(request, true, err);
	if (request->down_format && !choice.down)
		return moe_error_set(err, -EINVAL,
				     "--down-format: found \"%s\"; expected a type of GGUF files, as --format",
				     request->down_format);
	return gguf_model_write(reader, request->out, &choice, request->progress, &ret->n_tensors, &ret->bytes, err);
}

static void cleanup_model(struct model **model)
{
	model_free(*model);
}

int quantize_check(const struct quantize_request *request, struct moe_error *err)
{
	const bool gguf = is_gguf(request->out);

	return (gguf ? ggml_find(request->format) != NULL : form_find(request->format) != NULL)
		       ? 0
		       : unknown_format(request, gguf, err);
}

int quantize(const struct quantize_request *request, struct quantize_result *ret, struct moe_error *err)
{
	const bool gguf = is_gguf(request->out);
	const struct form *form = form_find(request->format);
	_cleanup_(cleanup_model) struct model *model = NULL;
	_cleanup_(reader_close) struct reader reader = {0};
	int r;

	if (!gguf && !form)
		return unknown_format(request, false, err);
	if (!gguf && (request->down_format || request->down_every))
		return moe_error_set(err, -EINVAL,
				     "--down-format: only GGUF files mix formats; name the output x.gguf");
	r = model_open(&model, request->folder, err);
	if (r < 0)
		return r;
	r = reader_open(&reader, model, err);
	if (r < 0)
		return r;
	return gguf ? quantize_file(request, &reader, ret, err) : quantize_folder(request, form, &reader, ret, err);
}
