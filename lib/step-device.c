/* SPDX-License-Identifier: MIT */
/*
 * step-device - the device's part of a step: its pairs computed on the slots, on the compute stream.
 *
 * x comes from the data arena and y goes there, unless both are the caller's device memory (step-on.c).
 */
#include <string.h>

#include "base/util.h"
#include "step.h"

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
		.x = step->on.stream ? step->on.x : e->work.base,
		.y = step->on.stream ? step->on.y : e->work.base + step_rows_bytes(s),
		.ids = step->device_ids,
		.weights = step->device_weights,
		.map = step->map,
	};

	memcpy(&work.limit, &s->manifest->limit, sizeof work.limit);
	return e->ops->experts(e->compute, &work);
}

/* Behind the copies: the slots are read. */
static int enqueue_device(struct moe_step *step)
{
	struct engine *e = step->engine;
	const struct device_ops *ops = e->ops;
	const uint64_t bytes = (uint64_t)step->plan->tokens * e->session->info.hidden * sizeof(float);
	const struct device_copy copy = {
		.to = e->work.base, .from = step->x, .pitch = bytes, .width = bytes, .rows = 1};
	int r = step->on.stream ? 0 : ops->copy_to_device(e->compute, &copy, 1);

	if (r == 0 && step->has_copies)
		r = ops->stream_wait_event(e->compute, step->copied);
	if (r == 0 && step->use)
		r = ops->stream_write_word(e->compute, e->missbufs[step->plan->layer % MISSBUF_COUNT].used,
					   2 * step->use - 1);
	if (r == 0)
		r = ops->event_record(step->begin, e->compute);
	return r == 0 ? launch_experts(step) : r;
}

/* In every case, or the buffer would be in use for ever. */
static int release_missbuf(struct moe_step *step)
{
	struct engine *e = step->engine;

	if (!step->use)
		return 0;
	return e->ops->stream_write_word(e->compute, e->missbufs[step->plan->layer % MISSBUF_COUNT].used,
					 2 * step->use);
}

void step_start_device(struct moe_step *step)
{
	struct engine *e = step->engine;
	const struct moe_plan *plan = step->plan;
	const uint64_t bytes = (uint64_t)plan->tokens * e->session->info.hidden * sizeof(float);
	int r = enqueue_device(step), released = release_missbuf(step), recorded;

	recorded = e->ops->event_record(step->end, e->compute);
	pthread_mutex_lock(&e->lock);
	e->rows[step->row].read = step->end;
	if (step->use)
		e->missbufs[plan->layer % MISSBUF_COUNT].released = step->end;
	pthread_mutex_unlock(&e->lock);
	if (r == 0 && !step->on.stream)
		r = e->ops->copy_to_host(e->compute, step->y_device, e->work.base + step_rows_bytes(e->session), bytes);
	if (r == 0)
		r = released < 0 ? released : recorded;
	if (r < 0)
		step_fail(step, r);
	r = e->ops->event_record(step->done, e->compute);
	if (r < 0)
		step_fail(step, r);
}
