/* SPDX-License-Identifier: MIT */
#include "daemon/reader.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/manifest.h"
#include "daemon/shardfile.h"
#include "daemon/team.h"
#include "model/expert.h"

/* Threads wait for the disk nearly all the time: as many as keep a fast disk busy (docs/decisions/0014). */
#define READERS 8u
#define BLOCK_BYTES (1u << 20)
#define REFUSALS_MAX 1000 /* of one read: then it is no matter of waiting */

#define ALIGN_DOWN(value, align) ((value) & ~((__typeof__(value))(align)-1))

/* A job under way. */
struct reader_work {
	struct expert_source sources[EXPERT_SOURCES_MAX];
	uint32_t n, next; /* next: the first source that no thread has */
	uint32_t left;    /* sources that are not done */
};

struct list {
	struct reader_job *head, **tail;
};

struct reader {
	char *path;
	const struct moe_manifest *manifest;
	uint8_t *memory[MOE_POOLS_MAX];
	bool buffered;
	uint32_t *layers; /* [n_moe_layers]: of each row */

	pthread_mutex_t files_lock; /* of opening; what is open stays open */
	struct model *_Atomic model;
	struct shardfile *files; /* [model->n_shards] */
	_Atomic bool indirect, said_indirect;

	pthread_mutex_t lock; /* of the rest */
	pthread_cond_t work, ended;
	struct list urgent, later, active, done;
	uint32_t under_way;      /* jobs that are not done */
	_Atomic uint32_t n_done; /* for a look without the lock */
	bool stop;
	void (*wake)(void *userdata);
	void *userdata;
	struct team team;
};

/* A thread's own. */
struct bounce {
	uint8_t *memory;
	uint64_t bytes;
};

/* -- lists, under the lock ---------------------------------------------------------------------------------------- */

static void list_init(struct list *list)
{
	list->head = NULL;
	list->tail = &list->head;
}

static void push(struct list *list, struct reader_job *job)
{
	job->next = NULL;
	*list->tail = job;
	list->tail = &job->next;
}

static struct reader_job *pop(struct list *list)
{
	struct reader_job *job = list->head;

	if (job) {
		list->head = job->next;
		if (!list->head)
			list->tail = &list->head;
	}
	return job;
}

static void free_list(struct list *list)
{
	struct reader_job *job;

	while ((job = pop(list))) {
		free(job->work);
		free(job);
	}
}

/* -- the model's files -------------------------------------------------------------------------------------------- */

/* What is laid out anew now must be what the manifest was made of, or it would not fit. */
static int check_model(const struct reader *r, const struct model *model, struct moe_error *err)
{
	const struct moe_manifest *have = r->manifest;
	_cleanup_free_ struct moe_manifest *m = NULL;
	bool same;
	int c = manifest_new(&m, model, have->n_pools, err);

	if (c < 0)
		return c;
	same = m->n_pools == have->n_pools && m->n_layouts == have->n_layouts && m->bytes == have->bytes &&
	       memcmp(&m->n_layers, &have->n_layers, 8 * sizeof m->n_layers) == 0 &&
	       memcmp(manifest_layer_index(m), manifest_layer_index(have), m->n_layers * sizeof(int32_t)) == 0 &&
	       memcmp(manifest_layouts(m), manifest_layouts(have), m->n_layouts * sizeof(struct moe_layout)) == 0;
	for (uint64_t i = 0; same && i < (uint64_t)m->n_moe_layers * m->n_experts; i++)
		same = manifest_records(m)[i].layout == manifest_records(have)[i].layout;
	return same ? 0
		    : moe_error_set(err, -ESTALE,
				    "%s: another model found than the one that was loaded from there as '%s': put its "
				    "files back, or unload it and load it again",
				    r->path, have->name);
}

static int take_model(struct reader *r, struct model *model, struct moe_error *err)
{
	struct shardfile *files = calloc(MAX(model->n_shards, 1u), sizeof *files);

	if (!files) {
		model_free(model);
		return moe_error_set(err, -ENOMEM, "%s: no memory for %u files", r->path, model->n_shards);
	}
	for (uint32_t i = 0; i < model->n_shards; i++)
		files[i].fd = -1;
	r->files = files;
	atomic_store(&r->model, model);
	return 0;
}

/* After a restart nothing is known of the files but the folder's name. */
static int open_model(struct reader *r, struct moe_error *err)
{
	struct model *model = NULL;
	int c = 0;

	if (atomic_load(&r->model))
		return 0;
	pthread_mutex_lock(&r->files_lock);
	if (!atomic_load(&r->model)) {
		c = model_open(&model, r->path, err);
		if (c == 0)
			c = check_model(r, model, err);
		if (c == 0)
			c = take_model(r, model, err);
		else
			model_free(model);
	}
	pthread_mutex_unlock(&r->files_lock);
	return c;
}

static int open_file(struct reader *r, uint32_t shard, struct moe_error *err)
{
	struct shardfile *file = &r->files[shard];
	int c = 0;

	pthread_mutex_lock(&r->files_lock);
	if (file->fd < 0) {
		c = shardfile_open(file, &r->model->shards[shard], r->buffered, err);
		if (c == 0 && !file->direct) {
			atomic_store(&r->indirect, true);
			if (!atomic_exchange(&r->said_indirect, true))
				log_notice("%s: misses are read through the page cache%s", r->path,
					   r->buffered ? "" : ", O_DIRECT does not work on this file system");
		}
	}
	pthread_mutex_unlock(&r->files_lock);
	return c;
}

/* -- one source --------------------------------------------------------------------------------------------------- */

static int read_block(const struct shardfile *file, uint8_t *to, uint64_t offset, uint64_t length, uint64_t expected,
		      struct moe_error *err)
{
	uint64_t got = 0;
	int refusals = 0;

	while (got < expected) {
		const ssize_t n = pread(file->fd, to + got, length - got, (off_t)(offset + got));

		if (n < 0 && (errno == EINTR || errno == EAGAIN) && refusals++ < REFUSALS_MAX)
			continue;
		if (n < 0)
			return moe_error_sys(err, -errno, "%s: cannot read %" PRIu64 " bytes at offset %" PRIu64,
					     file->shard->path, length - got, offset + got);
		got += (uint64_t)n;
		/* A direct read can go on only where a unit begins. */
		if (got < expected && (n == 0 || (file->direct && got % SHARDFILE_ALIGN)))
			return shardfile_short(file, offset, expected, got, err);
	}
	return 0;
}

static int make_bounce(struct bounce *b, uint64_t granule, struct moe_error *err)
{
	/* Granules begin and end anywhere in a unit. */
	const uint64_t bytes = MAX((uint64_t)BLOCK_BYTES, ALIGN_UP(granule, SHARDFILE_ALIGN) + 2 * SHARDFILE_ALIGN);

	if (b->bytes >= bytes)
		return 0;
	free(b->memory);
	b->bytes = 0;
	b->memory = aligned_alloc(SHARDFILE_ALIGN, bytes);
	if (!b->memory)
		return moe_error_set(err, -ENOMEM, "no memory for a block of %" PRIu64 " bytes to read", bytes);
	b->bytes = bytes;
	return 0;
}

static void repack_out(const struct reader *r, const struct reader_job *job, const struct expert_source *source,
		       uint64_t first, uint64_t n, const uint8_t *bytes)
{
	const struct moe_manifest *m = r->manifest;

	for (uint32_t i = 0; i < m->n_pools; i++) {
		const struct record_share to = {.layout = manifest_layout(m, job->record / m->n_experts),
						.share = i,
						.memory = r->memory[i] + job->offset};

		repack(&source->repack, &to, first, n, bytes);
	}
}

static int read_source(struct reader *r, struct bounce *b, const struct reader_job *job,
		       const struct expert_source *source, uint64_t *ret_bytes, struct moe_error *err)
{
	const uint64_t granule = source->repack.granule_bytes, last = source->offset + source->repack.bytes;
	const struct shardfile *file = &r->files[source->shard];
	uint64_t at, end;
	int c = open_file(r, source->shard, err);

	if (c == 0)
		c = make_bounce(b, granule, err);
	for (at = source->offset; c == 0 && at < last; at = end) {
		const uint64_t begin = ALIGN_DOWN(at, SHARDFILE_ALIGN);
		uint64_t length;

		end = last;
		if (last - begin > b->bytes)
			end = at + (begin + b->bytes - at) / granule * granule;
		length = ALIGN_UP(end, SHARDFILE_ALIGN) - begin;
		c = read_block(file, b->memory, begin, length, MIN(length, file->shard->bytes - begin), err);
		*ret_bytes += length;
		if (c == 0)
			repack_out(r, job, source, (at - source->offset) / granule, (end - at) / granule,
				   b->memory + (at - begin));
	}
	return c;
}

/* -- jobs --------------------------------------------------------------------------------------------------------- */

static int list_sources(struct reader *r, struct reader_job *job, struct moe_error *err)
{
	const uint32_t row = job->record / r->manifest->n_experts, expert = job->record % r->manifest->n_experts;
	struct reader_work *work;
	int c = open_model(r, err);

	if (c < 0)
		return c;
	work = job->work = calloc(1, sizeof *work);
	if (!work)
		return moe_error_set(err, -ENOMEM, "%s: no memory to read a record", r->path);
	work->n = work->left = expert_sources(r->model, r->layers[row], expert, work->sources);
	for (uint32_t i = 0; job->zero && i < r->manifest->n_pools; i++)
		memset(r->memory[i] + job->offset, 0, r->manifest->record_bytes);
	return 0;
}

/* Its last source is there. */
static int verify(const struct reader *r, const struct reader_job *job, struct moe_error *err)
{
	const struct moe_manifest *m = r->manifest;
	const uint32_t row = job->record / m->n_experts, expert = job->record % m->n_experts;
	const struct expert_source *source = &job->work->sources[0];
	const uint8_t *share[MOE_POOLS_MAX];
	uint8_t digest[MOE_DIGEST_BYTES];

	for (uint32_t i = 0; i < m->n_pools; i++)
		share[i] = r->memory[i] + job->offset;
	manifest_record_digest(job->learn ? job->learn : digest, manifest_layout(m, row), share);
	if (job->learn || memcmp(digest, manifest_records(m)[job->record].digest, sizeof digest) == 0)
		return 0;
	return moe_error_set(err, -ESTALE,
			     "%s: offset %" PRIu64 ": layer %u expert %u is not what was loaded from there as '%s': "
			     "put the file back, or unload the model and load it again",
			     r->model->shards[source->shard].path, source->offset, r->layers[row], expert, m->name);
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

/* All under the lock but where it says so. */
static void begin(struct reader *r, struct reader_job *job)
{
	struct moe_error error = {0};
	int c;

	pthread_mutex_unlock(&r->lock);
	c = list_sources(r, job, &error);
	pthread_mutex_lock(&r->lock);
	if (c < 0) {
		note(job, &error);
		give_back(r, job);
		return;
	}
	push(&r->active, job);
	pthread_cond_broadcast(&r->work);
}

static void go_on(struct reader *r, struct reader_job *job, struct bounce *bounce)
{
	struct reader_work *work = job->work;
	const struct expert_source *source = &work->sources[work->next++];
	const bool failed = job->status != 0;
	struct moe_error error = {0};
	uint64_t bytes = 0;
	int c = 0;

	if (work->next == work->n)
		pop(&r->active);
	pthread_mutex_unlock(&r->lock);
	if (!failed)
		c = read_source(r, bounce, job, source, &bytes, &error);
	pthread_mutex_lock(&r->lock);
	job->read_bytes += bytes;
	if (c < 0)
		note(job, &error);
	if (--work->left > 0)
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

static void *run(void *argument)
{
	struct reader *r = argument;
	struct bounce bounce = {0};
	struct reader_job *job;

	pthread_mutex_lock(&r->lock);
	while (!r->stop) {
		if (r->active.head)
			go_on(r, r->active.head, &bounce);
		else if ((job = pop(&r->urgent)) || (job = pop(&r->later)))
			begin(r, job);
		else
			pthread_cond_wait(&r->work, &r->lock);
	}
	pthread_mutex_unlock(&r->lock);
	free(bounce.memory);
	return NULL;
}

void reader_read(struct reader *r, struct reader_job *job)
{
	pthread_mutex_lock(&r->lock);
	r->under_way++;
	push(job->urgent ? &r->urgent : &r->later, job);
	pthread_cond_signal(&r->work);
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
	r->manifest = manifest;
	pthread_mutex_unlock(&r->lock);
}

bool reader_direct(const struct reader *r)
{
	return !atomic_load(&r->indirect);
}

static int make(struct reader *r, const struct reader_params *p, struct moe_error *err)
{
	const struct moe_manifest *m = p->manifest;
	const int32_t *index = manifest_layer_index(m);
	int c;

	r->path = strdup(p->path);
	r->layers = calloc(m->n_moe_layers, sizeof *r->layers);
	if (!r->path || !r->layers) {
		model_free(p->model);
		return moe_error_set(err, -ENOMEM, "%s: no memory for a reader", p->path);
	}
	for (uint32_t layer = 0; layer < m->n_layers; layer++)
		if (index[layer] >= 0)
			r->layers[index[layer]] = layer;
	c = p->model ? take_model(r, p->model, err) : 0;
	return c < 0 ? c : team_start(&r->team, "moe-read", READERS, run, r, err);
}

int reader_new(struct reader **ret, const struct reader_params *params, struct moe_error *err)
{
	struct reader *r = calloc(1, sizeof *r);
	int c;

	if (!r) {
		model_free(params->model);
		return moe_error_set(err, -ENOMEM, "%s: no memory for a reader", params->path);
	}
	r->manifest = params->manifest;
	r->buffered = params->buffered;
	memcpy(r->memory, params->memory, sizeof r->memory);
	pthread_mutex_init(&r->files_lock, NULL);
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->work, NULL);
	pthread_cond_init(&r->ended, NULL);
	list_init(&r->urgent);
	list_init(&r->later);
	list_init(&r->active);
	list_init(&r->done);
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
	pthread_cond_broadcast(&r->work);
	pthread_mutex_unlock(&r->lock);
	team_join(&r->team);
	free_list(&r->urgent);
	free_list(&r->later);
	free_list(&r->active);
	free_list(&r->done);
	for (uint32_t i = 0; r->files && i < r->model->n_shards; i++)
		shardfile_close(&r->files[i]);
	free(r->files);
	model_free(r->model);
	pthread_mutex_destroy(&r->files_lock);
	pthread_mutex_destroy(&r->lock);
	pthread_cond_destroy(&r->work);
	pthread_cond_destroy(&r->ended);
	free(r->layers);
	free(r->path);
	free(r);
	return NULL;
}
