/* SPDX-License-Identifier: MIT */
/* stdout - a program has done what it was asked for when its output has arrived, not when it was printed. */
#ifndef BASE_STDOUT_H
#define BASE_STDOUT_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The first that main() does: where it was started without one of these descriptors, no file that it opens takes the
 * place and gets what is printed. What is written to them fails still. */
static inline void stdio_fill(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != fd)
			return;
}

/* 0, or -errno: what was printed so far has not all been written. */
static inline int stdout_flush(void)
{
	errno = 0;
	if (fflush(stdout) != 0)
		return errno ? -errno : -EIO;
	return ferror(stdout) ? -EIO : 0; /* an earlier part is lost, and nobody knows why any more */
}

/* The last that main() does: returns `code`, or, after a line to stderr, what stands for failed. */
static inline int stdout_end(const char *program, int code)
{
	const int r = stdout_flush();

	if (r == 0)
		return code;
	fprintf(stderr, "%s: cannot write the output: %s\n", program,
		r == -EIO ? "a part of it is lost: the disk is full or fails, or nobody reads it" : strerror(-r));
	return code ? code : 1;
}

#endif
