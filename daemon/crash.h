/* SPDX-License-Identifier: MIT */
/*
 * crash - where tests have the daemon killed.
 *
 * $MOE_CRASH_PLAN names a file of lines "POINT N"; each start of a daemon takes the first line off it and kills itself
 * with SIGKILL when it comes to that point for the N-th time; "-" lets it live. Without the variable nothing happens,
 * for the price of one comparison a point.
 */
#ifndef DAEMON_CRASH_H
#define DAEMON_CRASH_H

#include <stdint.h>

#include "uapi/moe_ring.h"

/* The states of a request, as soon as it has them, the steps of the journal's law and those of the mover's. */
enum crash_point {
	CRASH_INFLIGHT = MOE_REQUEST_STATES, /* `next` is not stored */
	CRASH_JOURNALLED,                    /* sq_head is not stored */
	CRASH_LAST,                          /* no CQE yet */
	CRASH_CQE,                           /* its seq is not stored: nobody has seen it */
	CRASH_ALONE,                         /* a lone request is given out, but not in its place */
	CRASH_SEQ,                           /* cq_tail is not stored */
	CRASH_TAIL,                          /* no effect yet, the slot is not cleared */
	CRASH_EFFECT,                        /* the slot is not cleared */
	CRASH_CLEARED,                       /* `used` is not stored */
	CRASH_RECOVERY,                      /* before a request runs again */
	CRASH_ATTACH,                        /* between what the keeper is given of a session */
	CRASH_AGREED,                        /* a round is in the journal of one member more, no member was told */
	CRASH_COPYING,                       /* a copy for a node is with the pool */
	CRASH_COPIED,                        /* its digest is not compared */
	CRASH_CHECKED,                       /* all copies of a layer are good, its table is the old one */
	CRASH_MOVED,                         /* the table is the new one */
	CRASH_POINTS
};

extern uint32_t crash_armed; /* an enum crash_point; CRASH_POINTS: none */

/* Reads the plan. */
void crash_init(void);
void crash_now(void);

static inline void crash_at(enum crash_point point)
{
	if (__builtin_expect(point == crash_armed, 0))
		crash_now();
}

#endif
