/* SPDX-License-Identifier: MIT */
/*
 * step-device - the device's part of a step: its pairs computed on the slots, on one of the compute streams.
 *
 * A step that waits for copies is computed aside, so that those behind it, which do not, are not held up with it.
 *
 * What the plan reads in the pool is leased before `copied`, and stays so until the compute stream has written `read`.
 *
 * x comes from the data arena and y goes there, unless both are the caller's device memory (step-on.c).
 */
#include <string.h>

#include "base/util.h"
#include "step.h"

static const struct engine_compute *compute_of(const struct moe_step *step)
{
	return &step->engine->compute[step->side];
}

/* The copies of earlier steps that may still be on their way to what this one reads: the latest, which end last. */
static struct place_use find_fetching(struct moe_step *step)
{
	struct engine *e = step->engine;
	const struct moe_plan *plan = step->plan;
	struct place_use latest = {0};
	uint32_t i;

	pthread_mutex_lock(&e->lock);
	for (i = 0; i < plan->n_requests; i++) {
		const int32_t slot = plan->expert_map[plan->requests[i].expert];

		if (slot >= 0 && (uint32_t)slot < e->n_slots)
			place_use_later(&latest, &places_slot(&e->places, step->row, (uint32_t)slot)->filled);
	}
	pthread_mutex_unlock(&e->lock);
	return latest;
}

void step_choose_side(struct moe_step *step)
{
	const struct engine *e = step->engine;

	step->fetched = NULL;
	if (step->has_device && step->has_copies) {
		step->fetched = step->copied;
	} else if (step->has_device) {
		const struct place_use fetching = find_fetching(step);

		if (fetching.event && e->ops->event_query(fetching.event) != 0)
			step->fetched = fetching.event;
	}
	step->side = step->fetched && step->plan->tokens <= e->compute[PLACE_ASIDE].tokens ? PLACE_ASIDE : PLACE_MAIN;
}

/* What is read in the pool: of each expert where its record begins in each pool file. */
static void find_records(struct moe_step *step)
{
	const struct moe_session *s = step->engine->session;
	const struct moe_plan *plan = step->plan;
	uint32_t i, share;

	for (i = 0; i < plan->n_reads; i++) {
		const uint32_t expert = (uint32_t)plan->copies[plan->n_copies + i].expert;
		const struct moe_record *record = &s->records[(uint64_t)step->row * plan->n_experts + expert];

		for (share = 0; share < s->n_pools; share++)
			step->records[i * s->n_pools + share] = s->pools[share].map + record->offset;
	}
}

/* One block behind the words, in the order that device.h asks for; then the records. */
void step_route_device(struct moe_step *step)
{
	const struct engine *e = step->engine;
	const struct moe_plan *plan = step->plan;
	const size_t bytes = (size_t)plan->tokens * plan->topk * sizeof(int32_t);
	uint8_t *at = (uint8_t *)step->words + CACHE_LINE;
	uint32_t i;

	step->device_ids = memcpy(at, plan->ids, bytes);
	step->device_weights = memcpy(at += ALIGN_UP(bytes, CACHE_LINE), plan->weights, bytes);
	step->map = (int32_t *)(at += ALIGN_UP(bytes, CACHE_LINE));
	for (i = 0; i < plan->n_experts; i++)
		step->map[i] = plan->expert_map[i] < 0
				       ? -1
				       : (int32_t)engine_slot(e, step->row, plan->layer, plan->expert_map[i]);
	step->room = at += ALIGN_UP(plan->n_experts * sizeof(int32_t), CACHE_LINE);
	at += ALIGN_UP(device_room_bytes(plan->n_reads, e->session->n_pools), CACHE_LINE);
	step->records = (const uint8_t **)at;
	find_records(step);
}

static device_ptr y_of(const struct moe_step *step)
{
	const struct engine_compute *compute = compute_of(step);

	return compute->work.base + step_rows_bytes(step->engine->session, compute->tokens);
}

static int launch_experts(struct moe_step *step)
{
	struct engine *e = step->engine;
	const struct engine_compute *compute = compute_of(step);
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
		.x = step->on.stream ? step->on.x : compute->work.base,
		.y = step->on.stream ? step->on.y : y_of(step),
		.ids = step->device_ids,
		.weights = step->device_weights,
		.map = step->map,
		.n_slots = engine_all_slots(e),
		.n_reads = plan->n_reads,
		.n_shares = s->n_pools,
		.records = step->records,
		.room = step->room,
	};

	memcpy(&work.limit, &s->manifest->limit, sizeof work.limit);
	return e->ops->experts(compute->stream, &work);
}

/* Behind the copies: the slots are read. */
static int enqueue_device(struct moe_step *step)
{
	struct engine *e = step->engine;
	const struct device_ops *ops = e->ops;
	const uint64_t bytes = (uint64_t)step->plan->tokens * e->session->info.hidden * sizeof(float);
	struct device_stream *compute = compute_of(step)->stream;
	const struct device_copy copy = {
		.to = compute_of(step)->work.base, .from = step->x, .pitch = bytes, .width = bytes, .rows = 1};
	int r = step->on.stream ? 0 : ops->copy_to_device(compute, &copy, 1);

	if (r == 0 && step->fetched)
		r = ops->stream_wait_event(compute, step->fetched);
	if (r == 0 && step->use)
		r = ops->stream_write_word(compute, e->missbufs[step->plan->layer % MISSBUF_COUNT].used,
					   2 * step->use - 1);
	if (r == 0)
		r = ops->event_record(step->begin, compute);
	if (r == 0)
		pages_fetch(step, compute);
	return r == 0 ? launch_experts(step) : r;
}

/* In every case, or the buffer would be in use for ever. */
static int release_missbuf(struct moe_step *step)
{
	struct engine *e = step->engine;

	if (!step->use)
		return 0;
	return e->ops->stream_write_word(compute_of(step)->stream, e->missbufs[step->plan->layer % MISSBUF_COUNT].used,
					 2 * step->use);
}

/* The same: the leases are given back behind it. If no stream writes it the host does, since what is read in vain is
 * immutable. */
static int write_read(struct moe_step *step)
{
	const struct device_ops *ops = step->engine->ops;
	int r;

	if (step->plan->n_reads == 0)
		return 0;
	r = ops->stream_write_word(compute_of(step)->stream, &step->words->read, step->turn);
	if (r < 0)
		ops->word_write(&step->words->read, step->turn);
	return r;
}

void step_start_device(struct moe_step *step)
{
	struct engine *e = step->engine;
	struct device_stream *compute = compute_of(step)->stream;
	const struct moe_plan *plan = step->plan;
	const uint64_t bytes = (uint64_t)plan->tokens * e->session->info.hidden * sizeof(float);
	int r = enqueue_device(step), released = release_missbuf(step), read = write_read(step), recorded;

	recorded = e->ops->event_record(step->end, compute);
	pthread_mutex_lock(&e->lock);
	e->rows[step->row].read.last[step->side] = (struct place_use){step->end, step->seq};
	if (step->use)
		e->missbufs[plan->layer % MISSBUF_COUNT].released = step->end;
	pthread_mutex_unlock(&e->lock);
	if (r == 0 && !step->on.stream)
		r = e->ops->copy_to_host(compute, step->y_device, y_of(step), bytes);
	if (r == 0)
		r = released < 0 ? released : read < 0 ? read : recorded;
	if (r < 0)
		step_fail(step, r);
	r = e->ops->event_record(step->done, compute);
	if (r < 0)
		step_fail(step, r);
}
