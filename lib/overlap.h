/* SPDX-License-Identifier: MIT */
/*
 * overlap - how long each step took, of several that are in flight at the same time.
 *
 * Law. The time in which n steps are in flight is shared among them, each has the n-th part of it. So what the steps
 * took adds up to the time in which any was in flight, and where two of them ran side by side the sum shows it. (Were
 * each step's own length added up, two micro-batches in flight would look as if they had waited for each other.)
 *
 * Pure: no clock, no lock, no allocation. Times must not run backwards; one that does counts as no time.
 */
#ifndef LIB_OVERLAP_H
#define LIB_OVERLAP_H

#include <stdint.h>

struct overlap {
	uint32_t n;       /* in flight */
	uint64_t seen_ns; /* up to here time is shared out */
	uint64_t each_ns; /* what a step that was in flight since the beginning would have */
};

/* A step begins: what overlap_leave is to be told when it ends. */
uint64_t overlap_enter(struct overlap *overlap, uint64_t now_ns);

/* It ends: its share. */
uint64_t overlap_leave(struct overlap *overlap, uint64_t entered, uint64_t now_ns);

#endif
