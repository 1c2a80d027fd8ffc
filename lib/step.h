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
#include "plan.h"

enum step_state { STEP_FREE, STEP_BUSY, STEP_LEFT };

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
	bool has_copies; /* that are not speculative: the copy stream has them */
	_Atomic int error;
	struct moe_step *carried; /* a late step, ended and freed with this one, or NULL */

	float *x, *y, *y_device; /* [max_tokens][hidden], in the data arena */
	int32_t *ids;            /* [max_tokens][MOE_TOPK_MAX], the same */
	float *weights;          /* the same */
	int32_t *map;            /* [n_experts] expert -> index in the slot arena, or -1 */

	struct step_request compute;
	uint32_t n_chunks;             /* FILLs of a copy */
	struct step_request *fills;    /* [step_fills_max()]: a copy's, then those of the next one */
	struct step_request *releases; /* [n_experts], one per copy */
	struct device_event *copy_begin, *copied, *begin, *end, *done;
	uint64_t submit_ns;
};

/* Makes the table and cuts up the arenas; on failure step_table_fini cleans up. */
int step_table_init(struct engine *e, struct moe_error *err);
void step_table_fini(struct engine *e); /* waits for what is in flight */

/* Bytes of one step's region in the data arena, and of the device's x and y. */
uint64_t step_data_bytes(const struct moe_session *session);
uint64_t step_work_bytes(const struct moe_session *session);

/* Submits a plan (x may be NULL when it has no tokens); takes the plan over in every case. */
int step_submit(struct engine *e, struct moe_plan *plan, const float *x, struct moe_step **ret, struct moe_error *err);

/* The first error sticks. */
void step_fail(struct moe_step *step, int code);

/* One request. step_post fails the step with -EPIPE when the daemon is gone. */
void step_post(struct moe_step *step, struct step_request *request, const struct moe_sqe *sqe);
/* Its end: status is set. 0 or -ETIMEDOUT (timeout_ns 0: no limit). Does nothing for what was not posted. */
int step_end(struct moe_step *step, struct step_request *request, uint64_t timeout_ns);

/* step-copy.c: how many FILLs a step may have at most; sets n_chunks of a step that has its plan. */
uint32_t step_fills_max(const struct moe_session *session);
void step_cut_copies(struct moe_step *step);

/* The FILLs of a speculative plan: posted at once, waited for with the step. */
void step_post_speculative(struct moe_step *step);

/* Under engine->lock; the speculative step has ended: what has come is cached, the other slots are free. */
void step_settle_speculative(struct moe_step *step);

/* step-copy.c: enqueues the step's copies behind the device work that they must not overtake, and records `copied`. */
void step_start_copies(struct moe_step *step);
/* Bytes copied and how long that took, for the books; after the step has ended. */
void step_copy_cost(struct moe_step *step, uint64_t *ret_bytes, uint64_t *ret_ns);

/* step-books.c: the ended step's part of the layer's statistics and of the cost model. */
void step_count(struct moe_step *step, uint64_t wait_ns);

#endif
