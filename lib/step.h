/* SPDX-License-Identifier: MIT */
/*
 * step - one submitted plan: what it asked the daemon and the device for, and what has come back.
 *
 * A step owns a region of the data arena for good; its slot in the table goes round
 * FREE -> BUSY (moe_submit) -> FREE (moe_wait), or by way of LEFT when moe_wait timed out: then the caller has
 * forgotten it, the daemon and the device have not, and it is swept once they are done.
 *
 * What ends a step: every posted request has come back and both its records, behind its copies and behind its device
 * work, are reached. Until then nothing of it is reused. The first error of any part is the step's, and y is not
 * written.
 *
 * A plan that defers becomes two steps. The late one has only a CPU part; its result stays in its own region until the
 * step of the next MoE layer, which carries it, has ended, is added there last, and both are freed.
 */
#ifndef LIB_STEP_H
#define LIB_STEP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine.h"
#include "feeder.h"
#include "plan.h"

#define STEP_CANCELS_MAX 128 /* FILLs that a step takes back; what is beyond them comes, for nothing */

enum step_state { STEP_FREE, STEP_BUSY, STEP_LEFT };

/* What the copies of a step wait for next, in this order (push: GO, FILLS, and where some failed CLOSE and AID; pull:
 * LEASES, PULLED, READ). */
enum step_stage {
	STEP_GO,     /* the copy stream: nobody reads the slots any more */
	STEP_FILLS,  /* the daemon: all of them */
	STEP_CLOSE,  /* the daemon: the numbers of those that failed */
	STEP_AID,    /* the copy stream: it has left the timeline, which the feeder writes */
	STEP_LEASES, /* the daemon: the same */
	STEP_PULLED, /* the copy stream: it has copied */
	STEP_READ    /* the compute stream: it has read what the plan reads in the pool */
};

/* A step that takes x from the device's memory and leaves y there, on a stream of the caller's. */
struct step_on {
	uintptr_t stream; /* 0: it does not */
	device_ptr x, y;  /* [tokens][hidden] float */
};

/* Device words; each of them becomes the step's turn. */
struct step_words {
	uint32_t go;     /* by the copy stream, behind the readers of the slots */
	uint32_t ready;  /* by the feeder: push: it has come; pull: it may be copied */
	uint32_t pulled; /* by the copy stream, behind the copies */
	uint32_t read;   /* by the compute stream, behind the experts */
	uint32_t here;   /* by the compute stream: the caller's x has come to the data arena */
	uint32_t answer; /* by the feeder: the CPU's part is in the data arena */
};

/* One entry in the ring. Not shared: at any time one thread may post it or wait for it. */
struct step_request {
	struct queue_op op;
	bool posted, ended;
	int status;
};

struct moe_step {
	struct engine *engine;
	enum step_state state; /* under engine->lock, as seq and plan */
	uint64_t seq;
	struct moe_plan *plan;
	uint32_t row;
	bool has_cpu, has_device, counts;
	bool has_copies; /* or leases, that are not speculative: the copy stream has them */
	_Atomic int error;
	struct moe_step *carried; /* a late step, ended and freed with this one, or NULL */

	float *x, *y, *y_device; /* [max_tokens][hidden], in the data arena */
	int32_t *ids;            /* [max_tokens][MOE_TOPK_MAX], the same */
	float *weights;          /* the same */

	struct step_words *words; /* in the control memory, as all that the device reads of a step: behind them */
	int32_t *device_ids;      /* [tokens][topk] */
	float *device_weights;    /* the same */
	int32_t *map;             /* [n_experts] expert -> index in the slot arena, or -1 */
	const uint8_t **records;  /* [plan->n_reads][n_pools], what the device reads in the pool; then ... */
	void *room;               /* ... the device's */

	struct feeder_job feed; /* while has_copies: the feeder's until it is over */
	enum step_stage stage;  /* the same */
	uint32_t n_ended;       /* the same: so many of the FILLs have, from the first on */
	bool lost;              /* the same: some have not come */
	uint32_t number;        /* of the first FILL in the timeline, where there is one */
	uint32_t turn;          /* how many steps have had this place in the table */
	uint32_t use;           /* of the miss buffer, or 0 */
	int spoiled;            /* 0, or why the copy stream has not been given all of the copies */

	struct step_on on;
	struct device_stream *theirs;  /* on.stream, borrowed */
	struct device_event *given;    /* on it: what the step begins after ... */
	struct device_event *finished; /* ... and its end */
	struct feeder_job relay;       /* while on.stream and has_cpu: the feeder's until it is over */
	bool relayed;                  /* the same: COMPUTE has been posted */

	struct step_request compute;
	uint32_t n_chunks;            /* FILLs of a copy */
	uint32_t *places;             /* [n_experts] of the copies: where in the slot arena they go */
	struct place_users users;     /* of the places that cache slots get by them: they come after */
	enum place_stream side;       /* where its device work is */
	struct device_event *fetched; /* it begins after this, or NULL: the copies that it needs */
	struct step_request *fills; /* [step_fills_max()]: a copy's, then those of the next one; then of what is read */
	struct step_request *releases; /* [n_experts], one per lease */
	uint32_t n_cancels;
	struct queue_op *cancels; /* [STEP_CANCELS_MAX]: of guesses that this step's choice has proved wrong */
	struct device_event *copy_begin, *copied, *begin, *end, *done;
	bool in_flight;    /* of engine->overlap, under engine->lock ... */
	uint64_t entered;  /* ... and what it was told there */
	uint64_t taken_ns; /* its share, once it has ended */
	bool waited;       /* moe_wait found a part of it that had not ended */
};

/* step-table.c: makes the table and cuts up the arenas; on failure step_table_fini cleans up. */
int step_table_init(struct engine *e, struct moe_error *err);
void step_table_fini(struct engine *e); /* waits for what is in flight */

/* Bytes of one step's region in the control memory and in the data arena. */
uint64_t step_control_bytes(const struct engine *e);
uint64_t step_data_bytes(const struct moe_session *session);

/* x or y of so many tokens. */
uint64_t step_rows_bytes(const struct moe_session *session, uint32_t tokens);

/* Under engine->lock: ends the steps that moe_wait has left and that are over. */
void step_sweep(struct engine *e);
/* Waits for the others of them, and frees them as well: nobody else uses the table. */
void step_await_all(struct engine *e);

/* Submits a plan; takes it over in every case. x may be NULL when the plan has no tokens, or `on` (else NULL) says
 * where x is. */
int step_submit(struct engine *e, struct moe_plan *plan, const float *x, const struct step_on *on,
		struct moe_step **ret, struct moe_error *err);

/* What is left until `deadline`, which is 0 for none; the event's end: 0, then its error is the step's, or
 * -ETIMEDOUT. */
uint64_t step_time_left(uint64_t deadline);
int step_await_event(struct moe_step *step, struct device_event *event, uint64_t deadline);

/* The CPU's part: x, ids and weights are in the data arena. */
void step_start_cpu(struct moe_step *step);

/* step-device.c, under engine->order: which stream the step's device work is for, and what it waits for there. */
void step_choose_side(struct moe_step *step);

/* step-device.c, under engine->order: tells the device where the step's pairs' experts are. */
void step_route_device(struct moe_step *step);

/* step-device.c: enqueues the device's part behind the step's copies, and records `done`. */
void step_start_device(struct moe_step *step);

/* step-on.c: what stands before and behind the device's part of a step on the caller's stream; its end. */
void step_begin_on(struct moe_step *step);
void step_end_on(struct moe_step *step);
int step_await_on(struct moe_step *step, uint64_t deadline);
bool step_on_is_over(struct moe_step *step);

/* The first error sticks. */
void step_fail(struct moe_step *step, int code);

/* One request. step_post fails the step with -EPIPE when the daemon is gone. */
void step_post(struct moe_step *step, struct step_request *request, const struct moe_sqe *sqe);
/* Its end: status is set. 0 or -ETIMEDOUT (timeout_ns 0: no limit). Does nothing for what was not posted. */
int step_end(struct moe_step *step, struct step_request *request, uint64_t timeout_ns);

/* step-copy.c: how many FILLs a step may have at most; sets n_chunks of a step that has its plan. */
uint32_t step_fills_max(const struct moe_session *session);
void step_cut_copies(struct moe_step *step);

/* step-copy.c, under both locks: the slots get their new content, at other places; what is guessed goes to the slot's
 * own, which is reserved and not read. And when the step has ended, under engine->lock. */
void step_take_places(struct moe_step *step);
void step_forget_places(struct moe_step *step);

/* The FILLs of a speculative plan: posted at once, waited for with the step. */
void step_post_speculative(struct moe_step *step);

/* prefetch.c, under engine->order: the step knows the router's choice. What was guessed for its layer, is not chosen
 * and has not come is taken back, by requests of this step. */
void step_cancel_guesses(struct moe_step *step);

/* Under engine->lock; the speculative step has ended: what has come is cached, the other slots are free. */
void step_settle_speculative(struct moe_step *step);

/* step-copy.c: enqueues the step's copies behind the device work that they must not overtake, and records `copied`. */
void step_start_copies(struct moe_step *step);
/* The FILLs of the step's copies, one for each chunk; with MOE_SQE_LEASE one for each copy. */
void step_post_fills(struct moe_step *step, uint8_t flags);
/* The one that has failed brings a byte that nobody reads, and its number. */
void step_close_number(struct moe_step *step, uint32_t fill);

/* step-feed.c: what the feeder does for a step with copies; step->stage says where it begins. */
void step_feed(struct moe_step *step);
/* Push: the slots are nobody's any more, so the FILLs are posted. By the feeder, or before step_feed. */
void step_begin_push(struct moe_step *step);
/* The miss buffer's use before this step's is yet to be judged: with a timeline the device may be done first. */
bool step_missbuf_fills(const struct moe_step *step);
/* Of one copy, all of whose FILLs have ended: 0 when each has brought what it was asked for. */
int step_fill_status(const struct moe_step *step, uint32_t copy);

/* Bytes copied and how long that took, for the books; after the step has ended. */
void step_copy_cost(struct moe_step *step, uint64_t *ret_bytes, uint64_t *ret_ns);

/* step-books.c: whether the step counts in the statistics of its mode: not what is only a part of one, or a guess. */
bool step_has_mode(const struct moe_step *step);

/* step-books.c: a number of the statistics that is a maximum. */
void stats_raise(__u64 *number, uint64_t value);

/* step-books.c: the ended step's part of the statistics of its layer and mode, and of the cost model. */
void step_count(struct moe_step *step, uint64_t wait_ns);

#endif
