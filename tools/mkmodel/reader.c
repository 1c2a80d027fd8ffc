/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/reader.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "model/file.h"
#include "tools/mkmodel/number.h"

/* Experts that are quantized already cannot be quantized again without a loss that nobody asked for. */
static int check_expert(const struct model *model, const char *name, const struct tensor *t, struct moe_error *err)
{
	if (t && t->n_dims == 2 && (t->type == TENSOR_BF16 || t->type == TENSOR_F16))
		return 0;
	return moe_error_set(err, -ENOTSUP, "%s: tensor %s: found %s%s; expected a matrix of BF16 or F16: %s",
			     model->path, name, t ? "a tensor of type " : "none", t ? tensor_type_name(t->type) : "",
			     "take a release of this model that is not quantized");
}

static int mark_experts(struct reader *r, struct moe_error *err)
{
	const struct model_config *c = &r->model->config;

	r->expert = calloc(r->model->n_tensors + 1, sizeof *r->expert);
	if (!r->expert)
		return moe_error_sys(err, -ENOMEM, "%s", r->model->path);
	for (uint32_t layer = 0; layer < c->n_layers && c->family != FAMILY_GPT_OSS; layer++)
		for (uint32_t i = 0; c->is_moe[layer] && i < c->n_experts * PARTS; i++) {
			const struct tensor *t;
			char name[128];
			int ret;

			model_expert_name(name, sizeof name, c->family, layer, i / PARTS,
					  (enum expert_part)(i % PARTS));
			t = model_tensor(r->model, name);
			ret = check_expert(r->model, name, t, err);
			if (ret < 0)
				return ret;
			r->expert[t - r->model->tensors] = true;
		}
	return 0;
}

int reader_open(struct reader *ret, const struct model *model, struct moe_error *err)
{
	struct reader r = {.model = model};
	int code;

	if (model->gguf)
		return moe_error_set(err, -ENOTSUP, "%s: found a GGUF model; expected a folder of safetensors",
				     model->path);
	r.fds = malloc((model->n_shards + 1) * sizeof *r.fds);
	if (!r.fds)
		return moe_error_sys(err, -ENOMEM, "%s", model->path);
	for (uint32_t i = 0; i < model->n_shards; i++)
		r.fds[i] = -1;
	code = mark_experts(&r, err);
	if (code < 0) {
		reader_close(&r);
		return code;
	}
	*ret = r;
	return 0;
}

void reader_close(struct reader *reader)
{
	for (uint32_t i = 0; reader->fds && i < reader->model->n_shards; i++)
		close_fd(reader->fds[i]);
	free(reader->fds);
	free(reader->expert);
	*reader = (struct reader){0};
}

bool reader_is_expert(const struct reader *reader, const struct tensor *tensor)
{
	return reader->expert[tensor - reader->model->tensors];
}

int reader_bytes(const struct reader *reader, const struct tensor *tensor, void *to, struct moe_error *err)
{
	const char *path = reader->model->shards[tensor->shard].path;
	int *fd = &reader->fds[tensor->shard];
	uint64_t bytes;

	if (*fd < 0)
		*fd = file_open(path, &bytes, err);
	if (*fd < 0)
		return *fd;
	return file_read_at(*fd, path, to, tensor->bytes, tensor->offset, err);
}

uint64_t reader_elements(const struct tensor *tensor)
{
	return tensor->bytes / tensor_type_bytes(tensor->type);
}

static float element(enum tensor_type type, const uint8_t *bytes, uint64_t i)
{
	uint16_t half;
	float full;

	if (type == TENSOR_F32) {
		memcpy(&full, bytes + 4 * i, 4);
		return full;
	}
	memcpy(&half, bytes + 2 * i, 2);
	return type == TENSOR_F16 ? number_from_f16(half) : number_from_bf16(half);
}

int reader_floats(const struct reader *reader, const struct tensor *tensor, float *to, struct moe_error *err)
{
	const char *path = reader->model->shards[tensor->shard].path;
	const enum tensor_type type = tensor->type;
	_cleanup_free_ uint8_t *bytes = malloc(tensor->bytes + 1);
	int r;

	if (!bytes)
		return moe_error_sys(err, -ENOMEM, "%s", path);
	if (type != TENSOR_BF16 && type != TENSOR_F16 && type != TENSOR_F32)
		return moe_error_set(err, -ENOTSUP, "%s: tensor %s: found type %s; expected BF16, F16 or F32", path,
				     tensor->name, tensor_type_name(type));
	r = reader_bytes(reader, tensor, bytes, err);
	if (r < 0)
		return r;
	for (uint64_t i = 0; i < reader_elements(tensor); i++) {
		to[i] = element(type, bytes, i);
		if (!isfinite(to[i]))
			return moe_error_set(err, -EINVAL, "%s: tensor %s: element %llu: found %g; expected a number",
					     path, tensor->name, (unsigned long long)i, (double)to[i]);
	}
	return 0;
}

enum tensor_type reader_type(const struct reader *reader)
{
	for (uint64_t i = 0; i < reader->model->n_tensors; i++)
		if (reader->expert[i])
			return reader->model->tensors[i].type;
	return TENSOR_BF16;
}
