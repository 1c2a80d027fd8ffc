/* SPDX-License-Identifier: MIT */
#include "daemon/heat-file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"

#define NAME_BYTES (sizeof "heat-.new" + 2 * MOE_DIGEST_BYTES)

static void name_of(char to[NAME_BYTES], const struct heat_page *page, const char *end)
{
	size_t n = (size_t)snprintf(to, NAME_BYTES, "heat-");

	for (int i = 0; i < MOE_DIGEST_BYTES; i++)
		n += (size_t)snprintf(to + n, NAME_BYTES - n, "%02x", page->digest[i]);
	snprintf(to + n, NAME_BYTES - n, "%s", end);
}

static int open_folder(const char *folder, struct moe_error *err)
{
	int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? moe_error_sys(err, -errno, "%s: the folder of heat files (StateDirectory=)", folder) : fd;
}

/* -- reading ------------------------------------------------------------------------------------------------------ */

static int read_whole(int fd, void *to, uint64_t bytes)
{
	uint64_t at = 0;

	while (at < bytes) {
		const ssize_t n = read(fd, (uint8_t *)to + at, bytes - at);

		if (n == 0)
			return -ENODATA;
		if (n < 0 && errno != EINTR)
			return -errno;
		at += n > 0 ? (uint64_t)n : 0;
	}
	return 0;
}

static int read_open(int fd, struct heat_page *page, struct moe_error *err)
{
	const uint64_t expected = heat_bytes(page->rows, page->experts);
	_cleanup_free_ void *bytes = NULL;
	struct stat st;
	int r;

	if (fstat(fd, &st) < 0)
		return moe_error_sys(err, -errno, "cannot examine it");
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != expected)
		return moe_error_set(err, -EBADMSG, "a file of %llu bytes expected, %lld found",
				     (unsigned long long)expected, (long long)st.st_size);
	bytes = malloc(expected);
	if (!bytes)
		return moe_error_sys(err, -ENOMEM, "%llu bytes", (unsigned long long)expected);
	r = read_whole(fd, bytes, expected);
	if (r < 0)
		return moe_error_sys(err, r, "cannot read it");
	return heat_decode(page, bytes, expected, err);
}

int heat_file_read(const char *folder, struct heat_page *page, struct moe_error *err)
{
	_cleanup_close_ int dir = open_folder(folder, err), fd = -1;
	char name[NAME_BYTES];
	struct moe_error why;
	int r;

	if (dir < 0)
		return dir == -ENOENT ? -ENOTDIR : dir; /* that there is no file is no error */
	name_of(name, page, "");
	fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return moe_error_sys(err, -errno, "%s/%s", folder, name);
	r = read_open(fd, page, &why);
	return r < 0 ? moe_error_set(err, r, "%s/%s: %s", folder, name, why.text) : 0;
}

/* -- writing ------------------------------------------------------------------------------------------------------ */

static int write_whole(int fd, const void *from, uint64_t bytes)
{
	uint64_t at = 0;

	while (at < bytes) {
		const ssize_t n = write(fd, (const uint8_t *)from + at, bytes - at);

		if (n < 0 && errno != EINTR)
			return -errno;
		at += n > 0 ? (uint64_t)n : 0;
	}
	return fsync(fd) < 0 ? -errno : 0;
}

int heat_file_write(const char *folder, const struct heat_page *encoded, struct moe_error *err)
{
	_cleanup_close_ int dir = open_folder(folder, err), fd = -1;
	char name[NAME_BYTES], new[NAME_BYTES];
	int r;

	if (dir < 0)
		return dir;
	name_of(name, encoded, "");
	name_of(new, encoded, ".new");
	unlinkat(dir, new, 0); /* of a daemon that was killed */
	fd = openat(dir, new, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	r = fd < 0 ? -errno : write_whole(fd, encoded, heat_bytes(encoded->rows, encoded->experts));
	if (r == 0 && renameat(dir, new, dir, name) < 0)
		r = -errno;
	if (r == 0 && fsync(dir) < 0)
		r = -errno;
	if (r == 0)
		return 0;
	unlinkat(dir, new, 0);
	return moe_error_sys(err, r, "%s/%s: the model's heat cannot be saved", folder, name);
}

int heat_file_remove(const char *folder, const struct heat_page *page, struct moe_error *err)
{
	_cleanup_close_ int dir = open_folder(folder, err);
	char name[NAME_BYTES];

	if (dir < 0)
		return dir;
	name_of(name, page, "");
	if (unlinkat(dir, name, 0) < 0 && errno != ENOENT)
		return moe_error_sys(err, -errno, "%s/%s: cannot be removed", folder, name);
	return 0;
}

/* -- beside the reactor ------------------------------------------------------------------------------------------- */

static void *run(void *userdata)
{
	struct heat_save *save = userdata;

	struct moe_error err;
	int r;

	pthread_setname_np(pthread_self(), "moe-heat");
	if (save->before)
		save->code = heat_save_join(save->before, &save->error);
	r = (save->removes ? heat_file_remove : heat_file_write)(save->folder, save->copy, &err);
	if (r < 0 && save->code == 0) {
		save->code = r;
		save->error = err;
	}
	atomic_store(&save->done, true);
	return NULL;
}

static int start(struct heat_save **ret, const struct heat_save *what)
{
	struct heat_save *save = malloc(sizeof *save);
	int r = -ENOMEM;

	if (save && what->copy) {
		*save = *what;
		r = -pthread_create(&save->thread, NULL, run, save);
	}
	if (r < 0) {
		free(what->copy);
		free(save);
		return r;
	}
	*ret = save;
	return 0;
}

int heat_save_start(struct heat_save **ret, const char *folder, const struct heat_page *page, struct heat_save *before)
{
	struct heat_page *copy = malloc(heat_bytes(page->rows, page->experts));

	if (copy)
		heat_encode(copy, page);
	return start(ret, &(struct heat_save){.folder = folder, .before = before, .copy = copy});
}

int heat_remove_start(struct heat_save **ret, const char *folder, const struct heat_page *page,
		      struct heat_save *before)
{
	struct heat_page *copy = malloc(sizeof *copy);

	if (copy)
		*copy = *page;
	return start(ret, &(struct heat_save){.folder = folder, .before = before, .copy = copy, .removes = true});
}

int heat_save_join(struct heat_save *save, struct moe_error *err)
{
	int r;

	pthread_join(save->thread, NULL);
	r = save->code;
	if (r < 0 && err)
		*err = save->error;
	free(save->copy);
	free(save);
	return r;
}
