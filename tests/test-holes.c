/* SPDX-License-Identifier: MIT */
/*
 * holes - the reactor waits for none, another user neither; what they are of stays on the account until they are made;
 * and when the daemon ends none is begun any more.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memfd.h"
#include "base/util.h"
#include "daemon/holes.h"
#include "daemon/loop.h"
#include "tests/tap.h"

#define BYTES (64u << 10)
#define SLOW 1000 /* users */
#define OTHER 1001
#define FILES 5
#define NEXT 100

static atomic_int slow_fd = -1, begun;
static _Atomic uint32_t woken, wake_us; /* wake_us: that takes so long, and a hole twice as long */
static atomic_bool freed;
static sem_t go;

void __real_memfd_drop_pages(int fd, uint64_t offset, uint64_t bytes);
void __wrap_memfd_drop_pages(int fd, uint64_t offset, uint64_t bytes);

/* That of one file takes as long as the test wants. */
void __wrap_memfd_drop_pages(int fd, uint64_t offset, uint64_t bytes)
{
	atomic_fetch_add(&begun, 1);
	if (fd == atomic_load(&slow_fd))
		while (sem_wait(&go) < 0)
			;
	usleep(2 * atomic_load(&wake_us));
	__real_memfd_drop_pages(fd, offset, bytes);
}

void __real_loop_wake(struct loop *l);
void __wrap_loop_wake(struct loop *l);

void __wrap_loop_wake(struct loop *l)
{
	atomic_fetch_add(&woken, 1);
	usleep(atomic_load(&wake_us));
	__real_loop_wake(l);
}

struct file {
	struct hole hole;
	volatile uint8_t *seen; /* a client's mapping of it */
};

static struct accounts *accounts;
static struct loop *loop;

static struct file file_new(void)
{
	const int fd = memfd_create("test", MFD_CLOEXEC);
	void *map;

	require(fd >= 0 && ftruncate(fd, BYTES) == 0, "a file");
	map = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	require(map != MAP_FAILED, "mapped");
	memset(map, 1, BYTES);
	return (struct file){{fd, 4096, BYTES - 4096}, map};
}

static bool is_empty(const struct file *file)
{
	return file->seen[0] == 1 && file->seen[4096] == 0 && file->seen[BYTES - 1] == 0;
}

static uint64_t held(uid_t uid)
{
	for (const struct account *a = accounts_first(accounts); a; a = a->next)
		if (a->uid == uid)
			return a->held[ACCOUNT_BYTES];
	return 0;
}

static void make_one(struct holes *holes, const struct file *file, uid_t uid, bool shared)
{
	struct charge charge;

	require(charge_open(&charge, accounts, uid, NULL) == 0, "a charge");
	require(charge_take(&charge, ACCOUNT_BYTES, BYTES, "test", NULL) == 0, "charged");
	holes_make(holes, &file->hole, 1, &charge, shared);
	require(!charge.account, "the charge is taken over");
}

static void make(struct holes *holes, const struct file *file, uid_t uid)
{
	make_one(holes, file, uid, false);
}

static void collect_until(struct holes *holes, uid_t uid, uint64_t bytes)
{
	uint64_t end = 0;

	do
		holes_collect(holes);
	while (held(uid) > bytes && tap_wait(&end));
}

static void unmap_all(struct file *files, size_t n)
{
	for (size_t i = 0; i < n; i++)
		munmap((void *)files[i].seen, BYTES);
}

static void test_two_users(struct holes *holes)
{
	struct file slow[FILES], other = file_new(), next = file_new();

	for (int i = 0; i < FILES; i++)
		slow[i] = file_new();
	atomic_store(&slow_fd, slow[0].hole.fd);
	for (int i = 0; i < FILES; i++)
		make(holes, &slow[i], SLOW);
	make(holes, &other, OTHER);
	collect_until(holes, OTHER, 0);
	ok(held(OTHER) == 0 && is_empty(&other), "a user's hole is made while another's takes its time");
	ok(held(SLOW) == FILES * BYTES && slow[0].seen[4096] == 1, "whose files are on its account meanwhile");
	sem_post(&go);
	collect_until(holes, SLOW, 0);
	for (int i = 0; i < FILES; i++)
		if (!is_empty(&slow[i]))
			diag("file %d is not", i);
	ok(held(SLOW) == 0 && is_empty(&slow[0]) && is_empty(&slow[FILES - 1]), "then they are made as well");
	atomic_store(&slow_fd, -1);
	make(holes, &next, SLOW);
	collect_until(holes, SLOW, 0);
	ok(held(SLOW) == 0 && is_empty(&next), "and there is a thread for the next");
	unmap_all(slow, FILES);
	unmap_all(&other, 1);
	unmap_all(&next, 1);
}

/* What others had mapped is in no user's line. */
static void test_shared(struct holes *holes)
{
	struct file slow = file_new(), own = file_new();

	atomic_store(&slow_fd, slow.hole.fd);
	make_one(holes, &slow, OTHER, true);
	make(holes, &own, OTHER);
	collect_until(holes, OTHER, BYTES);
	ok(held(OTHER) == BYTES && is_empty(&own) && !is_empty(&slow),
	   "a user's own does not wait for one that is shared");
	sem_post(&go);
	collect_until(holes, OTHER, 0);
	ok(held(OTHER) == 0 && is_empty(&slow), "which is made as well");
	unmap_all(&slow, 1);
	unmap_all(&own, 1);
}

/* The reactor is awake as soon as one is made, and has the user's next one, again and again: each is made once. */
static void test_after_another(struct holes *holes)
{
	const int before = atomic_load(&begun);
	int left = 0;

	atomic_store(&slow_fd, -1);
	atomic_store(&wake_us, 2000);
	for (int i = 0; i < NEXT; i++) {
		struct file file = file_new();
		const uint32_t wakes = atomic_load(&woken);
		uint64_t end = 0;

		make(holes, &file, SLOW);
		while (atomic_load(&woken) == wakes && tap_wait(&end))
			;
		left += !is_empty(&file);
		unmap_all(&file, 1);
	}
	collect_until(holes, SLOW, 0);
	atomic_store(&wake_us, 0);
	ok(left == 0 && atomic_load(&begun) == before + NEXT, "%d, one after the other: each is made once", NEXT);
}

static void *end_it(void *arg)
{
	holes_free(arg);
	atomic_store(&freed, true);
	return NULL;
}

static void test_end(struct holes *holes)
{
	struct file files[FILES], after = file_new();
	uint32_t wakes;
	pthread_t thread;
	uint64_t end = 0;
	int begun_before;

	for (int i = 0; i < FILES; i++)
		files[i] = file_new();
	atomic_store(&slow_fd, files[0].hole.fd);
	begun_before = atomic_load(&begun);
	for (int i = 0; i < FILES; i++)
		make(holes, &files[i], SLOW);
	while (atomic_load(&begun) == begun_before && tap_wait(&end))
		;
	holes_end(holes);
	wakes = atomic_load(&woken);
	make(holes, &after, OTHER);
	ok(after.seen[4096] == 1 && held(OTHER) == 0, "at the end what comes is closed as it is");
	require(pthread_create(&thread, NULL, end_it, holes) == 0, "a thread");
	usleep(20000);
	ok(!atomic_load(&freed), "it waits for the one that is being made");
	sem_post(&go);
	pthread_join(thread, NULL);
	ok(is_empty(&files[0]) && held(SLOW) == 0, "until that is made");
	ok(atomic_load(&woken) == wakes, "and wakes nobody, for the loop may have gone");
	for (int i = 1; i < FILES; i++)
		if (files[i].seen[4096] != 1)
			diag("file %d is empty", i);
	ok(files[1].seen[4096] == 1 && files[FILES - 1].seen[4096] == 1 && atomic_load(&begun) == begun_before + 1,
	   "it begins none");
	unmap_all(files, FILES);
	unmap_all(&after, 1);
}

static bool nothing(void *userdata)
{
	return false;
}

static void idle(void *userdata)
{
}

int main(void)
{
	const struct loop_hooks hooks = {.poll = nothing, .park = nothing, .unpark = idle};
	uint64_t limits[ACCOUNT_RESOURCES];
	struct holes *holes;

	for (int i = 0; i < ACCOUNT_RESOURCES; i++)
		limits[i] = 1u << 30;
	sem_init(&go, 0, 0);
	require(loop_new(&loop, &hooks, NULL) == 0, "a loop");
	require(accounts_new(&accounts, limits, NULL) == 0, "accounts");
	require(holes_new(&holes, loop, NULL) == 0, "holes");
	test_two_users(holes);
	test_shared(holes);
	test_after_another(holes);
	test_end(holes);
	loop_free(loop);
	accounts_free(accounts); /* asserts that the books balance */
	return tap_done();
}
