/* SPDX-License-Identifier: MIT */
/*
 * replicas - whole copies of hot experts on NUMA nodes, beside the rows that lie on every node.
 *
 * Law: rows never move, and leases, fills and successors know nothing else; a copy is only a second place for the same
 * bytes. A copy of an expert on a node is what that node lacks: the other nodes' shares of the record, in a slot of
 * the node's own file of slots. All files together never exceed the limit that was given, and slots are never more than
 * there are, so a layer of copies is made beside the old one only from slots that are free.
 *
 * Each row (MoE layer) has a table that says which expert has which slot where. A table never changes: a new one takes
 * its place at once, with the next epoch of the row. Who computes holds the table that it began with until it has
 * ended. A slot is free again when no table that is current or held has it.
 *
 * Thread-safe: one lock, held for the length of a few instructions by who computes. One thread alone (the mover) makes
 * tables, one row at a time.
 */
#ifndef DAEMON_REPLICAS_H
#define DAEMON_REPLICAS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moe-error.h"
#include "uapi/moe_manifest.h"

struct replicas;
struct resident;

/* Immutable but for the number of holders, which is under the lock. */
struct replica_table {
	uint64_t epoch; /* of the row: 0 at first, when there are no copies */
	uint32_t row, holders;
	bool current;
	struct replica_table *next; /* of the row's older ones that are still held */
	const uint8_t *at[];        /* [experts][nodes]: the slot, NULL: no copy there */
};

/* An expert that is to be copied. */
struct replica_copy {
	uint32_t expert, node, slot; /* slot: of the row's on the node */
	uint8_t *to;                 /* room for all shares but the node's, each record_bytes, ascending */
};

/* How many slots a row has on each node if copies may take `max` bytes in all, in files of whole pages of `page` bytes
 * (0: there is no room for one). One row's worth of slots more than all rows need is there, so that any row can be made
 * anew beside the old one. */
uint32_t replicas_slots(const struct resident *model, uint64_t max, uint64_t page);

/* Of a model with 2 shares or more, none of it tiered, for which there are slots. Takes no memory for copies yet. */
int replicas_new(struct replicas **ret, const struct resident *model, uint64_t max, uint64_t page,
		 struct moe_error *err);
struct replicas *replicas_free(struct replicas *r); /* nothing is held; takes NULL, returns NULL */

/* The memory of the slots, [nodes], the caller's: each of replicas_file_bytes() or more, `bytes` in all, at most the
 * limit. It stays until replicas_free. */
uint64_t replicas_file_bytes(const struct replicas *r);
void replicas_use(struct replicas *r, uint8_t *const *files, uint64_t bytes);

/* -- who computes ------------------------------------------------------------------------------------------------- */

/* The row's table, or NULL while it has no copies. */
struct replica_table *replicas_hold(struct replicas *r, uint32_t row);
void replicas_release(struct replicas *r, struct replica_table *table); /* takes NULL */

/* Where the share lies in the copy of an expert that a node has; share != node. */
const uint8_t *replicas_share(const struct replicas *r, const struct replica_table *table, uint32_t expert,
			      uint32_t node, uint32_t share);
static inline bool replicas_has(const struct replica_table *table, uint32_t expert, uint32_t nodes, uint32_t node)
{
	return table->at[(uint64_t)expert * nodes + node] != NULL;
}

/* -- the mover ---------------------------------------------------------------------------------------------------- */

/* What the row has now, [nodes][slots], -1: nothing. */
const int32_t *replicas_now(const struct replicas *r, uint32_t row);

/* Begins to make the row as `want` has it: slots for all that it lacks, as a list with room for nodes x slots. -EAGAIN:
 * older tables that are still held have too many slots; later. -ENOMEM. */
int replicas_begin(struct replicas *r, uint32_t row, const int32_t *want, struct replica_copy *ret, uint32_t *ret_n);
/* All copies are made: the new table is the row's. */
void replicas_commit(struct replicas *r);
/* They are not: all is as it was. */
void replicas_abort(struct replicas *r);

struct replicas_level {
	uint32_t nodes, slots;           /* slots: of a row on a node */
	uint64_t limit, bytes;           /* what was allowed; of the files that are there */
	uint64_t switches;               /* tables that took another's place */
	uint32_t old;                    /* tables that are held and no longer current */
	uint32_t free_slots, used_slots; /* of all nodes */
	uint64_t epoch;                  /* the highest of any row */
	uint32_t copies[MOE_POOLS_MAX];  /* that current tables have on each node */
};
void replicas_level(struct replicas *r, struct replicas_level *ret);

#endif
