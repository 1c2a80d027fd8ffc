/* SPDX-License-Identifier: MIT */
/*
 * The pool's inbox: entries come out by order, those of one order as they went in, whatever came between; entering does
 * not take longer the more wait; and several threads at both ends lose and double nothing.
 */
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "daemon/pool-queue.h"
#include "tests/tap.h"

#define STEPS 20000
#define FEW 2000
#define MANY 32000
#define THREADS 3
#define EACH 20000

static struct pool_queue queue;
static uint64_t seed;

static uint32_t random_below(uint32_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % n;
}

/* The one that must come next: the least order, and of those the first that went in. */
static int naive_first(const struct pool_entry *entries, const bool *in, int n)
{
	int first = -1;

	for (int i = 0; i < n; i++)
		if (in[i] && (first < 0 || entries[i].place.order < entries[first].place.order))
			first = i;
	return first;
}

static void test_order(void)
{
	static struct pool_entry entries[STEPS];
	static bool in[STEPS];
	int n = 0, low = 0, wrong = 0, waiting = 0;

	for (int step = 0; step < STEPS; step++) {
		/* Waves: up to a few hundred wait, then few. */
		if (random_below(1000) < (step / 1000 % 2 ? 350u : 650u)) {
			pool_queue_submit(&queue, &entries[n], POOL_PRIORITIES - 1, random_below(100));
			in[n++] = true;
			waiting++;
		} else {
			const int first = naive_first(entries + low, in + low, n - low) + low;
			const struct pool_entry *got = pool_queue_take(&queue, POOL_PRIORITIES - 1, true);

			wrong += waiting > 0 ? got != &entries[first] : got != NULL;
			if (waiting > 0) {
				in[first] = false;
				waiting--;
			}
			while (low < n && !in[low])
				low++;
		}
	}
	ok(n > STEPS / 3 && wrong == 0, "%d entries in %d steps: %d out of order", n, STEPS, wrong);
	for (uint64_t last = 0; waiting > 0; waiting--) {
		const struct pool_entry *got = pool_queue_take(&queue, POOL_PRIORITIES - 1, true);

		wrong += !got || got->place.order < last;
		last = got ? got->place.order : 0;
	}
	ok(wrong == 0 && !pool_queue_take(&queue, POOL_PRIORITIES - 1, true) && !pool_queue_waiting(&queue),
	   "those that are left, and no more");
}

/* Whoever found no room for it does not take it, also where what was first at that look is gone. */
static void test_room(void)
{
	struct pool_entry copy = {.takes_scratch = false}, computation = {.takes_scratch = true};

	pool_queue_submit(&queue, &computation, 0, 2);
	pool_queue_submit(&queue, &copy, 0, 1);
	ok(pool_queue_take(&queue, 0, false) == &copy, "without room for scratch memory: what needs none");
	ok(!pool_queue_take(&queue, 0, false) && pool_queue_waiting(&queue), "and not what comes after it");
	ok(pool_queue_take(&queue, 0, true) == &computation, "until there is room");
}

/* One entry more among so many, in ns: the least of some tries. Orders rise, as virtual ends do. */
static double submit_ns(struct pool_entry *entries, int n)
{
	double best = 1e18;

	for (int try = 0; try < 20; try++) {
		uint64_t begin;

		for (int i = 0; i < n - 1000; i++)
			pool_queue_submit(&queue, &entries[i], 0, (uint64_t)i);
		begin = now_ns();
		for (int i = n - 1000; i < n; i++)
			pool_queue_submit(&queue, &entries[i], 0, (uint64_t)i);
		best = MIN(best, (double)(now_ns() - begin) / 1000);
		while (pool_queue_take(&queue, 0, true))
			;
	}
	return best;
}

static void test_cost(void)
{
	static struct pool_entry entries[MANY];
	const double few = submit_ns(entries, FEW), many = submit_ns(entries, MANY);

	diag("one more: %.0f ns among %d, %.0f ns among %d", few, FEW, many, MANY);
	ok(many < 8 * few, "%d times as many that wait do not make entering 8 times as long", MANY / FEW);
}

static _Atomic uint32_t taken[THREADS * EACH];
static struct pool_entry shared[THREADS * EACH];
static _Atomic uint32_t n_taken;

static void *submit_some(void *argument)
{
	const uintptr_t number = (uintptr_t)argument;

	for (uintptr_t i = number * EACH; i < (number + 1) * EACH; i++)
		pool_queue_submit(&queue, &shared[i], 0, i % 97);
	return NULL;
}

static void *take_all(void *argument)
{
	while (atomic_load(&n_taken) < THREADS * EACH) {
		const struct pool_entry *got = pool_queue_take(&queue, 0, true);

		if (!got)
			continue;
		atomic_fetch_add(&taken[got - shared], 1);
		atomic_fetch_add(&n_taken, 1);
	}
	return argument;
}

static void test_threads(void)
{
	pthread_t threads[2 * THREADS];
	uint32_t wrong = 0;

	for (uintptr_t i = 0; i < 2 * THREADS; i++)
		require(pthread_create(&threads[i], NULL, i < THREADS ? submit_some : take_all, (void *)i) == 0,
			"a thread");
	for (int i = 0; i < 2 * THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < THREADS * EACH; i++)
		wrong += atomic_load(&taken[i]) != 1;
	ok(wrong == 0, "%d threads at each end: %u entries lost or doubled", THREADS, wrong);
}

int main(void)
{
	seed = tap_seed();
	pool_queue_init(&queue, 1);
	test_order();
	test_room();
	test_cost();
	test_threads();
	pool_queue_destroy(&queue);
	return tap_done();
}
