/* SPDX-License-Identifier: MIT */
#include "plan-file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "model/file.h"
#include "output.h"
#include "placement/expert-map.h"
#include "plan-read.h"

int plan_file_json(json_t **ret, const char *path, struct moe_error *err)
{
	_cleanup_free_ char *text = NULL;
	size_t bytes;
	int r = file_read(&text, &bytes, path, PLAN_FILE_MAX, err);

	return r < 0 ? r : plan_parse(ret, path, text, bytes, err);
}

int plan_file_map(struct placement *ret, const char *path, struct moe_error *err)
{
	_cleanup_json_ json_t *map = NULL;
	const int r = plan_file_json(&map, path, err);

	return r < 0 ? r : expert_map_read(ret, path, map, 0, err);
}

int plan_file_write_map(const struct placement *p, const char *path, const char *word, struct moe_error *err)
{
	_cleanup_json_ json_t *map = NULL;
	struct output out;
	char unfit[128];
	int r;

	snprintf(unfit, sizeof unfit, "%s: vLLM Ascend's file has no room for this plan (swift's it always has)", word);
	r = placement_check(p, unfit, err);
	if (r < 0)
		return r;
	map = expert_map_json(p);
	if (!map)
		return moe_error_set(err, -ENOMEM, "%s: no memory for the map", word);
	r = output_open(&out, path);
	if (r == 0) {
		r = json_dumpf(map, out.to, JSON_INDENT(4)) < 0 && !ferror(out.to) ? -ENOMEM : 0;
		fputc('\n', out.to);
		r = output_end(&out, r);
	}
	return r < 0 ? moe_error_sys(err, r, "%s: %s", word, path) : 0;
}

int plan_file_make_folder(const char *path, const char *word, struct moe_error *err)
{
	char folder[PATH_MAX];

	if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder)
		return moe_error_sys(err, -ENAMETOOLONG, "%s: %.200s...", word, path);
	for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (mkdir(folder, 0755) < 0 && errno != EEXIST)
			return moe_error_sys(err, -errno, "%s: folder %s", word, folder);
		*slash = '/';
	}
	return 0;
}

bool plan_file_is_map(const void *data, size_t size)
{
	static const char key[] = "\"moe_layer_count\"";

	return size && memmem(data, size, key, sizeof key - 1);
}
