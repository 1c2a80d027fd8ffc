/* SPDX-License-Identifier: MIT */
#include "daemon/loader-ring.h"

#include <errno.h>
#include <inttypes.h>
#include <time.h>

#include "base/error.h"
#include "base/log.h"
#include "base/util.h"

#define DROP_BYTES (64ull << 20)
#define REFUSALS_MAX 1000 /* of one block's read: then it is no matter of waiting */

#define ALIGN_DOWN(value, align) ((value) & ~((__typeof__(value))(align)-1))

void loader_fail(struct loader *l, const struct moe_error *error)
{
	pthread_mutex_lock(&l->lock);
	if (!atomic_load(&l->failed)) {
		l->error = *error;
		atomic_store(&l->failed, true);
	}
	pthread_cond_broadcast(&l->freed);
	pthread_mutex_unlock(&l->lock);
}

void loader_tick(struct loader *l)
{
	const struct loader_params *p = l->params;
	const uint64_t now = now_ns();
	struct moe_error error;

	if (!p->progress || now - l->ticked_ns < LOADER_TICK_NS)
		return;
	l->ticked_ns = now;
	if (p->progress(atomic_load(&l->landed) / p->n_nodes, l->total, now - p->start_ns, p->userdata) == 0)
		return;
	moe_error_set(&error, -ECANCELED, "%s: loading was canceled", p->name);
	loader_fail(l, &error);
}

/* -- slots -------------------------------------------------------------------------------------------------------- */

struct loader_slot *loader_take_slot(struct loader *l, uint64_t wait_ns)
{
	struct loader_slot *slot = NULL;

	pthread_mutex_lock(&l->lock);
	if (l->n_free == 0 && wait_ns > 0 && !atomic_load(&l->failed)) {
		struct timespec until;

		clock_gettime(CLOCK_REALTIME, &until);
		wait_ns += (uint64_t)until.tv_nsec;
		until.tv_sec += (time_t)(wait_ns / 1000000000u);
		until.tv_nsec = (long)(wait_ns % 1000000000u);
		pthread_cond_timedwait(&l->freed, &l->lock, &until);
	}
	if (l->n_free > 0 && !atomic_load(&l->failed))
		slot = l->free_slots[--l->n_free];
	pthread_mutex_unlock(&l->lock);
	return slot;
}

void loader_give_slot(struct loader *l, struct loader_slot *slot)
{
	pthread_mutex_lock(&l->lock);
	l->free_slots[l->n_free++] = slot;
	pthread_cond_signal(&l->freed);
	pthread_mutex_unlock(&l->lock);
}

void loader_dispatch(struct loader *l, struct loader_slot *slot)
{
	const uint32_t nodes = l->params->n_nodes;

	/* Ordered before the workers' decrements by the lock. */
	atomic_store_explicit(&slot->nodes_left, nodes, memory_order_relaxed);
	pthread_mutex_lock(&l->lock);
	for (uint32_t i = 0; i < nodes; i++) {
		struct loader_queue *queue = &l->queues[i];

		queue->slots[queue->tail++ % l->n_slots] = slot;
		pthread_cond_signal(&queue->work);
	}
	pthread_mutex_unlock(&l->lock);
}

/* -- the cursor --------------------------------------------------------------------------------------------------- */

static int open_shard(struct loader *l, uint32_t shard, struct moe_error *err)
{
	struct shardfile *file = &l->files[shard];
	int r;

	if (file->fd >= 0)
		return 0;
	r = shardfile_open(file, &l->params->shards[shard], l->params->tuning.buffered, err);
	if (r < 0 || file->direct)
		return r;
	l->all_direct = false;
	if (!l->said_buffered)
		log_notice("%s: reading through the page cache%s: %s", l->params->name,
			   l->params->tuning.buffered ? "" : ", O_DIRECT does not work on this file system",
			   file->shard->path);
	l->said_buffered = true;
	return 0;
}

static uint64_t piece_end(const struct loader_piece *piece)
{
	return piece->offset + piece->repack.bytes;
}

/* An extent is as many pieces as touch or share aligned units, so that no unit is read twice. */
static bool begin_extent(struct loader *l, struct moe_error *err)
{
	const struct loader_params *p = l->params;
	const struct loader_piece *piece;
	uint64_t i = l->extent_piece, end;

	if (i == p->n_pieces)
		return false;
	piece = &p->pieces[i];
	if (open_shard(l, piece->shard, err) < 0)
		return false;
	l->piece = i;
	l->position = ALIGN_DOWN(piece->offset, SHARDFILE_ALIGN);
	end = ALIGN_UP(piece_end(piece), SHARDFILE_ALIGN);
	for (i++; i < p->n_pieces && p->pieces[i].shard == piece->shard; i++) {
		if (ALIGN_DOWN(p->pieces[i].offset, SHARDFILE_ALIGN) > end)
			break;
		end = ALIGN_UP(piece_end(&p->pieces[i]), SHARDFILE_ALIGN);
	}
	l->extent_piece = i;
	l->extent_end = end;
	return true;
}

/*
 * Where a block that cannot reach over `end` ends: there, or before the granule that lies across it. Blocks hold the
 * largest granule and two units more, so that is always after the unit in which the block begins.
 */
static uint64_t cut(const struct loader *l, uint64_t end)
{
	const struct loader_params *p = l->params;

	for (uint64_t i = l->piece; i < l->extent_piece && p->pieces[i].offset < end; i++) {
		const struct loader_piece *piece = &p->pieces[i];

		if (piece_end(piece) > end)
			return end - (end - piece->offset) % piece->repack.granule_bytes;
	}
	return end;
}

static bool next_block(struct loader *l, struct loader_block *ret, struct moe_error *err)
{
	const struct loader_piece *pieces = l->params->pieces;
	uint64_t offset, end, length;

	if (l->position == l->extent_end && !begin_extent(l, err))
		return false;
	while (piece_end(&pieces[l->piece]) <= l->position)
		l->piece++;
	offset = ALIGN_DOWN(l->position, SHARDFILE_ALIGN);
	end = l->extent_end;
	if (end - offset > l->block_bytes)
		end = cut(l, offset + l->block_bytes);
	length = ALIGN_UP(end, SHARDFILE_ALIGN) - offset;
	*ret = (struct loader_block){
		.shard = pieces[l->piece].shard,
		.length = (uint32_t)length,
		.expected = (uint32_t)MIN(length, l->params->shards[pieces[l->piece].shard].bytes - offset),
		.offset = offset,
		.begin = l->position,
		.end = end,
		.piece = l->piece};
	l->position = end;
	return true;
}

bool loader_next(struct loader *l, struct loader_slot *slot)
{
	struct moe_error error = {0};
	bool good;

	if (atomic_load(&l->failed))
		return false;
	pthread_mutex_lock(&l->cursor_lock);
	good = next_block(l, &slot->block, &error);
	pthread_mutex_unlock(&l->cursor_lock);
	if (error.code)
		loader_fail(l, &error);
	slot->got = slot->refusals = 0;
	return good;
}

/* Once per DROP_BYTES; what may still be in flight, and read ahead, stays. */
static void drop_behind(const struct loader *l, const struct shardfile *file, const struct loader_block *block)
{
	const uint64_t window = DROP_BYTES + (uint64_t)l->depth * l->block_bytes;

	if (block->offset > window && block->offset / DROP_BYTES != (block->offset - l->block_bytes) / DROP_BYTES)
		shardfile_drop(file, block->offset - window);
}

enum loader_read loader_took(struct loader *l, struct loader_slot *slot, int64_t result)
{
	const struct loader_block *block = &slot->block;
	const struct shardfile *file = &l->files[block->shard];
	struct moe_error error;
	uint32_t got;

	if (atomic_load(&l->failed))
		return LOADER_STOP;
	if ((result == -EINTR || result == -EAGAIN) && slot->refusals++ < REFUSALS_MAX)
		return LOADER_READ_ON;
	if (result < 0) {
		moe_error_sys(&error, (int)result, "%s: cannot read %u bytes at offset %" PRIu64, file->shard->path,
			      block->length - slot->got, block->offset + slot->got);
		loader_fail(l, &error);
		return LOADER_STOP;
	}
	atomic_fetch_add_explicit(&l->read_bytes, (uint64_t)result, memory_order_relaxed);
	got = slot->got + (uint32_t)result;
	if (got >= block->expected) {
		drop_behind(l, file, block);
		return LOADER_FULL;
	}
	/* A direct read can go on only where a unit begins. */
	if (ALIGN_DOWN(got, SHARDFILE_ALIGN) > slot->got || (!file->direct && result > 0)) {
		slot->got = file->direct ? ALIGN_DOWN(got, SHARDFILE_ALIGN) : got;
		return LOADER_READ_ON;
	}
	shardfile_short(file, block->offset, block->expected, got, &error);
	loader_fail(l, &error);
	return LOADER_STOP;
}
