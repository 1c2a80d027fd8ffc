/* SPDX-License-Identifier: MIT */
#include "daemon/loader.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/loader-ring.h"
#include "daemon/manifest.h"

#define BLOCK_BYTES (512u << 10)
#define BLOCK_BYTES_MAX (64u << 20)
/* 8 MiB in flight and as much with the workers: a ring that is larger leaves the caches (docs/decisions/0083). */
#define DEPTH 16u
#define DEPTH_MAX 1024u
#define SLOTS 32u
/* Of the bounce ring, when large granules make blocks larger than asked for. */
#define RING_BYTES_MAX (128u << 20)
/* One worker repacks and hashes about as much as a fast disk delivers; disks come in arrays. */
#define WORKERS_MAX 8u

/* -- workers ------------------------------------------------------------------------------------------------------ */

struct workers {
	struct loader *loader;
	uint32_t node; /* index */
	struct team team;
};

static void hash_record(const struct loader_params *p, const struct loader_record *record)
{
	const uint8_t *share[HOST_NODES_MAX];

	for (uint32_t i = 0; i < p->n_nodes; i++)
		share[i] = p->memory[i] + record->offset;
	manifest_record_digest(record->digest, record->layout, share);
}

static void land(struct loader *l, struct loader_record *record, uint64_t bytes)
{
	atomic_fetch_add_explicit(&l->landed, bytes, memory_order_relaxed);
	/* Release: what this worker wrote; acquire, for the last one: what all others wrote. */
	if (atomic_fetch_sub_explicit(&record->missing, bytes, memory_order_acq_rel) == bytes)
		hash_record(l->params, record);
}

/* Memory for the record's share, which may still be in the making. */
static bool have_memory(struct loader *l, const struct loader_record *record, uint32_t node)
{
	const struct loader_params *p = l->params;
	const int r = p->need ? p->need(node, record->offset, record->layout->record_bytes, p->userdata) : 0;
	struct moe_error error;

	if (r == 0)
		return true;
	moe_error_sys(&error, r, "%s: memory on NUMA node %d", p->name, p->nodes[node].id);
	loader_fail(l, &error);
	return false;
}

/* What the slot's pieces bring to the node's shares. */
static void repack_out(struct loader *l, const struct loader_slot *slot, uint32_t node)
{
	const struct loader_params *p = l->params;
	uint64_t first, n, at;

	for (uint64_t i = slot->block.piece; i < p->n_pieces; i++) {
		const struct piece *piece = &p->pieces[i];
		struct loader_record *record = &p->records[piece->record];
		const struct record_share to = {
			.layout = record->layout, .share = node, .memory = p->memory[node] + record->offset};

		if (!block_holds(&slot->block, piece, &first, &n, &at) || !have_memory(l, record, node))
			break;
		p->repack(&piece->repack, &to, first, n, slot->memory + at);
		land(l, record, n * piece->repack.granule_bytes);
	}
}

static struct loader_slot *next_full(struct loader *l, struct loader_queue *queue)
{
	struct loader_slot *slot = NULL;

	pthread_mutex_lock(&l->lock);
	while (queue->head == queue->tail && !l->no_more)
		pthread_cond_wait(&queue->work, &l->lock);
	if (queue->head != queue->tail)
		slot = queue->slots[queue->head++ % l->n_slots];
	pthread_mutex_unlock(&l->lock);
	return slot;
}

static void *work_thread(void *argument)
{
	struct workers *workers = argument;
	struct loader *l = workers->loader;
	struct loader_slot *slot;

	team_step_back(); /* behind the reader: a disk that has nothing to read is what a load cannot make up for */
	host_bind_thread(&l->params->nodes[workers->node]); /* for speed; unbound it works as well */
	while ((slot = next_full(l, &l->queues[workers->node]))) {
		if (!atomic_load(&l->failed))
			repack_out(l, slot, workers->node);
		/* Whoever reuses the slot comes after every node's repacking. */
		if (atomic_fetch_sub_explicit(&slot->nodes_left, 1, memory_order_acq_rel) == 1)
			loader_give_slot(l, slot);
	}
	return NULL;
}

/* -- the loader's memory ------------------------------------------------------------------------------------------ */

static void free_loader(struct loader *l)
{
	for (uint32_t i = 0; l->files && i < l->params->n_shards; i++) {
		if (l->files[i].fd >= 0)
			shardfile_drop(&l->files[i], 0);
		shardfile_close(&l->files[i]);
	}
	for (uint32_t i = 0; i < l->params->n_nodes; i++) {
		pthread_cond_destroy(&l->queues[i].work);
		free(l->queues[i].slots);
	}
	pthread_cond_destroy(&l->freed);
	pthread_mutex_destroy(&l->lock);
	pthread_mutex_destroy(&l->walk_lock);
	if (l->ring)
		munmap(l->ring, (size_t)l->n_slots * l->walk.block_bytes);
	free(l->free_slots);
	free(l->slots);
	free(l->files);
}

static void tune(struct loader *l, const struct loader_tuning *tuning, uint64_t granule)
{
	const uint32_t asked = tuning->block_bytes ? MIN(tuning->block_bytes, BLOCK_BYTES_MAX) : BLOCK_BYTES;

	l->walk = (struct walk){.pieces = l->params->pieces,
				.n_pieces = l->params->n_pieces,
				.shards = l->params->shards,
				.block_bytes = piece_block_bytes(asked, granule)};
	l->depth = MIN(tuning->depth ? tuning->depth : DEPTH, DEPTH_MAX);
	l->n_slots = MAX(tuning->slots ? tuning->slots : SLOTS, l->depth);
	if (l->walk.block_bytes > ALIGN_UP(asked, SHARDFILE_ALIGN)) {
		l->n_slots = MIN(l->n_slots, RING_BYTES_MAX / l->walk.block_bytes);
		l->depth = MIN(l->depth, l->n_slots);
	}
}

static bool allocate(struct loader *l)
{
	const struct loader_params *p = l->params;
	const size_t bytes = (size_t)l->n_slots * l->walk.block_bytes;
	void *ring;

	l->files = calloc(MAX(p->n_shards, 1u), sizeof *l->files);
	for (uint32_t i = 0; l->files && i < p->n_shards; i++)
		l->files[i].fd = -1;
	l->slots = calloc(l->n_slots, sizeof *l->slots);
	l->free_slots = calloc(l->n_slots, sizeof(struct loader_slot *));
	for (uint32_t i = 0; i < p->n_nodes; i++) {
		l->queues[i].slots = calloc(l->n_slots, sizeof(struct loader_slot *));
		if (!l->queues[i].slots)
			return false;
	}
	if (!l->files || !l->slots || !l->free_slots)
		return false;
	ring = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (ring == MAP_FAILED)
		return false;
	l->ring = ring;
	madvise(ring, bytes, MADV_HUGEPAGE);
	for (uint32_t i = 0; i < l->n_slots; i++) {
		l->slots[i].memory = l->ring + (size_t)i * l->walk.block_bytes;
		l->free_slots[l->n_free++] = &l->slots[i];
	}
	return true;
}

static int new_loader(struct loader *ret, const struct loader_params *params, struct moe_error *err)
{
	uint64_t granule = 1;
	int r;

	*ret = (struct loader){.params = params, .all_direct = true, .ticked_ns = now_ns() - LOADER_TICK_NS};
	r = piece_check(params->pieces, params->n_pieces, params->shards, &ret->total, &granule, err);
	if (r < 0)
		return r;
	tune(ret, &params->tuning, granule);
	pthread_mutex_init(&ret->lock, NULL);
	pthread_mutex_init(&ret->walk_lock, NULL);
	pthread_cond_init(&ret->freed, NULL);
	for (uint32_t i = 0; i < params->n_nodes; i++)
		pthread_cond_init(&ret->queues[i].work, NULL);
	if (allocate(ret))
		return 0;
	free_loader(ret);
	return moe_error_set(err, -ENOMEM, "%s: no memory for a bounce ring of %u blocks of %u bytes", params->name,
			     ret->n_slots, ret->walk.block_bytes);
}

/* -- a load ------------------------------------------------------------------------------------------------------- */

static int start_workers(struct loader *l, struct workers *workers, struct moe_error *err)
{
	for (uint32_t i = 0; i < l->params->n_nodes; i++) {
		const uint32_t cpus = MAX(l->params->nodes[i].n_cpus, 1u);
		int r;

		workers[i].loader = l;
		workers[i].node = i;
		r = team_start(&workers[i].team, "moe-load", MIN(cpus, WORKERS_MAX), work_thread, &workers[i], err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* No slot will be queued any more: the workers empty their queues and end. */
static void join_workers(struct loader *l, struct workers *workers)
{
	pthread_mutex_lock(&l->lock);
	l->no_more = true;
	for (uint32_t i = 0; i < l->params->n_nodes; i++)
		pthread_cond_broadcast(&l->queues[i].work);
	pthread_mutex_unlock(&l->lock);
	for (uint32_t i = 0; i < l->params->n_nodes; i++)
		team_join(&workers[i].team);
}

/* True when io_uring was the reader. */
static bool read_all(struct loader *l)
{
	int r = -ECANCELED;

	if (!l->params->tuning.no_io_uring) {
		r = loader_read_uring(l);
		if (r == 0)
			return true;
		log_notice("%s: no io_uring (%s): reading with threads; sysctl kernel.io_uring_disabled=0 and a "
			   "seccomp profile that permits io_uring_setup allow it",
			   l->params->name, strerrordesc_np(-r));
	}
	loader_read_threads(l);
	return false;
}

static int finish(struct loader *l, struct moe_error *err)
{
	const struct loader_params *p = l->params;

	l->ticked_ns = 0; /* the last report is always made */
	if (!atomic_load(&l->failed))
		loader_tick(l);
	if (atomic_load(&l->failed)) {
		if (err)
			*err = l->error;
		return l->error.code;
	}
	for (uint32_t i = 0; i < p->n_shards; i++) {
		const int r = l->files[i].fd >= 0 ? shardfile_check(&l->files[i], err) : 0;

		if (r < 0)
			return r;
	}
	assert(atomic_load(&l->landed) == l->total * p->n_nodes);
	return 0;
}

int loader_run(struct loader_result *ret, const struct loader_params *params, struct moe_error *err)
{
	struct workers *workers = calloc(params->n_nodes, sizeof *workers);
	struct loader loader;
	bool io_uring = false;
	int r;

	assert(params->n_nodes > 0 && params->n_nodes <= HOST_NODES_MAX);
	if (!workers)
		return moe_error_set(err, -ENOMEM, "%s: no memory for the loader", params->name);
	r = new_loader(&loader, params, err);
	if (r < 0) {
		free(workers);
		return r;
	}
	r = start_workers(&loader, workers, err);
	if (r == 0)
		io_uring = read_all(&loader);
	join_workers(&loader, workers);
	if (r == 0)
		r = finish(&loader, err);
	if (r == 0)
		*ret = (struct loader_result){.read_bytes = atomic_load(&loader.read_bytes),
					      .direct = loader.all_direct,
					      .io_uring = io_uring};
	free_loader(&loader);
	free(workers);
	return r;
}
