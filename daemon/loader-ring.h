/* SPDX-License-Identifier: MIT */
/*
 * loader-ring - what the loader and its two readers share: the bounce ring, the walk over the blocks, the failure.
 *
 * A slot is FREE (on the free list), READING (a reader owns it) or FULL (in the queues of nodes_left nodes). Only the
 * functions here move it. One lock covers the free list, the queues and the first error; the walk has its own, so that
 * opening a shard holds up no worker.
 */
#ifndef DAEMON_LOADER_RING_H
#define DAEMON_LOADER_RING_H

#include <pthread.h>

#include "daemon/diskring.h"
#include "daemon/loader.h"
#include "daemon/team.h"

#define LOADER_TICK_NS 200000000u

struct loader_slot {
	struct loader_slot *next; /* the reader's */
	struct block block;
	struct diskread read;
	uint8_t *memory;
	_Atomic uint32_t nodes_left;
};

struct loader_queue {
	pthread_cond_t work;
	uint32_t head, tail;        /* counters; the room for a slot's index is counter % n_slots */
	struct loader_slot **slots; /* [n_slots]: a slot is in a queue once at most */
};

struct loader {
	const struct loader_params *params;
	uint64_t total; /* bytes of all pieces */
	uint32_t depth, n_slots;
	uint8_t *ring; /* n_slots blocks */
	struct loader_slot *slots;

	pthread_mutex_t walk_lock; /* of the next four; files only grow: what is open stays open */
	struct walk walk;
	struct shardfile *files; /* [n_shards] */
	bool all_direct;
	bool said_buffered;

	pthread_mutex_t lock; /* of the rest but the atomics */
	pthread_cond_t freed; /* a slot became free, or an error */
	struct loader_slot **free_slots;
	uint32_t n_free;
	struct loader_queue queues[HOST_NODES_MAX];
	bool no_more; /* nothing will be queued any more */
	struct moe_error error;

	_Atomic bool failed;
	_Atomic uint64_t landed, read_bytes; /* landed: of each node's shares */
	uint64_t ticked_ns;                  /* the loading thread's */
};

/* Takes a free slot; without one waits up to `wait_ns`. NULL when there was none, or after a failure. */
struct loader_slot *loader_take_slot(struct loader *loader, uint64_t wait_ns);
void loader_give_slot(struct loader *loader, struct loader_slot *slot);

/* Walks on: the slot has the next block to read, and its shard is open. False at the end or after a failure. */
bool loader_next(struct loader *loader, struct loader_slot *slot);

/* The slot's read is whole (error NULL), or not: the slot goes to all nodes, or, after a failure, back. */
void loader_took(struct loader *loader, struct loader_slot *slot, const struct moe_error *error);

/* Notes the first error and stops everybody. */
void loader_fail(struct loader *loader, const struct moe_error *error);

/* The loading thread's turn, a few times a second: reports progress, hears a wish to cancel. */
void loader_tick(struct loader *loader);

/* The two readers; both return when every block was dispatched or the load has failed, with no read in flight.
 * loader_read_uring returns -errno, and has done nothing, when no ring can be had. */
int loader_read_uring(struct loader *loader);
void loader_read_threads(struct loader *loader);

#endif
