/* SPDX-License-Identifier: MIT */
/* closer - what takes long to free is freed by another thread, and whoever wants the memory sees that it still is. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "daemon/closer.h"
#include "tests/tap.h"

struct slow {
	atomic_bool go, done;
	pthread_t thread;
};

static void free_slowly(void *what)
{
	struct slow *slow = what;

	slow->thread = pthread_self();
	while (!atomic_load(&slow->go))
		usleep(1000);
	atomic_store(&slow->done, true);
}

int main(void)
{
	struct slow first = {0}, second = {0};
	uint64_t end = 0;

	ok(!closer_is_freeing(), "nothing is being freed");
	closer_free(free_slowly, &first);
	closer_free(free_slowly, &second);
	ok(!atomic_load(&first.done) && closer_is_freeing(), "what takes long is left to others");
	atomic_store(&second.go, true);
	while (!atomic_load(&second.done) && tap_wait(&end))
		;
	ok(atomic_load(&second.done) && closer_is_freeing(), "the second does not wait for the first");
	closer_settle();
	ok(!atomic_load(&first.done), "the end waits for a second, not for ever");
	atomic_store(&first.go, true);
	while (closer_is_freeing() && tap_wait(&end))
		;
	ok(!closer_is_freeing() && atomic_load(&first.done), "then all is free");
	ok(!pthread_equal(first.thread, pthread_self()) && !pthread_equal(second.thread, pthread_self()),
	   "by other threads");
	return tap_done();
}
