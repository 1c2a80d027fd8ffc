/* SPDX-License-Identifier: MIT */
/*
 * futex - sleep on a 32-bit word of shared memory (never the _PRIVATE kind: the words cross processes).
 *
 * futex_wait returns 0 when woken or when the word no longer holds `seen`, -ETIMEDOUT, or -EINTR; callers re-check the
 * word in a loop. It works on a read-only mapping. The waker stores the word (release) before futex_wake.
 */
#ifndef BASE_FUTEX_H
#define BASE_FUTEX_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* timeout_ns: 0 waits for ever. */
static inline int futex_wait(const volatile void *word, uint32_t seen, uint64_t timeout_ns)
{
	struct timespec t = {.tv_sec = (time_t)(timeout_ns / 1000000000u), .tv_nsec = (long)(timeout_ns % 1000000000u)};

	if (syscall(SYS_futex, word, FUTEX_WAIT, seen, timeout_ns ? &t : NULL, NULL, 0) == 0 || errno == EAGAIN)
		return 0;
	return -errno;
}

/* Returns how many sleepers were woken. */
static inline long futex_wake(const volatile void *word, int count)
{
	return syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}

#define FUTEX_ALL INT_MAX

#endif
