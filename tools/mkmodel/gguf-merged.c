/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/gguf-merged.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "tools/mkmodel/ggml.h"

#define BLOCK_BYTES 16 /* of codes, in the folder */

/* One part's share of the merged tensors: of `stride` rows each, row `first`. */
struct share {
	const char *folder, *file; /* names in each of them */
	uint32_t first, stride;
};

static const struct share shares[PARTS] = {
	[PART_GATE] = {"gate_up_proj", "gate", 0, 2},
	[PART_UP] = {"gate_up_proj", "up", 1, 2},
	[PART_DOWN] = {"down_proj", "down", 0, 1},
};

bool gguf_merged_is(const struct tensor *tensor)
{
	return strstr(tensor->name, ".mlp.experts.gate_up_proj") || strstr(tensor->name, ".mlp.experts.down_proj_");
}

/* The tensor with this ending, of this type and these dimensions; the last ones are 0 when there are fewer. */
static int find(const struct reader *reader, uint32_t layer, enum expert_part part, const char *ending,
		const uint64_t dims[4], const struct tensor **ret, struct moe_error *err)
{
	const struct tensor *t;
	char name[128];
	bool good;

	snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%s_%s", layer, shares[part].folder, ending);
	t = model_tensor(reader->model, name);
	good = t && (t->type == TENSOR_U8) == (strcmp(ending, "bias") != 0);
	for (uint32_t i = 0; good && i < 4; i++)
		good = i < t->n_dims ? t->dims[i] == dims[i] : dims[i] == 0;
	if (!good)
		return moe_error_set(err, -EINVAL,
				     "%s: tensor %s: found %s; expected %" PRIu64 " experts of %" PRIu64 " rows",
				     reader->model->path, name, t ? "another type or shape" : "none", dims[0], dims[1]);
	*ret = t;
	return 0;
}

struct merged {
	const struct tensor *blocks, *scales, *bias;
	uint64_t experts, rows, groups; /* of the part; a group has 32 columns */
};

static int find_merged(const struct reader *reader, uint32_t layer, enum expert_part part, struct merged *ret,
		       struct moe_error *err)
{
	const struct model_config *c = &reader->model->config;
	const uint64_t rows = part == PART_DOWN ? c->hidden : c->inter;
	const uint64_t groups = (part == PART_DOWN ? c->inter : c->hidden) / 32, all = rows * shares[part].stride;
	const uint64_t blocks[4] = {c->n_experts, all, groups, BLOCK_BYTES}, scales[4] = {c->n_experts, all, groups};
	const uint64_t bias[4] = {c->n_experts, all};
	int r;

	*ret = (struct merged){.experts = c->n_experts, .rows = rows, .groups = groups};
	r = find(reader, layer, part, "blocks", blocks, &ret->blocks, err);
	if (r == 0)
		r = find(reader, layer, part, "scales", scales, &ret->scales, err);
	return r < 0 ? r : find(reader, layer, part, "bias", bias, &ret->bias, err);
}

int gguf_merged_add(const struct reader *reader, struct gguf_writer *writer, uint64_t *n_tensors, uint64_t *bytes,
		    struct moe_error *err)
{
	const struct ggml_type *type = ggml_find("mxfp4");

	for (uint32_t i = 0; i < reader->model->config.n_layers * PARTS; i++) {
		const enum expert_part part = (enum expert_part)(i % PARTS);
		struct merged m;
		uint64_t size;
		char name[64];
		int r = find_merged(reader, i / PARTS, part, &m, err);

		if (r < 0)
			return r;
		size = m.experts * m.rows * m.groups * type->bytes;
		snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.weight", i / PARTS, shares[part].file);
		gguf_writer_tensor(writer, name, (uint64_t[]){m.groups * 32, m.rows, m.experts}, 3, type->number, size);
		snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.bias", i / PARTS, shares[part].file);
		gguf_writer_tensor(writer, name, (uint64_t[]){m.rows, m.experts}, 2, GGML_TYPE_F32,
				   m.experts * m.rows * 4);
		*n_tensors += 2;
		*bytes += size + m.experts * m.rows * 4;
	}
	return 0;
}

/* Codes of neighbours in a byte become codes that are 16 apart. */
static void split_pairs(const uint8_t from[BLOCK_BYTES], uint8_t to[BLOCK_BYTES])
{
	for (int i = 0; i < BLOCK_BYTES; i++) {
		const uint8_t low = from[i / 2] >> i % 2 * 4 & 15, high = from[8 + i / 2] >> i % 2 * 4 & 15;

		to[i] = (uint8_t)(low | high << 4);
	}
}

static int write_weights(const struct reader *reader, struct gguf_writer *writer, const struct merged *m,
			 const struct share *share, struct moe_error *err)
{
	_cleanup_free_ uint8_t *blocks = malloc(m->blocks->bytes + 1), *scales = malloc(m->scales->bytes + 1);
	_cleanup_free_ uint8_t *row = malloc(m->groups * (1 + BLOCK_BYTES) + 1);
	int r = blocks && scales && row ? 0 : moe_error_sys(err, -ENOMEM, "tensor %s", m->blocks->name);

	if (r == 0)
		r = reader_bytes(reader, m->blocks, blocks, err);
	if (r == 0)
		r = reader_bytes(reader, m->scales, scales, err);
	for (uint64_t i = 0; r == 0 && i < m->experts * m->rows; i++) {
		const uint64_t from = (i * share->stride + share->first) * m->groups;
		uint8_t *to = row;

		for (uint64_t g = from; g < from + m->groups; g++, to += 1 + BLOCK_BYTES) {
			to[0] = scales[g];
			split_pairs(blocks + g * BLOCK_BYTES, to + 1);
		}
		r = gguf_writer_data(writer, row, (uint64_t)(to - row), err);
	}
	return r;
}

static int write_bias(const struct reader *reader, struct gguf_writer *writer, const struct merged *m,
		      const struct share *share, struct moe_error *err)
{
	_cleanup_free_ float *all = malloc(reader_elements(m->bias) * sizeof *all + 1);
	int r = all ? reader_floats(reader, m->bias, all, err)
		    : moe_error_sys(err, -ENOMEM, "tensor %s", m->bias->name);

	for (uint64_t i = 0; r == 0 && i < m->experts * m->rows; i++)
		all[i] = all[i * share->stride + share->first];
	return r < 0 ? r : gguf_writer_data(writer, all, m->experts * m->rows * sizeof *all, err);
}

int gguf_merged_write(const struct reader *reader, struct gguf_writer *writer, struct moe_error *err)
{
	for (uint32_t i = 0; i < reader->model->config.n_layers * PARTS; i++) {
		const enum expert_part part = (enum expert_part)(i % PARTS);
		struct merged m;
		int r = find_merged(reader, i / PARTS, part, &m, err);

		if (r == 0)
			r = write_weights(reader, writer, &m, &shares[part], err);
		if (r == 0)
			r = write_bias(reader, writer, &m, &shares[part], err);
		if (r < 0)
			return r;
	}
	return 0;
}
