/* SPDX-License-Identifier: MIT */
#include "daemon/reader.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/diskring.h"
#include "daemon/manifest.h"
#include "daemon/origin.h"
#include "daemon/team.h"

/* By measurement (docs/decisions/0014). More slots than reads: the others are repacked meanwhile. */
#define BLOCK_BYTES (512u << 10)
#define DEPTH 16u
#define SLOTS 32u
#define SLOTS_BYTES_MAX (64u << 20) /* when large granules make blocks larger */
/* One helper repacks and hashes about as much as a fast disk delivers; disks come in arrays. */
#define HELPERS_MAX 8u

/* A job whose reads have begun. */
struct reader_work {
	struct piece pieces[EXPERT_SOURCES_MAX];
	struct walk walk;
	struct block next; /* while `more`: to be asked for */
	bool more;
	bool listed; /* among those that reads are asked for */
	bool zeroing;
	uint32_t out; /* slots that are read into, full or being repacked */
};

struct slot {
	struct block block;
	struct diskread read;
	struct reader_job *job;
	uint8_t *memory;
	struct slot *next;
};

struct list {
	struct reader_job *head, *tail;
};

struct reader {
	uint8_t *memory[MOE_POOLS_MAX];

	/* The ring thread's, once it runs. */
	struct origin origin;
	struct diskring ring;
	struct slot *slots;
	uint32_t block_bytes;

	pthread_mutex_t lock; /* of the rest, and of what jobs say */
	pthread_cond_t work, zeroed, ended;
	struct list wanted; /* jobs that reads are to be asked for, by their ranks */
	struct list done;
	struct slot *free, *full, **full_end;
	uint32_t hints;          /* slots of jobs of nobody */
	uint32_t under_way;      /* jobs that are not done */
	_Atomic uint32_t n_done; /* for a look without the lock */
	bool asleep;             /* the ring thread: wake_fd wakes it */
	bool stop, read_out;     /* nothing is to be read any more; nothing will be full any more */
	void (*wake)(void *userdata);
	void *userdata;
	int wake_fd;
	struct team team, helpers;
};

/* -- lists, under the lock ---------------------------------------------------------------------------------------- */

/* Behind `after`, NULL: first. */
static void insert(struct list *list, struct reader_job *after, struct reader_job *job)
{
	struct reader_job *next = after ? after->next : list->head;

	job->prev = after;
	job->next = next;
	*(after ? &after->next : &list->head) = job;
	*(next ? &next->prev : &list->tail) = job;
}

static void list_remove(struct list *list, struct reader_job *job)
{
	*(job->prev ? &job->prev->next : &list->head) = job->next;
	*(job->next ? &job->next->prev : &list->tail) = job->prev;
}

static void push(struct list *list, struct reader_job *job)
{
	insert(list, list->tail, job);
}

static struct reader_job *pop(struct list *list)
{
	struct reader_job *job = list->head;

	if (job)
		list_remove(list, job);
	return job;
}

/* From the end: ranks mostly rise. */
static void push_by_rank(struct list *list, struct reader_job *job)
{
	struct reader_job *after = list->tail;

	while (after && after->rank > job->rank)
		after = after->prev;
	insert(list, after, job);
}

static void free_list(struct list *list)
{
	struct reader_job *job;

	while ((job = pop(list))) {
		free(job->work);
		free(job);
	}
}

static void wake_ring(struct reader *r)
{
	if (r->asleep)
		eventfd_write(r->wake_fd, 1);
	r->asleep = false;
}

/* -- the ring and its slots --------------------------------------------------------------------------------------- */

static int make_slots(struct reader *r, struct moe_error *err)
{
	const uint32_t block_bytes = piece_block_bytes(BLOCK_BYTES, origin_granule(&r->origin));
	const uint32_t n = MIN(SLOTS, SLOTS_BYTES_MAX / block_bytes);
	const size_t bytes = (size_t)n * block_bytes;
	uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct slot *slots = calloc(n, sizeof *slots);

	if (memory == MAP_FAILED || !slots) {
		if (memory != MAP_FAILED)
			munmap(memory, bytes);
		free(slots);
		return moe_error_set(err, -ENOMEM, "%s: no memory for %u blocks of %u bytes to read", r->origin.path, n,
				     block_bytes);
	}
	madvise(memory, bytes, MADV_HUGEPAGE);
	r->ring.memory = memory;
	r->ring.bytes = bytes;
	r->ring.depth = MIN(DEPTH, n);
	r->block_bytes = block_bytes;
	r->slots = slots;
	for (uint32_t i = 0; i < n; i++) {
		slots[i].memory = memory + (size_t)i * block_bytes;
		slots[i].next = r->free;
		r->free = &slots[i];
	}
	return 0;
}

/* With nothing in flight. One that the kernel refused is tried anew. */
static int open_ring(struct reader *r, struct moe_error *err)
{
	int c = r->slots ? 0 : make_slots(r, err);

	if (c < 0 || (r->ring.open && !r->ring.broken))
		return c;
	diskring_close(&r->ring);
	r->ring.name = r->origin.path;
	c = diskring_open(&r->ring);
	return c < 0 ? moe_error_sys(err, c, "%s: cannot read records: io_uring", r->origin.path) : 0;
}

/* -- jobs --------------------------------------------------------------------------------------------------------- */

static int begin_work(struct reader *r, const struct reader_job *job, struct reader_work *work, struct moe_error *err)
{
	uint32_t n = 0;
	const int c = origin_list(&r->origin, job->record, work->pieces, &n, err);

	if (c < 0)
		return c;
	work->walk = (struct walk){.pieces = work->pieces,
				   .n_pieces = n,
				   .shards = r->origin.model->shards,
				   .block_bytes = r->block_bytes};
	work->more = walk_next(&work->walk, &work->next);
	return 0;
}

/* Its last piece is there. */
static int verify(const struct reader *r, const struct reader_job *job, struct moe_error *err)
{
	const uint8_t *share[MOE_POOLS_MAX];

	for (uint32_t i = 0; i < r->origin.manifest->n_pools; i++)
		share[i] = r->memory[i] + job->offset;
	return origin_check(&r->origin, job->record, share, &job->work->pieces[0], job->learn, err);
}

static void note(struct reader_job *job, const struct moe_error *error)
{
	if (job->status)
		return;
	job->status = error->code;
	snprintf(job->error, sizeof job->error, "%s", error->text);
}

/* Under the lock, which is let go for the caller's wake-up. */
static void give_back(struct reader *r, struct reader_job *job)
{
	free(job->work);
	job->work = NULL;
	r->under_way--;
	push(&r->done, job);
	atomic_fetch_add(&r->n_done, 1);
	pthread_cond_broadcast(&r->ended);
	if (r->wake)
		r->wake(r->userdata);
}

static uint32_t *slots_of(struct reader *r, const struct reader_job *job)
{
	return job->slots ? job->slots : &r->hints;
}

/* The first job that wants something read and may have it. NULL: none. */
static struct reader_job *next_wanted(struct reader *r)
{
	struct reader_job *job = r->wanted.head;

	while (job && !job->status && job->shared && *slots_of(r, job) >= READER_SHARED)
		job = job->next;
	return job;
}

/* The slot is free again; whoever brings a job's last one ends the job. Under the lock, which is let go to hash. */
static void leave(struct reader *r, struct slot *slot)
{
	struct reader_job *job = slot->job;
	struct moe_error error = {0};
	int c;

	/* A job that READER_SHARED holds back may wait for this one's slot, whether or not this one is `shared`. */
	if (!r->free || *slots_of(r, job) == READER_SHARED)
		wake_ring(r);
	(*slots_of(r, job))--;
	slot->next = r->free;
	r->free = slot;
	if (--job->work->out > 0 || job->work->listed)
		return;
	if (!job->status) { /* the lock orders what the other threads wrote */
		pthread_mutex_unlock(&r->lock);
		c = verify(r, job, &error);
		pthread_mutex_lock(&r->lock);
		if (c < 0)
			note(job, &error);
	}
	give_back(r, job);
}

/* -- the ring thread ---------------------------------------------------------------------------------------------- */

static void done(void *userdata, struct diskread *read, const struct moe_error *error)
{
	struct slot *slot = container_of(read, struct slot, read);
	struct reader *r = userdata;

	pthread_mutex_lock(&r->lock);
	slot->job->read_bytes += read->bytes;
	if (error)
		note(slot->job, error);
	if (slot->job->status) {
		leave(r, slot);
	} else {
		slot->next = NULL;
		*r->full_end = slot;
		r->full_end = &slot->next;
		pthread_cond_signal(&r->work);
	}
	pthread_mutex_unlock(&r->lock);
}

/* The rest is under the lock but where it says so. A job stays where it is while its files are opened. */
static void begin(struct reader *r, struct reader_job *job)
{
	struct reader_work *work = job->work;
	struct moe_error error = {0};
	int c;

	pthread_mutex_unlock(&r->lock);
	c = origin_open(&r->origin, &error);
	if (c == 0)
		c = open_ring(r, &error);
	if (c == 0 && !work) {
		work = calloc(1, sizeof *work);
		c = work ? begin_work(r, job, work, &error)
			 : moe_error_set(&error, -ENOMEM, "%s: no memory to read a record", r->origin.path);
	}
	pthread_mutex_lock(&r->lock);
	if (!job->work && work)
		work->listed = true;
	job->work = work;
	if (c == 0)
		return;
	note(job, &error);
	if (work && work->out > 0)
		return; /* goes with its last slot */
	list_remove(&r->wanted, job);
	give_back(r, job);
}

static void ask_for_block(struct reader *r, struct reader_job *job)
{
	struct reader_work *work = job->work;
	struct slot *slot = r->free;

	r->free = slot->next;
	slot->job = job;
	slot->block = work->next;
	slot->read = (struct diskread){.file = &r->origin.files[slot->block.shard],
				       .memory = slot->memory,
				       .offset = slot->block.offset,
				       .length = slot->block.length,
				       .expected = slot->block.expected};
	work->out++;
	(*slots_of(r, job))++;
	work->more = walk_next(&work->walk, &work->next);
	diskring_add(&r->ring, &slot->read);
}

/* The next thing to do for the first job that wants something read. False: nothing is to be done, or can be. */
static bool advance(struct reader *r)
{
	struct reader_job *job = next_wanted(r);

	if (!job || (r->ring.broken && r->ring.in_flight > 0))
		return false;
	if (!job->status && (!job->work || !r->ring.open || r->ring.broken)) {
		begin(r, job);
		return true;
	}
	if (!job->status) {
		if (!r->free || !diskring_has_room(&r->ring))
			return false;
		ask_for_block(r, job);
	}
	if (!job->status && job->work->more)
		return true;
	list_remove(&r->wanted, job);
	job->work->listed = false;
	if (job->work->out == 0)
		give_back(r, job);
	return true;
}

static void sleep_idle(struct reader *r)
{
	struct pollfd wake = {.fd = r->wake_fd, .events = POLLIN};
	eventfd_t count;

	poll(&wake, 1, -1);
	eventfd_read(r->wake_fd, &count);
}

static void *run_ring(void *argument)
{
	struct reader *r = argument;

	pthread_mutex_lock(&r->lock);
	while (!r->stop || r->ring.in_flight > 0) {
		if (!r->stop && advance(r))
			continue;
		r->asleep = true;
		pthread_mutex_unlock(&r->lock);
		if (r->ring.in_flight > 0)
			diskring_turn(&r->ring, UINT64_MAX);
		else
			sleep_idle(r);
		pthread_mutex_lock(&r->lock);
		r->asleep = false;
	}
	pthread_mutex_unlock(&r->lock);
	diskring_close(&r->ring);
	return NULL;
}

/* -- helpers ------------------------------------------------------------------------------------------------------ */

/* The first of a job's slots; the others wait. Under the lock, which is let go. */
static void make_room(struct reader *r, struct reader_job *job)
{
	while (job->work->zeroing)
		pthread_cond_wait(&r->zeroed, &r->lock);
	if (!job->zero)
		return;
	job->work->zeroing = true;
	pthread_mutex_unlock(&r->lock);
	for (uint32_t i = 0; i < r->origin.manifest->n_pools; i++)
		memset(r->memory[i] + job->offset, 0, r->origin.manifest->record_bytes);
	pthread_mutex_lock(&r->lock);
	job->zero = job->work->zeroing = false;
	pthread_cond_broadcast(&r->zeroed);
}

static void repack_out(const struct reader *r, const struct slot *slot)
{
	const struct reader_job *job = slot->job;
	const struct moe_manifest *m = r->origin.manifest;
	uint64_t first, n, at;

	for (uint64_t i = slot->block.piece; i < job->work->walk.n_pieces; i++) {
		const struct piece *piece = &job->work->pieces[i];

		if (!block_holds(&slot->block, piece, &first, &n, &at))
			break;
		for (uint32_t j = 0; j < m->n_pools; j++) {
			const struct record_share to = {.layout = manifest_layout(m, job->record / m->n_experts),
							.share = j,
							.memory = r->memory[j] + job->offset};

			repack(&piece->repack, &to, first, n, slot->memory + at);
		}
	}
}

static void *run_helper(void *argument)
{
	struct reader *r = argument;
	struct slot *slot;

	pthread_mutex_lock(&r->lock);
	while (r->full || !r->read_out) {
		slot = r->full;
		if (!slot) {
			pthread_cond_wait(&r->work, &r->lock);
			continue;
		}
		r->full = slot->next;
		if (!r->full)
			r->full_end = &r->full;
		if (!slot->job->status) {
			make_room(r, slot->job);
			pthread_mutex_unlock(&r->lock);
			repack_out(r, slot);
			pthread_mutex_lock(&r->lock);
		}
		leave(r, slot);
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

/* -- for the caller ----------------------------------------------------------------------------------------------- */

void reader_read(struct reader *r, struct reader_job *job)
{
	pthread_mutex_lock(&r->lock);
	r->under_way++;
	push_by_rank(&r->wanted, job);
	wake_ring(r);
	pthread_mutex_unlock(&r->lock);
}

void reader_hurry(struct reader *r, uint64_t offset, uint64_t rank)
{
	struct reader_job *job;

	pthread_mutex_lock(&r->lock);
	for (job = r->wanted.tail; job && job->offset != offset;)
		job = job->prev;
	if (job && job->rank > rank) {
		list_remove(&r->wanted, job);
		job->rank = rank;
		push_by_rank(&r->wanted, job);
	}
	pthread_mutex_unlock(&r->lock);
}

struct reader_job *reader_next_done(struct reader *r, bool wait)
{
	struct reader_job *job;

	if (!wait && atomic_load(&r->n_done) == 0)
		return NULL;
	pthread_mutex_lock(&r->lock);
	while (wait && !r->done.head && r->under_way > 0)
		pthread_cond_wait(&r->ended, &r->lock);
	job = pop(&r->done);
	if (job)
		atomic_fetch_sub(&r->n_done, 1);
	pthread_mutex_unlock(&r->lock);
	return job;
}

/* -- life --------------------------------------------------------------------------------------------------------- */

void reader_set_wake(struct reader *r, void (*wake)(void *userdata), void *userdata)
{
	pthread_mutex_lock(&r->lock);
	r->wake = wake;
	r->userdata = userdata;
	pthread_mutex_unlock(&r->lock);
}

void reader_set_manifest(struct reader *r, const struct moe_manifest *manifest)
{
	pthread_mutex_lock(&r->lock);
	r->origin.manifest = manifest;
	pthread_mutex_unlock(&r->lock);
}

int reader_check_files(const struct reader *r, struct moe_error *err)
{
	return origin_check_files(&r->origin, err);
}

bool reader_direct(const struct reader *r)
{
	return !atomic_load(&r->origin.indirect);
}

static int make(struct reader *r, const struct reader_params *p, struct moe_error *err)
{
	int c = origin_init(&r->origin, p->path, p->manifest, p->model, p->buffered, err);

	if (c == 0 && r->origin.model)
		c = open_ring(r, err);
	if (c < 0)
		return c;
	r->wake_fd = r->ring.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (r->wake_fd < 0)
		return moe_error_sys(err, -errno, "%s: cannot make an eventfd", p->path);
	c = team_start(&r->helpers, "moe-repack", MIN((uint32_t)MAX(get_nprocs(), 1), HELPERS_MAX), run_helper, r, err);
	return c < 0 ? c : team_start(&r->team, "moe-read", 1, run_ring, r, err);
}

int reader_new(struct reader **ret, const struct reader_params *params, struct moe_error *err)
{
	struct reader *r = calloc(1, sizeof *r);
	int c;

	if (!r) {
		model_free(params->model);
		return moe_error_set(err, -ENOMEM, "%s: no memory for a reader", params->path);
	}
	memcpy(r->memory, params->memory, sizeof r->memory);
	r->wake_fd = -1;
	r->full_end = &r->full;
	r->ring.done = done;
	r->ring.userdata = r;
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->work, NULL);
	pthread_cond_init(&r->zeroed, NULL);
	pthread_cond_init(&r->ended, NULL);
	c = make(r, params, err);
	if (c < 0) {
		reader_free(r);
		return c;
	}
	*ret = r;
	return 0;
}

struct reader *reader_free(struct reader *r)
{
	if (!r)
		return NULL;
	pthread_mutex_lock(&r->lock);
	r->stop = true;
	wake_ring(r);
	pthread_mutex_unlock(&r->lock);
	team_join(&r->team); /* the kernel writes nothing any more */
	pthread_mutex_lock(&r->lock);
	r->read_out = true;
	pthread_cond_broadcast(&r->work);
	pthread_mutex_unlock(&r->lock);
	team_join(&r->helpers);
	diskring_close(&r->ring);
	close_fd(r->wake_fd);
	free_list(&r->wanted);
	free_list(&r->done);
	if (r->slots)
		munmap(r->ring.memory, r->ring.bytes);
	free(r->slots);
	origin_end(&r->origin);
	pthread_mutex_destroy(&r->lock);
	pthread_cond_destroy(&r->work);
	pthread_cond_destroy(&r->zeroed);
	pthread_cond_destroy(&r->ended);
	free(r);
	return NULL;
}
