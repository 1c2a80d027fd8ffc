/* SPDX-License-Identifier: MIT */
/*
 * places - where in the slot arena each cache slot lies, and which places are nobody's.
 *
 * Caches and plans number slots. Where a slot lies is another number, and a fill changes it: the copy goes to the place
 * that has been spare the longest, the slot lies there from then on, and its old place becomes spare. So a copy, which
 * is slow, never goes where a step reads that was submitted before: that step has a map of its own, and the expert that
 * leaves stays whole until it has ended. What commits a fill is one number in the maps of later steps, whose work on
 * the device stands behind the copy's event.
 *
 * Law: each place of the caches is exactly one slot's or spare. Of a spare place it is known what work on the device
 * may still use it, and a copy to it waits for that; where there are as many spare places as fills between the two, it
 * is long over. Without spare places a fill goes to the slot's own place, behind its users.
 *
 * Under engine->lock.
 */
#ifndef LIB_PLACES_H
#define LIB_PLACES_H

#include <stdint.h>

#include "moe-error.h"

struct device_event;

/* The streams whose work uses places: the two of steps (engine.h), and that of copies. */
enum place_stream { PLACE_MAIN, PLACE_ASIDE, PLACE_COPY, PLACE_STREAMS };

/* In one stream, the latest step that does something: the event behind it, and the step's number. What is before it in
 * the stream is over when it is. event NULL: no step in flight does. */
struct place_use {
	struct device_event *event;
	uint64_t seq;
};

struct place_users {
	struct place_use last[PLACE_STREAMS];
};

struct place_spare {
	uint32_t place;
	struct place_users users;
};

struct place_slot {
	uint32_t place;          /* index in the slot arena */
	struct place_use filled; /* the copies of the step that has filled it last */
};

struct places {
	uint32_t n_slots; /* of a row */
	uint32_t n_spare;
	uint32_t next;             /* spare[next] has been so the longest, then those behind it, round */
	struct place_slot *slots;  /* [n_rows][n_slots] */
	struct place_spare *spare; /* [n_spare] */
};

/* Slot s of row r begins at place r * n_slots + s; the spare ones are first_spare and those behind it. -ENOMEM; after
 * it, too, places_fini cleans up. */
int places_init(struct places *places, uint32_t n_rows, uint32_t n_slots, uint32_t first_spare, uint32_t n_spare,
		struct moe_error *err);
void places_fini(struct places *places);

static inline struct place_slot *places_slot(const struct places *places, uint32_t row, uint32_t slot)
{
	return &places->slots[row * places->n_slots + slot];
}

/* Whichever of the two is later; one may have no event. */
void place_use_later(struct place_use *use, const struct place_use *other);

/* Copies fill a slot whose row has these readers: it lies where they go from now on. *users becomes those of that place
 * too. */
void places_fill(struct places *places, uint32_t row, uint32_t slot, const struct place_users *readers,
		 const struct place_use *copies, struct place_users *users);

/* The event's step is over, and the event another step's soon. */
void place_users_forget(struct place_users *users, const struct device_event *event);
void places_forget(struct places *places, const struct device_event *event);

#endif
