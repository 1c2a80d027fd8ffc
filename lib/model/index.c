/* SPDX-License-Identifier: MIT */
#include "model/index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "model/file.h"
#include "model/model.h"

static int check_shard_name(const char *file, const char *tensor, const char *name, struct moe_error *err)
{
	static const char suffix[] = ".safetensors";
	size_t length = strlen(name);
	char words[64], of[64];
	const char *why = NULL;

	if (strchr(name, '/') || strstr(name, "..") || name[0] == '.')
		why = "a plain file name inside the folder";
	else if (length < sizeof suffix || length > 255 || strcmp(name + length - (sizeof suffix - 1), suffix) != 0)
		why = "a file name of at most 255 bytes that ends in .safetensors";
	for (const char *c = name; *c && !why; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			why = "a file name without control characters";
	if (!why)
		return 0;
	return moe_error_set(err, -EINVAL, "%s: field \"weight_map\", tensor %s: found \"%s\"; expected %s", file,
			     file_clean(of, sizeof of, tensor), file_clean(words, sizeof words, name), why);
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* An index is flat; what is not would take many times its size of memory before anybody could say that it is none. */
static int check_flat(const char *file, const char *text, size_t bytes, struct moe_error *err)
{
	uint64_t values, containers;

	file_count_values(text, bytes, &values, &containers);
	if (containers <= INDEX_CONTAINERS_MAX)
		return 0;
	return moe_error_set(err, -EINVAL,
			     "%s: found %llu objects and lists; expected at most %u, of which one is \"weight_map\"",
			     file, (unsigned long long)containers, INDEX_CONTAINERS_MAX);
}

/* Fills shards and n_shards: each file name of the map once. */
static int collect_shards(struct index *index, const char *file, struct moe_error *err)
{
	_cleanup_json_ json_t *seen = json_object();
	const char *tensor, *name;
	size_t n = 0;
	json_t *value;
	char found[80], words[64];
	int ret;

	json_object_foreach (index->weight_map, tensor, value) {
		if (!json_is_string(value))
			return moe_error_set(err, -EINVAL,
					     "%s: field \"weight_map\", tensor %s: found %s; expected a file name",
					     file, file_clean(words, sizeof words, tensor),
					     file_describe(found, sizeof found, value));
		if (json_object_get(seen, json_string_value(value)))
			continue;
		ret = check_shard_name(file, tensor, json_string_value(value), err);
		if (ret < 0)
			return ret;
		if (json_object_set(seen, json_string_value(value), value) < 0)
			return moe_error_sys(err, -ENOMEM, "%s", file);
		if (json_object_size(seen) > MODEL_SHARDS_MAX)
			return moe_error_set(err, -E2BIG,
					     "%s: field \"weight_map\": found more than %u shards; expected no more",
					     file, MODEL_SHARDS_MAX);
	}
	index->shards = calloc(json_object_size(seen), sizeof *index->shards);
	if (!index->shards)
		return moe_error_sys(err, -ENOMEM, "%s", file);
	json_object_foreach (seen, name, value)
		index->shards[n++] = json_string_value(value); /* lives in index->json, not in `seen` */
	index->n_shards = (uint32_t)n;
	qsort(index->shards, n, sizeof *index->shards, compare_names);
	return 0;
}

int index_parse(struct index *ret, const char *file, const char *text, size_t bytes, struct moe_error *err)
{
	_cleanup_(index_free) struct index index = {0};
	char found[80];
	int r = check_flat(file, text, bytes, err);

	if (r < 0)
		return r;
	r = file_parse_object(&index.json, file, text, bytes, err);
	if (r < 0)
		return r;
	index.weight_map = json_object_get(index.json, "weight_map");
	if (!json_is_object(index.weight_map) || json_object_size(index.weight_map) == 0)
		return moe_error_set(
			err, -EINVAL,
			"%s: field \"weight_map\": found %s; expected an object that maps tensors to files", file,
			!index.weight_map                  ? "none"
			: json_is_object(index.weight_map) ? "an empty object"
							   : file_describe(found, sizeof found, index.weight_map));
	r = collect_shards(&index, file, err);
	if (r < 0)
		return r;
	*ret = index;
	index = (struct index){0};
	return 0;
}

void index_free(struct index *index)
{
	free(index->shards);
	json_decref(index->json);
	*index = (struct index){0};
}
