/* SPDX-License-Identifier: MIT */
/* queues - what the tests of queues share: the commands of a queue as ioctls, and the dying sides. */
#ifndef TESTS_KMOD_QUEUES_H
#define TESTS_KMOD_QUEUES_H

#include "tests/kmod/device.h"
#include "uapi/moe_ring.h"

/* A new queue's id, 0 when it is refused. */
uint32_t queue_new(int dev, uint32_t depth, uint32_t recover_ms);
int queue_end(int dev, uint32_t queue);
int queue_recover(int dev, uint32_t queue, uint32_t *reissued);
struct moe_kmod_queue queue_state(int dev, uint32_t queue);

/* A well-formed NOP, or FILL of an expert, that stands on `lease`. */
struct moe_kmod_request request_of(uint32_t queue, uint8_t op, uint64_t user_data, uint64_t lease);
int submit(int dev, uint32_t queue, uint64_t user_data);
int fetch(int dev, uint32_t queue, uint32_t tag, struct moe_kmod_fetched *to);
int commit(int dev, uint32_t queue, uint32_t tag, uint64_t seq, int status);
int reap(int dev, struct moe_kmod_reap *to);
bool polls_pri(int dev);

/* Everything that is to be fetched is, and answered with 0: how many. */
int serve_all(int dev, uint32_t queue);

#endif
