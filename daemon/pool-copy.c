/* SPDX-License-Identifier: MIT */
/*
 * pool-copy - a slice of a record, packed, by chunks of a plane's rows; each chunk is a unit of the record's team.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "daemon/pool-internal.h"

#define COPY_UNIT_BYTES ((uint64_t)1 << 20)
#define COPY_PLANES (MOE_PARTS * MOE_PLANES)

struct copy_batch {
	struct pool_batch batch;
	struct pool *pool;
	struct pool_copy *copy;
	uint64_t start_ns;
	uint64_t unit_rows[COPY_PLANES];
	uint32_t units[COPY_PLANES];
	_Atomic uint32_t left;
};

static void copy_end(struct pool *pool, struct pool_copy *copy, int status, uint64_t start_ns)
{
	const struct pool_result result = {
		.status = status,
		.start_ns = start_ns,
		.end_ns = now_ns(),
		.bytes = status ? 0 : copy->slice->bytes,
	};

	pool_count(pool, &result);
	copy->done(copy, &result);
}

static const struct moe_slice_plane *plane_of(const struct pool_copy *copy, int i)
{
	return &copy->slice->plane[i / MOE_PLANES][i % MOE_PLANES];
}

static void copy_rows(const struct pool_copy *copy, const struct moe_slice_plane *plane, uint64_t first, uint64_t rows)
{
	const uint8_t *from = resident_record(copy->model, copy->row, copy->expert) + plane->offset +
			      first * plane->pitch;
	uint8_t *to = (uint8_t *)copy->dst + plane->slot_offset + first * plane->width;

	if (plane->pitch == plane->width) {
		memcpy(to, from, rows * plane->width);
		return;
	}
	for (uint64_t r = 0; r < rows; r++)
		memcpy(to + r * plane->width, from + r * plane->pitch, plane->width);
}

static void copy_run(struct pool_batch *batch, uint32_t team, uint32_t unit)
{
	struct copy_batch *c = container_of(batch, struct copy_batch, batch);
	const struct moe_slice_plane *plane;
	uint64_t first;
	int i = 0;

	while (unit >= c->units[i])
		unit -= c->units[i++];
	plane = plane_of(c->copy, i);
	first = unit * c->unit_rows[i];
	copy_rows(c->copy, plane, first, MIN(c->unit_rows[i], plane->rows - first));
	if (atomic_fetch_sub_explicit(&c->left, 1, memory_order_acq_rel) == 1)
		copy_end(c->pool, c->copy, 0, c->start_ns);
}

void copy_start(struct pool *pool, struct pool_entry *entry)
{
	struct pool_copy *copy = container_of(entry, struct pool_copy, entry);
	struct copy_batch *c = aligned_alloc(_Alignof(struct copy_batch), sizeof(*c));
	const uint64_t record = (uint64_t)copy->row * copy->model->manifest->n_experts + copy->expert;
	const uint64_t start_ns = now_ns();
	uint32_t units = 0;

	if (!c) {
		copy_end(pool, copy, -ENOMEM, start_ns);
		return;
	}
	pool_batch_init(&c->batch, copy_run, copy->priority, entry->place);
	c->pool = pool;
	c->copy = copy;
	c->start_ns = start_ns;
	for (int i = 0; i < COPY_PLANES; i++) {
		const struct moe_slice_plane *plane = plane_of(copy, i);

		c->unit_rows[i] = MAX(COPY_UNIT_BYTES / MAX(plane->width, 1), 1);
		c->units[i] = (uint32_t)DIV_UP(plane->rows, c->unit_rows[i]);
		units += c->units[i];
	}
	atomic_init(&c->left, units);
	c->batch.views[pool->team_of[copy->model->records[record].pool]].units = units;
	pool_queue_publish(&pool->queue, &c->batch);
}
