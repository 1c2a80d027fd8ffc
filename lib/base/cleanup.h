/* SPDX-License-Identifier: MIT */
/*
 * cleanup - locals that release themselves when their scope ends.
 *
 * `_cleanup_(f)` calls f(&variable). `steal_ptr` and `steal_fd` hand the value on and leave the empty value behind:
 * the way a constructor commits to its out parameter.
 */
#ifndef BASE_CLEANUP_H
#define BASE_CLEANUP_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(function) __attribute__((cleanup(function)))

static inline void cleanup_free(void *p)
{
	free(*(void **)p);
}

static inline void cleanup_fclose(FILE **f)
{
	if (*f)
		fclose(*f);
}

/* Closes an fd if it is one and returns -1. Never touches errno. */
static inline int close_fd(int fd)
{
	if (fd >= 0) {
		int saved = errno;

		close(fd);
		errno = saved;
	}
	return -1;
}

static inline void cleanup_close(const int *fd)
{
	close_fd(*fd);
}

#define _cleanup_free_ _cleanup_(cleanup_free)
#define _cleanup_close_ _cleanup_(cleanup_close)
#define _cleanup_fclose_ _cleanup_(cleanup_fclose)

#define steal_ptr(p)                                                                                                   \
	({                                                                                                             \
		__typeof__(p) *steal_p_ = &(p);                                                                        \
		__typeof__(p) steal_value_ = *steal_p_;                                                                \
		*steal_p_ = NULL;                                                                                      \
		steal_value_;                                                                                          \
	})

static inline int steal_fd(int *fd)
{
	int value = *fd;

	*fd = -1;
	return value;
}

#endif
