/* SPDX-License-Identifier: MIT */
/* small - files of sysfs and /proc, which are read at once. */
#ifndef BASE_SMALL_H
#define BASE_SMALL_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <unistd.h>

#include "base/cleanup.h"

/* Reads the first `size` - 1 bytes and ends them with a NUL. False when the file cannot be read. */
static inline bool small_read_at(int folder, const char *path, char *ret, size_t size)
{
	_cleanup_close_ int fd = openat(folder, path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return false;
	do {
		n = read(fd, ret, size - 1);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return false;
	ret[n] = '\0';
	return true;
}

static inline bool small_read(const char *path, char *ret, size_t size)
{
	return small_read_at(AT_FDCWD, path, ret, size);
}

#endif
