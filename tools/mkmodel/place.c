/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/place.h"

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
#include "model/file.h"

#define INDEX_NAME "model.safetensors.index.json"
#define CONFIG_NAME "config.json"

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

int place_check_room(const char *path, uint64_t bytes, struct moe_error *err)
{
	struct statvfs fs;

	if (statvfs(path, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < bytes)
		return moe_error_set(err, -ENOSPC, "%s: the model takes %.1f MB; the file system has %.1f MB left",
				     path, (double)bytes * 1e-6, (double)fs.f_bavail * (double)fs.f_frsize * 1e-6);
	return 0;
}

int place_open(struct place *ret, const char *path, uint32_t shards, uint64_t bytes, struct moe_error *err)
{
	struct place place = {.path = path, .shards = shards};
	int r = open_folder(path, &place.created, err);

	if (r < 0)
		return r;
	r = place_check_room(path, bytes, err);
	if (r == 0) {
		place.weight_map = json_object();
		r = place.weight_map ? 0 : moe_error_sys(err, -ENOMEM, "%s", path);
	}
	if (r < 0)
		return place_close(&place, r);
	*ret = place;
	return 0;
}

char *place_shard_name(const struct place *place, uint32_t shard)
{
	char *name;

	if (place->shards == 1)
		return strdup("model.safetensors");
	return asprintf(&name, "model-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", shard + 1, place->shards) < 0 ? NULL
														 : name;
}

int place_add(struct place *place, const char *tensor, const char *shard, struct moe_error *err)
{
	if (json_object_set_new(place->weight_map, tensor, json_string(shard)) < 0)
		return moe_error_sys(err, -ENOMEM, "%s", place->path);
	return 0;
}

int place_write_json(const char *folder, const char *name, const json_t *json, struct moe_error *err)
{
	_cleanup_free_ char *path = file_join(folder, name);

	errno = ENOMEM;
	if (!path || !json || json_dump_file(json, path, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(12)) < 0)
		return moe_error_sys(err, -errno, "%s/%s", folder, name);
	return 0;
}

int place_finish(struct place *place, uint64_t bytes, const json_t *config, struct moe_error *err)
{
	_cleanup_json_ json_t *index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)bytes,
						 "weight_map", place->weight_map);
	int r = 0;

	if (place->shards > 1)
		r = place_write_json(place->path, INDEX_NAME, index, err);
	return r < 0 ? r : place_write_json(place->path, CONFIG_NAME, config, err);
}

static void unlink_in(const char *folder, const char *name)
{
	_cleanup_free_ char *path = name ? file_join(folder, name) : NULL;

	if (path)
		unlink(path);
}

int place_close(struct place *place, int code)
{
	json_decref(place->weight_map);
	place->weight_map = NULL;
	if (code >= 0)
		return code;
	for (uint32_t shard = 0; shard < place->written; shard++) {
		_cleanup_free_ char *name = place_shard_name(place, shard);

		unlink_in(place->path, name);
	}
	unlink_in(place->path, INDEX_NAME);
	unlink_in(place->path, CONFIG_NAME);
	if (place->created)
		rmdir(place->path);
	return code;
}
