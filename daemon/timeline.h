/* SPDX-License-Identifier: MIT */
/*
 * timeline - how far a session's numbered FILLs have come without a gap: what the law of the timeline (moe_ring.h)
 * allows to be written. A number may come MOE_TIMELINE_WINDOW before its turn at most, so what is kept of those beyond
 * a gap has its bounds. Pure; one thread at a time.
 */
#ifndef DAEMON_TIMELINE_H
#define DAEMON_TIMELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "uapi/moe_ring.h"

struct timeline {
	uint32_t reached;                        /* all numbers up to this one have come */
	uint64_t come[MOE_TIMELINE_WINDOW / 64]; /* those beyond it, by number modulo the window */
};

/* A number that has not come and is not too far ahead. */
bool timeline_awaits(const struct timeline *t, uint32_t number);

/* One that timeline_awaits has come. Whether `reached` has moved. */
bool timeline_come(struct timeline *t, uint32_t number);

#endif
