/* SPDX-License-Identifier: MIT */
/* A GGUF file: it is refused in one line, or each of its experts lies in the file and can be repacked. The input is as
 * fuzz-file.h. */
#include <errno.h>

#include "base/checked.h"
#include "model/expert.h"
#include "model/gguf.h"
#include "tests/fuzz/fuzz-file.h"

#define REPACKED_MAX (64u << 10) /* larger records are looked at, but not made */

static void check_header(const struct gguf *gguf, uint64_t whole)
{
	for (uint64_t i = 0; i < gguf->n_tensors; i++) {
		const struct tensor *t = &gguf->tensors[i];

		fuzz_check(t->name && *t->name && t->n_dims <= TENSOR_DIMS_MAX);
		fuzz_check(checked_range(t->offset, t->bytes, whole));
	}
	for (uint64_t i = 0; i < gguf->n_values; i++)
		fuzz_check(gguf_find(gguf, gguf->values[i].key) != NULL);
}

/* The first `n` bytes. True when they could be a model's. */
static bool parse(const struct fuzz_file *f, size_t n)
{
	uint8_t *alone = fuzz_alone(f->bytes, n);
	struct moe_error err = {0};
	bool named = false;
	struct gguf gguf;
	int r = gguf_parse("file", alone, n, f->whole, 0, &gguf, &err);

	if (r == 0) {
		check_header(&gguf, f->whole);
		named = gguf_find(&gguf, "general.architecture") != NULL;
		gguf_clear(&gguf);
	} else if (r != -ENODATA) {
		fuzz_check_refused(r, &err);
	}
	free(alone);
	return named;
}

static void repack_all(const struct expert_source *source, const struct moe_layout *layout, uint8_t *record)
{
	void *bytes = calloc(1, source->repack.bytes ? source->repack.bytes : 1);

	fuzz_check(bytes);
	repack(&source->repack, &(struct record_share){.layout = layout, .memory = record}, 0,
	       source->repack.bytes / source->repack.granule_bytes, bytes);
	free(bytes);
}

static void check_expert(const struct model *m, uint32_t layer, uint32_t expert)
{
	struct expert_source sources[EXPERT_SOURCES_MAX];
	const uint32_t n = expert_sources(m, layer, expert, sources);
	struct moe_layout layout;
	uint8_t *record = NULL;

	expert_layout(m, layer, &layout);
	fuzz_check(n <= EXPERT_SOURCES_MAX && layout.record_bytes > 0);
	if (layout.record_bytes <= REPACKED_MAX) {
		record = aligned_alloc(64, layout.record_bytes);
		fuzz_check(record);
	}
	for (uint32_t i = 0; i < n; i++) {
		const struct expert_source *s = &sources[i];

		fuzz_check(s->shard == 0 && checked_range(s->offset, s->repack.bytes, m->shards[0].bytes));
		fuzz_check(s->repack.granule_bytes > 0 && s->repack.bytes % s->repack.granule_bytes == 0);
		if (record && s->repack.bytes <= REPACKED_MAX)
			repack_all(s, &layout, record);
	}
	free(record);
}

/* Opening reads a megabyte: only files whose header is sound and names a family are worth it. */
static void open_model(const struct fuzz_file *f)
{
	struct moe_error err = {0};
	struct model *m = NULL;
	int r = model_open(&m, fuzz_file_write(f), &err);
	uint32_t first = 0;

	if (r < 0) {
		fuzz_check_refused(r, &err);
		fuzz_check(!m);
		return;
	}
	while (!m->config.is_moe[first])
		first++;
	check_expert(m, first, m->config.n_experts - 1);
	for (uint32_t layer = m->config.n_layers - 1; layer > first; layer--) {
		if (m->config.is_moe[layer]) {
			check_expert(m, layer, 0);
			break;
		}
	}
	model_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct fuzz_file f = fuzz_file(data, size);

	parse(&f, f.n / 2);
	if (parse(&f, f.n))
		open_model(&f);
	return 0;
}
