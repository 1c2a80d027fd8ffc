/* SPDX-License-Identifier: MIT */
/*
 * fuzz-fds - that an input leaves no descriptor behind: they are counted after the first input and now and then.
 */
#ifndef TESTS_FUZZ_FUZZ_FDS_H
#define TESTS_FUZZ_FUZZ_FDS_H

#include <dirent.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

#define FUZZ_FDS_EVERY 64 /* inputs: counting takes as long as some of them */

/* But for pipes: the fuzzer's own, to the program that names functions. */
static inline int fuzz_count_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	char to[64];
	int n = 0;

	while (folder && (entry = readdir(folder))) {
		const ssize_t bytes = readlinkat(dirfd(folder), entry->d_name, to, sizeof to);

		n += bytes < 5 || memcmp(to, "pipe:", 5) != 0;
	}
	if (folder)
		closedir(folder);
	return n;
}

/* At the end of each input, when all of it is gone. */
static inline void fuzz_check_fds(void)
{
	static unsigned long inputs;
	static int fds;

	if (inputs == 0)
		fds = fuzz_count_fds();
	else if (inputs % FUZZ_FDS_EVERY == 0)
		fuzz_check(fuzz_count_fds() == fds);
	inputs++;
}

#endif
