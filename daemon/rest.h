/* SPDX-License-Identifier: MIT */
/*
 * rest - what takes long in the reactor's thread, documents, heats, the bus, comes in pieces and has a fifth of the
 * time: after a piece the others have four times as long, but not for ever after one in which the process stood still.
 */
#ifndef DAEMON_REST_H
#define DAEMON_REST_H

#include <stdint.h>

#include "base/util.h"

#define REST_TIMES 4
#define REST_MOST_NS 400000000u

/* When the next piece may begin; the last one has just ended. As now_ns(). */
static inline uint64_t rest_after(uint64_t begun_ns)
{
	const uint64_t now = now_ns();

	return now + MIN(REST_TIMES * (now - begun_ns), (uint64_t)REST_MOST_NS);
}

#endif
