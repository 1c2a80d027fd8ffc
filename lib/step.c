/* SPDX-License-Identifier: MIT */
#include "step.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"

/* -- table -------------------------------------------------------------------------------------------------------- */

static uint64_t rows_bytes(const struct moe_session *s)
{
	return ALIGN_UP((uint64_t)s->params.max_tokens * s->info.hidden * sizeof(float), CACHE_LINE);
}

static uint64_t pairs_bytes(const struct moe_session *s)
{
	return ALIGN_UP((uint64_t)s->params.max_tokens * MOE_TOPK_MAX * sizeof(float), CACHE_LINE);
}

uint64_t step_data_bytes(const struct moe_session *session)
{
	return 3 * rows_bytes(session) + 2 * pairs_bytes(session);
}

uint64_t step_work_bytes(const struct moe_session *session)
{
	return 2 * rows_bytes(session);
}

static int make_events(struct moe_step *step, struct moe_error *err)
{
	struct engine *e = step->engine;
	struct device_event **const events[] = {&step->copy_begin, &step->copied, &step->begin, &step->end,
						&step->done};
	size_t i;
	int r = 0;

	for (i = 0; i < ARRAY_LEN(events) && r == 0; i++)
		r = e->ops->event_new(e->device, events[i], err);
	return r;
}

static int step_init(struct moe_step *step, struct engine *e, uint32_t index, struct moe_error *err)
{
	const struct moe_session *s = e->session;
	uint8_t *data = s->data + index * step_data_bytes(s);

	step->engine = e;
	step->x = (float *)data;
	step->y = (float *)(data += rows_bytes(s));
	step->y_device = (float *)(data += rows_bytes(s));
	step->ids = (int32_t *)(data += rows_bytes(s));
	step->weights = (float *)(data + pairs_bytes(s));
	if (!e->has_slots)
		return 0;
	step->map = calloc(e->n_experts, sizeof *step->map);
	step->fills = calloc(step_fills_max(s), sizeof *step->fills);
	step->releases = calloc(e->n_experts, sizeof *step->releases);
	if (!step->map || !step->fills || !step->releases)
		return moe_error_set(err, -ENOMEM, "no memory for steps of %u experts", e->n_experts);
	return make_events(step, err);
}

int step_table_init(struct engine *e, struct moe_error *err)
{
	uint32_t i;
	int r = 0;

	e->steps = calloc(e->n_step_slots, sizeof *e->steps);
	if (!e->steps)
		return moe_error_set(err, -ENOMEM, "no memory for %u steps", e->n_step_slots);
	for (i = 0; i < e->n_step_slots && r == 0; i++)
		r = step_init(&e->steps[i], e, i, err);
	return r;
}

/* -- requests ----------------------------------------------------------------------------------------------------- */

void step_fail(struct moe_step *step, int code)
{
	int none = 0;

	atomic_compare_exchange_strong(&step->error, &none, code);
}

void step_post(struct moe_step *step, struct step_request *request, const struct moe_sqe *sqe)
{
	int r = queue_submit(&step->engine->session->queue, sqe, &request->op);

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

static uint64_t time_left(uint64_t deadline)
{
	uint64_t now;

	if (deadline == 0)
		return 0;
	now = now_ns();
	return now < deadline ? deadline - now : 1;
}

static int await_event(struct moe_step *step, struct device_event *event, uint64_t deadline)
{
	int r = step->engine->ops->event_wait(event, time_left(deadline));

	if (r == -ETIMEDOUT)
		return r;
	if (r < 0)
		step_fail(step, r);
	return 0;
}

/* 0 when nothing of the step is in flight any more, or -ETIMEDOUT. deadline 0: none. */
static int await_step(struct moe_step *step, uint64_t deadline)
{
	uint32_t i;
	int r = 0;

	/* The streams first: requests that they post or wait for are theirs until then. */
	if (step->has_copies)
		r = await_event(step, step->copied, deadline);
	if (step->has_device && r == 0)
		r = await_event(step, step->done, deadline);
	for (i = 0; i < step->plan->n_copies * step->n_chunks && r == 0; i++)
		r = step_end(step, &step->fills[i], time_left(deadline));
	for (i = 0; i < step->plan->n_copies && r == 0; i++)
		r = step_end(step, &step->releases[i], time_left(deadline));
	if (r == 0)
		r = step_end(step, &step->compute, time_left(deadline));
	return r;
}

static bool step_is_over(struct moe_step *step)
{
	const struct device_ops *ops = step->engine->ops;
	uint32_t i;

	if ((step->has_copies && ops->event_query(step->copied) == -EBUSY) ||
	    (step->has_device && ops->event_query(step->done) == -EBUSY))
		return false;
	for (i = 0; i < step->plan->n_copies * step->n_chunks; i++)
		if (!request_is_over(step, &step->fills[i]))
			return false;
	for (i = 0; i < step->plan->n_copies; i++)
		if (!request_is_over(step, &step->releases[i]))
			return false;
	return request_is_over(step, &step->compute);
}

/* Under engine->lock; the step has ended. */
static void step_free(struct moe_step *step)
{
	struct engine *e = step->engine;

	if (step->has_device) {
		struct missbuf *missbuf = &e->missbufs[step->plan->layer % MISSBUF_COUNT];

		if (e->rows[step->row].read == step->end)
			e->rows[step->row].read = NULL;
		if (missbuf->released == step->end)
			missbuf->released = NULL;
	}
	if (step->plan->speculative)
		step_settle_speculative(step);
	step->plan = moe_plan_free(step->plan);
	step->state = STEP_FREE;
}

void step_table_fini(struct engine *e)
{
	uint32_t i;

	for (i = 0; e->steps && i < e->n_step_slots; i++) {
		struct moe_step *step = &e->steps[i];

		if (step->state != STEP_FREE) {
			if (step->plan->speculative)
				moe_cancel(step, 0, NULL, NULL);
			await_step(step, 0);
			step_free(step);
		}
		if (e->has_slots && e->ops) {
			e->ops->event_free(step->copy_begin);
			e->ops->event_free(step->copied);
			e->ops->event_free(step->begin);
			e->ops->event_free(step->end);
			e->ops->event_free(step->done);
		}
		free(step->map);
		free(step->fills);
		free(step->releases);
	}
	free(e->steps);
	e->steps = NULL;
}

/* -- submit ------------------------------------------------------------------------------------------------------- */

/* A step for the caller alone; its plan comes later. */
static struct moe_step *step_reserve(struct engine *e)
{
	struct moe_step *found = NULL;
	uint32_t i;

	pthread_mutex_lock(&e->lock);
	for (i = 0; i < e->n_step_slots && !found; i++) {
		struct moe_step *step = &e->steps[i];

		if (step->state == STEP_LEFT && step_is_over(step))
			step_free(step);
		if (step->state == STEP_FREE)
			found = step;
	}
	if (found)
		found->state = STEP_BUSY;
	pthread_mutex_unlock(&e->lock);
	return found;
}

/* Under both locks: every slot that the plan's map names holds what it says, or will by the plan's own copies. */
static int check_content(struct engine *e, uint32_t row, const struct moe_plan *plan, struct moe_error *err)
{
	const struct engine_row *r = &e->rows[row];
	uint32_t i, copy = 0;

	for (i = 0; i < plan->n_requests; i++) {
		const int32_t expert = plan->requests[i].expert, slot = plan->expert_map[expert];

		if (slot < 0 || (uint32_t)slot >= e->n_slots)
			continue;
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
	return 0;
}

/* Under engine->order: the plan becomes the step's, and the slots get their new content. */
static int step_commit(struct moe_step *step, struct moe_plan *plan, uint32_t row, struct moe_error *err)
{
	struct engine *e = step->engine;
	uint32_t i;
	int r;

	pthread_mutex_lock(&e->lock);
	r = check_content(e, row, plan, err);
	if (r == 0) {
		for (i = 0; i < plan->n_cache_copies; i++)
			e->rows[row].content[plan->copies[i].slot] = plan->copies[i].expert;
		plan->discard = NULL;
		step->plan = plan;
		step->row = row;
		step->seq = ++e->n_steps;
		step_cut_copies(step);
	}
	pthread_mutex_unlock(&e->lock);
	return r;
}

/* Everything of a fresh step that does not depend on its place in the order. */
static void step_prepare(struct moe_step *step, const struct moe_plan *plan, const float *x, uint32_t row)
{
	struct engine *e = step->engine;
	const struct moe_session *s = e->session;
	const size_t pairs = (size_t)plan->tokens * plan->topk;
	uint32_t i;

	atomic_store(&step->error, 0);
	step->carried = NULL;
	step->has_cpu = plan->pairs_cpu > 0 && (s->params.share == MOE_SHARE_PART || s->params.tp_rank == 0);
	step->has_device = plan->n_device > 0;
	step->has_copies = plan->n_copies > 0 && !plan->speculative;
	step->counts = !plan->frozen;
	step->compute = (struct step_request){0};
	step->submit_ns = now_ns();
	assert(plan->tokens == 0 || step->has_device || !step->has_copies);
	for (i = 0; i < plan->n_copies; i++)
		step->releases[i] = (struct step_request){0};
	if (step->has_device) {
		for (i = 0; i < e->n_experts; i++)
			step->map[i] = plan->expert_map[i] < 0
					       ? -1
					       : (int32_t)engine_slot(e, row, plan->layer, plan->expert_map[i]);
	}
	if (step->has_cpu || step->has_device)
		memcpy(step->x, x, (size_t)plan->tokens * s->info.hidden * sizeof *x);
	if (step->has_cpu) {
		memcpy(step->ids, plan->cpu_topk_ids, pairs * sizeof *step->ids);
		memcpy(step->weights, plan->weights, pairs * sizeof *step->weights);
	}
}

static void start_cpu(struct moe_step *step)
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

static void use_missbuf(struct moe_step *step, enum missbuf_state from, enum missbuf_state to)
{
	int r = missbuf_move(&step->engine->missbufs[step->plan->layer % MISSBUF_COUNT], from, to);

	assert(r == 0);
	if (r < 0)
		step_fail(step, r);
}

static int use_begin(void *arg)
{
	use_missbuf(arg, MISSBUF_READY, MISSBUF_IN_USE);
	return 0;
}

static int use_end(void *arg)
{
	use_missbuf(arg, MISSBUF_IN_USE, MISSBUF_FREE);
	return 0;
}

static int launch_experts(struct moe_step *step)
{
	struct engine *e = step->engine;
	const struct moe_session *s = e->session;
	const struct moe_plan *plan = step->plan;
	struct device_experts work = {
		.slots = e->slots.base,
		.slot_bytes = s->info.slot_bytes,
		.layout = session_layout(s, step->row),
		.slice = session_slice(s, step->row),
		.hidden = s->info.hidden,
		.activation = s->manifest->activation,
		.tokens = plan->tokens,
		.topk = plan->topk,
		.n_experts = e->n_experts,
		.x = e->work.base,
		.y = e->work.base + rows_bytes(s),
		.ids = plan->ids,
		.weights = plan->weights,
		.map = step->map,
	};

	memcpy(&work.limit, &s->manifest->limit, sizeof work.limit);
	return e->ops->experts(e->compute, &work);
}

static int enqueue_device(struct moe_step *step, bool missbuf)
{
	struct engine *e = step->engine;
	const struct device_ops *ops = e->ops;
	const uint64_t bytes = (uint64_t)step->plan->tokens * e->session->info.hidden * sizeof(float);
	int r = ops->copy_to_device(e->compute, e->work.base, step->x, bytes);

	if (r == 0 && step->has_copies)
		r = ops->stream_wait_event(e->compute, step->copied);
	if (r == 0 && missbuf)
		r = ops->stream_wait_host(e->compute, use_begin, step);
	if (r == 0)
		r = ops->event_record(step->begin, e->compute);
	if (r == 0)
		r = launch_experts(step);
	if (r == 0 && missbuf)
		r = ops->stream_wait_host(e->compute, use_end, step);
	return r;
}

static void start_device(struct moe_step *step)
{
	struct engine *e = step->engine;
	const struct moe_plan *plan = step->plan;
	const bool missbuf = plan->n_copies > plan->n_cache_copies;
	const uint64_t bytes = (uint64_t)plan->tokens * e->session->info.hidden * sizeof(float);
	int r = enqueue_device(step, missbuf), recorded;

	recorded = e->ops->event_record(step->end, e->compute);
	pthread_mutex_lock(&e->lock);
	e->rows[step->row].read = step->end;
	if (missbuf)
		e->missbufs[plan->layer % MISSBUF_COUNT].released = step->end;
	pthread_mutex_unlock(&e->lock);
	if (r == 0)
		r = e->ops->copy_to_host(e->compute, step->y_device, e->work.base + rows_bytes(e->session), bytes);
	if (r == 0)
		r = recorded;
	if (r < 0)
		step_fail(step, r);
	r = e->ops->event_record(step->done, e->compute);
	if (r < 0)
		step_fail(step, r);
}

int step_submit(struct engine *e, struct moe_plan *plan, const float *x, struct moe_step **ret, struct moe_error *err)
{
	int row = session_row(e->session, plan->layer, err), r = row;
	struct moe_step *step = NULL;

	if (r >= 0 && plan->tokens && !x)
		r = moe_error_set(err, -EINVAL, "moe_submit: x must be given");
	if (r >= 0) {
		step = step_reserve(e);
		r = step ? 0
			 : moe_error_set(err, -EBUSY,
					 "moe_submit: %u steps are not waited for, all that max_steps leaves room for",
					 e->n_step_slots);
	}
	if (r == 0) {
		step_prepare(step, plan, x, (uint32_t)row);
		pthread_mutex_lock(&e->order);
		r = step_commit(step, plan, (uint32_t)row, err);
		if (r == 0) {
			/* The CPU first: its work runs beside copies and device work. */
			if (step->has_cpu)
				start_cpu(step);
			if (plan->speculative)
				step_post_speculative(step);
			if (step->has_copies)
				step_start_copies(step);
			if (step->has_device)
				start_device(step);
		}
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
	return step_submit(session->engine, plan, x, ret, err);
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

	if (r == 0 && late)
		r = atomic_load(&late->error);
	if (r < 0)
		return r;
	if (step->plan->tokens && y)
		add_parts(step, y);
	step_count(step, now_ns() - began);
	if (late)
		step_count(late, 0); /* the wait for both is the step's */
	return 0;
}

int moe_wait(struct moe_step *step, float *y, uint32_t timeout_ms, struct moe_error *err)
{
	struct engine *e = step->engine;
	const uint32_t layer = step->plan->layer;
	const uint64_t began = now_ns(), deadline = timeout_ms ? began + timeout_ms * (uint64_t)1000000 : 0;
	int r = await_step(step, deadline);

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
	if (r == -ECANCELED)
		return moe_error_set(err, r, "layer %u: moe_cancel has taken back what had not come", layer);
	return r < 0 ? moe_error_sys(err, r, "layer %u: the step has failed", layer) : 0;
}
