/* SPDX-License-Identifier: MIT */
/*
 * replay - runs a fuzz target once for each file of its corpus, as a TAP program: what was found once stays found, with
 * any compiler. Output of the target itself is thrown away.
 *
 *   fuzz-NAME [FILE...]
 *
 * With files, these in place of the corpus below $MOE_SOURCE.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "tests/tap.h"

#define FILE_MAX_BYTES (16u << 20)

static void run(const uint8_t *data, size_t size)
{
	int out = dup(STDOUT_FILENO), none = open("/dev/null", O_WRONLY | O_CLOEXEC);

	fflush(stdout);
	dup2(none, STDOUT_FILENO);
	close(none);
	LLVMFuzzerTestOneInput(data, size);
	fflush(stdout);
	dup2(out, STDOUT_FILENO);
	close(out);
}

static bool run_file(const char *path)
{
	uint8_t *data = malloc(FILE_MAX_BYTES), *alone;
	FILE *f = fopen(path, "re");
	size_t size = f && data ? fread(data, 1, FILE_MAX_BYTES, f) : 0;
	bool good = f && !ferror(f);

	if (f)
		fclose(f);
	if (good) {
		alone = fuzz_alone(data, size);
		run(alone, size);
		free(alone);
	}
	free(data);
	return good;
}

static int visible(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static void run_corpus(void)
{
	const char *source = getenv("MOE_SOURCE");
	struct dirent **files;
	char path[PATH_MAX];
	int n;

	snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s", source ? source : ".", FUZZ_NAME);
	n = scandir(path, &files, visible, alphasort);
	ok(n > 0, "%s holds files: %d", path, n);
	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s/%s", source ? source : ".", FUZZ_NAME,
			 files[i]->d_name);
		ok(run_file(path), "%s", files[i]->d_name);
		free(files[i]);
	}
	if (n >= 0)
		free(files);
}

int main(int argc, char **argv)
{
	if (argc == 1)
		run_corpus();
	for (int i = 1; i < argc; i++)
		ok(run_file(argv[i]), "%s", argv[i]);
	return tap_done();
}
