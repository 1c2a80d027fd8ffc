/* SPDX-License-Identifier: MIT */
/*
 * lanes - fixed memory by which a captured stream asks the daemon for the CPU's part of a layer, and gets it.
 *
 * A step that is planned anew each time cannot be captured: its plan, its slots and its words differ. A lane is what
 * stays: one record for activations, ids and weights, one for the answer, four words, all at the same addresses for as
 * long as the session lives. What moe_lane_submit gives to a stream depends on nothing else, so it may be captured once
 * and replayed:
 *
 *     x, ids, weights -> the record;  request = what is asked for
 *     the device's part -> y, by the device's copy of the map
 *     waiting = 1;  answer?  answer = 0;  waiting = 0
 *     y += the record's answer, read there or, as the session says, copied to the device first
 *
 * A thread of the session looks at the request words, takes a request (request = 0), asks the daemon for the pairs
 * that the map does not name, and writes `answer` in every case: then error says whether y is right. A word that a
 * graph waits for cannot grow, so who has waited for it resets it.
 *
 * Law of one user. At most one step of a lane is under way at a time. Streams that run beside each other have lanes of
 * their own: one for each micro-batch and parity of its layers.
 *
 * Law of the map. Device and host must split the pairs alike, without asking each other. So the map is fixed while
 * lanes are in use: nobody leaves a cache slot between moe_lanes_fix and moe_lanes_release.
 *
 * Law of waits. `waiting` says that a stream waits, whatever else has gone wrong; no such time is longer than the
 * watchdog's, which answers with an error and gives the daemon up.
 */
#ifndef LIB_LANES_H
#define LIB_LANES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine.h"
#include "queue.h"
#include "uapi/moe_ring.h"

#define LANES_MAX 32
#define LANE_TOKENS_MAX 512
#define LANE_TOKENS 64

/* Registered, each in a cache line of its own. */
struct lane_words {
	uint32_t request; /* by the stream: lane_request(); by the host: 0, when it has taken it */
	uint32_t pad0[15];
	uint32_t answer; /* by the host: 1; by the stream: 0, when it has seen it */
	uint32_t pad1[15];
	uint32_t waiting; /* by the stream: 1 while it waits for the answer */
	uint32_t pad2[15];
	int32_t error; /* by the host, before the answer: the first code since somebody has asked */
	uint32_t pad3[15];
};

/* What the request word says: the layer, the tokens, the pairs of each. Never 0. */
static inline uint32_t lane_request(uint32_t layer, uint32_t tokens, uint32_t topk)
{
	_Static_assert(LANE_TOKENS_MAX <= 1 << 9 && MOE_TOPK_MAX <= 1 << 6, "a request is one word");
	return (layer + 1) << 15 | (tokens - 1) << 6 | (topk - 1);
}

struct lane {
	struct lane_words *words;
	float *x, *y, *weights;       /* in the data arena, as all records; y: by the daemon */
	int32_t *ids, *cpu_ids;       /* cpu_ids: of those, what the map does not name; else -1 */
	struct device_stream *stream; /* borrowed, with scratch memory of the lane's own */

	/* the thread's */
	bool busy; /* a request has been taken and not been answered */
	uint32_t asked;
	bool dummy;         /* the phase in which it was taken is a dummy one */
	uint32_t pairs_hit; /* that the device computes */
	uint32_t experts_asked, experts_hit;
	uint64_t taken_ns;
	struct queue_op compute;
	uint64_t
		since_ns; /* the latest thing that happened on the lane, or that its stream began to wait; 0: nothing */
};

struct lanes {
	struct engine *engine;
	uint32_t n, tokens;
	struct lane lanes[LANES_MAX];
	struct device_memory maps; /* [n_rows][n_experts] expert -> index in the slot arena, or -1: the device's */
	int32_t *host_maps;        /* the same: the host's, registered; written while nobody uses lanes */
	pthread_t thread;
	bool has_thread;
	pthread_mutex_t lock;
	pthread_cond_t more;
	_Atomic bool fixed;  /* set under the lock */
	bool used, stopping; /* under the lock; used: a map has been fixed before */
};

/* Whether the session's parameters can be kept. */
int lanes_check(const struct moe_session *session, struct moe_error *err);

/* What lanes need of the data arena and of the control memory. 0 where there are none. */
uint64_t lanes_data_bytes(const struct engine *e);
uint64_t lanes_control_bytes(const struct engine *e);
/* And of the device's memory, where answers are copied. */
uint64_t lanes_landing_bytes(const struct engine *e);

/* The device is open: the data arena and the control memory are there. On failure lanes_free cleans up. */
int lanes_init(struct engine *e, struct moe_error *err);
void lanes_free(struct engine *e); /* no stream uses one any more, nor the maps: the engine's have ended */

/* Whether nobody may leave a cache slot now. Under engine->lock, or between two calls of one thread. */
bool lanes_are_fixed(const struct engine *e);
/* 0, or -EBUSY because of that, in the name of `call`. Under engine->lock. */
int lanes_let_fill(const struct engine *e, const char *call, struct moe_error *err);

/* 0, or why nothing is right any more, whatever a single step has met. Takes engine->lock. */
int lanes_lost(struct engine *e);

/* lane-thread.c */
void *lanes_main(void *lanes);

#endif
