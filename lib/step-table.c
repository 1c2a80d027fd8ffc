/* SPDX-License-Identifier: MIT */
/*
 * step-table - the steps that a session may have in flight: made when it attaches, each with its part of the arenas.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/util.h"
#include "step.h"

uint64_t step_rows_bytes(const struct moe_session *session, uint32_t tokens)
{
	return ALIGN_UP((uint64_t)tokens * session->info.hidden * sizeof(float), CACHE_LINE);
}

static uint64_t pairs_bytes(const struct moe_session *s)
{
	return ALIGN_UP((uint64_t)s->params.max_tokens * MOE_TOPK_MAX * sizeof(float), CACHE_LINE);
}

uint64_t step_data_bytes(const struct moe_session *session)
{
	return 3 * step_rows_bytes(session, session->params.max_tokens) + 2 * pairs_bytes(session);
}

/* Of all experts, if any may be read in the pool. */
static uint64_t records_bytes(const struct moe_session *s)
{
	if (s->params.zero_copy == MOE_ZERO_COPY_OFF)
		return 0;
	return ALIGN_UP((uint64_t)s->info.n_experts * s->n_pools * sizeof(uint8_t *), CACHE_LINE) +
	       ALIGN_UP(device_room_bytes(s->info.n_experts, s->n_pools), CACHE_LINE);
}

uint64_t step_control_bytes(const struct engine *e)
{
	return CACHE_LINE + 2 * pairs_bytes(e->session) + ALIGN_UP(e->n_experts * sizeof(int32_t), CACHE_LINE) +
	       records_bytes(e->session);
}

#define EVENTS 7

static struct device_event **event_of(struct moe_step *step, int i)
{
	struct device_event **const events[EVENTS] = {&step->copy_begin, &step->copied, &step->begin,   &step->end,
						      &step->done,       &step->given,  &step->finished};

	return events[i];
}

static int make_events(struct moe_step *step, struct moe_error *err)
{
	struct engine *e = step->engine;
	int r = 0;

	for (int i = 0; i < EVENTS && r == 0; i++)
		r = e->ops->event_new(e->device, event_of(step, i), err);
	return r;
}

static int step_init(struct moe_step *step, struct engine *e, uint32_t index, struct moe_error *err)
{
	const struct moe_session *s = e->session;
	const uint64_t rows = step_rows_bytes(s, s->params.max_tokens);
	uint8_t *data = s->data + index * step_data_bytes(s);

	step->engine = e;
	step->x = (float *)data;
	step->y = (float *)(data += rows);
	step->y_device = (float *)(data += rows);
	step->ids = (int32_t *)(data += rows);
	step->weights = (float *)(data + pairs_bytes(s));
	if (!e->has_slots)
		return 0;
	step->words = (struct step_words *)(e->control + MISSBUF_COUNT * CACHE_LINE + index * step_control_bytes(e));
	step->fills = calloc(step_fills_max(s), sizeof *step->fills);
	step->places = calloc(e->n_experts, sizeof *step->places);
	step->releases = calloc(e->n_experts, sizeof *step->releases);
	step->cancels = calloc(STEP_CANCELS_MAX, sizeof *step->cancels);
	if (!step->fills || !step->places || !step->releases || !step->cancels)
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

void step_table_fini(struct engine *e)
{
	uint32_t i;

	step_await_all(e); /* first: streams wait for other steps' events */
	for (i = 0; e->steps && i < e->n_step_slots; i++) {
		struct moe_step *step = &e->steps[i];

		if (e->has_slots && e->ops) {
			for (int k = 0; k < EVENTS; k++)
				e->ops->event_free(*event_of(step, k));
			e->ops->stream_return(step->theirs);
		}
		free(step->fills);
		free(step->places);
		free(step->releases);
		free(step->cancels);
	}
	free(e->steps);
	e->steps = NULL;
}
