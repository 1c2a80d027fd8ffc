/* SPDX-License-Identifier: MIT */
#include "daemon/prefault.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
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
#define STRIPE_BYTES (32ull << 20)
#define PROGRESS_NS 200000000u
#define UNPINNED_THREADS 8u
#define SAMPLE 64

struct run {
	const struct prefault *job;
	uint64_t stripe; /* bytes */
	_Atomic uint64_t cursor, done, not_huge;
	_Atomic int error; /* the first, negative */
	_Atomic bool stop;
	pthread_mutex_t lock;
	pthread_cond_t finished;
	uint32_t exited; /* threads, under lock */
};

static int advise(void *at, uint64_t bytes, int advice)
{
	int r;

	do {
		r = madvise(at, bytes, advice) < 0 ? -errno : 0;
	} while (r == -EINTR);
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

static int collapse_stripe(struct run *run, uint8_t *at, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i += HUGE_BYTES) {
		const int r = advise(at + i, 4096, MADV_POPULATE_WRITE);

		if (r < 0)
			return r;
	}
	if (collapse(at, bytes))
		return 0;
	for (uint64_t i = 0; i < bytes; i += HUGE_BYTES) {
		uint64_t small;

		if (collapse(at + i, HUGE_BYTES))
			continue;
		small = atomic_fetch_add(&run->not_huge, HUGE_BYTES) + HUGE_BYTES;
		if (small > run->job->bytes / 10)
			return -EOPNOTSUPP;
	}
	return 0;
}

static int populate_stripe(struct run *run, uint64_t offset)
{
	const struct prefault *job = run->job;
	const uint64_t bytes = MIN(run->stripe, job->bytes - offset);
	uint8_t *at = (uint8_t *)job->map + offset;

	if (job->mode == PREFAULT_COLLAPSE) {
		const int r = collapse_stripe(run, at, bytes);

		if (r < 0)
			return r;
	}
	return advise(at, bytes, job->mode == PREFAULT_READ ? MADV_POPULATE_READ : MADV_POPULATE_WRITE);
}

static void *run_thread(void *argument)
{
	struct run *run = argument;

	/* Binding is for speed here: where pages go is the mapping's memory policy. */
	if (run->job->node)
		host_bind_thread(run->job->node);
	while (!atomic_load(&run->stop)) {
		const uint64_t offset = atomic_fetch_add(&run->cursor, run->stripe);
		int r, none = 0;

		if (offset >= run->job->bytes)
			break;
		r = populate_stripe(run, offset);
		if (r < 0) {
			atomic_compare_exchange_strong(&run->error, &none, r);
			atomic_store(&run->stop, true);
		}
		atomic_fetch_add(&run->done, MIN(run->stripe, run->job->bytes - offset));
	}
	pthread_mutex_lock(&run->lock);
	run->exited++;
	pthread_cond_signal(&run->finished);
	pthread_mutex_unlock(&run->lock);
	return NULL;
}

/* True when `progress` wishes to end it; the threads then stop soon. */
static bool tell(struct run *run)
{
	const struct prefault *job = run->job;

	if (!job->progress || job->progress(MIN(atomic_load(&run->done), job->bytes), job->bytes, job->userdata) == 0)
		return false;
	atomic_store(&run->stop, true);
	return true;
}

/* Until all threads are done; `progress` is asked at least once. Returns true when it wishes to end it. */
static bool watch(struct run *run, const struct team *team)
{
	bool canceled = tell(run);

	pthread_mutex_lock(&run->lock);
	while (run->exited < team->n) {
		struct timespec until;

		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += PROGRESS_NS;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&run->finished, &run->lock, &until);
		if (canceled || run->exited == team->n)
			continue;
		pthread_mutex_unlock(&run->lock);
		canceled = tell(run);
		pthread_mutex_lock(&run->lock);
	}
	pthread_mutex_unlock(&run->lock);
	return canceled;
}

int prefault_run(const struct prefault *prefault, struct moe_error *err)
{
	struct run run = {.job = prefault,
			  .stripe = MAX(STRIPE_BYTES, prefault->page_bytes),
			  .lock = PTHREAD_MUTEX_INITIALIZER,
			  .finished = PTHREAD_COND_INITIALIZER};
	const uint64_t stripes = DIV_UP(prefault->bytes, run.stripe);
	const uint32_t threads = prefault->node ? MAX(prefault->node->n_cpus, 1u) : UNPINNED_THREADS;
	struct team team;
	bool canceled;
	int r;

	r = team_start(&team, "moe-prefault", (uint32_t)MIN(stripes, threads), run_thread, &run, err);
	if (r < 0)
		return r;
	canceled = watch(&run, &team);
	team_join(&team);
	r = atomic_load(&run.error);
	if (r == -EOPNOTSUPP)
		return moe_error_set(err, r, "the kernel could not make huge pages of %" PRIu64 " of %" PRIu64 " MiB",
				     atomic_load(&run.not_huge) >> 20, prefault->bytes >> 20);
	if (r < 0)
		return moe_error_sys(err, r, "cannot populate %" PRIu64 " MiB", prefault->bytes >> 20);
	return canceled ? moe_error_set(err, -ECANCELED, "canceled while memory was being prepared") : 0;
}

int64_t prefault_huge_bytes(const void *map)
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
