/* SPDX-License-Identifier: MIT */
#include "daemon/closer.h"

#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fdmsg.h"
#include "base/log.h"
#include "base/memfd.h"
#include "base/util.h"

#define USERS_MAX 64
#define EACH_MAX                                                                                                       \
	8 /* threads of a user; and so many batches, of FDMSG_FDS_ANY descriptors at most, before it is refused */
#define LEFT_MAX 256
#define STACK_BYTES (64u << 10)
#define SETTLE_MS 1000
#define MEMORY_SMALL (256u << 10) /* given back where it is: a thread costs as much */
#define UNMAP_PIECE (1u << 20)    /* the lock on the address space is let go of between two */

struct batch {
	struct batch *next;
	uid_t uid;
	size_t n;
	int fds[];
};

struct mapping {
	struct mapping *next;
	uint8_t *at;
	uint64_t bytes;
};

/* Of whom how many batches wait, and how many threads are at them: a place is free where none wait. What has no thread
 * yet is the next one's that has ended another of the same user. */
static struct {
	pthread_mutex_t lock;
	struct {
		uid_t uid;
		uint32_t n, threads;
	} users[USERS_MAX];
	struct batch *first;
} waiting = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* One thread for all, which ends when there is nothing left: the address space has one lock. */
static struct {
	pthread_mutex_t lock;
	struct mapping *first;
	bool running;
} unmapping = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* What is freed in threads of its own. */
static _Atomic uint32_t freeing;

/* The last thread that ends trims the heap. */
static atomic_bool trims;

struct release {
	void (*work)(void *what);
	void *what;
};

/* Descriptors for which there was no thread; for the counting they are the last such user's. */
static struct {
	pthread_mutex_t lock;
	uid_t uid;
	uint32_t n;
	int fds[LEFT_MAX];
} left = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint32_t count_of(uid_t uid)
{
	uint32_t n = 0;

	pthread_mutex_lock(&waiting.lock);
	for (size_t i = 0; i < USERS_MAX; i++)
		if (waiting.users[i].uid == uid)
			n += waiting.users[i].n;
	pthread_mutex_unlock(&waiting.lock);
	return n;
}

static bool any_waits(void)
{
	uint32_t n;

	pthread_mutex_lock(&unmapping.lock);
	n = unmapping.running + atomic_load(&freeing);
	pthread_mutex_unlock(&unmapping.lock);
	pthread_mutex_lock(&waiting.lock);
	for (size_t i = 0; i < USERS_MAX; i++)
		n += waiting.users[i].n;
	pthread_mutex_unlock(&waiting.lock);
	return n > 0;
}

/* Of a thread, when it has counted itself out. */
static void ended(void)
{
	if (!any_waits() && atomic_exchange(&trims, false))
		malloc_trim(0);
}

void closer_trim(void)
{
	atomic_store(&trims, true); /* before the look: one that ends meanwhile sees it */
	malloc_trim(0);
	if (!any_waits())
		atomic_store(&trims, false);
}

/* With the lock held: the user's place, or a free one; USERS_MAX: there are too many users. */
static size_t place_of(uid_t uid)
{
	size_t at = USERS_MAX;

	for (size_t i = 0; i < USERS_MAX; i++)
		if (waiting.users[i].n > 0 && waiting.users[i].uid == uid)
			return i;
		else if (waiting.users[i].n == 0)
			at = i;
	return at;
}

/* 0: a thread is to be started for it. 1: it waits for one. -EUSERS. */
static int enter(struct batch *batch)
{
	size_t at;
	int r = 0;

	pthread_mutex_lock(&waiting.lock);
	at = place_of(batch->uid);
	if (at == USERS_MAX) {
		r = -EUSERS;
	} else {
		waiting.users[at].uid = batch->uid;
		waiting.users[at].n++;
		r = waiting.users[at].threads == EACH_MAX;
		waiting.users[at].threads += r == 0;
	}
	if (r > 0) {
		batch->next = waiting.first;
		waiting.first = batch;
	}
	pthread_mutex_unlock(&waiting.lock);
	return r;
}

/* One is closed; the next one of the user, or NULL: the thread ends. */
static struct batch *leave(uid_t uid)
{
	struct batch **at = &waiting.first, *next;
	size_t place;

	pthread_mutex_lock(&waiting.lock);
	place = place_of(uid);
	while (*at && (*at)->uid != uid)
		at = &(*at)->next;
	next = *at;
	if (next)
		*at = next->next;
	else
		waiting.users[place].threads--;
	waiting.users[place].n--;
	pthread_mutex_unlock(&waiting.lock);
	return next;
}

/* The one that was to be closed had no thread. */
static void forsake(uid_t uid)
{
	size_t place;

	pthread_mutex_lock(&waiting.lock);
	place = place_of(uid);
	waiting.users[place].threads--;
	waiting.users[place].n--;
	pthread_mutex_unlock(&waiting.lock);
}

static void *run(void *arg)
{
	struct batch *batch = arg;

	while (batch) {
		const uid_t uid = batch->uid;

		fdmsg_close_fds(batch->fds, batch->n);
		free(batch);
		batch = leave(uid);
	}
	ended();
	return NULL;
}

static int start(void *(*work)(void *arg), void *arg)
{
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all;
	int r;

	sigfillset(&all);
	pthread_attr_init(&attr);
	pthread_attr_setsigmask_np(&attr, &all);
	pthread_attr_setstacksize(&attr, MAX((size_t)PTHREAD_STACK_MIN, (size_t)STACK_BYTES));
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	r = -pthread_create(&thread, &attr, work, arg);
	pthread_attr_destroy(&attr);
	return r;
}

static int hand_to_thread(const int *fds, size_t n, uid_t uid)
{
	struct batch *batch = malloc(sizeof *batch + n * sizeof *fds);
	int r;

	if (!batch)
		return -ENOMEM;
	batch->uid = uid;
	batch->n = n;
	memcpy(batch->fds, fds, n * sizeof *fds);
	r = enter(batch);
	if (r > 0)
		return 0;
	if (r == 0) {
		r = start(run, batch);
		if (r == 0)
			return 0;
		forsake(uid);
	}
	free(batch);
	return r;
}

/* Where there is no thread for them they stay open: that is less than a reactor that stands still. Those that are
 * remembered have one later. */
static void hand_over(const int *fds, size_t n, uid_t uid)
{
	const int r = hand_to_thread(fds, n, uid);
	size_t kept = 0;

	if (r == 0)
		return;
	pthread_mutex_lock(&left.lock);
	for (; kept < n && left.n < LEFT_MAX; kept++)
		left.fds[left.n++] = fds[kept];
	left.uid = uid;
	pthread_mutex_unlock(&left.lock);
	log_warning("%zu descriptors of user %u stay open for now, and %zu for ever: no thread to close them: %s", kept,
		    uid, n - kept, strerror(-r));
}

void closer_retry(void)
{
	int fds[LEFT_MAX];
	uint32_t n;
	uid_t uid;

	pthread_mutex_lock(&left.lock);
	n = left.n;
	uid = left.uid;
	memcpy(fds, left.fds, n * sizeof *fds);
	left.n = 0;
	pthread_mutex_unlock(&left.lock);
	if (n == 0 || hand_to_thread(fds, n, uid) == 0)
		return;
	pthread_mutex_lock(&left.lock);
	for (uint32_t i = 0; i < n && left.n < LEFT_MAX; i++)
		left.fds[left.n++] = fds[i];
	pthread_mutex_unlock(&left.lock);
}

/* At the end they are closed in any case: by this process, or with it. */
static void close_left(void)
{
	while (left.n > 0)
		close_fd(left.fds[--left.n]);
}

bool closer_has_room(uid_t uid)
{
	return count_of(uid) < EACH_MAX;
}

/* Of a memfd: whether its last close would give back much. */
static bool is_large(int fd)
{
	struct stat st;

	return fstat(fd, &st) < 0 || (uint64_t)st.st_blocks * 512 > MEMORY_SMALL;
}

void closer_take(const int *fds, size_t n, uid_t uid, bool kept)
{
	int slow[FDMSG_FDS_ANY];
	size_t n_slow = 0;

	for (size_t i = 0; i < n; i++)
		if (fds[i] >= 0 && memfd_has_seals(fds[i]) && (kept || !is_large(fds[i])))
			close_fd(fds[i]);
		else if (fds[i] >= 0)
			slow[n_slow++] = fds[i];
	if (n_slow > 0)
		hand_over(slow, n_slow, uid);
}

void closer_take_socket(int sock, uid_t uid)
{
	hand_over(&sock, 1, uid);
}

static void unmap(uint8_t *at, uint64_t bytes)
{
	for (uint64_t done = 0; done < bytes; done += UNMAP_PIECE)
		munmap(at + done, MIN(bytes - done, (uint64_t)UNMAP_PIECE));
}

/* NULL: there was none, and who asked is not running any more. */
static struct mapping *next_mapping(void)
{
	struct mapping *m;

	pthread_mutex_lock(&unmapping.lock);
	m = unmapping.first;
	if (m)
		unmapping.first = m->next;
	else
		unmapping.running = false;
	pthread_mutex_unlock(&unmapping.lock);
	return m;
}

static void *run_unmap(void *arg)
{
	struct mapping *m;

	while ((m = next_mapping())) {
		unmap(m->at, m->bytes);
		free(m);
	}
	ended();
	return arg;
}

void closer_unmap(void *at, uint64_t bytes)
{
	struct mapping *m = bytes > MEMORY_SMALL ? malloc(sizeof *m) : NULL;
	bool running;

	if (!m) {
		unmap(at, bytes);
		return;
	}
	pthread_mutex_lock(&unmapping.lock);
	*m = (struct mapping){unmapping.first, at, bytes};
	unmapping.first = m;
	running = unmapping.running;
	unmapping.running = true;
	pthread_mutex_unlock(&unmapping.lock);
	if (!running && start(run_unmap, NULL) < 0)
		run_unmap(NULL);
}

static void *run_release(void *arg)
{
	struct release *r = arg;

	r->work(r->what);
	free(r);
	atomic_fetch_sub(&freeing, 1);
	ended();
	return NULL;
}

void closer_free(void (*work)(void *what), void *what)
{
	struct release *r = malloc(sizeof *r);

	if (!r) {
		work(what);
		return;
	}
	*r = (struct release){work, what};
	atomic_fetch_add(&freeing, 1);
	if (start(run_release, r) < 0)
		run_release(r);
}

bool closer_is_freeing(void)
{
	return atomic_load(&freeing) > 0;
}

void closer_settle(void)
{
	closer_retry();
	close_left();
	for (int i = 0; i < SETTLE_MS && any_waits(); i++)
		usleep(1000);
}
