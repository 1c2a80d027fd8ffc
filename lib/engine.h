/* SPDX-License-Identifier: MIT */
/*
 * engine - a session's caches, its device and its steps in flight.
 *
 * The slot arena is device memory: n_slots cache slots for each row of experts, two miss buffers, and a few spare
 * places, which fills go to (places.h). A step reads the slots through its plan's map; nothing else in the process
 * knows where an expert lies.
 *
 * Order. Plans of one layer are made in step order, and submitted in it. Submitting one step is one critical section
 * (`order`): the order in which steps enter the streams is the order in which they claim slots. All copies go through
 * one copy stream and the device work of steps through two, so that what is slow holds up nobody else: a step that
 * must wait for copies is computed aside, all others in the main stream. Large steps are in the main one in any case:
 * they have copies as a rule, and need much scratch memory. Between two steps these dependencies are left to events:
 *   - a step's device work waits for its own copies, and so for all earlier ones; or for the latest of those that an
 *     earlier step has not yet got for a slot that this one reads;
 *   - a step's copies wait for the last device work that may read the places that they go to, which is rarely in
 *     flight (places.h), or the same miss buffer, which is each second layer's.
 * What copies need of the daemon, the feeder waits for (feeder.h): the copy stream waits for its word.
 *
 * Truth about slots. The cache's maps are the plan: they say what will lie in a slot once every submitted copy is done.
 * `content` says what has been submitted. A step whose map names a slot with other content is refused: then a plan was
 * dropped or its fill has failed in between. A fill that fails takes its expert out of the maps and fails every step in
 * flight that counts on it.
 *
 * Control memory is what streams and the host share besides the data arena, which the daemon maps as well: words, and
 * of each step what its device work reads (ids, weights, map). Registered with the device; nobody else's.
 *
 * Locks: `order` before `lock`. `lock` guards the caches, contents, places, n_copy, overlap and the table of steps, and
 * is never held over anything that waits for the daemon or the device.
 */
#ifndef LIB_ENGINE_H
#define LIB_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cache.h"
#include "device/device.h"
#include "missbuf.h"
#include "ncopy.h"
#include "overlap.h"
#include "pages.h"
#include "places.h"
#include "reuse.h"
#include "session.h"

struct feeder;
struct ghosts;
struct guesses;
struct lanes;
struct moe_step;
struct plan_params;

#define ENGINE_COMPUTES 2      /* PLACE_MAIN, PLACE_ASIDE */
#define ENGINE_ASIDE_TOKENS 64 /* of a step that may be computed aside: scratch memory for so many is made twice */
#define ENGINE_PAGE 4096
#define ENGINE_WATCHDOG_MS 30000
#define ENGINE_REGISTER_BYTES ((uint64_t)8 << 30)
#define ENGINE_CHUNK_BYTES ((uint64_t)4 << 20) /* docs/decisions/0015 */

struct engine_row {
	struct cache *cache;
	int32_t *content;        /* [n_slots] the expert that was submitted for the slot last, or -1 */
	uint64_t given;          /* how often moe_prefetch and moe_fill have given slots to other experts */
	struct place_users read; /* who reads this row's slots */
	struct reuse reuse;      /* of MOE_ZERO_COPY_COST */
};

/* A stream of device work, and x and y of the step that it is at. */
struct engine_compute {
	struct device_stream *stream;
	struct device_memory work;
	uint32_t tokens; /* at most */
};

struct engine {
	struct moe_session *session;
	uint32_t n_rows, n_experts, n_slots, miss_slots, spare_slots;
	uint64_t chunk_bytes; /* a FILL that copies asks for about as much, at most */
	bool has_slots;       /* else no device is opened, and the CPU computes everything */
	bool group;           /* rank 0 computes the CPU part for all ranks: they must never differ in what is cached */

	const struct device_ops *ops;
	struct device *device;
	struct engine_compute compute[ENGINE_COMPUTES]; /* by place_stream */
	struct device_stream *copy;
	struct pages pages;
	struct device_memory
		landing;            /* of MOE_ANSWERS_COPY: where answers are copied to, of each lane, then each step */
	struct device_memory slots; /* [engine_all_slots()] of info.slot_bytes */
	bool signals;               /* what the daemon pushes counts in a timeline, which streams wait for */
	device_ptr timeline;        /* behind the slots */
	_Atomic uint32_t numbered;  /* FILLs that have a number there; changes under `order` */
	struct device_stream *aid;  /* writes the timeline where the daemon never will; the feeder's */
	uint8_t *control;           /* [control_bytes] */
	uint64_t control_bytes;
	struct feeder *feeder;
	struct lanes *lanes;  /* NULL: the session has none */
	uint64_t watchdog_ns; /* what a step's copies may take */

	pthread_mutex_t order, lock;
	struct engine_row *rows; /* [n_rows] */
	struct places places;
	struct missbuf missbufs[MISSBUF_COUNT];
	struct ncopy ncopy;
	struct overlap overlap; /* of the steps that step_count counts by mode */
	uint32_t n_copy;        /* UINT32_MAX: the rule */
	bool dummy;             /* the phase that runs is a dummy one */
	bool decode;            /* it is a decode phase */
	uint8_t phase;          /* enum moe_phase: it */
	uint64_t step;          /* its number */
	int broken;             /* 0, or the code with which every further plan is refused */
	uint32_t n_promises;    /* plans that copy into cache slots and are not submitted yet */
	uint64_t n_steps;       /* submitted so far */
	struct moe_step *steps;
	uint32_t n_step_slots; /* max_steps; three times as many where steps may carry and leave a deferred part */

	pthread_mutex_t hint_lock;
	int32_t *hint_ids;   /* [n_experts] in the data arena */
	float *hint_weights; /* the same */
	struct queue_op hint;
	bool hint_in_flight;
	struct ghosts *ghosts;   /* NULL: it has none */
	struct guesses *guesses; /* NULL: the session does not guess */
};

/* Of the slot arena. */
static inline uint32_t engine_all_slots(const struct engine *e)
{
	return e->n_rows * e->n_slots + MISSBUF_COUNT * e->miss_slots + e->spare_slots;
}

/* Index in the slot arena of a plan's slot number (moe_copy.slot), now; behind it, those of experts that are read in
 * the pool. Under `lock`, or under `order`: places change under both. */
static inline uint32_t engine_slot(const struct engine *e, uint32_t row, uint32_t layer, int32_t slot)
{
	if ((uint32_t)slot < e->n_slots)
		return places_slot(&e->places, row, (uint32_t)slot)->place;
	if ((uint32_t)slot >= e->n_slots + e->miss_slots)
		return engine_all_slots(e) + (uint32_t)slot - e->n_slots - e->miss_slots;
	return e->n_rows * e->n_slots + layer % MISSBUF_COUNT * e->miss_slots + (uint32_t)slot - e->n_slots;
}

/* Under `lock`: what the router has chosen for a layer, for the daemon, if it wants to know. No dummy step. */
void engine_tell_route(struct engine *engine, const struct plan_params *routed);

/* Whether the phase that runs is a dummy one. Takes `lock`. */
bool engine_is_dummy(struct engine *engine);

/* Under `lock`: the slot does not hold the expert (`code` says why); the cache forgets it, if it still maps it
 * there. In a group that is the end: the other ranks still map it. */
void engine_forget(struct engine *e, uint32_t row, int32_t expert, int32_t slot, int code);

/* Nothing of the daemon is believed any more: every request ends now, and further plans are refused. Takes `lock`. */
void engine_give_up(struct engine *e, int code);

/* A request into the ring (queue.h); a daemon that left it full for as long as it may be silent (-ETIME) is given up,
 * or the next request would wait that long, too. Not under `lock`. */
int engine_submit(struct engine *e, const struct moe_sqe *sqe, struct queue_op *op);

/* What `call`, which waits for the daemon's answer, has ended with: r, and after -ETIME the session is given up. */
int engine_answered(struct engine *e, int r, const char *call, struct moe_error *err);

/* 0, or what has happened to the device or one of its streams. */
int engine_device_error(const struct engine *e);

/* engine-memory.c: opens the device and makes slots, work and control memory; what they need is registered. On failure
 * and after use engine_close_device cleans up. */
int engine_open_device(struct engine *e, struct moe_error *err);
void engine_close_device(struct engine *e);

#endif
