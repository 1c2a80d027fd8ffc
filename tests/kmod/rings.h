/* SPDX-License-Identifier: MIT */
/* rings - the commands of a queue by io_uring, for tests that have two rings or more. */
#ifndef TESTS_KMOD_RINGS_H
#define TESTS_KMOD_RINGS_H

#include <liburing.h>

#include "tests/kmod/queues.h"

#define RING_ENTRIES 64

/* Whether the module speaks io_uring here. */
bool rings_there(int dev);

/* SQE128 and CQE32 with `flags`; true when it was made. */
bool ring_new(struct io_uring *ring, unsigned flags);

/* An entry of zeros, for whoever fills it in. */
struct io_uring_sqe *ring_entry(struct io_uring *ring);

/* An entry with the 80 bytes of `command`, which is a struct moe_kmod_tag or moe_kmod_request. */
struct io_uring_sqe *ring_prepare(struct io_uring *ring, int dev, uint32_t op, const void *command, uint64_t user_data);
void ring_fetch(struct io_uring *ring, int dev, uint32_t queue, uint32_t tag, struct moe_kmod_fetched *to);
void ring_submit(struct io_uring *ring, int dev, uint32_t queue, uint64_t user_data, struct moe_kmod_answer *to);
void ring_commit_and_fetch(struct io_uring *ring, int dev, uint32_t queue, const struct moe_kmod_fetched *of,
			   struct moe_kmod_fetched *to);

/* The next completion's res within 20 s, INT32_MIN without one; its user_data and first extra word, if asked for. */
int32_t ring_next(struct io_uring *ring, uint64_t *user_data, uint64_t *word);
bool ring_is_quiet(struct io_uring *ring);

#endif
