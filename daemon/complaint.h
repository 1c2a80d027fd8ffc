/* SPDX-License-Identifier: MIT */
/*
 * complaint - a line of the log that may come a thousand times a second: which of them are said.
 *
 * Law: a new cause is said at once, whatever was said before; each cause is said once in COMPLAINT_NS, so causes that
 * take turns make no flood either. What was left unsaid is counted: the number goes with the next line of that cause,
 * or is said by itself when the time is over. Nothing is forgotten: the owner asks at its end for what is left. The
 * owner brings the clock. Not thread-safe.
 */
#ifndef DAEMON_COMPLAINT_H
#define DAEMON_COMPLAINT_H

#include <stdbool.h>
#include <stdint.h>

#define COMPLAINT_NS 1000000000u

#define COMPLAINT_CAUSES 8 /* that are told apart; with more of them the one said longest ago makes room */

/* All zero: nothing was said. */
struct complaint {
	struct {
		uint32_t cause; /* 0: none */
		uint64_t said_ns, unsaid;
	} of[COMPLAINT_CAUSES];
	uint64_t unsaid; /* of all */
};

/* A cause for a line: the same for lines that differ in their numbers alone. Not 0. */
uint32_t complaint_cause(const char *line);

/* Whether the line is to be said now, and with how many before it that were not. `cause` is not 0. */
bool complaint_due(struct complaint *complaint, uint32_t cause, uint64_t now_ns, uint64_t *ret_unsaid);

/* How many are to be said by themselves now, 0: none. UINT64_MAX as the time: all that are left. */
uint64_t complaint_left(struct complaint *complaint, uint64_t now_ns);

#endif
