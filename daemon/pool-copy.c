/* SPDX-License-Identifier: MIT */
/*
 * pool-copy - a slice of a record, packed, or a range of it, by chunks of a plane's rows. Each team copies what its
 * node has of the slice; whoever copies the last chunk ends the job. A range begins and ends anywhere: in the middle
 * of a row, in the padding between two planes, or in it altogether, when there is nothing to copy.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "daemon/pool-internal.h"

#define COPY_UNIT_BYTES ((uint64_t)1 << 20)
#define COPY_PAST_BYTES ((uint64_t)4 << 20) /* of the slice: where it was measured to win (docs/decisions/0012) */
#define COPY_PLANES (MOE_PARTS * MOE_PLANES)

/* A plane of one share of the slice, and which of its packed bytes are in the range. */
struct copy_part {
	const uint8_t *from;
	struct moe_slice_plane plane;
	uint64_t begin, end;
	uint64_t first_row, unit_rows;
	uint32_t units, team;
};

struct copy_batch {
	struct pool_batch batch;
	struct pool *pool;
	struct pool_copy *copy;
	uint64_t start_ns;
	_Atomic uint32_t left;
	uint32_t n_parts;
	struct copy_part parts[]; /* that have rows */
};

static void copy_end(struct pool *pool, struct pool_copy *copy, int status, uint64_t start_ns)
{
	const struct pool_result result = {
		.status = status,
		.start_ns = start_ns,
		.end_ns = now_ns(),
		.bytes = status ? 0 : copy->bytes,
	};

	pool_count(pool, &result);
	copy->done(copy, &result);
}

static void copy_cached(uint64_t rows, uint64_t width, uint64_t pitch, const uint8_t *from, uint8_t *to)
{
	if (pitch == width) {
		memcpy(to, from, rows * width);
		return;
	}
	for (uint64_t r = 0; r < rows; r++)
		memcpy(to + r * width, from + r * pitch, width);
}

/* Whole rows. Whoever reads a large slice does so later and is another processor: it goes past the caches. */
static void copy_rows(const struct copy_batch *c, const struct copy_part *part, uint64_t first, uint64_t rows)
{
	const struct moe_slice_plane *plane = &part->plane;
	const uint8_t *from = part->from + plane->offset + first * plane->pitch;
	uint8_t *to = (uint8_t *)c->copy->dst + plane->slot_offset + first * plane->width;

	if (c->copy->slice->bytes >= COPY_PAST_BYTES)
		c->pool->kernels->copy_rows(rows, plane->width, plane->pitch, from, to);
	else
		copy_cached(rows, plane->width, plane->pitch, from, to);
}

/* Of one row, the packed bytes from `begin` to `end`. */
static void copy_piece(const struct copy_batch *c, const struct copy_part *part, uint64_t begin, uint64_t end)
{
	const struct moe_slice_plane *plane = &part->plane;
	const uint64_t row = begin / plane->width;

	memcpy((uint8_t *)c->copy->dst + plane->slot_offset + begin,
	       part->from + plane->offset + row * plane->pitch + begin % plane->width, end - begin);
}

/* So many rows from `first` on, as far as they are in the range. */
static void copy_part_rows(const struct copy_batch *c, const struct copy_part *part, uint64_t first, uint64_t rows)
{
	const uint64_t width = part->plane.width;
	const uint64_t begin = MAX(first * width, part->begin), end = MIN((first + rows) * width, part->end);
	const uint64_t whole = DIV_UP(begin, width), next = end / width;

	if (whole > next) { /* the middle of one row */
		copy_piece(c, part, begin, end);
		return;
	}
	if (begin < whole * width)
		copy_piece(c, part, begin, whole * width);
	if (whole < next)
		copy_rows(c, part, whole, next - whole);
	if (next * width < end)
		copy_piece(c, part, next * width, end);
}

static void copy_run(struct pool_batch *batch, uint32_t team, struct pool_units units, struct pool_units next)
{
	struct copy_batch *c = container_of(batch, struct copy_batch, batch);
	const struct copy_part *part = c->parts;
	uint32_t unit = units.first;
	uint64_t first;

	while (part->team != team || unit >= part->units) {
		unit -= part->team == team ? part->units : 0;
		part++;
	}
	first = part->first_row + unit * part->unit_rows;
	copy_part_rows(c, part, first, MIN(part->unit_rows, part->plane.rows - first));
	if (atomic_fetch_sub_explicit(&c->left, 1, memory_order_acq_rel) == 1)
		copy_end(c->pool, c->copy, 0, c->start_ns);
}

/* Returns the units of a plane of one share that are in the range. */
static uint32_t copy_plane(struct copy_batch *c, const struct moe_slice_plane *plane, uint32_t share)
{
	const struct pool_copy *copy = c->copy;
	const uint64_t at = plane->slot_offset, bytes = plane->rows * plane->width;
	const uint64_t range_end = copy->from + copy->bytes;
	struct copy_part *part = &c->parts[c->n_parts];

	if (bytes == 0 || copy->from >= at + bytes || range_end <= at)
		return 0;
	part->from = resident_share(copy->model, copy->row, copy->expert, share);
	part->plane = *plane;
	part->begin = MAX(copy->from, at) - at;
	part->end = MIN(range_end, at + bytes) - at;
	part->first_row = part->begin / plane->width;
	part->unit_rows = MAX(COPY_UNIT_BYTES / plane->width, 1);
	part->units = (uint32_t)DIV_UP(DIV_UP(part->end, plane->width) - part->first_row, part->unit_rows);
	part->team = c->pool->team_of[share];
	atomic_fetch_add_explicit(&c->pool->shares[share].copy_bytes, part->end - part->begin, memory_order_relaxed);
	c->n_parts++;
	return part->units;
}

/* Returns the units of what one share has of the range. */
static uint32_t copy_share(struct copy_batch *c, uint32_t share)
{
	const struct pool_copy *copy = c->copy;
	struct moe_slice slice;
	uint32_t units = 0;

	moe_slice_share(&slice, copy->slice, &copy->model->layouts[resident_layout(copy->model, copy->row)], share);
	for (int i = 0; i < COPY_PLANES; i++)
		units += copy_plane(c, &slice.plane[i / MOE_PLANES][i % MOE_PLANES], share);
	return units;
}

void copy_start(struct pool *pool, struct pool_entry *entry)
{
	struct pool_copy *copy = container_of(entry, struct pool_copy, entry);
	const uint32_t shares = copy->model->layouts[resident_layout(copy->model, copy->row)].shares;
	const size_t bytes = sizeof(struct copy_batch) + (size_t)shares * COPY_PLANES * sizeof(struct copy_part);
	const uint64_t start_ns = now_ns();
	struct copy_batch *c = aligned_alloc(_Alignof(struct copy_batch), ALIGN_UP(bytes, _Alignof(struct copy_batch)));
	uint32_t units[HOST_NODES_MAX] = {0}, all = 0;

	if (!c) {
		copy_end(pool, copy, -ENOMEM, start_ns);
		return;
	}
	pool_batch_init(&c->batch, copy_run, copy->priority, entry->place);
	c->pool = pool;
	c->copy = copy;
	c->start_ns = start_ns;
	c->n_parts = 0;
	for (uint32_t i = 0; i < shares; i++) {
		const uint32_t n = copy_share(c, i);

		units[pool->team_of[i]] += n;
		all += n;
	}
	atomic_init(&c->left, all);
	if (all == 0)
		copy_end(pool, copy, 0, start_ns);
	for (uint32_t t = 0; t < pool->queue.n_teams; t++)
		pool_queue_add(&pool->queue, &c->batch, t, units[t]);
	pool_batch_unref(&c->batch);
}
