/* SPDX-License-Identifier: MIT */
/*
 * leaks - what a test holds right now, as the kernel counts it: open fds and mappings.
 *
 * Repeat a failing call, compare before and after. Threads and malloc keep a few mappings for later, so mappings are
 * compared over many repetitions (and not under a sanitizer, which maps shadow memory as it goes); fds and mappings of
 * memory files must be exactly as before.
 */
#ifndef TESTS_LEAKS_H
#define TESTS_LEAKS_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
#define LEAKS_COUNT_MAPS 0
#else
#define LEAKS_COUNT_MAPS 1
#endif

struct leaks {
	int fds;
	unsigned maps, memory_files;
};

/* Open descriptors of a process, and always the same few more: ".", "..", of this process also what reads them; -1
 * without /proc. */
static inline int leaks_fds(pid_t pid)
{
	char path[64];
	DIR *dir;
	int n = 0;

	snprintf(path, sizeof path, "/proc/%d/fd", pid);
	dir = opendir(path);
	if (!dir)
		return -1;
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static inline struct leaks leaks_now(void)
{
	struct leaks now = {.fds = leaks_fds(getpid())};
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "re");

	while (maps && fgets(line, sizeof line, maps)) {
		now.maps++;
		now.memory_files += strstr(line, "/memfd:") != NULL;
	}
	if (maps)
		fclose(maps);
	return now;
}

/* `repeated`: how often the call was made in between. */
static inline bool leaks_none(const struct leaks *before, unsigned repeated)
{
	const struct leaks now = leaks_now();
	const bool good = now.fds == before->fds && now.memory_files == before->memory_files &&
			  (!LEAKS_COUNT_MAPS || now.maps < before->maps + repeated);

	if (!good)
		printf("# fds %d then %d now, mappings %u and %u, of memory files %u and %u\n", before->fds, now.fds,
		       before->maps, now.maps, before->memory_files, now.memory_files);
	return good;
}

#endif
