/* SPDX-License-Identifier: MIT */
/*
 * cmdring - a ring of io_uring for the commands of one device (IORING_OP_URING_CMD), 80 bytes each.
 *
 * Law: a command is issued alone and at once, by one system call: when that returns, the device has begun it, or the
 * kernel has not taken it and nothing has happened. Completions are read from memory. A command belongs to the thread
 * that issued it: it completes when that thread enters the kernel, and is cancelled when that thread ends. Who issues
 * holds a lock against others that do, and so does who takes completions; the two need not know of each other. A device
 * refuses a command that it does not know with ENOTTY: by that an open ring has been seen to reach it.
 *
 * Without liburing, on which the client library does not depend.
 */
#ifndef BASE_CMDRING_H
#define BASE_CMDRING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CMDRING_BYTES 80

struct cmdring {
	int fd; /* readable while there is a completion; -1: none is open */
	uint32_t mask;
	uint32_t *sq_tail, *sq_flags;
	uint32_t *cq_head, *cq_tail;
	const void *cqes;
	void *entry; /* the one there is */
	void *rings;
	size_t rings_bytes, entry_bytes;
};

/* For at most so many commands that are not completed. `calm`: of one thread, which enters the kernel often: then it is
 * not interrupted in user mode for a completion. 0, or -errno: io_uring is absent, forbidden, or cannot do this: rings
 * may be had where what they are for is refused, by seccomp or a security module, so one command is tried. */
int cmdring_open(struct cmdring *ret, int device, uint32_t commands, bool calm);
/* What is not completed is cancelled by the kernel, soon. An open ring, or one whose fd is -1. */
void cmdring_close(struct cmdring *ring);

/* 0: a completion comes, of a refusal, too; -errno: the kernel took nothing. */
int cmdring_issue(struct cmdring *ring, int device, uint32_t command, const void *bytes, void *to, uint64_t user_data);

/* Looks for one that is there, and leaves it. */
bool cmdring_find(const struct cmdring *ring, uint64_t user_data, int *ret_result);

/* Of any thread: so many completions are there, to the best of its knowledge. */
uint32_t cmdring_ready(const struct cmdring *ring);
/* Of any thread, beside one that issues: sleeps until there is one, or the time is over, or something came between. */
void cmdring_wait(const struct cmdring *ring, uint64_t timeout_ns);

/* False: there is no completion now. */
bool cmdring_next(struct cmdring *ring, uint64_t *ret_user_data, int *ret_result);

#endif
