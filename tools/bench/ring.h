/* SPDX-License-Identifier: MIT */
/*
 * ring - what `moe-bench ring` measures, between the file that times bare trips and NOPs, the one that times requests
 * with work, and the one that prints.
 *
 * Law: busy trips follow each other at once; idle ones come after RING_IDLE_US, when the daemon sleeps. What is
 * compared is measured in turns of the same run, so that a neighbour on the machine disturbs both.
 */
#ifndef TOOLS_BENCH_RING_H
#define TOOLS_BENCH_RING_H

#include "bench.h"

#define RING_IDLE_US 2000
#define RING_FILLS 2

struct ring_trips {
	struct summary busy, idle;
};

struct ring_fill {
	uint64_t bytes;   /* of the slice, the nearest to what was wanted */
	uint32_t tp_size; /* that cuts it so */
	struct ring_trips trips;
	struct summary copy; /* bare, of as many bytes, in the way that is fastest here */
};

struct ring_result {
	uint32_t sessions, beside, n_fills;
	struct ring_trips memory, futex, eventfd; /* bare; memory has no idle */
	struct ring_trips nop;
	struct summary agree;     /* busy, of a group of one rank: it waits for nobody */
	struct ring_trips module; /* NOPs of another session, by the kernel module's queue; of p50 0: not measured */
	double module_ratio;      /* of its busy NOPs to those by the ring, as the next */
	double nop_ratio;         /* of busy NOPs to shared memory, p50 to p50: the median of the rounds */
	struct ring_fill fills[RING_FILLS];
	uint32_t tokens, topk;
	struct ring_trips compute;
};

/* A series of samples, taken a part a round. */
struct series {
	double *samples;
	uint32_t n, room;
};

int series_new(struct series *ret, uint32_t room);
struct summary series_end(struct series *series); /* frees it */

/* How many of the series' samples a round takes. */
static inline uint32_t series_share(const struct series *series, uint32_t round, uint32_t rounds)
{
	return (uint32_t)((uint64_t)series->room * (round + 1) / rounds - (uint64_t)series->room * round / rounds);
}

/* FILL and COMPUTE: 0 or negative, with the error set. */
int ring_fills(struct ring_result *result, const struct options *o, struct moe_client *client, struct moe_error *err);
int ring_compute(struct ring_result *result, const struct options *o, struct moe_session *session,
		 struct moe_error *err);

void ring_print(const struct ring_result *result, bool json);

#endif
