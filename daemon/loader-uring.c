/* SPDX-License-Identifier: MIT */
/* The reader that keeps `depth` reads in flight on one io_uring, from one thread. */
#include <stddef.h>

#include "base/util.h"
#include "daemon/loader-ring.h"

/* Returns false when there is nothing more to read. */
static bool fill_queue(struct loader *loader, struct diskring *ring)
{
	while (diskring_has_room(ring)) {
		/* With reads in flight there is something better to wait for than a slot. */
		struct loader_slot *slot = loader_take_slot(loader, ring->in_flight ? 0 : LOADER_TICK_NS);

		if (!slot)
			return !atomic_load(&loader->failed);
		if (!loader_next(loader, slot)) {
			loader_give_slot(loader, slot);
			return false;
		}
		diskring_add(ring, &slot->read);
	}
	return !ring->broken;
}

static void done(void *userdata, struct diskread *read, const struct moe_error *error)
{
	loader_took(userdata, container_of(read, struct loader_slot, read), error);
}

int loader_read_uring(struct loader *loader)
{
	struct diskring ring = {.name = loader->params->name,
				.depth = loader->depth,
				.memory = loader->ring,
				.bytes = (size_t)loader->n_slots * loader->walk.block_bytes,
				.wake_fd = -1,
				.done = done,
				.userdata = loader};
	const int r = diskring_open(&ring);
	bool more = true;

	if (r < 0)
		return r;
	while (more || ring.in_flight > 0) {
		if (more)
			more = fill_queue(loader, &ring);
		diskring_turn(&ring, LOADER_TICK_NS);
		loader_tick(loader);
	}
	diskring_close(&ring);
	return 0;
}
