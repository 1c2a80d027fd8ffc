/* SPDX-License-Identifier: MIT */
/*
 * prefetch - experts that are copied into cache slots on a guess.
 *
 * Law: a slot that a guess is on its way to is reserved: it is in nobody's map and no plan takes it, until all that the
 * guess has posted has come back; then the expert is cached in it, or the slot is free. So no step waits for a guess,
 * and no result depends on one. Its requests go past the streams, which work in order: behind a guess others would wait
 * with it. That is why none may be made while a step in flight reads or fills the layer's slots.
 *
 * A guess is about the layer's next step. When that is submitted the router has chosen: what was guessed, is not chosen
 * and has not come is taken back by CANCELs that are requests of that step. They are posted under engine->order: the
 * guess may end and its place be used again meanwhile, but whatever is posted there comes behind them in the ring, so
 * that a CANCEL meets its guess or nothing.
 */
#include <errno.h>

#include "base/error.h"
#include "base/util.h"
#include "engine.h"
#include "lanes.h"
#include "moe-expert.h"
#include "plan.h"
#include "step.h"

#define CANCELS_MAX 32 /* that are posted before the first is waited for */

/* -- the slots ---------------------------------------------------------------------------------------------------- */

/* Under engine->lock: the slots of the row are nobody's business but the cache's. */
static int check_quiet(const struct engine *e, uint32_t row, uint32_t layer, struct moe_error *err)
{
	const struct place_users *read = &e->rows[row].read;
	bool busy = false;
	uint32_t i;

	for (i = 0; i < PLACE_STREAMS; i++)
		busy |= read->last[i].event && e->ops->event_query(read->last[i].event) == -EBUSY;
	for (i = 0; i < e->n_step_slots && !busy; i++) {
		const struct moe_step *step = &e->steps[i];

		busy = step->plan && step->row == row && step->has_copies &&
		       e->ops->event_query(step->copied) == -EBUSY;
	}
	return busy ? moe_error_set(err, -EBUSY, "moe_prefetch: layer %u: a step in flight uses its slots; wait for it",
				    layer)
		    : 0;
}

static int check_copy(const struct engine *e, const struct cache *cache, const struct moe_copy *copies, uint32_t i,
		      struct moe_error *err)
{
	const struct moe_copy *c = &copies[i];
	uint32_t k;

	if (c->expert < 0 || (uint32_t)c->expert >= e->n_experts || c->slot < 0 || (uint32_t)c->slot >= e->n_slots)
		return moe_error_set(err, -EINVAL,
				     "moe_prefetch: copies[%u]: expert %d into slot %d found; the model has %u "
				     "experts, the session %u slots a layer",
				     i, c->expert, c->slot, e->n_experts, e->n_slots);
	for (k = 0; k < i; k++)
		if (copies[k].expert == c->expert || copies[k].slot == c->slot)
			return moe_error_set(err, -EINVAL,
					     "moe_prefetch: copies[%u] and copies[%u] have one expert or one slot", k,
					     i);
	if (cache->cache_map[c->expert] >= 0)
		return moe_error_set(err, -EEXIST, "moe_prefetch: expert %d is in slot %d already", c->expert,
				     cache->cache_map[c->expert]);
	if (cache->slot_expert[c->slot] == CACHE_RESERVED)
		return moe_error_set(err, -EBUSY, "moe_prefetch: slot %d: another prefetch into it is on its way",
				     c->slot);
	return 0;
}

/* All of them or none. */
static int reserve_slots(struct engine *e, uint32_t row, uint32_t layer, const struct moe_copy *copies, uint32_t n,
			 struct moe_error *err)
{
	struct cache *cache = e->rows[row].cache;
	uint32_t i;
	int r;

	pthread_mutex_lock(&e->lock);
	step_sweep(e);
	r = lanes_let_fill(e, "moe_prefetch", err);
	if (r == 0)
		r = check_quiet(e, row, layer, err);
	for (i = 0; i < n && r == 0; i++)
		r = check_copy(e, cache, copies, i, err);
	for (i = 0; i < n && r == 0; i++) {
		cache_reserve(cache, copies[i].slot);
		e->rows[row].content[copies[i].slot] = -1;
		e->rows[row].given++;
	}
	pthread_mutex_unlock(&e->lock);
	return r;
}

static void release_slots(struct engine *e, uint32_t row, const struct moe_copy *copies, uint32_t n)
{
	uint32_t i;

	pthread_mutex_lock(&e->lock);
	for (i = 0; i < n; i++)
		cache_release(e->rows[row].cache, copies[i].slot);
	pthread_mutex_unlock(&e->lock);
}

/* -- guesses that were wrong --------------------------------------------------------------------------------------- */

static bool is_chosen(const struct moe_plan *plan, int32_t expert)
{
	uint32_t i;

	for (i = 0; i < plan->n_requests; i++)
		if (plan->requests[i].expert == expert)
			return true;
	return false;
}

/* Under both locks: appends the FILLs of a guess that are for nobody to those n, the last first: the daemon works from
 * the front. Returns how many there are then. */
static uint32_t list_wrong(struct moe_step *guess, const struct moe_plan *plan, uint64_t *fills, uint32_t n)
{
	uint32_t i;

	for (i = guess->plan->n_copies * guess->n_chunks; i-- > 0 && n < STEP_CANCELS_MAX;) {
		struct step_request *fill = &guess->fills[i];

		if (fill->posted && atomic_load(&fill->op.state) != MOE_REQUEST_RETIRED &&
		    !is_chosen(plan, guess->plan->copies[i / guess->n_chunks].expert))
			fills[n++] = (uintptr_t)&fill->op;
	}
	return n;
}

void step_cancel_guesses(struct moe_step *step)
{
	struct engine *e = step->engine;
	const struct moe_plan *plan = step->plan;
	uint64_t fills[STEP_CANCELS_MAX];
	uint32_t i, n = 0;

	/* A dummy step's choice is nobody's, a late one's only a part; of two micro-batches either may be meant. */
	if (!e->has_slots || plan->tokens == 0 || plan->frozen || plan->late || e->session->params.dual_batch)
		return;
	pthread_mutex_lock(&e->lock);
	for (i = 0; i < e->n_step_slots; i++) {
		struct moe_step *guess = &e->steps[i];

		if (guess->plan && guess->plan->speculative && guess->row == step->row)
			n = list_wrong(guess, plan, fills, n);
	}
	pthread_mutex_unlock(&e->lock);
	for (i = 0; i < n; i++) {
		const struct moe_sqe sqe = {.op = MOE_OP_CANCEL, .cancel.user_data = fills[i]};

		if (engine_submit(e, &sqe, &step->cancels[step->n_cancels]) < 0)
			return; /* the daemon is gone: moe_wait for the guess says so */
		step->n_cancels++;
	}
}

/* -- the calls ---------------------------------------------------------------------------------------------------- */

static int check_session(const struct moe_session *s, uint32_t n, struct moe_error *err)
{
	const struct engine *e = s->engine;

	if (s->params.fill == MOE_FILL_PULL)
		return moe_error_set(err, -ENOTSUP,
				     "moe_prefetch: with MOE_FILL_PULL the device copies in order: attach with "
				     "MOE_FILL_PUSH");
	if (e->group)
		return moe_error_set(err, -ENOTSUP,
				     "moe_prefetch: with MOE_SHARE_GROUP all ranks must cache alike: use moe_fill on "
				     "all of them");
	if (n == 0 || n > e->n_slots)
		return moe_error_set(err, -EINVAL, "moe_prefetch: %u copies found, 1 to %u (slots a layer) expected", n,
				     e->n_slots);
	return 0;
}

int moe_prefetch(struct moe_session *session, uint32_t layer, const struct moe_copy *copies, uint32_t n,
		 struct moe_step **ret, struct moe_error *err)
{
	struct engine *e = session->engine;
	struct moe_plan *plan;
	int row = session_row(session, layer, err), r;

	if (row < 0)
		return row;
	r = check_session(session, n, err);
	if (r < 0)
		return r;
	r = reserve_slots(e, (uint32_t)row, layer, copies, n, err);
	if (r < 0)
		return r;
	r = plan_new_fill(&plan, layer, e->n_experts, e->n_slots, copies, n, err);
	if (r == 0) {
		plan->owner = e;
		plan->speculative = true;
		plan->frozen = engine_is_dummy(e);
		r = step_submit(e, plan, NULL, NULL, ret, err);
	}
	if (r < 0)
		release_slots(e, (uint32_t)row, copies, n);
	return r;
}

static bool is_kept(int32_t expert, uint32_t n, const int32_t *keep)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		if (keep[i] == expert)
			return true;
	return false;
}

/* What each of them says does not matter: the fill's own end does. A daemon that says nothing is given up: -ETIME. */
static int await_cancels(struct engine *e, struct queue_op *ops, uint32_t n, struct moe_error *err)
{
	uint32_t i;
	int r = 0;

	for (i = 0; i < n; i++)
		if (queue_wait(&e->session->queue, &ops[i], e->watchdog_ns) == -ETIMEDOUT)
			r = engine_answered(e, -ETIME, "moe_cancel", err);
	return r;
}

int moe_cancel(struct moe_step *step, uint32_t n, const int32_t *keep, struct moe_error *err)
{
	struct engine *e = step->engine;
	struct queue_op ops[CANCELS_MAX];
	uint32_t i, posted = 0;
	int r = 0, rest;

	if (!step->plan->speculative)
		return moe_error_set(err, -EINVAL, "moe_cancel: the step is not moe_prefetch's: its result is needed");
	/* The last first: the daemon works from the front. */
	for (i = step->plan->n_copies * step->n_chunks; i-- > 0 && r == 0;) {
		struct moe_sqe sqe = {.op = MOE_OP_CANCEL};

		if (step->fills[i].ended || is_kept(step->plan->copies[i / step->n_chunks].expert, n, keep))
			continue;
		sqe.cancel.user_data = (uintptr_t)&step->fills[i].op;
		r = engine_submit(e, &sqe, &ops[posted]);
		if (r == 0 && ++posted == CANCELS_MAX) {
			r = await_cancels(e, ops, posted, err);
			posted = 0;
		}
	}
	if (r != 0 && r != -ETIME)
		r = 0; /* the daemon is gone: moe_wait says so */
	rest = await_cancels(e, ops, posted, err);
	return r < 0 ? engine_answered(e, r, "moe_cancel", err) : rest;
}
