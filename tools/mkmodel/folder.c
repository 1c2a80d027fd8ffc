/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/folder.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "tools/mkmodel/config.h"
#include "model/file.h"
#include "tools/mkmodel/shard.h"

#define SHARD_BYTES 5000000000u    /* the usual size of a published shard */
#define SHARD_TENSORS 32768u       /* well below what readers accept */
#define PROGRESS_FROM (256u << 20) /* bytes: below that it takes no time */
#define INDEX_NAME "model.safetensors.index.json"

static void cleanup_catalog(struct catalog **catalog)
{
	catalog_free(*catalog);
}

static void cleanup_normal(struct normal **normal)
{
	normal_free(*normal);
}

/* Creates the folder, or finds it empty. *ret_created: it is ours to remove. */
static int open_folder(const char *path, bool *ret_created, struct moe_error *err)
{
	const struct dirent *entry;
	DIR *folder;

	*ret_created = mkdir(path, 0777) == 0;
	if (*ret_created)
		return 0;
	if (errno != EEXIST)
		return moe_error_sys(err, -errno, "%s", path);
	folder = opendir(path);
	if (!folder)
		return moe_error_sys(err, -errno, "%s", path);
	do {
		errno = 0;
		entry = readdir(folder);
	} while (entry && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
	closedir(folder);
	if (entry)
		return moe_error_set(err, -ENOTEMPTY, "%s: the folder is not empty; give a new or an empty one", path);
	return 0;
}

static int check_room(const char *path, uint64_t bytes, struct moe_error *err)
{
	struct statvfs fs;

	if (statvfs(path, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < bytes)
		return moe_error_set(err, -ENOSPC, "%s: the model takes %.1f MB; the file system has %.1f MB left",
				     path, (double)bytes * 1e-6, (double)fs.f_bavail * (double)fs.f_frsize * 1e-6);
	return 0;
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
	const char *path;
	const struct spec *spec;
	struct catalog *catalog;
	struct normal *normal;
	struct progress progress;
	uint32_t shards, written; /* files of shards */
	json_t *weight_map;
};

/* A model of one shard has no number in its name and no index, as published. malloc'ed, inside the folder. */
static char *shard_name(const struct writer *w, uint32_t shard)
{
	char *name;

	if (w->shards == 1)
		return strdup("model.safetensors");
	return asprintf(&name, "model-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", shard + 1, w->shards) < 0 ? NULL
													     : name;
}

static int write_shards(struct writer *w, struct moe_error *err)
{
	struct catalog *c = w->catalog;
	uint64_t first = 0, bytes = 0, n;
	int ret;

	for (uint32_t shard = 0; shard < w->shards; shard++, first += n) {
		_cleanup_free_ char *name = shard_name(w, shard);
		_cleanup_free_ char *path = name ? file_join(w->path, name) : NULL;

		if (!path)
			return moe_error_sys(err, -ENOMEM, "%s", w->path);
		n = share(c, first, bytes, shard, w->shards);
		ret = shard_write(path, &c->items[first], n, w->spec->seed, w->normal, &w->progress, err);
		if (ret < 0)
			return ret;
		w->written++;
		for (uint64_t i = first; i < first + n; i++) {
			bytes += c->items[i].bytes;
			if (json_object_set_new(w->weight_map, c->items[i].name, json_string(name)) < 0)
				return moe_error_sys(err, -ENOMEM, "%s", w->path);
		}
	}
	return 0;
}

static int write_json(const char *folder, const char *name, const json_t *json, struct moe_error *err)
{
	_cleanup_free_ char *path = file_join(folder, name);

	errno = ENOMEM;
	if (!path || !json || json_dump_file(json, path, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(12)) < 0)
		return moe_error_sys(err, -errno, "%s/%s", folder, name);
	return 0;
}

static int write_index(const struct writer *w, struct moe_error *err)
{
	_cleanup_json_ json_t *index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size",
						 (json_int_t)w->catalog->bytes, "weight_map", w->weight_map);

	if (w->shards == 1)
		return 0;
	return write_json(w->path, INDEX_NAME, index, err);
}

static int write_config(const struct writer *w, struct moe_error *err)
{
	_cleanup_json_ json_t *config = config_new(w->spec);

	return write_json(w->path, "config.json", config, err);
}

static void unlink_in(const char *folder, const char *name)
{
	_cleanup_free_ char *path = name ? file_join(folder, name) : NULL;

	if (path)
		unlink(path);
}

static void remove_written(const struct writer *w, bool created)
{
	for (uint32_t shard = 0; shard < w->written; shard++) {
		_cleanup_free_ char *name = shard_name(w, shard);

		unlink_in(w->path, name);
	}
	unlink_in(w->path, INDEX_NAME);
	unlink_in(w->path, "config.json");
	if (created)
		rmdir(w->path);
}

int folder_write(const char *path, const struct spec *spec, bool progress, struct folder_result *ret,
		 struct moe_error *err)
{
	_cleanup_(cleanup_catalog) struct catalog *catalog = NULL;
	_cleanup_(cleanup_normal) struct normal *normal = NULL;
	_cleanup_json_ json_t *weight_map = json_object();
	struct writer w = {.path = path, .spec = spec, .weight_map = weight_map};
	bool created;
	int r;

	r = catalog_new(&catalog, spec, err);
	if (r < 0)
		return r;
	r = normal_new(&normal, err);
	if (r < 0)
		return r;
	w.catalog = catalog;
	w.normal = normal;
	w.shards = count_shards(spec, catalog);
	if (w.shards > catalog->n_items)
		return moe_error_set(err, -EINVAL, "--shards %" PRIu32 " is more than the model's %" PRIu64 " tensors",
				     w.shards, catalog->n_items);
	r = open_folder(path, &created, err);
	if (r < 0)
		return r;
	w.progress = (struct progress){
		.shown = progress && catalog->bytes >= PROGRESS_FROM, .total = catalog->bytes, .started_ns = now_ns()};
	r = check_room(path, catalog->bytes, err);
	if (r == 0)
		r = write_shards(&w, err);
	if (r == 0)
		r = write_index(&w, err);
	if (r == 0)
		r = write_config(&w, err);
	if (r < 0) {
		remove_written(&w, created);
		return r;
	}
	*ret = (struct folder_result){.n_tensors = catalog->n_items, .bytes = catalog->bytes, .shards = w.shards};
	return 0;
}
