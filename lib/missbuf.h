/* SPDX-License-Identifier: MIT */
/*
 * missbuf - a miss buffer: device slots that hold experts for one step only.
 *
 * There are two; a layer uses the one with its own parity, so that the next layer's copies may run while this layer
 * computes. A buffer goes round one way:
 *
 *     FREE -> FILLING   a step's copies begin
 *     FILLING -> READY  all of them have ended
 *     READY -> IN_USE   the same step's device work begins
 *     IN_USE -> FREE    it has ended
 *
 * The arrows are taken where the thing happens, on the streams' side, not when it is planned. Steps are kept apart by
 * events alone: `released` is recorded when the latest step that was submitted on this buffer leaves it, and the next
 * one's copies wait for it. The state proves it: an arrow that is not in the list means that an order is missing.
 */
#ifndef LIB_MISSBUF_H
#define LIB_MISSBUF_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define MISSBUF_COUNT 2

enum missbuf_state { MISSBUF_FREE, MISSBUF_FILLING, MISSBUF_READY, MISSBUF_IN_USE, MISSBUF_STATES };

struct device_event;

struct missbuf {
	_Atomic int state;             /* enum missbuf_state */
	struct device_event *released; /* NULL: no step in flight uses it; under the engine's lock */
	uint32_t *used;                /* a device word: 2 * use - 1 when this use of it began, 2 * use when it ended */
	uint32_t uses;                 /* submitted so far; under the engine's order */
	uint32_t use;                  /* the one that it is filled for; changes with FREE -> FILLING */
};

void missbuf_init(struct missbuf *buffer, uint32_t *used);

bool missbuf_arrow(enum missbuf_state from, enum missbuf_state to);

/* Takes one arrow. 0, or -EPROTO when there is no such arrow or the buffer is not in `from`; then nothing changes. */
int missbuf_move(struct missbuf *buffer, enum missbuf_state from, enum missbuf_state to);

/* FREE -> FILLING for this use. Before that, the arrows that the device has taken meanwhile: it only says so in `used`.
 * One caller at a time. */
int missbuf_fill(struct missbuf *buffer, uint32_t use);

enum missbuf_state missbuf_state(struct missbuf *buffer);

#endif
