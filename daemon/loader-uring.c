/* SPDX-License-Identifier: MIT */
/*
 * The reader that keeps `depth` reads in flight on one io_uring, from one thread.
 *
 * A disk may end all reads in flight at once, as virtual ones do, and stands idle until it is asked again. So it is
 * asked first, and only then are the workers woken for what it has brought: they would take the reader's CPU.
 */
#include <stddef.h>

#include "base/util.h"
#include "daemon/loader-ring.h"

struct uring_reader {
	struct loader *loader;
	struct diskring ring;
	struct loader_slot *took, **last; /* whose reads have ended, and that nobody has been told of */
};

/* Returns false when there is nothing more to read. */
static bool fill_queue(struct uring_reader *u)
{
	while (diskring_has_room(&u->ring)) {
		/* With reads in flight, or slots to hand on, there is something better to wait for than a slot. */
		const bool idle = u->ring.in_flight == 0 && !u->took;
		struct loader_slot *slot = loader_take_slot(u->loader, idle ? LOADER_TICK_NS : 0);

		if (!slot)
			return !atomic_load(&u->loader->failed);
		if (!loader_next(u->loader, slot)) {
			loader_give_slot(u->loader, slot);
			return false;
		}
		diskring_add(&u->ring, &slot->read);
	}
	return !u->ring.broken;
}

static void done(void *userdata, struct diskread *read, const struct moe_error *error)
{
	struct uring_reader *u = userdata;
	struct loader_slot *slot = container_of(read, struct loader_slot, read);

	if (error)
		loader_fail(u->loader, error);
	slot->next = NULL;
	*u->last = slot;
	u->last = &slot->next;
}

static void hand_on(struct uring_reader *u)
{
	while (u->took) {
		struct loader_slot *slot = u->took;

		u->took = slot->next;
		loader_took(u->loader, slot, NULL);
	}
	u->last = &u->took;
}

int loader_read_uring(struct loader *loader)
{
	struct uring_reader u = {.loader = loader,
				 .ring = {.name = loader->params->name,
					  .depth = loader->depth,
					  .memory = loader->ring,
					  .bytes = (size_t)loader->n_slots * loader->walk.block_bytes,
					  .wake_fd = -1,
					  .done = done,
					  .userdata = &u}};
	const int r = diskring_open(&u.ring);
	bool more = true;

	if (r < 0)
		return r;
	u.last = &u.took;
	while (more || u.ring.in_flight > 0 || u.took) {
		if (more)
			more = fill_queue(&u);
		diskring_submit(&u.ring);
		hand_on(&u);
		diskring_turn(&u.ring, LOADER_TICK_NS);
		loader_tick(loader);
	}
	diskring_close(&u.ring);
	return 0;
}
