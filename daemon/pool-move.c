/* SPDX-License-Identifier: MIT */
/*
 * pool-move - bytes from one place of the daemon's memory to another, by the team of the node that gets them. Between
 * two units whatever is more urgent goes first.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "daemon/pool-internal.h"

#define MOVE_UNIT_BYTES ((uint64_t)256 << 10)

struct move_batch {
	struct pool_batch batch;
	struct pool_move *move;
	_Atomic uint32_t left;
	uint32_t first[MOE_POOLS_MAX + 1]; /* units of each range */
};

static void move_run(struct pool_batch *batch, uint32_t team, struct pool_units units, struct pool_units next)
{
	struct move_batch *b = container_of(batch, struct move_batch, batch);
	const struct pool_range *range = b->move->ranges;
	uint32_t i = 0;
	uint64_t at;

	while (units.first >= b->first[i + 1])
		i++;
	at = (units.first - b->first[i]) * MOVE_UNIT_BYTES;
	memcpy(range[i].to + at, range[i].from + at, MIN(MOVE_UNIT_BYTES, range[i].bytes - at));
	if (atomic_fetch_sub_explicit(&b->left, 1, memory_order_acq_rel) == 1)
		b->move->done(b->move, 0);
}

void move_start(struct pool *pool, struct pool_entry *entry)
{
	struct pool_move *move = container_of(entry, struct pool_move, entry);
	struct move_batch *b = aligned_alloc(_Alignof(struct move_batch), sizeof *b);
	uint32_t units = 0;

	if (!b) {
		move->done(move, -ENOMEM);
		return;
	}
	pool_batch_init(&b->batch, move_run, POOL_BACKGROUND, entry->place);
	b->move = move;
	b->first[0] = 0;
	for (uint32_t i = 0; i < move->n; i++) {
		units += (uint32_t)DIV_UP(move->ranges[i].bytes, MOVE_UNIT_BYTES);
		b->first[i + 1] = units;
	}
	atomic_init(&b->left, units);
	pool_queue_add(&pool->queue, &b->batch, pool->team_of[move->node], units);
	pool_batch_unref(&b->batch);
}
