/* SPDX-License-Identifier: MIT */
/*
 * frames-internal - the frames as their own files see them: frames.c, who gets which, frames-turns.c, whose turn it is,
 * and frames-order.c, who makes room and what is read ahead.
 */
#ifndef DAEMON_FRAMES_INTERNAL_H
#define DAEMON_FRAMES_INTERNAL_H

#include "daemon/frames.h"

enum frame_state { FRAME_FREE, FRAME_READING, FRAME_READY };

struct frame {
	uint32_t record; /* FRAMES_NONE: FREE */
	uint32_t pins, leases;
	enum frame_state state;
	struct frames_user *reader; /* READING: for whom it was begun, NULL: for a hint; */
	uint32_t class;             /* in which of its classes; */
	uint64_t rank;              /* and as of the callback */
	bool ahead;                 /* read for a hint */
	bool unused;                /* and no ask has come for it yet */
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

struct ask_list {
	struct frames_ask *head, *tail;
};

struct frames_user {
	uint32_t uid, sessions;
	uint32_t leases;                         /* that it has or has reserved */
	uint32_t pinned[FRAMES_CLASSES];         /* records that its asks hold, one as often as asks do */
	uint32_t busy[FRAMES_CLASSES];           /* reads that were begun for it, and asks that wait for reads */
	uint64_t end[FRAMES_CLASSES];            /* virtual, of the last record that was read for it */
	struct ask_list waiting[FRAMES_CLASSES]; /* oldest first */
	uint64_t read_ns;                        /* when a read was begun for it last */
	uint32_t slots;                          /* as struct frames_read has it */
	struct frames_user *next;
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
	struct frames_user *users;
	uint64_t time[FRAMES_CLASSES]; /* virtual: the latest that has been read */
	bool blocked[FRAMES_CLASSES];  /* whose turn it is waits for frames */
	uint32_t passed;               /* asks, those that do */
	uint32_t n_waiting;
	struct ask_list reading;
};

void ask_list_push(struct ask_list *list, struct frames_ask *ask);
void ask_list_remove(struct ask_list *list, struct frames_ask *ask);

/* Nobody of this class or a more urgent one waits for frames. */
bool turns_open(const struct frames *f, uint32_t class);
/* From now on somebody does. */
void turns_block(struct frames *f, uint32_t class);
/* So much is being read for the ask's user that what it asks for in the class has to wait. */
bool turns_sated(const struct frames_user *user, uint32_t class);
/* So much is pinned for the ask's user that it has to wait. */
bool turns_full(const struct frames *f, const struct frames_ask *ask);
/* The class's next ask that waits, NULL: none, or none whose user is neither sated nor full. */
struct frames_ask *turns_next(const struct frames *f, uint32_t class);

/* Where the next record of the user stands that is read in this class, virtually; and the rank that this is. */
uint64_t turns_begin(const struct frames *f, const struct frames_user *user, uint32_t class);
uint64_t turns_rank(uint32_t class, uint64_t at);
/* Somebody but the user (NULL: two) has begun a read not long ago. */
bool turns_shared(const struct frames *f, const struct frames_user *user, uint64_t now);
/* The frame's read, for one of its user's asks, has ended. */
void turns_read_done(struct frames *f, struct frame *frame);

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
