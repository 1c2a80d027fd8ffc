/* SPDX-License-Identifier: MIT */
/*
 * order - in which order the daemon stores the words of its in-flight journal and of the ring, so that a SIGKILL
 * between any two of them loses no request and completes none twice. model.c tries every crash; the daemon's journal
 * keeps to these steps under these names.
 *
 * Three kinds of memory outlive the daemon. The journal: no client can write or read it. The daemon region (sq_head,
 * cq_tail, completions): the daemon writes it. The client region: clients write it, so recovery asks it nothing but
 * sq_tail and the entries that are not claimed yet.
 *
 * Which word is the truth:
 *   - whether a request is in flight: slot.inflight. Its store is the moment of the claim.
 *   - where the next claim reads: journal.next, or the counter + 1 of a slot in flight where that is more (a crash came
 *     between INFLIGHT and NEXT). The counter is the number of the claim, 64 bits that never come back; its lower half
 *     is the index of the submission queue. sq_head is a copy of next for the client: recovery stores it and never
 *     reads it.
 *   - what a request asks for: the slot's copy of the entry. The client may have filled the queue's place again.
 *   - whether a completion was given out: its seq, because the client acts on it; cq_tail is a copy for sleepers, which
 *     recovery brings up to date. Of a lone request it is its seq beside the queue as well, which comes first: recovery
 *     then gives it out in its place, too. No client may write any of them, and recovery checks that cq_tail is then
 *     journal.used or used + 1 before it believes it; anything else ends the session.
 *
 * Rules:
 *   1. claim:    COUNTER, ENTRY (in either order), INFLIGHT, NEXT, SQ_HEAD
 *   2. complete: CHOOSE, LAST and CQE (in any order), SEQ, CQ_TAIL, EFFECT, CLEAR, USED; of a lone request ALONE and
 *                ALONE_SEQ before CQE, after LAST and CHOOSE
 *   3. recover:  FIX_ALONE, FIX_ALONE_SEQ: if what lies beside the queue has the seq of the completion at cq_tail, it
 *                is that completion, and so is its seq. FIX_CQ_TAIL: if the completion at cq_tail has its seq,
 *                cq_tail + 1. If used != cq_tail then, the slot that `last` names has its effect (FIX_EFFECT) and is
 *                not in flight (FIX_CLEAR); FIX_USED (used = cq_tail), FIX_NEXT, FIX_SQ_HEAD, and only then REISSUE:
 *                all slots in flight, in the order of their counters. A crash in the middle is recovered by the same
 *                steps from the beginning.
 *   4. A session's claims, completions and recovery are one thread's, and a sequence that has begun ends before the
 *      next begins. One completion at a time: `last` names one slot, so cq_tail goes up by one.
 *
 * Conditions: the model has stores that are seen in the order of the program. A SIGKILL keeps that as long as the
 * compiler does: each of these words is stored with release order. A machine that loses power keeps nothing. To run a
 * request twice must be as to run it once, while its inputs stay: COMPUTE and FILL are like that. What a request takes
 * or gives back for good (a lease) is its effect: chosen while it runs, written to the slot, had once it is completed,
 * and had twice it is had once. A crash may come between SEQ and the wake-up of its sleepers, so recovery wakes
 * them all.
 */
#ifndef TESTS_CRASH_ORDER_H
#define TESTS_CRASH_ORDER_H

enum journal_step {
	STEP_END,

	/* claim of the entry at journal.next */
	STEP_COUNTER,  /* slot.counter = journal.next */
	STEP_ENTRY,    /* slot.entry = the private copy */
	STEP_INFLIGHT, /* slot.inflight = 1 */
	STEP_NEXT,     /* journal.next = slot.counter + 1 */
	STEP_SQ_HEAD,  /* sq_head = the lower half of that */

	/* completion of what runs in a slot */
	STEP_CHOOSE,    /* slot.lease = one that is free */
	STEP_LAST,      /* journal.last = slot */
	STEP_ALONE,     /* of a lone request: it is written beside the queue, all but its seq */
	STEP_ALONE_SEQ, /* and its seq there */
	STEP_CQE,       /* the completion at cq_tail is written, all but its seq */
	STEP_SEQ,       /* its seq = cq_tail + 1 */
	STEP_CQ_TAIL,   /* cq_tail = cq_tail + 1 */
	STEP_EFFECT,    /* the slot's lease is held */
	STEP_CLEAR,     /* slot.inflight = 0 */
	STEP_USED,      /* journal.used = cq_tail */

	/* recovery */
	STEP_FIX_ALONE,     /* beside the queue is the seq of the completion at cq_tail: it is that completion ... */
	STEP_FIX_ALONE_SEQ, /* ... and has its seq in its place */
	STEP_FIX_CQ_TAIL,   /* the completion at cq_tail has its seq: cq_tail = cq_tail + 1 */
	STEP_FIX_EFFECT,    /* used != cq_tail: the lease of slot[last] is held */
	STEP_FIX_CLEAR,     /* used != cq_tail: slot[last].inflight = 0 */
	STEP_FIX_USED,      /* journal.used = cq_tail */
	STEP_FIX_NEXT,      /* journal.next = max(next, counter + 1 of each slot in flight) */
	STEP_FIX_SQ_HEAD,   /* sq_head = next */
	STEP_REISSUE,       /* what is in flight runs again */
};

#define ORDER_STEPS_MAX 11

/* One order of all stores, each list ended by STEP_END; the right one follows. */
struct journal_order {
	enum journal_step claim[ORDER_STEPS_MAX], complete[ORDER_STEPS_MAX], recover[ORDER_STEPS_MAX];
};

#define ORDER_CLAIM STEP_COUNTER, STEP_ENTRY, STEP_INFLIGHT, STEP_NEXT, STEP_SQ_HEAD
#define ORDER_COMPLETE STEP_CHOOSE, STEP_LAST, STEP_CQE, STEP_SEQ, STEP_CQ_TAIL, STEP_EFFECT, STEP_CLEAR, STEP_USED
#define ORDER_LONE                                                                                                     \
	STEP_CHOOSE, STEP_LAST, STEP_ALONE, STEP_ALONE_SEQ, STEP_CQE, STEP_SEQ, STEP_CQ_TAIL, STEP_EFFECT, STEP_CLEAR, \
		STEP_USED
#define ORDER_FIX_REST STEP_FIX_EFFECT, STEP_FIX_CLEAR, STEP_FIX_USED, STEP_FIX_NEXT, STEP_FIX_SQ_HEAD, STEP_REISSUE
#define ORDER_FIX_TAIL STEP_FIX_ALONE, STEP_FIX_ALONE_SEQ, STEP_FIX_CQ_TAIL
#define ORDER_RECOVER ORDER_FIX_TAIL, ORDER_FIX_REST

#endif
