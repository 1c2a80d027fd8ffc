/* SPDX-License-Identifier: MIT */
/*
 * frames - which records of a tiered model are in memory, who needs them there, and which one makes room.
 *
 * A tiered model has fewer frames than records. A frame is FREE, READING (a read into it is under way) or READY (it has
 * a whole record, by its digest). An ask is what one request needs: distinct experts of one layer.
 *
 * Law: an ask takes frames for all of its records at once or none and waits, decode before prefill; so two asks never
 * wait for each other. Its frames are pinned from then on until it is released, and a lease pins one until it is given
 * back. A frame that is pinned or READING is never given away: a read ends in the frame that it was begun for, whether
 * anybody still waits for it or not. Leases may hold so many frames that one ask for all experts of a layer still finds
 * room: then no ask waits for ever.
 *
 * Users (UIDs), however many sessions they have, share the disk: within a class the user goes first for whom the least
 * was read since it was idle (a virtual time, as in scheduler.h, that counts records), and what one user asks for in
 * the order of its asking. The reads have their ranks in the same order, so a user's single record does not wait for
 * another's whole layer. For one user so many reads are under way that a disk is busy; what it asks for beyond waits
 * without being in another's way. So does, while other users have sessions, what would pin more than a user's share of
 * the frames that are not leased, whether its records are there or not: a backlog that waits for the pool does not keep
 * others from theirs. A less urgent class has half of the share. Reads say whether other users have read lately:
 * whoever reads then gives each few of its slots. Who finds all of its records READY waits for nobody, but so often
 * only that whoever waits for frames gets them at last. Half of the places for leases, at least a token's, are for
 * whoever comes first; of what is left of all a user gets a share as in accounts.h.
 *
 * Who makes room: pins first. Each layer has its policy (policy/policy.h) of its own, which says which of the layer's
 * records goes first; an event is a request that takes its frames. Among the layers the one goes whose record was not
 * used for the longest time, counted in forward passes; of several the layer whose turn comes last, counted from the
 * layer that is asked for now. A record that was never used is older than any other. So, when one pass alone needs more
 * than there are frames, the layers to come stay, and what was just used makes room: least recently used records would
 * be those that are needed next.
 *
 * A hint is followed while nobody waits for frames, and only into frames that are free or were not used in this pass.
 * A later hint for the layer by the same session, or its computation, takes what is left of the first one back; what
 * others have hinted stays. A read for a hint gets the rank of the ask that needs it. The layer that is needed first
 * comes first, and of its records the most probable one; one below FRAMES_HINT_WEAK is read only while nothing else is:
 * a disk has nothing better to do then.
 *
 * The table tells a successor what is in the frames: an entry is written when the record is READY, and cleared before
 * anything else is read into its frame. All of this is the reactor's; nothing here waits, and nothing calls back but
 * frames_read_done and frames_pump.
 */
#ifndef DAEMON_FRAMES_H
#define DAEMON_FRAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/policy.h"

#define FRAMES_NONE UINT32_MAX
#define FRAMES_CLASSES 3 /* as POOL_PRIORITIES */
#define FRAMES_RANK_HINT UINT64_MAX

/* Of one user, of a class and the more urgent ones, records that are read and asks that wait for reads: more than keep
 * a disk busy (docs/decisions/0014). One ask may go beyond. */
#define FRAMES_READS_MAX 32
/* So many asks that find all of their records pass one that waits for frames. */
#define FRAMES_PASSES_MAX 64
/* Who has read within so long wants the disk. */
#define FRAMES_SHARED_NS 1000000000ull

struct frames;
struct frames_user;

/* Cumulative since the model was loaded; in a memory file, so that a successor goes on with them. */
struct frames_counters {
	uint64_t hits, misses;    /* records that an ask found there, and did not */
	uint64_t waits, wait_ns;  /* asks that had to wait, for frames or for reads, and how long */
	uint64_t reads, failures; /* that have ended */
	uint64_t read_bytes;
	uint64_t evictions;
	uint64_t prefetches, prefetch_used,
		prefetch_wasted; /* reads for hints; wasted: evicted before they were used */
};

struct frames_read {
	uint32_t record, frame;
	uint64_t rank;
	uint32_t *slots; /* how many hold parts of its user's records: whoever reads counts, until the read has ended.
			    NULL: it is for a hint */
	bool shared;     /* others want the disk, too */
};

struct frames_params {
	uint32_t rows, experts, frames;
	uint32_t topk; /* experts of one token: as many may be leased by whoever comes first */
	const struct policy_ops *policy;
	uint32_t *table;                  /* [frames]: record + 1, 0: none. What it has is taken over as READY */
	struct frames_counters *counters; /* both stay in place */
	/* The frame is the record's from now on, and to be read into, lowest ranks first; ends in frames_read_done. */
	void (*read)(void *userdata, const struct frames_read *read);
	/* A read has a lower rank now, if it has not ended. May be NULL. */
	void (*hurry)(void *userdata, uint32_t frame, uint64_t rank);
	/* The record is in no frame any more. May be NULL. */
	void (*gone)(void *userdata, uint32_t record);
	void *userdata;
};

enum frames_state { ASK_NONE, ASK_WAITS, ASK_READS, ASK_READY };

struct frames_ask {
	/* The caller's. */
	struct frames_user *user;
	uint32_t row, n;
	uint32_t class;
	bool wraps;                                        /* the session begins a new forward pass with it */
	struct policy_tokens tokens;                       /* what its tokens want, if it is known; stays in place */
	void (*ready)(struct frames_ask *ask, int status); /* 0: pinned and READY; or nothing is pinned: -errno */
	/* The frames' own. */
	enum frames_state state;
	uint32_t missing;
	uint64_t asked_ns;
	struct frames_ask *next, *prev;
	uint32_t experts[]; /* the caller's: [n], ascending, distinct */
};

/* What a policy may take for all layers of a model, and of how many experts in a layer one `by_pairs` (ebco) may be the
 * rule: at worst an event of more than that holds the reactor for longer than 1 ms (docs/decisions/0043). */
#define FRAMES_POLICY_BYTES_MAX (1ull << 30)
#define FRAMES_BY_PAIRS_MAX 768u

/* -EINVAL: a table with a record that is not one, or twice. -E2BIG: the policy would take more than that. -ENOMEM. */
int frames_new(struct frames **ret, const struct frames_params *params);
struct frames *frames_free(struct frames *frames); /* no ask may be open; takes NULL, returns NULL */

/* A session of the user comes, and goes when it has neither asks nor leases. NULL: no memory. */
struct frames_user *frames_join(struct frames *frames, uint32_t uid);
void frames_leave(struct frames *frames, struct frames_user *user);

/* Paused, no ask gets frames (but waits): a successor first pins what sessions have leased. */
void frames_pause(struct frames *frames, bool paused);

/* True: all is pinned and READY (and `ready` is not called). False: it waits, `ready` tells the end. Stays in place
 * until released, cancelled or failed. */
bool frames_ask(struct frames *frames, struct frames_ask *ask);

/* A READY ask has done its work. */
void frames_release(struct frames *frames, struct frames_ask *ask);

/* Whatever its state: nothing of it is left, `ready` is not called. */
void frames_cancel(struct frames *frames, struct frames_ask *ask);

/* A read has ended: 0, or -errno for whom it was and a frame that is free again. Calls `ready`. */
void frames_read_done(struct frames *frames, uint32_t frame, int status, uint64_t bytes);

/* Gives frames to those that wait and to hints, as far as they go, and so many in a turn. Calls `ready`. True when
 * something moved. */
bool frames_pump(struct frames *frames);

/* Leases: a place for one is taken before it is known that its record is READY (false: there is none), and given back
 * or, while an ask has it pinned, changed into a lease. */
bool frames_reserve_lease(struct frames *frames, struct frames_user *user);
void frames_unreserve_lease(struct frames *frames, struct frames_user *user);
void frames_lease(struct frames *frames, struct frames_user *user, uint32_t record); /* unreserves one */
void frames_unlease(struct frames *frames, struct frames_user *user, uint32_t record);
/* Of a session of the daemon before: false when the record is not there. Takes no place. */
bool frames_lease_again(struct frames *frames, struct frames_user *user, uint32_t record);

/* Words of a bitset of a row's experts. */
static inline uint32_t frames_hint_words(uint32_t experts)
{
	return (experts + 63) / 64;
}

#define FRAMES_HINT_SURE UINT16_MAX
#define FRAMES_HINT_WEAK (FRAMES_HINT_SURE / 8)

/* Experts of a row will probably be asked for: those whose bits are set, in place of all that the same one has hinted
 * there before. NULL: none. `chances` [experts]: how probably, of FRAMES_HINT_SURE (NULL: all are sure); of several who
 * hint a record, the largest that was said while one of them did. `mine` [rows][frames_hint_words()] says who: what
 * that one hints now, all zero at first, and to be emptied (NULL for each row) before it is freed. */
void frames_hint(struct frames *frames, uint64_t *mine, uint32_t row, const uint64_t *bits, const uint16_t *chances);

/* The frame of a record, FRAMES_NONE: none. */
uint32_t frames_of(const struct frames *frames, uint32_t record);

/* Another policy, not one of slots_only: what is in frames stays, and in its order; what the policy before has counted
 * is forgotten. -E2BIG, as above, and -ENOMEM: nothing has changed. */
int frames_set_policy(struct frames *frames, const struct policy_ops *policy);
const struct policy_ops *frames_policy(const struct frames *frames);

struct frames_level {
	uint32_t frames, free, reading, ready, pinned, leased, waiting; /* frames by state; asks that wait */
};
void frames_level(const struct frames *frames, struct frames_level *ret);

#endif
