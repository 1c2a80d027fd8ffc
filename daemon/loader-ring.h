/* SPDX-License-Identifier: MIT */
/*
 * loader-ring - what the loader and its two readers share: the bounce ring, the cursor over the blocks, the failure.
 *
 * A slot is FREE (on the free list), READING (a reader owns it) or FULL (in the queues of nodes_left nodes). Only the
 * functions here move it. One lock covers the free list, the queues and the first error; the cursor has its own, so
 * that opening a shard holds up no worker.
 */
#ifndef DAEMON_LOADER_RING_H
#define DAEMON_LOADER_RING_H

#include <pthread.h>

#include "daemon/loader.h"
#include "daemon/shardfile.h"
#include "daemon/team.h"

#define LOADER_TICK_NS 200000000u

/* An aligned range of one shard, and the bytes of it that are this block's to repack: whole granules. */
struct loader_block {
	uint32_t shard;
	uint32_t length;   /* to ask for: a multiple of SHARDFILE_ALIGN, may reach over the end of the file */
	uint32_t expected; /* bytes that the file has there */
	uint64_t offset;
	uint64_t begin, end; /* in the shard */
	uint64_t piece;      /* the first one that ends after `begin` */
};

struct loader_slot {
	struct loader_block block;
	uint8_t *memory;
	uint32_t got;      /* bytes read so far */
	uint32_t refusals; /* of this block's reads, for now */
	uint32_t index;
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
	uint32_t block_bytes, depth, n_slots;
	uint8_t *ring; /* n_slots * block_bytes */
	struct loader_slot *slots;

	pthread_mutex_t cursor_lock; /* of the next seven; files only grow: what is open stays open */
	struct shardfile *files;     /* [n_shards] */
	uint64_t piece;              /* the first that ends after `position` */
	uint64_t extent_piece;       /* the first after the extent */
	uint64_t position;           /* all before it is in a block */
	uint64_t extent_end;         /* a whole unit's */
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

/* What a reader does next with the slot it read into. */
enum loader_read { LOADER_FULL, LOADER_READ_ON, LOADER_STOP };

/* Takes a free slot; without one waits up to `wait_ns`. NULL when there was none, or after a failure. */
struct loader_slot *loader_take_slot(struct loader *loader, uint64_t wait_ns);
void loader_give_slot(struct loader *loader, struct loader_slot *slot);

/* Moves the cursor: the slot gets the next block, and its shard is open. False at the end or after a failure. */
bool loader_next(struct loader *loader, struct loader_slot *slot);

/* A read of the slot's bytes from `got` on returned `result` (bytes or -errno). On LOADER_READ_ON the rest is to
 * be read; on LOADER_STOP the failure is noted. */
enum loader_read loader_took(struct loader *loader, struct loader_slot *slot, int64_t result);

/* The slot is full: to all nodes. */
void loader_dispatch(struct loader *loader, struct loader_slot *slot);

/* Notes the first error and stops everybody. */
void loader_fail(struct loader *loader, const struct moe_error *error);

/* The loading thread's turn, a few times a second: reports progress, hears a wish to cancel. */
void loader_tick(struct loader *loader);

/* The two readers; both return when every block was dispatched or the load has failed, with no read in flight.
 * loader_read_uring returns -errno, and has done nothing, when no ring can be had. */
int loader_read_uring(struct loader *loader);
void loader_read_threads(struct loader *loader);

#endif
