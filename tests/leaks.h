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

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
#define LEAKS_COUNT_MAPS 0
#else
#define LEAKS_COUNT_MAPS 1
#endif

struct leaks {
	unsigned fds, maps, memory_files;
};

static inline struct leaks leaks_now(void)
{
	struct leaks now = {0};
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "re");
	DIR *fds;

	while (maps && fgets(line, sizeof line, maps)) {
		now.maps++;
		now.memory_files += strstr(line, "/memfd:") != NULL;
	}
	if (maps)
		fclose(maps);
	fds = opendir("/proc/self/fd");
	while (fds && readdir(fds))
		now.fds++;
	if (fds)
		closedir(fds);
	return now;
}

/* `repeated`: how often the call was made in between. */
static inline bool leaks_none(const struct leaks *before, unsigned repeated)
{
	const struct leaks now = leaks_now();
	const bool good = now.fds == before->fds && now.memory_files == before->memory_files &&
			  (!LEAKS_COUNT_MAPS || now.maps < before->maps + repeated);

	if (!good)
		printf("# fds %u then %u now, mappings %u and %u, of memory files %u and %u\n", before->fds, now.fds,
		       before->maps, now.maps, before->memory_files, now.memory_files);
	return good;
}

#endif
