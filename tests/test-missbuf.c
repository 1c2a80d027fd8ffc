/* SPDX-License-Identifier: MIT */
/* The miss buffer's states: four arrows and no other, and only one thread wins each. */
#include <errno.h>
#include <pthread.h>

#include "missbuf.h"
#include "tests/tap.h"

#define THREADS 4
#define ROUNDS 20000

static uint32_t used;

static void test_arrows(void)
{
	static const bool allowed[MISSBUF_STATES][MISSBUF_STATES] = {
		[MISSBUF_FREE] = {[MISSBUF_FILLING] = true},
		[MISSBUF_FILLING] = {[MISSBUF_READY] = true},
		[MISSBUF_READY] = {[MISSBUF_IN_USE] = true},
		[MISSBUF_IN_USE] = {[MISSBUF_FREE] = true},
	};
	int from, to, state;
	bool good = true;

	for (from = 0; from < MISSBUF_STATES; from++)
		for (to = 0; to < MISSBUF_STATES; to++)
			good &= missbuf_arrow((enum missbuf_state)from, (enum missbuf_state)to) == allowed[from][to];
	ok(good, "FREE, FILLING, READY, IN_USE, FREE are the only arrows");
	good = true;
	for (state = 0; state < MISSBUF_STATES; state++) {
		for (from = 0; from < MISSBUF_STATES; from++) {
			for (to = 0; to < MISSBUF_STATES; to++) {
				struct missbuf b;
				const bool takes = from == state && allowed[from][to];
				int r;

				missbuf_init(&b, &used);
				atomic_store(&b.state, state);
				r = missbuf_move(&b, (enum missbuf_state)from, (enum missbuf_state)to);
				good &= r == (takes ? 0 : -EPROTO) && (int)missbuf_state(&b) == (takes ? to : state);
			}
		}
	}
	ok(good, "a move from another state, or along no arrow, is refused and changes nothing");
}

static struct missbuf shared;
static _Atomic int inside, wins;
static _Atomic bool crowded;

/* All want to fill at once: whoever takes FREE -> FILLING has the buffer alone until it is FREE again. */
static void *contend(void *arg)
{
	int i;

	for (i = 0; i < ROUNDS; i++) {
		if (missbuf_move(&shared, MISSBUF_FREE, MISSBUF_FILLING) < 0)
			continue;
		if (atomic_fetch_add(&inside, 1) != 0)
			atomic_store(&crowded, true);
		atomic_fetch_add(&wins, 1);
		if (missbuf_move(&shared, MISSBUF_FILLING, MISSBUF_READY) < 0 ||
		    missbuf_move(&shared, MISSBUF_READY, MISSBUF_IN_USE) < 0)
			atomic_store(&crowded, true);
		atomic_fetch_sub(&inside, 1);
		if (missbuf_move(&shared, MISSBUF_IN_USE, MISSBUF_FREE) < 0)
			atomic_store(&crowded, true);
	}
	return NULL;
}

static void test_contention(void)
{
	pthread_t threads[THREADS];
	int i;

	missbuf_init(&shared, &used);
	for (i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, contend, NULL) != 0)
			abort();
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	ok(!crowded && wins > 0 && missbuf_state(&shared) == MISSBUF_FREE, "one holder at a time (%d turns)",
	   (int)wins);
}

/* The device says in a word that a use of the buffer has begun and ended; the next fill learns of it there. */
static void test_uses(void)
{
	struct missbuf b;
	uint32_t use;
	bool good = true;

	used = 0;
	missbuf_init(&b, &used);
	for (use = 1; use <= 3; use++) {
		good &= missbuf_fill(&b, use) == 0 && missbuf_move(&b, MISSBUF_FILLING, MISSBUF_READY) == 0;
		good &= missbuf_fill(&b, use + 1) == -EPROTO && missbuf_state(&b) == MISSBUF_READY;
		used = 2 * use - 1;
		good &= missbuf_fill(&b, use + 1) == -EPROTO && missbuf_state(&b) == MISSBUF_IN_USE;
		used = 2 * use;
	}
	ok(good, "a buffer is filled anew only once the device says that its use has ended");
}

int main(void)
{
	test_arrows();
	test_uses();
	test_contention();
	return tap_done();
}
