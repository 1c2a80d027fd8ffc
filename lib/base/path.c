/* SPDX-License-Identifier: MIT */
#include "base/path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"

char *path_real(const char *given)
{
	const char *slash = strrchr(given, '/'), *name = slash ? slash + 1 : given;
	_cleanup_free_ char *folder = NULL, *real = NULL;
	struct stat st;
	char *ret;

	if (stat(given, &st) < 0)
		return NULL;
	if (S_ISDIR(st.st_mode))
		return realpath(given, NULL);
	folder = slash ? strndup(given, (size_t)(slash - given) + 1) : strdup(".");
	real = folder ? realpath(folder, NULL) : NULL;
	if (!real)
		return NULL;
	return asprintf(&ret, "%s/%s", real[1] ? real : "", name) < 0 ? NULL : ret;
}
