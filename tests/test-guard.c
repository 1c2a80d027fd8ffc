/* SPDX-License-Identifier: MIT */
/*
 * SIGBUS within guarded memory is survived by whichever thread meets it, and the guard knows; next to it and after the
 * guard's end it ends the process.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "daemon/guard.h"
#include "tests/pool-fills.h"
#include "tests/tap.h"

enum { PAGE = 4096, THREADS = 4 };

#define BYTES (64u << 20)

/* Memory whose file has been cut: touching it is SIGBUS, for the reason nearest at hand. */
static volatile uint8_t *cut_memory(void)
{
	const int fd = memfd_create("cut", MFD_CLOEXEC);
	void *p;

	require(fd >= 0 && ftruncate(fd, BYTES) == 0, "a file");
	p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	require(p != MAP_FAILED && ftruncate(fd, PAGE) == 0, "mapped, and cut after its first page");
	close(fd);
	return p;
}

static struct guard *guarded(volatile uint8_t *p, uint64_t bytes)
{
	struct guard *g = NULL;

	require(guard_new(&g, p, bytes, NULL) == 0 && !guard_hit(g), "a guard over %llu bytes",
		(unsigned long long)bytes);
	return g;
}

/* The signal that ends a process that touches this byte; 0: none. */
static int ends_by(volatile uint8_t *at)
{
	const pid_t child = fork();
	int status = 0;

	if (child == 0) {
		*at = 1;
		_exit(0);
	}
	waitpid(child, &status, 0);
	return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static void *write_all(void *userdata)
{
	volatile uint8_t *p = userdata;

	for (uint64_t i = 0; i < BYTES; i += PAGE)
		p[i] = 1;
	return NULL;
}

static void test_threads(void)
{
	volatile uint8_t *p = cut_memory();
	struct guard *other, *g;
	pthread_t threads[THREADS];
	const uint64_t before = guard_hits();

	other = guarded(p + BYTES, PAGE);
	g = guarded(p, BYTES);
	p[0] = 7;
	ok(!guard_hit(g) && guard_hits() == before, "pages that are there are not touched");
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, write_all, (void *)(uintptr_t)p);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	ok(guard_hit(g) && guard_hits() > before, "%d threads write to all of it, and live (%llu hits)", THREADS,
	   (unsigned long long)(guard_hits() - before));
	ok(!guard_hit(other), "the guard beside it is not concerned");
	ok(p[BYTES - 1] == p[BYTES - 1] && munmap((void *)(uintptr_t)p, BYTES) == 0, "it can be read, and unmapped");
	guard_free(g);
	guard_free(other);
}

/* A FILL whose destination is gone: the pool's own threads meet it. */
static void test_pool(void)
{
	struct pool *pool = pool_make(1, 2);
	volatile uint8_t *p = cut_memory();
	struct guard *g = guarded(p, BYTES);
	struct fill *fill;
	struct fake f;
	uint8_t *dst;

	fake_layout(&f, 2, 700, 3072, MOE_FORMAT_BF16, 1);
	fake_fill(&f);
	fill = fill_make(&f, 0, 1);
	require(fill->slice.bytes <= BYTES, "it has room");
	dst = fill->dst;
	fill->copy.dst = (uint8_t *)(uintptr_t)p;
	pool_submit_copy(pool, &fill->copy);
	while (sem_wait(&fill->ended) < 0)
		;
	ok(guard_hit(g), "a FILL into memory that is gone: the pool lives, and the guard knows");
	fill->dst = dst;
	fill_free(fill);
	pool_free(pool);
	fake_free(&f);
	guard_free(g);
	munmap((void *)(uintptr_t)p, BYTES);
}

static void test_edges(void)
{
	volatile uint8_t *p = cut_memory();
	struct guard *g = guarded(p + 2 * PAGE, 2 * PAGE), *again;

	ok(ends_by(p) == 0, "a page that is there is not SIGBUS");
	ok(ends_by(p + 2 * PAGE - 1) == SIGBUS && ends_by(p + 4 * PAGE) == SIGBUS, "SIGBUS beside a guard is the end");
	ok(ends_by(p + 2 * PAGE) == 0 && ends_by(p + 4 * PAGE - 1) == 0, "its first and its last byte are guarded");
	p[3 * PAGE] = 1;
	ok(guard_hit(g) && ends_by(p + 4 * PAGE) == SIGBUS, "what is replaced ends with the guard");
	guard_free(g);
	ok(ends_by(p + 5 * PAGE) == SIGBUS, "without a guard it is the end");
	again = guarded(p + 5 * PAGE, PAGE);
	ok(again == g && ends_by(p + 5 * PAGE) == 0, "a guard can be used again, and is unmarked");
	guard_free(again);
	ok(guard_free(NULL) == NULL && !guard_hit(NULL), "none is allowed");
	munmap((void *)(uintptr_t)p, BYTES);
}

int main(void)
{
	require(guard_start(NULL) == 0 && guard_start(NULL) == 0, "the handler is there, once");
	test_threads();
	test_pool();
	test_edges();
	return tap_done();
}
