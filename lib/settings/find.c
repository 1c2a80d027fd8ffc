/* SPDX-License-Identifier: MIT */
/* find - which files there are to read, and in which order: as systemd does it for its own (systemd.unit(5)). */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "settings/settings.h"

#define MAIN "moe-expertd/expertd.conf"
#define DROP_INS MAIN ".d"

/* Who comes first hides the others. */
static const char *const folders[] = {"/etc", "/run", "/usr/lib"};

/* Drop-ins by name: where each is. */
struct drop_ins {
	struct drop_in {
		char *name;
		uint32_t folder;
	} * entries;
	size_t n;
};

static void drop_ins_free(struct drop_ins *d)
{
	for (size_t i = 0; i < d->n; i++)
		free(d->entries[i].name);
	free(d->entries);
}

static bool have(const struct drop_ins *d, const char *name)
{
	for (size_t i = 0; i < d->n; i++)
		if (strcmp(d->entries[i].name, name) == 0)
			return true;
	return false;
}

static int add(struct drop_ins *d, const char *name, uint32_t folder)
{
	struct drop_in *entries = realloc(d->entries, (d->n + 1) * sizeof *entries);

	if (!entries)
		return -ENOMEM;
	d->entries = entries;
	entries[d->n] = (struct drop_in){.name = strdup(name), .folder = folder};
	if (!entries[d->n].name)
		return -ENOMEM;
	d->n++;
	return 0;
}

static bool is_drop_in(const char *name)
{
	const size_t n = strlen(name);

	return *name != '.' && n > 5 && strcmp(name + n - 5, ".conf") == 0;
}

static int list(struct drop_ins *d, const char *path, uint32_t folder)
{
	DIR *dir = opendir(path);
	const struct dirent *entry;
	int r = 0;

	if (!dir)
		return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
	while (r == 0 && (errno = 0, entry = readdir(dir)))
		if (is_drop_in(entry->d_name) && !have(d, entry->d_name))
			r = add(d, entry->d_name, folder);
	if (r == 0)
		r = -errno;
	closedir(dir);
	return r;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct drop_in *)a)->name, ((const struct drop_in *)b)->name);
}

static int read_main(struct settings *s, const char *root, struct moe_error *err)
{
	char path[PATH_MAX];
	struct stat st;

	for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
		if (snprintf(path, sizeof path, "%s%s/" MAIN, root, folders[i]) >= (int)sizeof path)
			return moe_error_sys(err, -ENAMETOOLONG, "%s", root);
		if (lstat(path, &st) == 0)
			return settings_read_file(s, path, err);
		if (errno != ENOENT && errno != ENOTDIR)
			return moe_error_sys(err, -errno, "%s", path);
	}
	return 0;
}

static int read_drop_ins(struct settings *s, const char *root, struct moe_error *err)
{
	_cleanup_(drop_ins_free) struct drop_ins d = {0};
	char path[PATH_MAX];
	int r;

	for (uint32_t i = 0; i < ARRAY_LEN(folders); i++) {
		snprintf(path, sizeof path, "%s%s/" DROP_INS, root, folders[i]);
		r = list(&d, path, i);
		if (r < 0)
			return moe_error_sys(err, r, "%s", path);
	}
	if (d.n > 0)
		qsort(d.entries, d.n, sizeof *d.entries, by_name);
	for (size_t i = 0; i < d.n; i++) {
		if (snprintf(path, sizeof path, "%s%s/" DROP_INS "/%s", root, folders[d.entries[i].folder],
			     d.entries[i].name) >= (int)sizeof path)
			return moe_error_sys(err, -ENAMETOOLONG, "%s", d.entries[i].name);
		r = settings_read_file(s, path, err);
		if (r < 0)
			return r;
	}
	return 0;
}

int settings_read(struct settings *s, const char *root, struct moe_error *err)
{
	const int r = read_main(s, root, err);

	return r < 0 ? r : read_drop_ins(s, root, err);
}

int settings_load(struct settings *s, const char *file, const char *root, struct moe_error *err)
{
	if (!file && !*root)
		file = getenv("MOE_EXPERTD_CONFIG");
	return file && *file ? settings_read_file(s, file, err) : settings_read(s, root, err);
}
