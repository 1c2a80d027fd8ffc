/* SPDX-License-Identifier: MIT */
/*
 * fuzz-file - an input that stands for a file: eight bytes that say how many zero bytes follow the rest, then the rest.
 * So a few hundred bytes of input are a file whose header describes gigabytes, as published ones do.
 */
#ifndef TESTS_FUZZ_FUZZ_FILE_H
#define TESTS_FUZZ_FUZZ_FILE_H

#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

#define FUZZ_FILE_MAX ((uint64_t)1 << 50)

struct fuzz_file {
	const uint8_t *bytes;
	size_t n;
	uint64_t whole; /* with the zeros */
};

static inline struct fuzz_file fuzz_file(const uint8_t *data, size_t size)
{
	struct fuzz_bytes from = {data, size};
	const uint64_t zeros = fuzz_number(&from, 8);

	return (struct fuzz_file){
		.bytes = from.at, .n = from.left, .whole = from.left + (zeros < FUZZ_FILE_MAX ? zeros : FUZZ_FILE_MAX)};
}

/* Makes the file, in memory, where the one before was, and returns its path. System calls cost more than parsing: for
 * inputs that are worth it. */
static inline const char *fuzz_file_write(const struct fuzz_file *f)
{
	static char path[64];
	static int fd = -1;

	if (fd < 0)
		fd = memfd_create("fuzz-file", MFD_CLOEXEC);
	fuzz_check(fd >= 0 && ftruncate(fd, 0) == 0 && ftruncate(fd, (off_t)f->whole) == 0);
	fuzz_check(pwrite(fd, f->bytes, f->n, 0) == (ssize_t)f->n);
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	return path;
}

#endif
