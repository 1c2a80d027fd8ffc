/* SPDX-License-Identifier: MIT */
/*
 * seat - the CPU on which the reactor polls.
 *
 * Law: a reactor that shares its CPU with the client that it serves answers only when that client yields, tens of times
 * later than from a CPU of its own. The kernel brings them together: it takes the CPU on which the reactor slept for
 * busy when a hypervisor has put it to sleep, and wakes the reactor where the client rings. It does not part them soon,
 * since both yield. So the reactor leaves by itself: when many requests in a short time were found right behind a yield
 * that gave the CPU away, it moves on to the next CPU that it may use. It may be no better there, so each further move
 * is further off; after a sleep, or a while without a move, the next one is near again, since whoever wakes it, or the
 * kernel's balancing, may bring it back. The first requests after a sleep are answered where they wake it: nothing is
 * faster for a single one.
 */
#ifndef DAEMON_SEAT_H
#define DAEMON_SEAT_H

#include <stdbool.h>
#include <stdint.h>

/* A CPU that a hypervisor has put to sleep may take half a millisecond to wake: the reactor's, then the client's. */
#define SEAT_SETTLE_NS 4000000u

/* All zero: it has not moved. */
struct seat {
	bool lost;          /* the last yield gave the CPU away */
	uint32_t shared;    /* requests that were found behind such a yield */
	uint64_t since_ns;  /* the first of them */
	uint64_t moved_ns;  /* when it moved last, or found no other CPU */
	uint64_t stay_ns;   /* from then on until it may move again */
	uint64_t settle_ns; /* until when it does not sleep */
};

/* The reactor found nothing, and has yielded from `begin` to `end` (CLOCK_MONOTONIC, nanoseconds). */
static inline void seat_yielded(struct seat *seat, uint64_t begin, uint64_t end)
{
	enum { GAVE_NS = 2000 }; /* a yield that nobody takes is a system call */

	seat->lost = end - begin >= GAVE_NS;
}

/* One more request was found behind such a yield: may move the calling thread. */
void seat_shared(struct seat *seat);

/* The reactor found work after it had found none. */
static inline void seat_served(struct seat *seat)
{
	if (seat->lost)
		seat_shared(seat);
}

/* It has moved a moment ago, and its client has perhaps gone to sleep meanwhile: who would sleep now would be woken, by
 * that client, on the CPU that it has just left. */
static inline bool seat_settling(const struct seat *seat, uint64_t now)
{
	return now < seat->settle_ns;
}

/* It is about to sleep. */
static inline void seat_slept(struct seat *seat)
{
	seat->lost = false;
	seat->shared = 0;
	seat->moved_ns = seat->settle_ns = 0; /* who wakes it chooses its CPU anew */
}

#endif
