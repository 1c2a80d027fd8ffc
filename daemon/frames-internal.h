/* SPDX-License-Identifier: MIT */
/*
 * frames-internal - the frames as their own two files see them: frames.c, who gets which, and frames-order.c, who makes
 * room and what is read ahead.
 */
#ifndef DAEMON_FRAMES_INTERNAL_H
#define DAEMON_FRAMES_INTERNAL_H

#include "daemon/frames.h"

enum frame_state { FRAME_FREE, FRAME_READING, FRAME_READY };

struct frame {
	uint32_t record; /* FRAMES_NONE: FREE */
	uint32_t pins, leases;
	enum frame_state state;
	bool ahead;  /* read for a hint */
	bool unused; /* and no ask has come for it yet */
};

struct row {
	void *policy;
	uint64_t hints; /* how many of the row's records are hinted and in no frame, at most */
};

struct record {
	uint32_t frame;
	uint32_t hinters; /* who hint it */
	uint16_t chance;  /* as they say; 0: nobody does */
	bool hinted;      /* one of them does, and it is still to be followed */
	uint64_t used;    /* number of the pass, 0: never */
};

struct frames {
	struct frames_params p;
	struct frame *frame;   /* [frames] */
	struct record *record; /* [rows * experts] */
	struct row *row;       /* [rows] */
	uint8_t *policies;
	uint32_t *free; /* [frames]: a stack */
	uint32_t n_free, n_reading, n_idle, n_leased, n_reserved, n_prefetching;
	uint64_t pass;
	uint32_t now; /* the row that was asked for last */
	bool paused;
	struct frames_ask *waiting[FRAMES_CLASSES], *reading; /* oldest first; in no order */
};

/* A record is READY from now on, and held. Idle it is when nothing pins or leases it: then it may go. */
void order_admit(struct frames *f, uint32_t record);
void order_idle(struct frames *f, uint32_t record);
void order_hold(struct frames *f, uint32_t record);
void order_evict(struct frames *f, uint32_t record); /* an idle one */

/* The ask takes its frames: what it asks for is held, as far as it is READY. */
void order_request(struct frames *f, const struct frames_ask *ask);

/* States of the policy for all rows, empty. 0, -E2BIG or -ENOMEM. */
size_t order_state_bytes(const struct frames_params *params, const struct policy_ops *policy); /* of one row */
int order_states(uint8_t **ret, const struct frames_params *params, const struct policy_ops *policy);

/* The record that goes first, of those that were not used in pass `before` or later; FRAMES_NONE. */
uint32_t order_first(struct frames *f, uint64_t before);

/* The hinted record that is needed first, the most probable one of its row, and is in no frame; no longer hinted. Those
 * below `least` stay hinted. FRAMES_NONE. */
uint32_t order_next_hint(struct frames *f, uint32_t least);

#endif
