/* SPDX-License-Identifier: MIT */
/* The reader for places where io_uring is forbidden: threads that call pread. */
#include <time.h>

#include "base/error.h"
#include "base/util.h"
#include "daemon/loader-ring.h"

#define READERS_MAX 16u

struct readers {
	struct loader *loader;
	pthread_mutex_t lock;
	pthread_cond_t ended;
	uint32_t n_ended;
};

static void *read_thread(void *argument)
{
	struct readers *readers = argument;
	struct loader *l = readers->loader;

	while (!atomic_load(&l->failed)) {
		struct loader_slot *slot = loader_take_slot(l, LOADER_TICK_NS);
		struct moe_error error;

		if (!slot)
			continue;
		if (!loader_next(l, slot)) {
			loader_give_slot(l, slot);
			break;
		}
		loader_took(l, slot, diskread_sync(&slot->read, &error) < 0 ? &error : NULL);
	}
	pthread_mutex_lock(&readers->lock);
	readers->n_ended++;
	pthread_cond_signal(&readers->ended);
	pthread_mutex_unlock(&readers->lock);
	return NULL;
}

/* One turn of waiting for the readers' end. */
static bool all_ended(struct readers *readers, const struct team *team)
{
	struct timespec until;
	bool ended;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += LOADER_TICK_NS;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_mutex_lock(&readers->lock);
	if (readers->n_ended < team->n)
		pthread_cond_timedwait(&readers->ended, &readers->lock, &until);
	ended = readers->n_ended == team->n;
	pthread_mutex_unlock(&readers->lock);
	return ended;
}

void loader_read_threads(struct loader *loader)
{
	struct readers readers = {
		.loader = loader, .lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
	struct moe_error error;
	struct team team;

	loader_tick(loader);
	if (team_start(&team, "moe-read", MIN(loader->depth, READERS_MAX), read_thread, &readers, &error) < 0) {
		loader_fail(loader, &error);
		return;
	}
	while (!all_ended(&readers, &team))
		loader_tick(loader);
	team_join(&team);
}
