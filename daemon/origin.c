/* SPDX-License-Identifier: MIT */
#include "daemon/origin.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/manifest.h"

/* What is laid out anew now must be what the manifest was made of, or it would not fit. */
static int check_model(const struct origin *o, const struct model *model, struct moe_error *err)
{
	const struct moe_manifest *have = o->manifest;
	_cleanup_free_ struct moe_manifest *m = NULL;
	bool same;
	int c = manifest_new(&m, model, have->n_pools, err);

	if (c < 0)
		return c;
	same = m->n_pools == have->n_pools && m->n_layouts == have->n_layouts && m->bytes == have->bytes &&
	       memcmp(&m->n_layers, &have->n_layers, 8 * sizeof m->n_layers) == 0 &&
	       memcmp(manifest_layer_index(m), manifest_layer_index(have), m->n_layers * sizeof(int32_t)) == 0 &&
	       memcmp(manifest_layouts(m), manifest_layouts(have), m->n_layouts * sizeof(struct moe_layout)) == 0;
	for (uint64_t i = 0; same && i < (uint64_t)m->n_moe_layers * m->n_experts; i++)
		same = manifest_records(m)[i].layout == manifest_records(have)[i].layout;
	return same ? 0
		    : moe_error_set(err, -ESTALE,
				    "%s: another model found than the one that was loaded from there as '%s': put its "
				    "files back, or unload it and load it again",
				    o->path, have->name);
}

static int take_model(struct origin *o, struct model *model, struct moe_error *err)
{
	struct shardfile *files = calloc(MAX(model->n_shards, 1u), sizeof *files);

	if (!files) {
		model_free(model);
		return moe_error_set(err, -ENOMEM, "%s: no memory for %u files", o->path, model->n_shards);
	}
	for (uint32_t i = 0; i < model->n_shards; i++)
		files[i].fd = -1;
	o->files = files;
	o->model = model;
	return 0;
}

/* What files these were, their header's reader has seen; whether they are what was loaded, digests say from now on. */
static void forget_files(struct model *model)
{
	for (uint32_t i = 0; i < model->n_shards; i++)
		model->shards[i].id = (struct file_id){0};
}

/* Another model takes long to read, and many records ask for it: as long as that took, all hear the same. */
int origin_open(struct origin *o, struct moe_error *err)
{
	const uint64_t begin = now_ns();
	struct model *model = NULL;
	int c;

	if (o->model)
		return 0;
	if (begin < o->failed_ns) {
		*err = o->failed;
		return err->code;
	}
	c = model_open(&model, o->path, err);
	if (c == 0)
		c = check_model(o, model, err);
	if (c == 0) {
		forget_files(model);
		return take_model(o, model, err);
	}
	model_free(model);
	o->failed = *err;
	o->failed_ns = now_ns() + (now_ns() - begin);
	return c;
}

int origin_check_files(const struct origin *o, struct moe_error *err)
{
	int c = 0;

	for (uint32_t i = 0; c == 0 && o->files && i < o->model->n_shards; i++)
		if (o->files[i].fd >= 0)
			c = shardfile_check(&o->files[i], err);
	return c;
}

static int open_file(struct origin *o, uint32_t shard, struct moe_error *err)
{
	struct shardfile *file = &o->files[shard];
	const int c = file->fd < 0 ? shardfile_open(file, &o->model->shards[shard], o->buffered, err) : 0;

	if (c == 0 && !file->direct && !atomic_exchange(&o->indirect, true))
		log_notice("%s: misses are read through the page cache%s", o->path,
			   o->buffered ? "" : ", O_DIRECT does not work on this file system");
	return c;
}

uint64_t origin_granule(const struct origin *o)
{
	struct expert_source sources[EXPERT_SOURCES_MAX];
	uint64_t largest = 1;

	/* All experts of a layer are alike. */
	for (uint32_t row = 0; row < o->manifest->n_moe_layers; row++)
		for (uint32_t n = expert_sources(o->model, o->layers[row], 0, sources); n-- > 0;)
			largest = MAX(largest, sources[n].repack.granule_bytes);
	return MIN(largest, PIECE_GRANULE_MAX);
}

int origin_list(struct origin *o, uint32_t record, struct piece ret[EXPERT_SOURCES_MAX], uint32_t *ret_n,
		struct moe_error *err)
{
	const uint32_t row = record / o->manifest->n_experts, expert = record % o->manifest->n_experts;
	struct expert_source sources[EXPERT_SOURCES_MAX];
	const uint32_t n = expert_sources(o->model, o->layers[row], expert, sources);
	uint64_t bytes, granule;
	int c = 0;

	for (uint32_t i = 0; i < n; i++)
		ret[i] = (struct piece){.offset = sources[i].offset,
					.shard = sources[i].shard,
					.record = record,
					.repack = sources[i].repack};
	piece_sort(ret, n);
	*ret_n = n;
	for (uint32_t i = 0; c == 0 && i < n; i++)
		c = open_file(o, ret[i].shard, err);
	return c < 0 ? c : piece_check(ret, n, o->model->shards, &bytes, &granule, err);
}

int origin_check(const struct origin *o, uint32_t record, const uint8_t *const *share, const struct piece *first,
		 uint8_t *learn, struct moe_error *err)
{
	const struct moe_manifest *m = o->manifest;
	const uint32_t row = record / m->n_experts, expert = record % m->n_experts;
	uint8_t digest[MOE_DIGEST_BYTES];

	manifest_record_digest(learn ? learn : digest, manifest_layout(m, row), share);
	if (learn || memcmp(digest, manifest_records(m)[record].digest, sizeof digest) == 0)
		return 0;
	return moe_error_set(err, -ESTALE,
			     "%s: offset %" PRIu64 ": layer %u expert %u is not what was loaded from there as '%s': "
			     "put the file back, or unload the model and load it again",
			     o->model->shards[first->shard].path, first->offset, o->layers[row], expert, m->name);
}

int origin_init(struct origin *ret, const char *path, const struct moe_manifest *m, struct model *model, bool buffered,
		struct moe_error *err)
{
	const int32_t *index = manifest_layer_index(m);

	*ret = (struct origin){.manifest = m, .buffered = buffered};
	ret->path = strdup(path);
	ret->layers = calloc(m->n_moe_layers, sizeof *ret->layers);
	if (!ret->path || !ret->layers) {
		model_free(model);
		return moe_error_set(err, -ENOMEM, "%s: no memory for a list of %u layers", path, m->n_moe_layers);
	}
	for (uint32_t layer = 0; layer < m->n_layers; layer++)
		if (index[layer] >= 0)
			ret->layers[index[layer]] = layer;
	return model ? take_model(ret, model, err) : 0;
}

void origin_end(struct origin *o)
{
	for (uint32_t i = 0; o->files && i < o->model->n_shards; i++)
		shardfile_close(&o->files[i]);
	free(o->files);
	model_free(o->model);
	free(o->layers);
	free(o->path);
}
