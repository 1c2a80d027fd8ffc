/* SPDX-License-Identifier: MIT */
/* doctor-system - what moectl doctor looks for in the kernel, the driver of GPUs and the disks, and what to type. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "doctor.h"
#include "moectl.h"

#define PAGE 4096 /* what the daemon's direct reads are aligned to */

static bool read_line(const char *path, char *to, size_t bytes)
{
	_cleanup_fclose_ FILE *file = fopen(path, "re");

	if (!file || !fgets(to, (int)bytes, file))
		return false;
	to[strcspn(to, "\n")] = '\0';
	return true;
}

/* The pool's memory is bound and its threads are pinned: there is nothing to move, and looking for it costs faults. */
void check_numa_balancing(struct report *r, const struct host *host)
{
	const int64_t on = host_read_number("/proc/sys/kernel/numa_balancing");

	if (on < 0)
		check(r, FINE, "NUMA balancing", NULL, "this kernel has none");
	else if (on == 0 || host->n_nodes < 2)
		check(r, FINE, "NUMA balancing", NULL, "%s", on ? "on, and one node: does nothing" : "off");
	else
		check(r, NOTE, "NUMA balancing", "sysctl kernel.numa_balancing=0",
		      "on: the kernel unmaps pages to see who uses them, though all are where they belong");
}

void check_transparent(struct report *r)
{
	const char *path = "/sys/kernel/mm/transparent_hugepage/enabled";
	char line[128], *word, *end;

	if (!read_line(path, line, sizeof line) || !(word = strchr(line, '[')) || !(end = strchr(word, ']'))) {
		check(r, NOTE, "transparent huge pages", "mount /sys, or boot a kernel that has them", "unknown");
		return;
	}
	*end = '\0';
	if (strcmp(word + 1, "never") == 0)
		check(r, NOTE, "transparent huge pages", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
		      "enabled is never: intermediate results of the pool are on small pages");
	else
		check(r, FINE, "transparent huge pages", NULL, "enabled is %s", word + 1);
}

/* A driver for GPUs that only --push-cuda and workers need. */
void check_gpu(struct report *r)
{
	char version[256];

	if (!read_line("/proc/driver/nvidia/version", version, sizeof version)) {
		check(r, FINE, "GPU driver", NULL, "none of NVIDIA: workers compute on the CPU");
		return;
	}
	if (access("/dev/nvidiactl", F_OK) < 0)
		check(r, NOTE, "GPU driver", "nvidia-modprobe -u -c 0", "%s; no /dev/nvidiactl", version);
	else if (access("/dev/nvidiactl", R_OK | W_OK) < 0)
		check(r, NOTE, "GPU driver", "add the user to the group of /dev/nvidiactl (ls -l /dev/nvidiactl)",
		      "%s; this user may not use it: %s", version, strerror(errno));
	else
		check(r, FINE, "GPU driver", NULL, "%s", version);
}

/* A file with weights: `path` itself or the first one in it. */
static int open_weights(const char *path)
{
	_cleanup_(cleanup_close) int folder = open(path, O_RDONLY | O_CLOEXEC);
	struct dirent *entry;
	struct stat st;
	int fd = -1;
	DIR *dir;

	if (folder < 0 || fstat(folder, &st) < 0)
		return -1;
	if (S_ISREG(st.st_mode))
		return open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	dir = fdopendir(dup(folder));
	while (dir && fd < 0 && (entry = readdir(dir))) {
		const char *dot = strrchr(entry->d_name, '.');

		if (dot && (strcmp(dot, ".safetensors") == 0 || strcmp(dot, ".gguf") == 0))
			fd = openat(folder, entry->d_name, O_RDONLY | O_DIRECT | O_CLOEXEC);
		if (fd < 0 && errno == EINVAL)
			break;
	}
	if (dir)
		closedir(dir);
	return fd;
}

/* Steps in which a file can be read directly; 0: this kernel or file system does not say. */
static unsigned direct_align(int fd)
{
#ifdef STATX_DIOALIGN
	struct statx st;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) == 0 && st.stx_mask & STATX_DIOALIGN)
		return st.stx_dio_offset_align;
#endif
	return 0;
}

void check_disks(struct report *r, const json_t *models)
{
	const json_t *model;
	size_t i;

	json_array_foreach (models, i, model) {
		const char *path = get_text(model, "path");
		_cleanup_(cleanup_close) int fd = -1;
		char what[128];
		unsigned align;

		snprintf(what, sizeof what, "disk of %s", get_text(model, "name"));
		errno = 0;
		fd = open_weights(path);
		if (fd < 0 && errno == EINVAL) {
			check(r, NOTE, what, "move the model to ext4, XFS or btrfs on a disk of this machine",
			      "%s: no direct reads there; loads go through the page cache", path);
			continue;
		}
		if (fd < 0) {
			check(r, NOTE, what, "run moectl doctor as the daemon's user, or root", "%s: %s", path,
			      errno ? strerror(errno) : "no file with weights there");
			continue;
		}
		align = direct_align(fd);
		if (align > PAGE)
			check(r, NOTE, what, "make the file system with blocks of 4096 bytes at most",
			      "direct reads in steps of %u bytes: loads go through the page cache", align);
		else if (align)
			check(r, FINE, what, NULL, "direct reads in steps of %u bytes", align);
		else
			check(r, FINE, what, NULL, "direct reads");
	}
}
