/* SPDX-License-Identifier: MIT */
#include "lanes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"
#include "base/util.h"
#include "moe-expert.h"
#include "step.h"

#define ALIGNMENT 16 /* of device addresses, for the kernels */

/* -- memory ------------------------------------------------------------------------------------------------------- */

static uint32_t lane_tokens(const struct moe_session *s)
{
	const struct moe_attach_params *p = &s->params;

	return p->lane_tokens ? p->lane_tokens : MIN(p->max_tokens, LANE_TOKENS);
}

static uint64_t rows_bytes(const struct moe_session *s)
{
	return ALIGN_UP((uint64_t)lane_tokens(s) * s->info.hidden * sizeof(float), CACHE_LINE);
}

static uint64_t pairs_bytes(const struct moe_session *s)
{
	return ALIGN_UP((uint64_t)lane_tokens(s) * MOE_TOPK_MAX * sizeof(float), CACHE_LINE);
}

int lanes_check(const struct moe_session *s, struct moe_error *err)
{
	const struct moe_attach_params *p = &s->params;

	if (p->lanes > LANES_MAX || p->lane_tokens > LANE_TOKENS_MAX || p->lane_tokens > p->max_tokens)
		return moe_error_set(err, -EINVAL, "moe_attach: %u lanes of %u tokens found, at most %d of %u expected",
				     p->lanes, p->lane_tokens, LANES_MAX, MIN(p->max_tokens, LANE_TOKENS_MAX));
	if (p->lanes > 0 && s->info.cache_slots + s->info.miss_slots == 0)
		return moe_error_set(err, -EINVAL,
				     "moe_attach: %u lanes, but no slots and so no device: set cache_expert_num",
				     p->lanes);
	return 0;
}

uint64_t lanes_data_bytes(const struct engine *e)
{
	return e->session->params.lanes * (2 * rows_bytes(e->session) + 3 * pairs_bytes(e->session));
}

static uint64_t maps_bytes(const struct engine *e)
{
	return ALIGN_UP((uint64_t)e->n_rows * e->n_experts * sizeof(int32_t), CACHE_LINE);
}

uint64_t lanes_control_bytes(const struct engine *e)
{
	const uint32_t n = e->session->params.lanes;

	return n ? n * sizeof(struct lane_words) + maps_bytes(e) : 0;
}

uint64_t lanes_landing_bytes(const struct engine *e)
{
	return e->session->params.lanes ? e->session->params.lanes * rows_bytes(e->session) : 0;
}

static uint8_t *cut_record(struct lane *lane, const struct moe_session *s, uint8_t *data)
{
	lane->x = (float *)data;
	lane->y = (float *)(data += rows_bytes(s));
	lane->ids = (int32_t *)(data += rows_bytes(s));
	lane->cpu_ids = (int32_t *)(data += pairs_bytes(s));
	lane->weights = (float *)(data += pairs_bytes(s));
	return data + pairs_bytes(s);
}

static struct device_experts experts_of(const struct lanes *l, uint32_t row, uint32_t tokens, uint32_t topk)
{
	const struct engine *e = l->engine;
	const struct moe_session *s = e->session;
	struct device_experts work = {
		.slots = e->slots.base,
		.slot_bytes = s->info.slot_bytes,
		.layout = session_layout(s, row),
		.slice = session_slice(s, row),
		.hidden = s->info.hidden,
		.activation = s->manifest->activation,
		.tokens = tokens,
		.topk = topk,
		.n_experts = e->n_experts,
		.on_map = l->maps.base + (uint64_t)row * e->n_experts * sizeof(int32_t),
	};

	memcpy(&work.limit, &s->manifest->limit, sizeof work.limit);
	return work;
}

/* Scratch memory of its own, for the largest launch of any layer: a captured launch cannot make any. */
static int prepare_lane(struct lanes *l, struct lane *lane, struct moe_error *err)
{
	const struct engine *e = l->engine;
	uint32_t row;
	int r = e->ops->stream_borrow(e->device, e->ops->stream_handle(e->compute[PLACE_MAIN].stream), true,
				      &lane->stream, err);

	for (row = 0; row < e->n_rows && r == 0; row++) {
		const struct device_experts largest = experts_of(l, row, l->tokens, e->session->info.topk);

		r = e->ops->experts_prepare(lane->stream, &largest, err);
	}
	return r;
}

int lanes_init(struct engine *e, struct moe_error *err)
{
	uint8_t *data, *control;
	struct lanes *l;
	uint32_t i;
	int r = 0;

	/* Behind the steps', in both. */
	data = e->session->data + e->n_step_slots * step_data_bytes(e->session);
	control = e->control + e->control_bytes - ALIGN_UP(lanes_control_bytes(e), (uint64_t)ENGINE_PAGE);
	l = e->lanes = calloc(1, sizeof *l);
	if (!l)
		return moe_error_set(err, -ENOMEM, "moe_attach: no memory for lanes");
	l->engine = e;
	l->n = e->session->params.lanes;
	l->tokens = lane_tokens(e->session);
	l->host_maps = (int32_t *)(control + l->n * sizeof(struct lane_words));
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->more, NULL);
	for (i = 0; i < l->n && r == 0; i++) {
		l->lanes[i].words = (struct lane_words *)control + i;
		data = cut_record(&l->lanes[i], e->session, data);
		r = prepare_lane(l, &l->lanes[i], err);
	}
	if (r == 0)
		r = e->ops->alloc(e->device, maps_bytes(e), &l->maps, err);
	if (r < 0)
		return r;
	r = thread_start(&l->thread, lanes_main, l);
	l->has_thread = r == 0;
	return r < 0 ? moe_error_sys(err, r, "moe_attach: cannot start the lanes' thread") : 0;
}

void lanes_free(struct engine *e)
{
	struct lanes *l = e->lanes;
	uint32_t i;

	if (!l)
		return;
	if (l->has_thread) {
		pthread_mutex_lock(&l->lock);
		l->stopping = true;
		pthread_cond_signal(&l->more);
		pthread_mutex_unlock(&l->lock);
		pthread_join(l->thread, NULL);
	}
	for (i = 0; i < l->n; i++)
		e->ops->stream_return(l->lanes[i].stream);
	if (l->maps.base)
		e->ops->free(e->device, &l->maps);
	pthread_cond_destroy(&l->more);
	pthread_mutex_destroy(&l->lock);
	free(l);
	e->lanes = NULL;
}

/* -- the map ------------------------------------------------------------------------------------------------------ */

bool lanes_are_fixed(const struct engine *e)
{
	return e->lanes && e->lanes->fixed;
}

int lanes_let_fill(const struct engine *e, const char *call, struct moe_error *err)
{
	return lanes_are_fixed(e) ? moe_error_set(err, -EBUSY,
						  "%s: lanes are in use, so nobody leaves a cache slot: "
						  "moe_lanes_release ends that",
						  call)
				  : 0;
}

static int no_lanes(struct moe_error *err)
{
	return moe_error_set(err, -EINVAL, "this session was attached without lanes: set lanes");
}

/* Under engine->lock: the caches say what lies in the slots, and nothing else is on its way. */
static int check_rest(struct engine *e, struct moe_error *err)
{
	uint32_t i;

	step_sweep(e);
	for (i = 0; i < e->n_step_slots; i++)
		if (e->steps[i].state != STEP_FREE)
			return moe_error_set(err, -EBUSY, "moe_lanes_fix: a step is in flight: moe_wait ends it");
	return e->n_promises ? moe_error_set(err, -EBUSY,
					     "moe_lanes_fix: a plan that fills slots has not been submitted: submit or "
					     "free it")
			     : 0;
}

static void take_maps(struct lanes *l)
{
	const struct engine *e = l->engine;
	uint32_t row, i;

	for (row = 0; row < e->n_rows; row++) {
		for (i = 0; i < e->n_experts; i++) {
			int32_t slot = e->rows[row].cache->cache_map[i];

			if (slot >= 0 && e->rows[row].content[slot] != (int32_t)i)
				slot = -1; /* it failed to come, and no plan has named it since */
			l->host_maps[row * e->n_experts + i] = slot < 0 ? -1 : (int32_t)engine_slot(e, row, 0, slot);
		}
	}
}

/* By the main compute stream, which has nothing else to do; the host waits. */
static int send_maps(struct lanes *l)
{
	const struct engine *e = l->engine;
	const uint64_t bytes = (uint64_t)e->n_rows * e->n_experts * sizeof(int32_t);
	const struct device_copy copy = {l->maps.base, l->host_maps, bytes, bytes, 1};
	struct device_stream *compute = e->compute[PLACE_MAIN].stream;
	struct device_event *sent;
	int r = e->ops->event_new(e->device, &sent, NULL);

	if (r < 0)
		return r;
	r = e->ops->copy_to_device(compute, &copy, 1);
	if (r == 0)
		r = e->ops->event_record(sent, compute);
	if (r == 0)
		r = e->ops->event_wait(sent, 0);
	e->ops->event_free(sent);
	return r;
}

/* Under engine->lock. */
static void set_fixed(struct lanes *l, bool fixed)
{
	pthread_mutex_lock(&l->lock);
	l->fixed = fixed;
	l->used |= fixed;
	pthread_cond_signal(&l->more);
	pthread_mutex_unlock(&l->lock);
}

static void unfix(struct lanes *l)
{
	pthread_mutex_lock(&l->engine->lock);
	set_fixed(l, false);
	pthread_mutex_unlock(&l->engine->lock);
}

/* In one go with the look at the caches: whoever plans or fills next leaves all in its place, although the device does
 * not have the maps yet. */
static int take_fixed_maps(struct lanes *l, struct moe_error *err)
{
	struct engine *e = l->engine;
	int r;

	pthread_mutex_lock(&e->lock);
	r = check_rest(e, err);
	if (r == 0) {
		take_maps(l);
		set_fixed(l, true);
	}
	pthread_mutex_unlock(&e->lock);
	return r;
}

int moe_lanes_fix(struct moe_session *session, struct moe_error *err)
{
	struct engine *e = session->engine;
	int r;

	if (!e->lanes)
		return no_lanes(err);
	pthread_mutex_lock(&e->order);
	r = take_fixed_maps(e->lanes, err);
	if (r == 0) {
		r = send_maps(e->lanes);
		if (r < 0) {
			unfix(e->lanes);
			moe_error_sys(err, r, "moe_lanes_fix: the maps cannot be sent to the device");
		}
	}
	pthread_mutex_unlock(&e->order);
	return r;
}

void moe_lanes_release(struct moe_session *session)
{
	if (session->engine->lanes)
		unfix(session->engine->lanes);
}

/* -- steps -------------------------------------------------------------------------------------------------------- */

static int check_addresses(const struct lanes *l, const struct moe_lane_step *step, struct moe_error *err)
{
	const uint64_t rows = (uint64_t)step->tokens * l->engine->session->info.hidden * sizeof(float);
	const uint64_t all = step->x | step->ids | step->weights | step->y;

	if (step->x < step->y + rows && step->y < step->x + rows)
		return moe_error_set(err, -EINVAL, "moe_lane_submit: x and y overlap");
	if (!step->x || !step->ids || !step->weights || !step->y || all % ALIGNMENT)
		return moe_error_set(err, -EINVAL,
				     "moe_lane_submit: x, ids, weights and y must be device memory at multiples of %d",
				     ALIGNMENT);
	return 0;
}

static int check_step(const struct lanes *l, const struct moe_lane_step *step, struct moe_error *err)
{
	const struct moe_session *s = l->engine->session;
	int r = session_row(s, step->layer, err);

	if (r < 0)
		return r;
	if (step->size != sizeof *step)
		return moe_error_set(err, -EINVAL, "moe_lane_submit: size %zu found, %zu expected", step->size,
				     sizeof *step);
	if (step->lane >= l->n || step->tokens == 0 || step->tokens > l->tokens || step->topk == 0 ||
	    step->topk > s->info.topk)
		return moe_error_set(err, -EINVAL,
				     "moe_lane_submit: lane %u, %u tokens of %u found; the session has %u lanes of %u "
				     "tokens of %u",
				     step->lane, step->tokens, step->topk, l->n, l->tokens, s->info.topk);
	if (!lanes_are_fixed(l->engine))
		return moe_error_set(err, -EINVAL, "moe_lane_submit: no map is fixed: call moe_lanes_fix before");
	return check_addresses(l, step, err);
}

/* The record, and then the request: who sees it sees the record. */
static int send_request(const struct lanes *l, struct lane *lane, const struct moe_lane_step *step)
{
	const struct device_ops *ops = l->engine->ops;
	const uint64_t rows = (uint64_t)step->tokens * l->engine->session->info.hidden * sizeof(float);
	const uint64_t pairs = (uint64_t)step->tokens * step->topk * sizeof(float);
	int r = ops->copy_to_host(lane->stream, lane->x, step->x, rows);

	if (r == 0)
		r = ops->copy_to_host(lane->stream, lane->ids, step->ids, pairs);
	if (r == 0)
		r = ops->copy_to_host(lane->stream, lane->weights, step->weights, pairs);
	if (r == 0)
		r = ops->stream_write_word(lane->stream, &lane->words->request,
					   lane_request(step->layer, step->tokens, step->topk));
	return r;
}

static int launch(const struct lanes *l, struct lane *lane, const struct moe_lane_step *step)
{
	const uint32_t row = (uint32_t)l->engine->session->info.layer_index[step->layer];
	struct device_experts work = experts_of(l, row, step->tokens, step->topk);

	work.x = step->x;
	work.y = step->y;
	work.on_ids = step->ids;
	work.on_weights = step->weights;
	return l->engine->ops->experts(lane->stream, &work);
}

static device_ptr landing_of(const struct lanes *l, const struct lane *lane)
{
	const struct engine *e = l->engine;

	return e->landing.base ? e->landing.base + (uint64_t)(lane - l->lanes) * rows_bytes(e->session) : 0;
}

static int give_step(struct lanes *l, struct lane *lane, const struct moe_lane_step *step)
{
	const struct device_ops *ops = l->engine->ops;
	const struct moe_session *s = l->engine->session;
	const bool has_cpu = s->params.share == MOE_SHARE_PART || s->params.tp_rank == 0;
	int r = has_cpu ? send_request(l, lane, step) : 0;

	if (r == 0)
		r = launch(l, lane, step);
	if (r < 0 || !has_cpu)
		return r;
	r = ops->stream_take_word(lane->stream, &lane->words->answer, &lane->words->waiting);
	return r == 0 ? ops->add(lane->stream, step->y, lane->y, (uint64_t)step->tokens * s->info.hidden,
				 landing_of(l, lane))
		      : r;
}

int moe_lane_submit(struct moe_session *session, const struct moe_lane_step *step, struct moe_error *err)
{
	struct engine *e = session->engine;
	struct lane *lane;
	int r;

	if (!e->lanes)
		return no_lanes(err);
	r = check_step(e->lanes, step, err);
	if (r < 0)
		return r;
	lane = &e->lanes->lanes[step->lane];
	r = e->ops->stream_borrow(e->device, step->stream, true, &lane->stream, err);
	if (r < 0)
		return r;
	r = give_step(e->lanes, lane, step);
	if (r < 0 && e->ops->failure(e->device))
		return moe_error_set(err, r, "moe_lane_submit: %s", e->ops->failure(e->device));
	return r < 0 ? moe_error_sys(err, r, "moe_lane_submit: the stream does not take it") : 0;
}

int lanes_lost(struct engine *e)
{
	int r = 0;

	if (atomic_load(&e->session->queue.dead)) {
		pthread_mutex_lock(&e->lock);
		r = e->broken ? e->broken : -EPIPE;
		pthread_mutex_unlock(&e->lock);
	}
	return r;
}

int moe_lane_error(struct moe_session *session, uint32_t lane, struct moe_error *err)
{
	struct engine *e = session->engine;
	int r;

	if (!e->lanes || lane >= e->lanes->n)
		return moe_error_set(err, -EINVAL, "moe_lane_error: no lane %u", lane);
	r = __atomic_exchange_n(&e->lanes->lanes[lane].words->error, 0, __ATOMIC_ACQUIRE);
	if (r == 0)
		r = engine_device_error(e);
	if (r == 0)
		r = lanes_lost(e);
	if (r == -ETIME)
		return moe_error_set(err, r,
				     "lane %u: the daemon has not answered within watchdog_ms (%llu), and was "
				     "given up: detach and attach again",
				     lane, (unsigned long long)(e->watchdog_ns / 1000000));
	if (r == -ESTALE)
		return moe_error_set(err, r,
				     "lane %u: a step was replayed while no map was fixed: moe_lanes_fix comes "
				     "before",
				     lane);
	if (r == -EPIPE)
		return moe_error_set(err, r,
				     "lane %u: moe-expertd is gone: it has ended or closed this session (see "
				     "its log)",
				     lane);
	if (r == -EPROTO)
		return moe_error_set(err, r,
				     "lane %u: two steps were under way at once: a lane is for one stream at a "
				     "time",
				     lane);
	return r < 0 ? moe_error_sys(err, r, "lane %u: a step has failed", lane) : 0;
}
