/* SPDX-License-Identifier: MIT */
#include "daemon/loader-ring.h"

#include <errno.h>
#include <time.h>

#include "base/error.h"
#include "base/log.h"
#include "base/util.h"

#define DROP_BYTES (64ull << 20)

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

static void dispatch(struct loader *l, struct loader_slot *slot)
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

/* -- the walk ---------------------------------------------------------------------------------------------------- */

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

bool loader_next(struct loader *l, struct loader_slot *slot)
{
	struct moe_error error = {0};
	bool good;

	if (atomic_load(&l->failed))
		return false;
	pthread_mutex_lock(&l->walk_lock);
	good = walk_next(&l->walk, &slot->block) && open_shard(l, slot->block.shard, &error) == 0;
	pthread_mutex_unlock(&l->walk_lock);
	if (error.code)
		loader_fail(l, &error);
	if (good)
		slot->read = (struct diskread){.file = &l->files[slot->block.shard],
					       .memory = slot->memory,
					       .offset = slot->block.offset,
					       .length = slot->block.length,
					       .expected = slot->block.expected};
	return good;
}

/* Once per DROP_BYTES; what may still be in flight, and read ahead, stays. */
static void drop_behind(const struct loader *l, const struct shardfile *file, const struct block *block)
{
	const uint64_t window = DROP_BYTES + (uint64_t)l->depth * l->walk.block_bytes;

	if (block->offset > window && block->offset / DROP_BYTES != (block->offset - l->walk.block_bytes) / DROP_BYTES)
		shardfile_drop(file, block->offset - window);
}

void loader_took(struct loader *l, struct loader_slot *slot, const struct moe_error *error)
{
	if (error)
		loader_fail(l, error);
	atomic_fetch_add_explicit(&l->read_bytes, slot->read.bytes, memory_order_relaxed);
	if (atomic_load(&l->failed)) {
		loader_give_slot(l, slot);
		return;
	}
	drop_behind(l, slot->read.file, &slot->block);
	dispatch(l, slot);
}
