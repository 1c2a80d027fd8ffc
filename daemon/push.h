/* SPDX-License-Identifier: MIT */
/*
 * push - copies into slots that lie in a GPU's memory: the client exports them, the daemon imports them and has the
 * GPU's copy engine fetch slices from the pool files. Off unless the daemon is started with --push-cuda.
 *
 * Law: no other thread ever calls the driver, and nobody waits for this one. What it is asked for lies in a list; what
 * has ended it says by `done` or push_next_opened. It may hang in a driver that hangs: then a second thread, which only
 * watches, declares all of it broken: what is or will be asked for ends with -EREMOTEIO, and what
 * the driver has stays with it until the process ends. So nothing that a GPU may still touch is ever given back.
 *
 * A copy that the driver refuses fails alone; what takes a GPU away from this process ends all copies into it. What a
 * copy took is known from events on both sides of it.
 *
 * A GPU's memory that is imported is unmapped and released when its session ends; pool files are mapped here a second
 * time, registered with the driver, and given back with the last session of their model on that GPU.
 *
 * Alternative files: push.c and push-gpu.c, or push-absent.c where the build has no CUDA.
 */
#ifndef DAEMON_PUSH_H
#define DAEMON_PUSH_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/loop.h"
#include "daemon/pool.h"

struct push;
struct push_slots;

#define PUSH_UUID_BYTES 16

/* Starts it. The driver is loaded by its thread, when the first slots come. registrar_fd: on which to hold a lock while
 * pool files are registered. -EOPNOTSUPP: the build has no CUDA. */
int push_new(struct push **ret, uint32_t patience_s, int registrar_fd, struct moe_error *err);
/* A driver hangs, or has failed for good: what is or will be asked for ends with -EREMOTEIO. */
bool push_has_ended(struct push *push);
/* Whom to wake when slots were opened. Before the first ones. */
void push_set_loop(struct push *push, struct loop *loop);
/* All slots are closed. Does not wait for a driver that hangs. Takes NULL, returns NULL. */
struct push *push_free(struct push *push);

/* What a client exports. */
struct push_memory {
	int fd; /* stays the client's */
	uid_t uid;
	uint64_t bytes;
	uint64_t timeline;   /* where in them the timeline is; 0: there is none */
	const uint8_t *uuid; /* [PUSH_UUID_BYTES], of the GPU */
};

/* Begins to import it: slots for this model, which is all in memory. `owner` comes back from push_next_opened. */
int push_open(struct push *push, struct push_slots **ret, const struct resident *model,
	      const struct push_memory *memory, void *owner, struct moe_error *err);

/* The next ones that were opened or could not be, or NULL: *ret_owner's, *ret_code is 0 or -errno with *err. In both
 * cases they are to be closed one day. */
struct push_slots *push_next_opened(struct push *push, void **ret_owner, int *ret_code, struct moe_error *err);

/* Slots that were opened: as pool_submit_copy, but to `at`, where the slice begins in them. Where `number` is not NULL
 * the copy is that one of the timeline, which the slots have: -EINVAL if it is not one that timeline_awaits. */
void push_copy(struct push_slots *slots, struct pool_copy *copy, uint64_t at, const uint32_t *number);

/* All copies into them have ended. At any time; takes NULL. */
void push_close(struct push_slots *slots);

#endif
