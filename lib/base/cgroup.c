/* SPDX-License-Identifier: MIT */
#include "base/cgroup.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/small.h"

#define ROOT "/sys/fs/cgroup"

static void walk_path(int version, const char *root, const char *path, void (*look)(int, int, void *), void *userdata)
{
	char folder[PATH_MAX + 64], *end;

	snprintf(folder, sizeof folder, "%s%s", root, path);
	for (;;) {
		_cleanup_close_ int fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);

		if (fd >= 0)
			look(fd, version, userdata);
		end = strrchr(folder, '/');
		if (end < folder + strlen(root))
			return;
		*end = '\0';
	}
}

/* "4:cpu,memory:/path" names controllers of version 1. */
static bool names(const char *controllers, size_t n, const char *controller)
{
	const size_t length = strlen(controller);

	for (size_t i = 0; i + length <= n; i++)
		if (strncmp(controllers + i, controller, length) == 0 && (i == 0 || controllers[i - 1] == ',') &&
		    (i + length == n || controllers[i + length] == ','))
			return true;
	return false;
}

void cgroup_walk(const char *controller, void (*look)(int folder, int version, void *userdata), void *userdata)
{
	char text[PATH_MAX], root[64], *rest = NULL;

	if (!small_read("/proc/self/cgroup", text, sizeof text))
		return;
	snprintf(root, sizeof root, ROOT "/%s", controller);
	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		const char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;

		if (!path)
			continue;
		if (strncmp(line, "0::", 3) == 0)
			walk_path(2, ROOT, path + 1, look, userdata);
		else if (names(controllers + 1, (size_t)(path - controllers - 1), controller))
			walk_path(1, root, path + 1, look, userdata);
	}
}
