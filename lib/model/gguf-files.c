/* SPDX-License-Identifier: MIT */
/*
 * Which files are a GGUF model: the one at the path, or all parts of it when its name says that it is one of several,
 * or what a folder holds. What stands beside a model (a projector, a draft head: "mmproj-", "mtp-") is not part of it.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "model/file.h"
#include "model/gguf.h"
#include "model/index.h"

#define ENDING ".gguf"
#define PART_LENGTH 20 /* "-00001-of-00003.gguf" */

static void close_folder(DIR **folder)
{
	if (*folder)
		closedir(*folder);
}

static bool ends_well(const char *name)
{
	const size_t length = strlen(name), ending = strlen(ENDING);

	return length > ending && strcmp(name + length - ending, ENDING) == 0;
}

static bool five_digits(const char *text, uint32_t *ret)
{
	uint32_t value = 0;

	for (int i = 0; i < 5; i++) {
		if (text[i] < '0' || text[i] > '9')
			return false;
		value = value * 10 + (uint32_t)(text[i] - '0');
	}
	*ret = value;
	return true;
}

/* How many parts there are of what has this name: 1 when it is no part. *stem: the length of the name before. */
static uint32_t parts_of(const char *name, size_t *stem)
{
	const size_t length = strlen(name);
	uint32_t number, count;
	const char *part;

	*stem = length;
	if (length <= PART_LENGTH)
		return 1;
	part = name + length - PART_LENGTH;
	if (part[0] != '-' || strncmp(part + 6, "-of-", 4) != 0 || strcmp(part + 15, ENDING) != 0 ||
	    !five_digits(part + 1, &number) || !five_digits(part + 10, &count) || number == 0 || number > count)
		return 1;
	*stem = length - PART_LENGTH;
	return count;
}

static bool is_model_file(const char *name)
{
	return ends_well(name) && name[0] != '.' && strncmp(name, "mmproj-", 7) != 0 && strncmp(name, "mtp-", 4) != 0;
}

static bool same_model(const char *a, const char *b)
{
	size_t stem_a, stem_b;
	const uint32_t n = parts_of(a, &stem_a);

	return n == parts_of(b, &stem_b) && n > 1 && stem_a == stem_b && strncmp(a, b, stem_a) == 0;
}

/* A file of the folder's only model. -ENOENT: there is none. */
static int look_in(const char *path, char **ret, struct moe_error *err)
{
	_cleanup_(close_folder) DIR *folder = opendir(path);
	_cleanup_free_ char *first = NULL;
	const struct dirent *entry;

	if (!folder)
		return moe_error_sys(err, -errno, "%s", path);
	while ((entry = readdir(folder))) {
		if (!is_model_file(entry->d_name) || (first && same_model(first, entry->d_name)))
			continue;
		if (first)
			return moe_error_set(
				err, -EINVAL,
				"%s: found several GGUF models, for example %s and %s; expected one: give the "
				"file itself",
				path, first, entry->d_name);
		first = strdup(entry->d_name);
		if (!first)
			return moe_error_sys(err, -ENOMEM, "%s", path);
	}
	if (!first)
		return moe_error_set(err, -ENOENT, "%s: found no file that ends in " ENDING "; expected a GGUF model",
				     path);
	*ret = file_join(path, first);
	return *ret ? 0 : moe_error_sys(err, -ENOMEM, "%s", path);
}

char **gguf_files_free(char **files, uint32_t n)
{
	for (uint32_t i = 0; files && i < n; i++)
		free(files[i]);
	free(files);
	return NULL;
}

static int list_parts(const char *file, char **files, uint32_t n, size_t stem, struct moe_error *err)
{
	for (uint32_t i = 0; i < n; i++) {
		if (n == 1)
			files[i] = strdup(file);
		else if (asprintf(&files[i], "%.*s-%05u-of-%05u" ENDING, (int)stem, file, i + 1, n) < 0)
			files[i] = NULL;
		if (!files[i])
			return moe_error_sys(err, -ENOMEM, "%s", file);
		if (access(files[i], F_OK) < 0 && errno == ENOENT)
			return moe_error_set(err, -ENOENT,
					     "%s: this part is missing; expected all %u parts in one folder (is the "
					     "download complete?)",
					     files[i], n);
	}
	return 0;
}

int gguf_files(const char *path, char ***ret, uint32_t *ret_n, struct moe_error *err)
{
	_cleanup_free_ char *file = NULL;
	struct stat st;
	char **files;
	size_t stem;
	uint32_t n;
	int r = 0;

	if (stat(path, &st) < 0)
		return moe_error_sys(err, -errno, "%s", path);
	if (S_ISDIR(st.st_mode)) {
		r = look_in(path, &file, err);
		if (r < 0)
			return r;
	} else {
		file = strdup(path);
	}
	if (!file)
		return moe_error_sys(err, -ENOMEM, "%s", path);
	n = parts_of(file, &stem);
	if (n > MODEL_SHARDS_MAX)
		return moe_error_set(err, -E2BIG, "%s: found a part of %u; expected at most %u", file, n,
				     MODEL_SHARDS_MAX);
	files = calloc(n, sizeof *files);
	if (!files)
		return moe_error_sys(err, -ENOMEM, "%s", path);
	r = list_parts(file, files, n, stem, err);
	if (r < 0) {
		gguf_files_free(files, n);
		return r;
	}
	*ret = files;
	*ret_n = n;
	return 0;
}

static bool begins_well(const char *path)
{
	_cleanup_close_ int fd = -1;
	uint64_t bytes;
	char magic[4];

	fd = file_open(path, &bytes, NULL);
	return fd >= 0 && bytes >= sizeof magic && file_read_at(fd, path, magic, sizeof magic, 0, NULL) == 0 &&
	       memcmp(magic, "GGUF", sizeof magic) == 0;
}

/* Folders with GGUF files often have a config.json as well: what tells is where the weights are. */
static bool folder_is(const char *path)
{
	static const char *const published[] = {INDEX_FILE, SINGLE_FILE};
	_cleanup_(close_folder) DIR *folder = NULL;
	const struct dirent *entry;

	for (size_t i = 0; i < ARRAY_LEN(published); i++) {
		_cleanup_free_ char *file = file_join(path, published[i]);

		if (!file || access(file, F_OK) == 0)
			return false;
	}
	folder = opendir(path);
	while (folder && (entry = readdir(folder)))
		if (is_model_file(entry->d_name))
			return true;
	return false;
}

bool gguf_is(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return false;
	if (S_ISDIR(st.st_mode))
		return folder_is(path);
	return S_ISREG(st.st_mode) && (ends_well(path) || begins_well(path));
}
