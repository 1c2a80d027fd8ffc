/* SPDX-License-Identifier: MIT */
/*
 * loader - bytes of shards become bytes of records, repacked and hashed on the way.
 *
 *   shards --reads--> bounce ring --queue per node--> workers of the node --> records, digest when complete
 *
 * Pieces (one source of a record each) are read in aligned blocks (piece.h), many at a time, into the slots of a bounce
 * ring: the only memory that a load takes besides the model. A full slot goes to the queues of all nodes, since each
 * has a share of every record; a node's workers repack what belongs to its shares, and the worker that brings the last
 * of a record hashes the record. The last worker to be done with a slot gives it back to the reader.
 *
 * Two readers: io_uring, and where that is forbidden threads that call pread. The first failure stops everything, and
 * nothing is left: no read in flight, no thread, no fd.
 */
#ifndef DAEMON_LOADER_H
#define DAEMON_LOADER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/host.h"
#include "daemon/piece.h"
#include "moe-error.h"

struct loader_record {
	uint64_t offset;                 /* in each node's memory: layout->record_bytes there, zeroed */
	const struct moe_layout *layout; /* its shares are the nodes */
	uint8_t *digest;                 /* receives MOE_DIGEST_BYTES */
	_Atomic uint64_t missing;        /* bytes of its pieces that have not landed, for each share */
};

/* Zeros are the defaults. */
struct loader_tuning {
	uint32_t block_bytes; /* of one read: 512 KiB; raised to whole 4 KiB and to what the largest granule needs */
	uint32_t depth;       /* reads in flight: 16 */
	uint32_t slots; /* of the bounce ring, at least depth: 32; fewer of both where granules make blocks large */
	bool buffered;  /* through the page cache even where O_DIRECT works */
	bool no_io_uring;
};

struct loader_params {
	const char *name; /* in log lines */
	const struct shard *shards;
	uint32_t n_shards;
	const struct piece *pieces; /* as the law of piece.h wants them */
	uint64_t n_pieces;
	struct loader_record *records;
	/* As of model/expert.h. */
	void (*repack)(const struct repack *repack, const struct record_share *to, uint64_t first, uint64_t n,
		       const void *bytes);
	const struct host_node *nodes; /* n_nodes is at most HOST_NODES_MAX */
	uint32_t n_nodes;
	uint8_t *memory[HOST_NODES_MAX]; /* of each node */
	/* Before the first byte is written there: these bytes of a node's memory are there. 0 or -errno; may wait.
	 * NULL: all are. */
	int (*need)(uint32_t node, uint64_t offset, uint64_t bytes, void *userdata);
	struct loader_tuning tuning;
	/* As of struct store_params: bytes of pieces landed, of all. */
	int (*progress)(uint64_t done, uint64_t total, uint64_t elapsed_ns, void *userdata);
	void *userdata;
	uint64_t start_ns; /* elapsed_ns counts from here */
};

struct loader_result {
	uint64_t read_bytes; /* supersets included */
	bool direct;         /* every shard was read around the page cache */
	bool io_uring;
};

int loader_run(struct loader_result *ret, const struct loader_params *params, struct moe_error *err);

#endif
