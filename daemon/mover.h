/* SPDX-License-Identifier: MIT */
/*
 * mover - gives hot experts whole copies on NUMA nodes while requests run: in the background, one layer at a time.
 *
 * Law: a thread of its own plans (lib/placement/hot.h), makes a layer's new copies beside the old ones with jobs of the
 * pool's background class, compares each with the record's digest, and only then lets the layer's new table take the
 * old one's place. Whatever fails leaves the layer as it was. It looks again when the model has had MOVER_LOOK pairs
 * for each of its records; what it saw before counts half each time, so that heat fades by work and not by time. It
 * is asleep otherwise, and takes no memory for copies before it has seen heat.
 *
 * Copies are for this process alone: a successor begins with none, and reads nothing for that.
 */
#ifndef DAEMON_MOVER_H
#define DAEMON_MOVER_H

#include <stdint.h>

#include "base/host.h"
#include "daemon/heat.h"
#include "daemon/pool.h"
#include "daemon/replicas.h"
#include "daemon/store.h"
#include "moe-error.h"
#include "placement/hot.h"

#define MOVER_LOOK 16

struct mover;

struct mover_params {
	struct resident *model; /* its `replicas` is the mover's until mover_free */
	struct pool *pool;
	const struct host *host;
	int pages; /* as in pages_new */
	uint64_t max;
	uint32_t look; /* instead of MOVER_LOOK; 0: that */
};

/* -ENOSPC: the limit has no room for a slot in each layer; -EOPNOTSUPP: a model on one node, or a tiered one. Before
 * the model's first request. */
int mover_new(struct mover **ret, const struct mover_params *params, struct moe_error *err);
/* Before the pool's end; nothing of the model runs. Waits for the copy that is being made. Takes NULL, returns NULL. */
struct mover *mover_free(struct mover *mover);

/* Tells it to end, without waiting: mover_free is to follow, in any thread, which waits for the copy and gives the
 * memory of all copies back. */
void mover_part(struct mover *mover);
/* Before the pool's end: waits until none of those uses it any more. */
void movers_settle(void);

/* The reactor's: so many pairs more; `heat` is that of all records, copied when it is time. Never waits. */
void mover_saw(struct mover *mover, uint64_t pairs, const struct heat_cell *heat);

enum mover_state { MOVER_WAITS, MOVER_OPENS, MOVER_MOVES, MOVER_REFUSED };

struct mover_stats {
	enum mover_state state;
	char why[128]; /* it is refused */
	struct replicas_level level;
	uint64_t looks, layers_moved;   /* times that all layers were looked at; new tables */
	uint64_t copies, bytes;         /* made */
	uint64_t failed, put_off;       /* layers left as they were: a copy failed; old copies were still held */
	struct hot_worth before, after; /* of the last look, the mean of its layers */
};
void mover_stats(struct mover *mover, struct mover_stats *ret);

#endif
