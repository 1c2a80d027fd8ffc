/* SPDX-License-Identifier: MIT */
#include "daemon/push.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "daemon/closer.h"
#include "daemon/events.h"
#include "daemon/push-copies.h"
#include "daemon/push-gpu.h"
#include "daemon/timeline.h"

#define NAP_NS 20000
#define OPEN_PATIENCE_S 900 /* registering takes minutes where models are large */
#define END_PATIENCE_S 2    /* of push_free */

static const struct device_ops *const ops = &device_cuda;

enum job_kind { JOB_OPEN, JOB_COPY, JOB_CLOSE };

struct push_job {
	enum job_kind kind;
	struct push_slots *slots;
	struct push_job *next;              /* of those given, then of those that run */
	struct push_job *left, *right;      /* of all that have not ended: under the lock */
	struct pool_copy *copy;             /* under the lock; NULL: has ended */
	struct device_event *began, *event; /* on both sides of the copies */
	int code;                           /* 0, or why the driver has refused some of them */
	uint64_t bytes, start_ns;
	bool numbered;
	uint32_t number; /* in the timeline */
	uint32_t n_copies;
	struct device_copy copies[];
};

struct push_slots {
	struct push *push;
	void *owner;
	int fd; /* until it is imported */
	uid_t uid;
	uint64_t bytes, timeline_at;
	uint8_t uuid[PUSH_UUID_BYTES];
	struct push_model model;
	struct push_job open, close;
	struct push_slots *next;  /* of the opened */
	bool begun, told, closed; /* under the lock; begun: to be opened */
	int code;
	struct moe_error err;
	struct push_gpu *gpu; /* the thread's, but for reading once it is open */
	struct device_memory memory;
	struct timeline timeline; /* the thread's */
};

struct push {
	struct loop *loop;
	int registrar_fd;
	uint64_t patience_ns;
	pthread_t thread, watcher;
	pthread_mutex_t lock;
	pthread_cond_t more, tick;
	struct push_job *given, **given_end, all; /* under the lock, as what follows; `all` is a ring's head */
	struct push_slots *opened;
	bool stopping, broken;
	enum job_kind doing; /* with `since_ns` when that began; 0: nothing */
	uint64_t since_ns;
	struct push_job *running; /* the thread's own */
	struct push_gpu *gpus;    /* the same */
};

/* -- books -------------------------------------------------------------------------------------------------------- */

/* Under the lock. */
static void enlist(struct push *p, struct push_job *job)
{
	job->next = NULL;
	job->left = p->all.left;
	job->right = &p->all;
	p->all.left->right = job;
	p->all.left = job;
	*p->given_end = job;
	p->given_end = &job->next;
	pthread_cond_signal(&p->more);
}

/* Under the lock. */
static void strike(struct push_job *job)
{
	job->left->right = job->right;
	job->right->left = job->left;
}

/* took_ns: what the copies took by the GPU's clock, or 0. */
static void copy_done(struct pool_copy *copy, int code, uint64_t start_ns, uint64_t took_ns)
{
	const uint64_t now = now_ns();

	if (took_ns && start_ns && took_ns < now - start_ns)
		start_ns = now - took_ns;
	copy->done(copy, &(const struct pool_result){.status = code,
						     .start_ns = start_ns ? start_ns : now,
						     .end_ns = now,
						     .bytes = code < 0 ? 0 : copy->bytes});
}

/* Under the lock: the slots are open, or will not be. */
static void tell_opened(struct push *p, struct push_slots *s, int code)
{
	if (s->told || s->closed)
		return;
	s->told = true;
	s->code = code;
	s->next = p->opened;
	p->opened = s;
	if (p->loop)
		loop_wake(p->loop);
}

bool push_has_ended(struct push *p)
{
	bool ended;

	pthread_mutex_lock(&p->lock);
	ended = p->broken;
	pthread_mutex_unlock(&p->lock);
	return ended;
}

/* Under the lock: nothing is waited for any more. */
static void break_off(struct push *p, const char *why)
{
	struct push_job *job;

	if (p->broken)
		return;
	event_log(EVENT_PUSH_ENDED, FACTS(.reason = why), "pushing into GPUs has ended: %s; start moe-expertd again",
		  why);
	p->broken = true;
	for (job = p->all.right; job != &p->all; job = job->right) {
		struct pool_copy *copy = steal_ptr(job->copy);

		if (copy)
			copy_done(copy, -EREMOTEIO, job->start_ns, 0);
		if (job->kind == JOB_OPEN) {
			moe_error_set(&job->slots->err, -EREMOTEIO, "device slots: %s", why);
			tell_opened(p, job->slots, -EREMOTEIO);
		}
	}
	pthread_cond_signal(&p->more);
}

/* -- the thread that calls the driver ----------------------------------------------------------------------------- */

static int find_gpu(struct push *p, struct push_slots *s, struct moe_error *err)
{
	struct push_gpu *gpu = p->gpus;
	int r;

	while (gpu && (gpu->epoch != s->model.epoch || memcmp(gpu->uuid, s->uuid, sizeof s->uuid) != 0))
		gpu = gpu->next;
	if (!gpu) {
		r = push_gpu_open(&gpu, s->uuid, s->model.epoch, err);
		if (r < 0)
			return r;
		gpu->next = p->gpus;
		p->gpus = gpu;
	}
	gpu->slots++;
	s->gpu = gpu;
	return 0;
}

static void leave_gpu(struct push *p, struct push_slots *s)
{
	struct push_gpu **at = &p->gpus, *gpu = steal_ptr(s->gpu);

	if (!gpu)
		return;
	ops->free(gpu->device, &s->memory);
	if (--gpu->slots > 0)
		return;
	while (*at != gpu)
		at = &(*at)->next;
	*at = gpu->next;
	push_gpu_close(gpu);
}

static void run_open(struct push *p, struct push_job *job)
{
	struct push_slots *s = job->slots;
	struct moe_error err = {0};
	int r = find_gpu(p, s, &err);

	if (r == 0)
		r = ops->import(s->gpu->device, s->fd, s->bytes, &s->memory, &err);
	if (r == 0 && !s->gpu->registered) { /* which takes long: not for memory that is none */
		r = push_gpu_register(s->gpu, &s->model, p->registrar_fd, &err);
		s->gpu->registered = r == 0;
	}
	if (r < 0)
		leave_gpu(p, s);
	closer_take(&s->fd, 1, s->uid, false);
	s->fd = -1;
	push_model_drop(&s->model);
	pthread_mutex_lock(&p->lock);
	if (!p->broken) {
		s->err = err;
		strike(job);
		tell_opened(p, s, r);
	}
	pthread_mutex_unlock(&p->lock);
}

static void run_close(struct push *p, struct push_job *job)
{
	struct push_slots *s = job->slots;

	leave_gpu(p, s);
	pthread_mutex_lock(&p->lock);
	strike(job);
	pthread_mutex_unlock(&p->lock);
	push_model_drop(&s->model);
	free(s);
}

/* The driver has failed a copy: it alone, or with it all that this GPU would have done for this process. Either is
 * told once. A GPU is lost by a call that was refused as well, while its stream still copies: nobody is told of an end
 * before the stream has come to its own. */
static int copy_failed(struct push_gpu *gpu, int code)
{
	const char *lost = ops->failure(gpu->device);

	if (lost && gpu->stream)
		gpu->stream = ops->stream_free(gpu->stream);
	if (lost && !gpu->told_lost)
		log_err("pushing into a GPU has ended: %s", lost);
	else if (!lost && !gpu->told_failed)
		log_warning("pushing into a GPU: a copy has failed: %s; its request is told, others go on",
			    strerror(-code));
	gpu->told_lost |= lost != NULL;
	gpu->told_failed = true;
	return lost ? -EREMOTEIO : code;
}

/* A copy has ended: its memory is nobody's. */
static void end_copy(struct push *p, struct push_job *job, int code)
{
	const uint64_t took_ns = code < 0 ? 0 : ops->event_elapsed_ns(job->began, job->event);
	struct pool_copy *copy;

	ops->event_free(job->began);
	ops->event_free(job->event);
	pthread_mutex_lock(&p->lock);
	strike(job);
	copy = steal_ptr(job->copy);
	pthread_mutex_unlock(&p->lock);
	if (copy)
		copy_done(copy, code, job->start_ns, took_ns);
	free(job);
}

/* The stream has this copy, and before it all with smaller numbers: what it writes now is so when it writes it. What
 * is not written has not come. */
static int count_copy(struct push_job *job)
{
	struct push_slots *s = job->slots;
	const struct timeline before = s->timeline;
	int r;

	if (!job->numbered || !timeline_come(&s->timeline, job->number))
		return 0;
	r = ops->stream_write_at(s->gpu->stream, s->memory.base + s->timeline_at, s->timeline.reached);
	if (r < 0)
		s->timeline = before;
	return r;
}

/* Between two events. Where the driver refuses some of the copies, or their number, others may be on their way: the end
 * is waited for, and the number does not come, so that nobody behind it reads what is not there. A refused event loses
 * the GPU (copy_failed). */
static int give_copies(struct push_job *job)
{
	struct device_stream *stream = job->slots->gpu->stream;
	int r = ops->event_record(job->began, stream);

	if (r < 0)
		return r;
	job->code = ops->copy_to_device(stream, job->copies, job->n_copies);
	if (job->code == 0)
		job->code = count_copy(job);
	return ops->event_record(job->event, stream);
}

static void run_copy(struct push *p, struct push_job *job)
{
	struct push_gpu *gpu = job->slots->gpu;
	int r;

	job->start_ns = now_ns();
	if (job->numbered && !timeline_awaits(&job->slots->timeline, job->number)) {
		end_copy(p, job, -EINVAL);
		return;
	}
	r = ops->event_new(gpu->device, &job->began, NULL);
	if (r == 0)
		r = ops->event_new(gpu->device, &job->event, NULL);
	if (r == 0)
		r = give_copies(job);
	if (r < 0) {
		end_copy(p, job, copy_failed(gpu, r));
		return;
	}
	job->next = p->running;
	p->running = job;
}

/* Of the copies that the GPU has: those that have ended, and one that does not. A question that the driver refuses says
 * nothing about a copy, unless the GPU is lost. */
static void look_at_running(struct push *p)
{
	struct push_job **at = &p->running;

	while (*at) {
		struct push_job *job = *at;
		int r = ops->event_query(job->event);

		if (r < 0 && !ops->failure(job->slots->gpu->device))
			r = -EBUSY;
		if (r == -EBUSY && now_ns() - job->start_ns >= p->patience_ns) {
			pthread_mutex_lock(&p->lock);
			break_off(p, "a copy into a GPU's memory does not end");
			pthread_mutex_unlock(&p->lock);
			return;
		}
		if (r == -EBUSY) {
			at = &job->next;
			continue;
		}
		*at = job->next;
		r = r < 0 ? r : job->code;
		end_copy(p, job, r < 0 ? copy_failed(job->slots->gpu, r) : 0);
	}
}

static void run_job(struct push *p, struct push_job *job)
{
	if (job->kind == JOB_OPEN)
		run_open(p, job);
	else if (job->kind == JOB_COPY)
		run_copy(p, job);
	else
		run_close(p, job);
}

/* The next job, or NULL where there is none and copies run. False: the thread is to end. */
static bool next_job(struct push *p, struct push_job **ret)
{
	bool goes_on;

	pthread_mutex_lock(&p->lock);
	p->since_ns = 0;
	while (!p->given && !p->running && !p->stopping && !p->broken)
		pthread_cond_wait(&p->more, &p->lock);
	*ret = p->given;
	if (p->given) {
		p->given = p->given->next;
		if (!p->given)
			p->given_end = &p->given;
		(*ret)->slots->begun |= (*ret)->kind == JOB_OPEN;
	}
	goes_on = !p->broken && (*ret || p->running);
	p->doing = *ret ? (*ret)->kind : JOB_COPY;
	p->since_ns = goes_on ? now_ns() : 0;
	pthread_mutex_unlock(&p->lock);
	return goes_on;
}

static void *push_main(void *arg)
{
	struct push *p = arg;
	struct push_job *job;

	while (next_job(p, &job)) {
		if (job)
			run_job(p, job);
		look_at_running(p);
		if (!job && p->running)
			nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
	return NULL;
}

/* -- the thread that watches it ----------------------------------------------------------------------------------- */

static uint64_t patience_for(const struct push *p)
{
	return p->doing == JOB_COPY ? p->patience_ns : MAX(p->patience_ns, OPEN_PATIENCE_S * (uint64_t)1000000000);
}

static void *watch_main(void *arg)
{
	struct push *p = arg;

	pthread_mutex_lock(&p->lock);
	while (!p->stopping && !p->broken) {
		struct timespec until;

		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec++;
		pthread_cond_timedwait(&p->tick, &p->lock, &until);
		if (p->since_ns && now_ns() - p->since_ns >= patience_for(p))
			break_off(p, "the GPU's driver does not come back from a call");
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

/* -- the reactor's side ------------------------------------------------------------------------------------------- */

int push_new(struct push **ret, uint32_t patience_s, int registrar_fd, struct moe_error *err)
{
	struct push *p = calloc(1, sizeof *p);
	pthread_condattr_t clock;
	int r;

	if (!p)
		return moe_error_sys(err, -ENOMEM, "--push-cuda");
	p->registrar_fd = registrar_fd;
	p->patience_ns = patience_s * (uint64_t)1000000000;
	p->given_end = &p->given;
	p->all.left = p->all.right = &p->all;
	pthread_mutex_init(&p->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&p->more, NULL);
	pthread_cond_init(&p->tick, &clock);
	pthread_condattr_destroy(&clock);
	r = -pthread_create(&p->thread, NULL, push_main, p);
	if (r < 0) {
		free(p);
		return moe_error_sys(err, r, "--push-cuda: cannot start its thread");
	}
	r = -pthread_create(&p->watcher, NULL, watch_main, p);
	if (r < 0) {
		p->watcher = p->thread;
		push_free(p);
		return moe_error_sys(err, r, "--push-cuda: cannot start the thread that watches it");
	}
	*ret = p;
	return 0;
}

void push_set_loop(struct push *p, struct loop *loop)
{
	p->loop = loop;
}

struct push *push_free(struct push *p)
{
	struct timespec until;
	bool hangs;

	if (!p)
		return NULL;
	pthread_mutex_lock(&p->lock);
	p->stopping = true;
	p->loop = NULL;
	pthread_cond_signal(&p->more);
	pthread_cond_signal(&p->tick);
	pthread_mutex_unlock(&p->lock);
	if (!pthread_equal(p->watcher, p->thread))
		pthread_join(p->watcher, NULL);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += END_PATIENCE_S;
	hangs = pthread_timedjoin_np(p->thread, NULL, &until) != 0;
	if (hangs || p->broken)
		return NULL; /* what a driver hangs on stays until the process ends */
	assert(!p->running && !p->gpus && p->all.right == &p->all);
	pthread_cond_destroy(&p->tick);
	pthread_cond_destroy(&p->more);
	pthread_mutex_destroy(&p->lock);
	free(p);
	return NULL;
}

int push_open(struct push *p, struct push_slots **ret, const struct resident *model, const struct push_memory *memory,
	      void *owner, struct moe_error *err)
{
	struct push_slots *s = calloc(1, sizeof *s);
	bool broken;
	int r;

	if (!s)
		return moe_error_sys(err, -ENOMEM, "device slots");
	s->push = p;
	s->owner = owner;
	s->uid = memory->uid;
	s->bytes = memory->bytes;
	s->timeline_at = memory->timeline;
	s->memory.export_fd = -1;
	memcpy(s->uuid, memory->uuid, sizeof s->uuid);
	s->open = (struct push_job){.kind = JOB_OPEN, .slots = s};
	s->close = (struct push_job){.kind = JOB_CLOSE, .slots = s};
	s->fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
	r = s->fd < 0 ? moe_error_sys(err, -errno, "device slots") : push_model_take(&s->model, model, err);
	pthread_mutex_lock(&p->lock);
	broken = p->broken;
	if (r == 0 && !broken)
		enlist(p, &s->open);
	pthread_mutex_unlock(&p->lock);
	if (r == 0 && broken)
		r = moe_error_set(
			err, -EREMOTEIO,
			"device slots: pushing into GPUs has ended (see the daemon's log): start it again, or "
			"let the device pull");
	if (r < 0) {
		closer_take(&s->fd, 1, s->uid, false);
		push_model_drop(&s->model);
		free(s);
		return r;
	}
	*ret = s;
	return 0;
}

struct push_slots *push_next_opened(struct push *p, void **ret_owner, int *ret_code, struct moe_error *err)
{
	struct push_slots *s;

	pthread_mutex_lock(&p->lock);
	s = p->opened;
	if (s) {
		p->opened = s->next;
		*ret_owner = s->owner;
		*ret_code = s->code;
		*err = s->err;
	}
	pthread_mutex_unlock(&p->lock);
	return s;
}

void push_copy(struct push_slots *s, struct pool_copy *copy, uint64_t at, const uint32_t *number)
{
	struct push *p = s->push;
	const uint32_t most = copy->model->n_pools * MOE_PARTS * MOE_PLANES * PUSH_COPIES_EACH;
	struct push_job *job = calloc(1, sizeof *job + most * sizeof *job->copies);
	bool broken;

	if (!job) {
		copy_done(copy, -ENOMEM, 0, 0);
		return;
	}
	job->kind = JOB_COPY;
	job->slots = s;
	job->copy = copy;
	job->numbered = number;
	job->number = number ? *number : 0;
	job->n_copies = push_copies(job->copies, copy, s->gpu->maps, s->memory.base + at);
	assert(job->n_copies <= most);
	pthread_mutex_lock(&p->lock);
	broken = p->broken;
	if (!broken)
		enlist(p, job);
	pthread_mutex_unlock(&p->lock);
	if (broken) {
		free(job);
		copy_done(copy, -EREMOTEIO, 0, 0);
	}
}

/* Under the lock: an opening that has not begun never does. */
static void take_back(struct push *p, struct push_job *job)
{
	struct push_job **at = &p->given;

	while (*at != job)
		at = &(*at)->next;
	*at = job->next;
	if (!*at)
		p->given_end = at;
	strike(job);
}

void push_close(struct push_slots *s)
{
	struct push *p;
	struct push_slots **at;
	bool over;

	if (!s)
		return;
	p = s->push;
	pthread_mutex_lock(&p->lock);
	s->closed = true;
	for (at = &p->opened; *at && *at != s; at = &(*at)->next)
		;
	if (*at)
		*at = s->next;
	over = !p->broken && !s->begun;
	if (over)
		take_back(p, &s->open);
	else if (!p->broken)
		enlist(p, &s->close);
	pthread_mutex_unlock(&p->lock);
	if (!over)
		return;
	closer_take(&s->fd, 1, s->uid, false);
	push_model_drop(&s->model);
	free(s);
}
