/* SPDX-License-Identifier: MIT */
/*
 * engine - a session's caches, its device and its steps in flight.
 *
 * The slot arena is device memory: n_slots cache slots for each row of experts, then two miss buffers. A step reads the
 * slots through its plan's map; nothing else in the process knows where an expert lies.
 *
 * Order. Plans of one layer are made in step order, and submitted in it. Submitting one step is one critical section
 * (`order`): the order in which steps enter the streams is the order in which they claim slots. All device work of all
 * steps goes through one compute stream and all copies through one copy stream, so between two steps only these
 * dependencies are left to events:
 *   - a step's device work waits for its own copies, and so for all earlier ones;
 *   - a step's copies wait for the last device work that was submitted earlier on the same row (cache slots) or on the
 *     same miss buffer.
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
 * Locks: `order` before `lock`. `lock` guards the caches, contents, n_copy, overlap and the table of steps, and is
 * never held over anything that waits for the daemon or the device.
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
#include "reuse.h"
#include "session.h"

struct feeder;
struct lanes;
struct moe_step;

#define ENGINE_PAGE 4096
#define ENGINE_WATCHDOG_MS 30000
#define ENGINE_REGISTER_BYTES ((uint64_t)8 << 30)
#define ENGINE_CHUNK_BYTES ((uint64_t)4 << 20) /* docs/decisions/0015 */

struct engine_row {
	struct cache *cache;
	int32_t *content;          /* [n_slots] the expert that was submitted for the slot last, or -1 */
	struct device_event *read; /* the latest step in flight that reads this row's slots, or NULL */
	struct reuse reuse;        /* of MOE_ZERO_COPY_COST */
};

struct engine {
	struct moe_session *session;
	uint32_t n_rows, n_experts, n_slots, miss_slots;
	uint64_t chunk_bytes; /* a FILL that copies asks for about as much, at most */
	bool has_slots;       /* else no device is opened, and the CPU computes everything */
	bool group;           /* rank 0 computes the CPU part for all ranks: they must never differ in what is cached */

	const struct device_ops *ops;
	struct device *device;
	struct device_stream *compute, *copy;
	struct device_memory slots; /* [n_rows * n_slots + 2 * miss_slots] of info.slot_bytes */
	bool signals;               /* what the daemon pushes counts in a timeline, which streams wait for */
	device_ptr timeline;        /* behind the slots */
	_Atomic uint32_t numbered;  /* FILLs that have a number there; changes under `order` */
	struct device_stream *aid;  /* writes the timeline where the daemon never will; the feeder's */
	struct device_memory work;  /* x and y of the step that the compute stream is at; streams keep steps apart */
	uint8_t *control;           /* [control_bytes] */
	uint64_t control_bytes;
	struct feeder *feeder;
	struct lanes *lanes;  /* NULL: the session has none */
	uint64_t watchdog_ns; /* what a step's copies may take */

	pthread_mutex_t order, lock;
	struct engine_row *rows; /* [n_rows] */
	struct missbuf missbufs[MISSBUF_COUNT];
	struct ncopy ncopy;
	struct overlap overlap; /* of the steps that step_count counts by mode */
	uint32_t n_copy;        /* UINT32_MAX: the rule */
	bool dummy;             /* the phase that runs is a dummy one */
	bool decode;            /* it is a decode phase */
	int broken;             /* 0, or the code with which every further plan is refused */
	uint64_t n_steps;       /* submitted so far */
	struct moe_step *steps;
	uint32_t n_step_slots; /* max_steps; three times as many where steps may carry and leave a deferred part */

	pthread_mutex_t hint_lock;
	int32_t *hint_ids; /* [n_experts] in the data arena */
	struct queue_op hint;
	bool hint_in_flight;
};

/* Of the slot arena. */
static inline uint32_t engine_all_slots(const struct engine *e)
{
	return e->n_rows * e->n_slots + MISSBUF_COUNT * e->miss_slots;
}

/* Index in the slot arena of a plan's slot number (moe_copy.slot); behind it, those of experts that are read in the
 * pool. */
static inline uint32_t engine_slot(const struct engine *e, uint32_t row, uint32_t layer, int32_t slot)
{
	if ((uint32_t)slot < e->n_slots)
		return row * e->n_slots + (uint32_t)slot;
	if ((uint32_t)slot >= e->n_slots + e->miss_slots)
		return engine_all_slots(e) + (uint32_t)slot - e->n_slots - e->miss_slots;
	return e->n_rows * e->n_slots + layer % MISSBUF_COUNT * e->miss_slots + (uint32_t)slot - e->n_slots;
}

/* Whether the phase that runs is a dummy one. Takes `lock`. */
bool engine_is_dummy(struct engine *engine);

/* Under `lock`: the slot does not hold the expert (`code` says why); the cache forgets it, if it still maps it
 * there. In a group that is the end: the other ranks still map it. */
void engine_forget(struct engine *e, uint32_t row, int32_t expert, int32_t slot, int code);

/* Nothing of the daemon is believed any more: every request ends now, and further plans are refused. Takes `lock`. */
void engine_give_up(struct engine *e, int code);

/* 0, or what has happened to the device or one of its streams. */
int engine_device_error(const struct engine *e);

/* engine-memory.c: opens the device and makes slots, work and control memory; what they need is registered. On failure
 * and after use engine_close_device cleans up. */
int engine_open_device(struct engine *e, struct moe_error *err);
void engine_close_device(struct engine *e);

#endif
