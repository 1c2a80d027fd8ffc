/* SPDX-License-Identifier: MIT */
#include "daemon/prefault.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "daemon/team.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1; glibc 2.37 */
#endif

#define HUGE_BYTES HOST_HUGE_2M
/* Stripes: so many, if they are not larger than that. */
#define STRIPES 16
#define STRIPE_BYTES_MAX (32ull << 20)
#define PROGRESS_NS 200000000u
#define UNPINNED_THREADS 8u
#define SAMPLE 64

/* What is known of a stripe. */
enum stripe { STRIPE_NOT_BEGUN, STRIPE_BEGUN, STRIPE_THERE };

struct prefault_run {
	struct prefault job;
	uint64_t stripe_bytes, n_stripes;
	_Atomic uint8_t *stripes; /* enum stripe */
	_Atomic uint64_t cursor, done, small;
	_Atomic int error; /* the first, negative */
	_Atomic bool stop;
	pthread_mutex_t lock;
	pthread_cond_t changed;  /* a stripe is there, an error, a thread has ended */
	uint32_t ending, exited; /* threads, under lock */
	uint32_t n_threads;      /* that were asked for */
	int64_t huge;            /* the last ending thread's until it has exited */
	struct team team;
};

static int advise(void *at, uint64_t bytes, int advice)
{
	int r;

	do {
		r = madvise(at, bytes, advice) < 0 ? -errno : 0;
	} while (r == -EINTR);
	return r;
}

/* In pieces: whoever changes the address space meanwhile, and who faults behind him, waits for one of them. */
static int advise_pieces(const struct prefault *job, uint8_t *at, uint64_t bytes, int advice)
{
	const uint64_t piece = MAX(job->page_bytes, HUGE_BYTES);
	int r = 0;

	for (uint64_t done = 0; done < bytes && r == 0; done += piece)
		r = advise(at + done, MIN(bytes - done, piece), advice);
	return r;
}

/* EAGAIN: the kernel could not isolate a page just now. */
static bool collapse(uint8_t *at, uint64_t bytes)
{
	int r = -EAGAIN;

	for (int turn = 0; r == -EAGAIN && turn < 4; turn++)
		r = advise(at, bytes, MADV_COLLAPSE);
	return r == 0;
}

static int collapse_stripe(struct prefault_run *run, uint8_t *at, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i += HUGE_BYTES) {
		const int r = advise(at + i, 4096, MADV_POPULATE_WRITE);

		if (r < 0)
			return r;
	}
	if (collapse(at, bytes))
		return 0;
	for (uint64_t i = 0; i < bytes; i += HUGE_BYTES)
		if (!collapse(at + i, HUGE_BYTES))
			atomic_fetch_add(&run->small, HUGE_BYTES);
	return 0;
}

static int populate(struct prefault_run *run, uint64_t offset, uint64_t bytes)
{
	const struct prefault *job = &run->job;
	uint8_t *at = (uint8_t *)job->map + offset;

	if (job->mode == PREFAULT_COLLAPSE) {
		const int r = collapse_stripe(run, at, bytes);

		if (r < 0)
			return r;
	}
	return advise_pieces(job, at, bytes, job->mode == PREFAULT_READ ? MADV_POPULATE_READ : MADV_POPULATE_WRITE);
}

static void tell_all(struct prefault_run *run)
{
	pthread_mutex_lock(&run->lock);
	pthread_cond_broadcast(&run->changed);
	pthread_mutex_unlock(&run->lock);
}

/* Makes the stripe, unless somebody has begun it. */
static void make_stripe(struct prefault_run *run, uint64_t stripe)
{
	const uint64_t offset = stripe * run->stripe_bytes, bytes = MIN(run->stripe_bytes, run->job.bytes - offset);
	uint8_t not_begun = STRIPE_NOT_BEGUN;
	int r, none = 0;

	if (!atomic_compare_exchange_strong(&run->stripes[stripe], &not_begun, STRIPE_BEGUN))
		return;
	r = populate(run, offset, bytes);
	if (r < 0) {
		atomic_compare_exchange_strong(&run->error, &none, r);
		atomic_store(&run->stop, true);
	} else {
		atomic_store(&run->stripes[stripe], STRIPE_THERE);
		atomic_fetch_add(&run->done, bytes);
	}
	tell_all(run);
}

int prefault_need(struct prefault_run *run, uint64_t offset, uint64_t bytes)
{
	const uint64_t last = (offset + bytes - 1) / run->stripe_bytes;

	for (uint64_t i = offset / run->stripe_bytes; i <= last; i++) {
		if (atomic_load_explicit(&run->stripes[i], memory_order_acquire) == STRIPE_THERE)
			continue;
		make_stripe(run, i);
		pthread_mutex_lock(&run->lock);
		while (atomic_load(&run->stripes[i]) != STRIPE_THERE && !atomic_load(&run->error))
			pthread_cond_wait(&run->changed, &run->lock);
		pthread_mutex_unlock(&run->lock);
		if (atomic_load(&run->stripes[i]) != STRIPE_THERE)
			return atomic_load(&run->error);
	}
	return 0;
}

static int64_t count_huge(const void *map)
{
	_cleanup_fclose_ FILE *smaps = fopen("/proc/self/smaps", "re");
	char line[512], start[32];
	bool inside = false;
	int64_t kib = 0;

	if (!smaps)
		return -1;
	snprintf(start, sizeof start, "%" PRIxPTR "-", (uintptr_t)map);
	while (fgets(line, sizeof line, smaps)) {
		long long value;

		if (!inside) {
			inside = strncmp(line, start, strlen(start)) == 0;
			continue;
		}
		if (sscanf(line, "ShmemPmdMapped: %lld kB", &value) == 1 ||
		    sscanf(line, "FilePmdMapped: %lld kB", &value) == 1)
			kib += value;
		if (strncmp(line, "VmFlags:", 8) == 0)
			break;
	}
	return inside ? kib * 1024 : -1;
}

/*
 * The kernel looks at each small page of the huge ones, which takes 3 ms a GiB: here a load goes on meanwhile. Stripes
 * that others have begun are waited for; after a stop there may be some that nobody will begin.
 */
static void end_last(struct prefault_run *run)
{
	if (run->job.count_huge && atomic_load(&run->cursor) >= run->n_stripes && !atomic_load(&run->stop) &&
	    prefault_need(run, 0, run->job.bytes) == 0)
		run->huge = count_huge(run->job.map);
}

static void *run_thread(void *argument)
{
	struct prefault_run *run = argument;
	uint64_t stripe;
	bool last;

	team_step_back();
	/* Binding is for speed here: where pages go is the mapping's memory policy. */
	if (run->job.node)
		host_bind_thread(run->job.node);
	while (!atomic_load(&run->stop) && (stripe = atomic_fetch_add(&run->cursor, 1)) < run->n_stripes)
		make_stripe(run, stripe);
	pthread_mutex_lock(&run->lock);
	last = ++run->ending == run->n_threads;
	pthread_mutex_unlock(&run->lock);
	if (last)
		end_last(run);
	pthread_mutex_lock(&run->lock);
	run->exited++;
	pthread_cond_broadcast(&run->changed);
	pthread_mutex_unlock(&run->lock);
	return NULL;
}

int64_t prefault_huge_bytes(const struct prefault_run *run)
{
	return run->huge;
}

void prefault_counts(const struct prefault_run *run, uint64_t *ret_done, uint64_t *ret_small)
{
	*ret_done = atomic_load(&run->done);
	*ret_small = atomic_load(&run->small);
}

/* Until all threads have ended or `progress` wishes to end it, which is true then. */
static bool watch(struct prefault_run *run, int (*progress)(uint64_t done, uint64_t total, void *userdata),
		  void *userdata)
{
	bool canceled = false;
	uint32_t exited = 0;

	while (!canceled && exited < run->team.n) {
		struct timespec until;

		canceled = progress && progress(atomic_load(&run->done), run->job.bytes, userdata) != 0;
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += PROGRESS_NS;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		pthread_mutex_lock(&run->lock);
		while (!canceled && run->exited < run->team.n &&
		       pthread_cond_timedwait(&run->changed, &run->lock, &until) == 0)
			;
		exited = run->exited;
		pthread_mutex_unlock(&run->lock);
	}
	return canceled;
}

int prefault_watch(struct prefault_run *run, int (*progress)(uint64_t done, uint64_t total, void *userdata),
		   void *userdata, struct moe_error *err)
{
	int r;

	if (watch(run, progress, userdata))
		return moe_error_set(err, -ECANCELED, "canceled while memory was being prepared");
	/* Stripes that others have begun. */
	r = prefault_need(run, 0, run->job.bytes);
	return r < 0 ? moe_error_sys(err, r, "cannot populate %" PRIu64 " MiB", run->job.bytes >> 20) : 0;
}

struct prefault_run *prefault_end(struct prefault_run *run)
{
	if (!run)
		return NULL;
	atomic_store(&run->stop, true);
	team_join(&run->team);
	pthread_cond_destroy(&run->changed);
	pthread_mutex_destroy(&run->lock);
	free((void *)run->stripes);
	free(run);
	return NULL;
}

int prefault_start(struct prefault_run **ret, const struct prefault *prefault, struct moe_error *err)
{
	const uint64_t some = MIN(ALIGN_UP(DIV_UP(prefault->bytes, STRIPES), HUGE_BYTES), STRIPE_BYTES_MAX);
	const uint64_t stripe_bytes = MAX(some, prefault->page_bytes);
	const uint64_t n_stripes = DIV_UP(prefault->bytes, stripe_bytes);
	/* But one CPU, which is for who reads meanwhile: the kernel does not stop for others while it clears. */
	const uint32_t threads = prefault->node ? MAX(prefault->node->n_cpus, 2u) - 1 : UNPINNED_THREADS;
	struct prefault_run *run = calloc(1, sizeof *run);
	int r;

	if (!run)
		return moe_error_sys(err, -ENOMEM, "cannot populate %" PRIu64 " MiB", prefault->bytes >> 20);
	run->job = *prefault;
	run->stripe_bytes = stripe_bytes;
	run->n_stripes = n_stripes;
	run->n_threads = (uint32_t)MIN(n_stripes, threads);
	run->huge = -1;
	run->stripes = calloc(n_stripes, sizeof *run->stripes);
	pthread_mutex_init(&run->lock, NULL);
	pthread_cond_init(&run->changed, NULL);
	r = run->stripes ? team_start(&run->team, "moe-prefault", run->n_threads, run_thread, run, err)
			 : moe_error_sys(err, -ENOMEM, "cannot populate %" PRIu64 " MiB", prefault->bytes >> 20);
	if (r < 0) {
		prefault_end(run);
		return r;
	}
	*ret = run;
	return 0;
}

int prefault_check_node(const void *map, uint64_t bytes, int node, struct moe_error *err)
{
	void *pages[SAMPLE];
	int found[SAMPLE];

	for (uint64_t i = 0; i < SAMPLE; i++)
		pages[i] = (uint8_t *)map + (bytes / SAMPLE * i & ~4095ull);
	if (syscall(SYS_move_pages, 0, (unsigned long)SAMPLE, pages, NULL, found, 0) < 0)
		return 0;
	for (uint64_t i = 0; i < SAMPLE; i++)
		if (found[i] >= 0 && found[i] != node)
			return moe_error_set(err, -EXDEV,
					     "page at offset %" PRIu64 " lies on NUMA node %d, expected %d",
					     (uint64_t)((uint8_t *)pages[i] - (uint8_t *)map), found[i], node);
	return 0;
}
