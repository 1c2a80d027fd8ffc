/* SPDX-License-Identifier: MIT */
/*
 * converted - models that moe-mkmodel makes and converts in a working folder, and what the daemon's readers see there.
 */
#ifndef TESTS_CONVERTED_H
#define TESTS_CONVERTED_H

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "kernels/record.h"
#include "model/expert.h"
#include "model/gguf.h"
#include "tests/remove.h"
#include "tests/tap.h"
#include "tools/mkmodel/folder.h"
#include "tools/mkmodel/number.h"
#include "tools/mkmodel/quantize.h"

static char work[TAP_TMP];

__attribute__((unused)) static char *in_work(const char *name)
{
	static char paths[8][128];
	static unsigned next;
	char *path = paths[next++ % 8];

	snprintf(path, sizeof paths[0], "%s/%s", work, name);
	return path;
}

__attribute__((unused)) static struct model *open_model(const char *path)
{
	struct moe_error err = {0};
	struct model *m = NULL;

	if (model_open(&m, path, &err) < 0)
		diag("%s", err.text);
	return m;
}

__attribute__((unused)) static void make_model(const char *path, enum model_family family, uint32_t size)
{
	struct spec spec = spec_defaults(family);
	struct folder_result result;
	struct moe_error err = {0};

	spec.hidden = spec.inter = size;
	spec.experts = 4;
	spec.topk = 2;
	spec.head_dim = 32;
	spec.vocab = 64;
	require(folder_write(path, &spec, false, &result, &err) == 0, "a model of family %s %s",
		model_family_name(family), err.text);
}

__attribute__((unused)) static bool convert(const char *from, const char *to, const char *format, const char *down,
					    uint32_t every)
{
	const struct quantize_request q = {
		.folder = from, .out = to, .format = format, .down_format = down, .down_every = every};
	struct quantize_result result;
	struct moe_error err = {0};

	if (quantize(&q, &result, &err) == 0)
		return true;
	diag("%s", err.text);
	return false;
}

__attribute__((unused)) static void read_at(const struct model *m, uint32_t shard, uint64_t offset, uint64_t bytes,
					    void *to)
{
	const int fd = open(m->shards[shard].path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || pread(fd, to, bytes, (off_t)offset) != (ssize_t)bytes)
		require(false, "%s is read", m->shards[shard].path);
	close(fd);
}

/* An expert's record as the daemon would lay it out; malloc'ed. */
__attribute__((unused)) static uint8_t *read_record(const struct model *m, uint32_t layer, uint32_t expert,
						    struct moe_layout *layout)
{
	struct expert_source sources[EXPERT_SOURCES_MAX];
	const uint32_t n = expert_sources(m, layer, expert, sources);
	uint8_t *record;

	expert_layout(m, layer, layout);
	record = aligned_alloc(4096, layout->record_bytes);
	memset(record, 0, layout->record_bytes);
	for (uint32_t i = 0; i < n; i++) {
		const struct repack *r = &sources[i].repack;
		uint8_t *bytes = malloc(r->bytes + 1);

		read_at(m, sources[i].shard, sources[i].offset, r->bytes, bytes);
		repack(r, &(struct record_share){.layout = layout, .memory = record}, 0, r->bytes / r->granule_bytes,
		       bytes);
		free(bytes);
	}
	return record;
}

/* Root of the mean square of the differences of all weights of some experts, relative to those of `a`. */
__attribute__((unused)) static double difference(const struct model *a, const struct model *b)
{
	double error = 0, all = 0;

	for (uint32_t layer = 0; layer < a->config.n_layers; layer++) {
		const uint32_t expert = layer * 3 % a->config.n_experts;
		struct moe_layout layouts[2];
		struct moe_slice slices[2];
		uint8_t *records[2];

		if (!a->config.is_moe[layer])
			continue;
		records[0] = read_record(a, layer, expert, &layouts[0]);
		records[1] = read_record(b, layer, expert, &layouts[1]);

		for (int i = 0; i < 2; i++)
			moe_slice_of(&slices[i], &layouts[i], 0, 1);
		for (int part = 0; part < MOE_PARTS; part++) {
			const struct kernel_matrix x = record_matrix(records[0], &layouts[0], &slices[0],
								     (enum moe_part_name)part, RECORD_IN_POOL);
			const struct kernel_matrix y = record_matrix(records[1], &layouts[1], &slices[1],
								     (enum moe_part_name)part, RECORD_IN_POOL);

			for (uint32_t r = 0; r < layouts[0].part[part].rows; r++)
				for (uint32_t c = 0; c < layouts[0].part[part].cols; c++) {
					const double w = kernel_weight(&x, r, c), d = kernel_weight(&y, r, c) - w;

					error += d * d;
					all += w * w;
				}
		}
		free(records[0]);
		free(records[1]);
	}
	return sqrt(error / all);
}

/* One number of a BF16 tensor. */
__attribute__((unused)) static float element(const struct model *m, const char *name, uint64_t row, uint64_t col)
{
	const struct tensor *t = model_tensor(m, name);
	const uint64_t cols = t && t->n_dims == 2 ? t->dims[1] : 1;
	uint16_t bits;

	if (!t)
		require(false, "%s is there", name);
	read_at(m, t->shard, t->offset + 2 * (row * cols + col), 2, &bits);
	return number_from_bf16(bits);
}

#endif
