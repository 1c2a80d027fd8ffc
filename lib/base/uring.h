/* SPDX-License-Identifier: MIT */
/*
 * uring - what this kernel's io_uring can do, and where it can not be had, who forbids it.
 *
 * Law: nothing is concluded from the kernel's version. A way of setting a ring up is tried; an operation is there if
 * the kernel's own list has it. What is not in the headers of liburing 2.3 stands here by number.
 */
#ifndef BASE_URING_H
#define BASE_URING_H

#include <stdbool.h>
#include <stdint.h>

#include "moe-error.h"

enum uring_feature {
	URING_SINGLE_ISSUER,
	URING_DEFER_TASKRUN,
	URING_COOP_TASKRUN,
	URING_REGISTERED_RING,
	URING_POLL_ADD,
	URING_POLL_REMOVE,
	URING_READ,
	URING_READ_FIXED,
	URING_ACCEPT,
	URING_ACCEPT_MULTISHOT,
	URING_RECVMSG,
	URING_READ_MULTISHOT,
	URING_WAITID,
	URING_FUTEX_WAIT,
	URING_FEATURES
};

struct uring_fact {
	const char *name;
	const char *since; /* Linux; "" all that have io_uring */
};

extern const struct uring_fact uring_facts[URING_FEATURES];

/* Bits, 1 << enum uring_feature, of what is there; or -errno of io_uring_setup. */
int64_t uring_probe(void);

/* Who forbids it. */
enum uring_cause {
	URING_CAUSE_SYSCTL,  /* kernel.io_uring_disabled = 2 */
	URING_CAUSE_GROUP,   /* 1, and this process is not of the group that may */
	URING_CAUSE_SECCOMP, /* a filter of this process */
	URING_CAUSE_MODULE,  /* nothing of these: a security module, then */
	URING_CAUSE_ABSENT,  /* the kernel has none, or a filter says so */
	URING_CAUSE_OTHER    /* it failed, but is not forbidden */
};

/* Why io_uring_setup gave -errno `code`, as far as /proc tells. `found` gets what is in force; the return value's fix
 * is uring_fix. */
enum uring_cause uring_cause(int code, char *found, uint32_t size);
const char *uring_fix(enum uring_cause cause);

/* -EOPNOTSUPP where io_uring is forbidden or absent, else `code`; *err says what is in force and the way out. */
int uring_refused(struct moe_error *err, int code);

#endif
