/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/folder.h"

#include <errno.h>
#include <inttypes.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "model/file.h"
#include "tools/mkmodel/config.h"
#include "tools/mkmodel/place.h"
#include "tools/mkmodel/shard.h"

#define SHARD_BYTES 5000000000u /* the usual size of a published shard */
#define SHARD_TENSORS 32768u    /* well below what readers accept */

static void cleanup_catalog(struct catalog **catalog)
{
	catalog_free(*catalog);
}

static void cleanup_normal(struct normal **normal)
{
	normal_free(*normal);
}

static uint32_t count_shards(const struct spec *spec, const struct catalog *catalog)
{
	uint64_t by_size = DIV_UP(catalog->bytes, SHARD_BYTES), by_count = DIV_UP(catalog->n_items, SHARD_TENSORS);

	if (spec->shards)
		return spec->shards;
	return (uint32_t)MAX(MAX(by_size, by_count), 1);
}

/* How many items from `first` on go into shard `shard`: an even share of the bytes, at least one, at least one left for
 * each shard behind it. */
static uint64_t share(const struct catalog *c, uint64_t first, uint64_t bytes_before, uint32_t shard, uint32_t shards)
{
	uint64_t last = c->n_items - (shards - 1 - shard), n = 0;
	uint64_t end = (uint64_t)((double)c->bytes * (shard + 1) / shards);

	if (shard == shards - 1)
		return c->n_items - first;
	while (first + n < last && (n == 0 || bytes_before < end))
		bytes_before += c->items[first + n++].bytes;
	return n;
}

struct writer {
	const struct spec *spec;
	struct catalog *catalog;
	struct normal *normal;
	struct progress progress;
	struct place place;
};

static int write_shards(struct writer *w, struct moe_error *err)
{
	struct catalog *c = w->catalog;
	uint64_t first = 0, bytes = 0, n;
	int ret;

	for (uint32_t shard = 0; shard < w->place.shards; shard++, first += n) {
		_cleanup_free_ char *name = place_shard_name(&w->place, shard);
		_cleanup_free_ char *path = name ? file_join(w->place.path, name) : NULL;

		if (!path)
			return moe_error_sys(err, -ENOMEM, "%s", w->place.path);
		n = share(c, first, bytes, shard, w->place.shards);
		ret = shard_write(path, &c->items[first], n, w->spec->seed, w->normal, &w->progress, err);
		if (ret < 0)
			return ret;
		w->place.written++;
		for (uint64_t i = first; i < first + n; i++) {
			bytes += c->items[i].bytes;
			ret = place_add(&w->place, c->items[i].name, name, err);
			if (ret < 0)
				return ret;
		}
	}
	return 0;
}

static int write_all(struct writer *w, struct moe_error *err)
{
	_cleanup_json_ json_t *config = config_new(w->spec);
	int ret = write_shards(w, err);

	return ret < 0 ? ret : place_finish(&w->place, w->catalog->bytes, config, err);
}

int folder_write(const char *path, const struct spec *spec, bool progress, struct folder_result *ret,
		 struct moe_error *err)
{
	_cleanup_(cleanup_catalog) struct catalog *catalog = NULL;
	_cleanup_(cleanup_normal) struct normal *normal = NULL;
	struct writer w = {.spec = spec};
	uint32_t shards;
	int r;

	r = catalog_new(&catalog, spec, err);
	if (r < 0)
		return r;
	r = normal_new(&normal, err);
	if (r < 0)
		return r;
	shards = count_shards(spec, catalog);
	if (shards > catalog->n_items)
		return moe_error_set(err, -EINVAL, "--shards %" PRIu32 " is more than the model's %" PRIu64 " tensors",
				     shards, catalog->n_items);
	r = place_open(&w.place, path, shards, catalog->bytes, err);
	if (r < 0)
		return r;
	w.catalog = catalog;
	w.normal = normal;
	w.progress = progress_start(progress, catalog->bytes);
	r = place_close(&w.place, write_all(&w, err));
	if (r < 0)
		return r;
	*ret = (struct folder_result){.n_tensors = catalog->n_items, .bytes = catalog->bytes, .shards = shards};
	return 0;
}
