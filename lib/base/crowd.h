/* SPDX-License-Identifier: MIT */
/*
 * crowd - whether the CPU of a thread that polls is wanted by others, who compute.
 *
 * Law: who polls yields, since what it waits for may need this very CPU, and who waits as well gives it back within
 * microseconds. A stranger that computes keeps it until the scheduler's next tick, milliseconds later, and since Linux
 * 6.18 who yields is sent to the back for a whole slice; who sleeps is woken in front of it. So when what was waited
 * for is found behind a long yield, and had been there for most of it, polling costs more here than sleeping: from the
 * second time on nobody polls for a while. One alone may have been the hypervisor's. When it is so again soon after
 * the while has gone, the next is twice as long. Where the yield gave the CPU to whom it waited for, nothing is lost.
 */
#ifndef BASE_CROWD_H
#define BASE_CROWD_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/util.h"

#define CROWD_LOST_NS 500000u /* of a yield, that are a loss */
#define CROWD_SOON_NS 100000000u
#define CROWD_LEAST_NS 32000000u
#define CROWD_MOST_NS 1024000000u

/* All zero: nobody has been met. Threads may share one; what is mixed up then is a guess. Times are CLOCK_MONOTONIC in
 * nanoseconds, 0: never. */
struct crowd {
	_Atomic uint64_t began_ns, ended_ns; /* the last long yield, until something is found behind it */
	_Atomic uint64_t lost_ns;            /* the last loss */
	_Atomic uint64_t until_ns, while_ns; /* nobody polls; that was so long */
};

static inline uint64_t crowd_at(const _Atomic uint64_t *ns)
{
	return atomic_load_explicit(ns, memory_order_relaxed);
}

/* One more yield. */
static inline void crowd_yielded(struct crowd *crowd, uint64_t begin, uint64_t end)
{
	if (end - begin < CROWD_LOST_NS)
		return;
	atomic_store_explicit(&crowd->began_ns, begin, memory_order_relaxed);
	atomic_store_explicit(&crowd->ended_ns, end, memory_order_relaxed);
}

/* Yields, and returns the time after it. */
static inline uint64_t crowd_yield(struct crowd *crowd)
{
	const uint64_t begin = now_ns();
	uint64_t end;

	sched_yield();
	end = now_ns();
	crowd_yielded(crowd, begin, end);
	return end;
}

/* What was waited for is found, and had been there since then. */
static inline void crowd_found(struct crowd *crowd, uint64_t since)
{
	const uint64_t ended = crowd_at(&crowd->ended_ns), lost = crowd_at(&crowd->lost_ns);
	const uint64_t end_of_while = crowd_at(&crowd->until_ns) + crowd_at(&crowd->while_ns);
	uint64_t length = CROWD_LEAST_NS;

	if (ended == 0 || MAX(since, crowd_at(&crowd->began_ns)) + CROWD_LOST_NS > ended)
		return;
	atomic_store_explicit(&crowd->ended_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&crowd->lost_ns, ended, memory_order_relaxed);
	if (ended < end_of_while)
		length = MIN(2 * crowd_at(&crowd->while_ns), CROWD_MOST_NS);
	else if (lost == 0 || ended > lost + CROWD_SOON_NS)
		return;
	atomic_store_explicit(&crowd->while_ns, length, memory_order_relaxed);
	atomic_store_explicit(&crowd->until_ns, ended + length, memory_order_relaxed);
}

/* Whether who waits is to sleep at once. */
static inline bool crowd_is(const struct crowd *crowd, uint64_t now)
{
	return now < crowd_at(&crowd->until_ns);
}

#endif
