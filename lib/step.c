/* SPDX-License-Identifier: MIT */
#include "step.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "ghosts.h"
#include "guesses.h"

/* -- requests ----------------------------------------------------------------------------------------------------- */

void step_fail(struct moe_step *step, int code)
{
	int none = 0;

	atomic_compare_exchange_strong(&step->error, &none, code);
}

void step_post(struct moe_step *step, struct step_request *request, const struct moe_sqe *sqe)
{
	int r = engine_submit(step->engine, sqe, &request->op);

	request->posted = r == 0;
	request->ended = r < 0;
	request->status = r;
	if (r < 0)
		step_fail(step, r);
}

int step_end(struct moe_step *step, struct step_request *request, uint64_t timeout_ns)
{
	int r;

	if (!request->posted || request->ended)
		return 0;
	r = queue_wait(&step->engine->session->queue, &request->op, timeout_ns);
	if (r == -ETIMEDOUT)
		return r;
	request->ended = true;
	request->status = r < 0 ? r : request->op.cqe.status;
	if (request->status < 0)
		step_fail(step, request->status);
	return 0;
}

static bool request_is_over(struct moe_step *step, struct step_request *request)
{
	struct queue *queue = &step->engine->session->queue;

	return !request->posted || request->ended || queue_poll(queue, &request->op) || atomic_load(&queue->dead);
}

/* -- end ---------------------------------------------------------------------------------------------------------- */

uint64_t step_time_left(uint64_t deadline)
{
	uint64_t now;

	if (deadline == 0)
		return 0;
	now = now_ns();
	return now < deadline ? deadline - now : 1;
}

int step_await_event(struct moe_step *step, struct device_event *event, uint64_t deadline)
{
	const struct device_ops *ops = step->engine->ops;
	int r = ops->event_query(event);

	if (r == -EBUSY) {
		step->waited = true;
		r = ops->event_wait(event, step_time_left(deadline));
	}
	if (r == -ETIMEDOUT)
		return r;
	if (r < 0)
		step_fail(step, r);
	return 0;
}

/* What it says does not matter: the fill's own end does. Nor does a daemon that is gone. */
static int await_cancel(struct moe_step *step, struct queue_op *cancel, uint64_t timeout_ns)
{
	const int r = queue_wait(&step->engine->session->queue, cancel, timeout_ns);

	return r == -ETIMEDOUT ? r : 0;
}

/* What the device does, and the feeder, which waits for the daemon for watchdog_ms at most. 0, or -ETIMEDOUT. */
static int await_device(struct moe_step *step, uint64_t deadline)
{
	int r = 0;

	/* The feeder first: requests that it posts or waits for are its own until then. */
	if (step->has_copies && !feeder_is_over(&step->feed))
		step->waited = true;
	if (step->has_copies)
		r = feeder_wait(&step->feed, step_time_left(deadline));
	if (step->has_copies && r == 0)
		r = step_await_event(step, step->copied, deadline);
	if (step->has_device && r == 0)
		r = step_await_event(step, step->done, deadline);
	if (step->on.stream && r == 0)
		r = step_await_on(step, deadline);
	return r;
}

/* What the daemon answers. 0, or -ETIMEDOUT. */
static int await_answers(struct moe_step *step, uint64_t deadline)
{
	uint32_t i;
	int r = 0;

	for (i = 0; i < plan_leases(step->plan) * step->n_chunks && r == 0; i++)
		r = step_end(step, &step->fills[i], step_time_left(deadline));
	for (i = 0; i < plan_leases(step->plan) && r == 0; i++)
		r = step_end(step, &step->releases[i], step_time_left(deadline));
	for (i = 0; i < step->n_cancels && r == 0; i++)
		r = await_cancel(step, &step->cancels[i], step_time_left(deadline));
	if (r == 0 && !request_is_over(step, &step->compute))
		step->waited = true;
	if (r == 0)
		r = step_end(step, &step->compute, step_time_left(deadline));
	return r;
}

/* 0 when nothing of the step is in flight any more, or -ETIMEDOUT. deadline 0: none. */
static int await_step(struct moe_step *step, uint64_t deadline)
{
	const int r = await_device(step, deadline);

	return r == 0 ? await_answers(step, deadline) : r;
}

static bool step_is_over(struct moe_step *step)
{
	const struct device_ops *ops = step->engine->ops;
	struct queue *queue = &step->engine->session->queue;
	uint32_t i;

	if ((step->has_copies && (!feeder_is_over(&step->feed) || ops->event_query(step->copied) == -EBUSY)) ||
	    (step->has_device && ops->event_query(step->done) == -EBUSY))
		return false;
	if (step->on.stream && !step_on_is_over(step))
		return false;
	for (i = 0; i < plan_leases(step->plan) * step->n_chunks; i++)
		if (!request_is_over(step, &step->fills[i]))
			return false;
	for (i = 0; i < plan_leases(step->plan); i++)
		if (!request_is_over(step, &step->releases[i]))
			return false;
	for (i = 0; i < step->n_cancels; i++)
		if (!queue_poll(queue, &step->cancels[i]) && !atomic_load(&queue->dead))
			return false;
	return request_is_over(step, &step->compute);
}

/* Under engine->lock. */
static void leave_flight(struct moe_step *step)
{
	if (step->in_flight)
		step->taken_ns = overlap_leave(&step->engine->overlap, step->entered, now_ns());
	step->in_flight = false;
}

/* Under engine->lock; the step has ended. */
static void step_free(struct moe_step *step)
{
	struct engine *e = step->engine;

	leave_flight(step);
	if (step->has_copies)
		step_forget_places(step);
	if (step->has_device) {
		struct missbuf *missbuf = &e->missbufs[step->plan->layer % MISSBUF_COUNT];

		place_users_forget(&e->rows[step->row].read, step->end);
		places_forget(&e->places, step->end);
		if (missbuf->released == step->end)
			missbuf->released = NULL;
	}
	if (step->plan->speculative)
		step_settle_speculative(step);
	step->plan = moe_plan_free(step->plan);
	step->state = STEP_FREE;
}

void step_await_all(struct engine *e)
{
	uint32_t i;

	for (i = 0; e->steps && i < e->n_step_slots; i++) {
		struct moe_step *step = &e->steps[i];

		if (step->state == STEP_FREE)
			continue;
		if (step->plan->speculative)
			moe_cancel(step, 0, NULL, NULL);
		await_device(step, 0);
		/* Nobody wants to know any more: a daemon that says nothing does not hold up who leaves. */
		if (await_answers(step, now_ns() + e->watchdog_ns) == -ETIMEDOUT) {
			engine_give_up(e, -ETIME);
			await_answers(step, 0);
		}
		step_free(step);
	}
}

/* -- submit ------------------------------------------------------------------------------------------------------- */

void step_sweep(struct engine *e)
{
	uint32_t i;

	for (i = 0; i < e->n_step_slots; i++)
		if (e->steps[i].state == STEP_LEFT && step_is_over(&e->steps[i]))
			step_free(&e->steps[i]);
}

/* A step for the caller alone; its plan comes later. */
static struct moe_step *step_reserve(struct engine *e)
{
	struct moe_step *found = NULL;
	uint32_t i;

	pthread_mutex_lock(&e->lock);
	step_sweep(e);
	for (i = 0; i < e->n_step_slots && !found; i++)
		if (e->steps[i].state == STEP_FREE)
			found = &e->steps[i];
	if (found)
		found->state = STEP_BUSY;
	pthread_mutex_unlock(&e->lock);
	return found;
}

/* A slot that a guess is on its way to: no other copy may write its place, and nobody may read it yet, whatever its
 * content will be. And one that another expert has come to since, which `expert` is still to be copied into: the cache
 * says who is there. */
static int check_overtaken(const struct engine_row *r, const struct moe_plan *plan, int32_t slot, int32_t expert,
			   struct moe_error *err)
{
	const int32_t there = r->cache->slot_expert[slot];
	const bool came = plan->discard && plan->given != r->given && there >= 0 && there != expert &&
			  r->content[slot] == there;

	if ((there != CACHE_RESERVED || plan->speculative) && !came)
		return 0;
	return moe_error_set(
		err, -ESTALE,
		"layer %u: slot %d, which the plan counts on, was given to a prefetch or a fill after the plan was "
		"made; plan this step again",
		plan->layer, slot);
}

/* Under both locks: every slot that the plan's map names holds what it says, or will by the plan's own copies. */
static int check_content(struct engine *e, uint32_t row, const struct moe_plan *plan, struct moe_error *err)
{
	const struct engine_row *r = &e->rows[row];
	uint32_t i, copy = 0;
	int ret = 0;

	for (i = 0; i < plan->n_cache_copies && ret == 0; i++)
		ret = check_overtaken(r, plan, plan->copies[i].slot, plan->copies[i].expert, err);
	for (i = 0; i < plan->n_requests && ret == 0; i++) {
		const int32_t expert = plan->requests[i].expert, slot = plan->expert_map[expert];

		if (slot < 0 || (uint32_t)slot >= e->n_slots)
			continue;
		ret = check_overtaken(r, plan, slot, expert, err);
		if (ret < 0)
			break;
		/* Both lists are in ascending id. */
		while (copy < plan->n_cache_copies && plan->copies[copy].expert < expert)
			copy++;
		if ((copy < plan->n_cache_copies && plan->copies[copy].expert == expert) || r->content[slot] == expert)
			continue;
		engine_forget(e, row, expert, slot, -ESTALE);
		return moe_error_set(err, -ESTALE,
				     "layer %u: expert %d is planned in slot %d, which does not hold it: the fill has "
				     "failed, or a plan was not submitted; plan this step again",
				     plan->layer, expert, slot);
	}
	return ret;
}

/* Under engine->order: the plan becomes the step's, and the slots get their new content. */
static int step_commit(struct moe_step *step, struct moe_plan *plan, uint32_t row, struct moe_error *err)
{
	struct engine *e = step->engine;
	int r;

	pthread_mutex_lock(&e->lock);
	r = check_content(e, row, plan, err);
	if (r == 0) {
		e->n_promises -= plan->discard && plan->n_cache_copies > 0;
		plan->discard = NULL;
		step->plan = plan;
		step->row = row;
		step->seq = ++e->n_steps;
		step_take_places(step);
		step_cut_copies(step);
		step->turn++;
		step->in_flight = step_has_mode(step);
		if (step->in_flight)
			step->entered = overlap_enter(&e->overlap, now_ns());
		step->use = plan->n_copies > plan->n_cache_copies ? ++e->missbufs[plan->layer % MISSBUF_COUNT].uses : 0;
	}
	pthread_mutex_unlock(&e->lock);
	return r;
}

/* Everything of a fresh step that does not depend on its place in the order. */
static void step_prepare(struct moe_step *step, const struct moe_plan *plan, const float *x, const struct step_on *on)
{
	struct engine *e = step->engine;
	const struct moe_session *s = e->session;
	const size_t pairs = (size_t)plan->tokens * plan->topk;
	uint32_t i;

	atomic_store(&step->error, 0);
	step->carried = NULL;
	step->on = on ? *on : (struct step_on){0};
	step->has_cpu = plan->pairs_cpu > 0 && (s->params.share == MOE_SHARE_PART || s->params.tp_rank == 0);
	step->has_device = plan->n_device > 0;
	step->has_copies = plan_leases(plan) > 0 && !plan->speculative;
	step->counts = !plan->frozen;
	step->compute = (struct step_request){0};
	step->n_cancels = 0;
	step->waited = false;
	assert(plan->tokens == 0 || step->has_device || !step->has_copies);
	for (i = 0; i < plan_leases(plan); i++)
		step->releases[i] = (struct step_request){0};
	if (x && (step->has_cpu || step->has_device))
		memcpy(step->x, x, (size_t)plan->tokens * s->info.hidden * sizeof *x);
	if (step->has_cpu) {
		memcpy(step->ids, plan->cpu_topk_ids, pairs * sizeof *step->ids);
		memcpy(step->weights, plan->weights, pairs * sizeof *step->weights);
	}
}

void step_start_cpu(struct moe_step *step)
{
	const struct moe_session *s = step->engine->session;
	const struct moe_plan *plan = step->plan;
	struct moe_sqe sqe = {
		.op = MOE_OP_COMPUTE,
		.flags = s->params.share == MOE_SHARE_GROUP ? MOE_SQE_WHOLE : 0,
		.layer = (uint16_t)plan->layer,
		.count = plan->tokens,
		.compute.topk = plan->topk,
		.compute.x_type = MOE_TYPE_F32,
		.compute.y_type = MOE_TYPE_F32,
		.compute.x = (uint64_t)((uint8_t *)step->x - s->data),
		.compute.ids = (uint64_t)((uint8_t *)step->ids - s->data),
		.compute.weights = (uint64_t)((uint8_t *)step->weights - s->data),
		.compute.y = (uint64_t)((uint8_t *)step->y - s->data),
	};

	step_post(step, &step->compute, &sqe);
}

/* Under engine->order: everything enters the ring and the streams. */
static void step_start(struct moe_step *step)
{
	/* The CPU first: its work runs beside copies and device work. */
	if (step->has_cpu && !step->on.stream)
		step_start_cpu(step);
	step_choose_side(step);
	if (step->has_device)
		step_route_device(step);
	step_cancel_guesses(step);
	if (step->plan->speculative)
		step_post_speculative(step);
	if (step->has_copies)
		step_start_copies(step);
	if (step->on.stream)
		step_begin_on(step);
	if (step->has_device)
		step_start_device(step);
	if (step->on.stream)
		step_end_on(step);
}

int step_submit(struct engine *e, struct moe_plan *plan, const float *x, const struct step_on *on,
		struct moe_step **ret, struct moe_error *err)
{
	int row = session_row(e->session, plan->layer, err), r = row;
	struct moe_step *step = NULL;

	if (r >= 0 && plan->tokens && !x && !on)
		r = moe_error_set(err, -EINVAL, "moe_submit: x must be given");
	if (r >= 0) {
		step = step_reserve(e);
		r = step ? 0
			 : moe_error_set(err, -EBUSY,
					 "moe_submit: %u steps are not waited for, all that max_steps leaves room for",
					 e->n_step_slots);
	}
	if (r == 0 && on)
		r = e->ops->stream_borrow(e->device, on->stream, false, &step->theirs, err);
	if (r == 0) {
		step_prepare(step, plan, x, on);
		pthread_mutex_lock(&e->order);
		r = step_commit(step, plan, (uint32_t)row, err);
		if (r == 0)
			step_start(step);
		pthread_mutex_unlock(&e->order);
	}
	if (r < 0) {
		moe_plan_free(plan);
		if (step) {
			pthread_mutex_lock(&e->lock);
			step->state = STEP_FREE;
			pthread_mutex_unlock(&e->lock);
		}
		return r;
	}
	guesses_step(e->guesses, (uint32_t)row, plan);
	ghosts_step(e->ghosts, (uint32_t)row, plan);
	*ret = step;
	return 0;
}

int moe_submit(struct moe_session *session, struct moe_plan *plan, const float *x, struct moe_step **ret,
	       struct moe_error *err)
{
	if (plan->owner != session->engine) {
		moe_plan_free(plan);
		return moe_error_set(err, -EINVAL, "moe_submit: the plan was made by another session");
	}
	if (plan->later) {
		moe_plan_free(plan);
		return moe_error_set(err, -EINVAL, "moe_submit: the plan defers pairs: use moe_submit_carry");
	}
	return step_submit(session->engine, plan, x, NULL, ret, err);
}

/* -- wait --------------------------------------------------------------------------------------------------------- */

static void add_parts(const struct moe_step *step, float *y)
{
	const size_t n = (size_t)step->plan->tokens * step->engine->session->info.hidden;
	const struct moe_step *late = step->carried;
	size_t i;

	if (step->has_cpu && step->has_device) {
		for (i = 0; i < n; i++)
			y[i] = step->y_device[i] + step->y[i];
	} else if (step->has_cpu) {
		memcpy(y, step->y, n * sizeof *y);
	} else if (step->has_device) {
		memcpy(y, step->y_device, n * sizeof *y);
	} else {
		memset(y, 0, n * sizeof *y);
	}
	for (i = 0; late && late->has_cpu && i < n; i++)
		y[i] += late->y[i];
}

/* Under engine->lock: the caller forgets the step, which is swept once it is over. */
static void step_leave(struct moe_step *step)
{
	step->state = STEP_LEFT;
	if (step->carried)
		step->carried->state = STEP_LEFT;
}

/* The step has ended, and what it carries: y, and the books. The first error. */
static int step_finish(struct moe_step *step, float *y, uint64_t began)
{
	struct moe_step *late = step->carried;
	int r = atomic_load(&step->error);

	pthread_mutex_lock(&step->engine->lock);
	leave_flight(step);
	pthread_mutex_unlock(&step->engine->lock);
	if (r == 0 && late)
		r = atomic_load(&late->error);
	if (r < 0)
		return r;
	if (step->plan->tokens && y && !step->on.stream)
		add_parts(step, y);
	step_count(step, now_ns() - began);
	if (late)
		step_count(late, 0); /* the wait for both is the step's */
	return 0;
}

int moe_wait(struct moe_step *step, float *y, uint32_t timeout_ms, struct moe_error *err)
{
	const uint64_t began = now_ns(), deadline = timeout_ms ? began + timeout_ms * (uint64_t)1000000 : 0;
	struct engine *e = step ? step->engine : NULL;
	const uint32_t layer = step ? step->plan->layer : 0;
	int r;

	if (!step)
		return 0;
	r = await_step(step, deadline);
	if (r == 0 && step->carried)
		r = await_step(step->carried, deadline);
	if (r == -ETIMEDOUT) {
		pthread_mutex_lock(&e->lock);
		step_leave(step);
		pthread_mutex_unlock(&e->lock);
		return moe_error_set(err, r, "layer %u: the step has not ended within %u ms", layer, timeout_ms);
	}
	r = step_finish(step, y, began);
	pthread_mutex_lock(&e->lock);
	if (step->carried)
		step_free(step->carried);
	step_free(step);
	pthread_mutex_unlock(&e->lock);
	if (r == -EPIPE)
		return moe_error_set(err, r,
				     "layer %u: moe-expertd is gone: it has ended or closed this session (see its log)",
				     layer);
	if (r == -EREMOTEIO)
		return moe_error_set(err, r,
				     "layer %u: moe-expertd can push nothing more into this GPU (see its log): detach, "
				     "and pull or start it again",
				     layer);
	if (r == -ECANCELED)
		return moe_error_set(err, r, "layer %u: what had not come of the guess was taken back", layer);
	if (r == -ETIME)
		return moe_error_set(err, r,
				     "layer %u: experts had not come within watchdog_ms (%llu): the session has given "
				     "the daemon up; detach and attach again",
				     layer, (unsigned long long)(e->watchdog_ns / 1000000));
	if (r < 0 && e->ops && e->ops->failure(e->device))
		return moe_error_set(err, r, "layer %u: %s", layer, e->ops->failure(e->device));
	return r < 0 ? moe_error_sys(err, r, "layer %u: the step has failed", layer) : 0;
}
