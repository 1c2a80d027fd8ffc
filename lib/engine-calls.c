/* SPDX-License-Identifier: MIT */
/* engine-calls - the public calls that work on an attached session, but for submit and wait (step.c). */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "engine.h"
#include "lanes.h"
#include "moe-expert.h"
#include "plan.h"
#include "step.h"

/* A plan that nobody will submit: what it promised about the cache's slots will not come true. */
static void discard_plan(struct moe_plan *plan)
{
	struct engine *e = plan->owner;
	const int row = session_row(e->session, plan->layer, NULL);
	uint32_t i;

	pthread_mutex_lock(&e->lock);
	e->n_promises -= plan->n_cache_copies > 0;
	for (i = 0; i < plan->n_cache_copies; i++)
		if (e->rows[row].content[plan->copies[i].slot] != plan->copies[i].expert)
			engine_forget(e, (uint32_t)row, plan->copies[i].expert, plan->copies[i].slot, -ESTALE);
	pthread_mutex_unlock(&e->lock);
}

static struct plan_params base_params(const struct engine *e, uint32_t layer, uint32_t tokens, uint32_t topk,
				      const int32_t *ids, const float *weights)
{
	const struct moe_attach_params *p = &e->session->params;

	return (struct plan_params){
		.mode = MOE_MODE_DECODE,
		.layer = layer,
		.tokens = tokens,
		.topk = topk,
		.max_tokens = p->max_tokens,
		.ids = ids,
		.weights = weights,
		.cache_topk = p->cache_topk,
		.update_expert_num = p->update_expert_num,
		.miss_slots = e->miss_slots,
		.rule = p->n_copy,
		.costs = &e->ncopy,
	};
}

/* moe_ring.h, the law of the heat. The ids of a lane are whatever its stream has written. */
static void count_heat(const struct moe_session *s, const struct plan_params *p)
{
	struct moe_client_page *page = s->client_region;
	const int32_t row = s->info.layer_index[p->layer];
	uint32_t *cells = s->heat + (size_t)row * s->info.n_experts;
	size_t i, pairs = (size_t)p->tokens * p->topk;

	for (i = 0; i < pairs; i++)
		if (p->ids[i] >= 0 && (uint32_t)p->ids[i] < s->info.n_experts)
			__atomic_store_n(&cells[p->ids[i]], cells[p->ids[i]] + 1, __ATOMIC_RELAXED);
	/* Partner: the daemon's load of it, before it looks at the pairs. */
	if (row == 0)
		__atomic_store_n(&page->heat_steps, page->heat_steps + 1, __ATOMIC_RELEASE);
}

void engine_tell_route(struct engine *e, const struct plan_params *p)
{
	struct tap *tap = &e->session->tap;

	if (!p->frozen && e->session->heat)
		count_heat(e->session, p);
	if (p->frozen || !tap_is_on(tap))
		return;
	tap_write(tap, &(struct tap_route){.layer = p->layer,
					   .tokens = p->tokens,
					   .topk = p->topk,
					   .step = e->step,
					   .phase = e->phase,
					   .mode = (uint8_t)(p->mode - MOE_MODE_DECODE + MOE_STATS_DECODE),
					   .ids = p->ids,
					   .weights = p->weights});
}

int moe_plan(struct moe_session *session, uint32_t layer, enum moe_mode mode, uint32_t tokens, uint32_t topk,
	     const int32_t *ids, const float *weights, struct moe_plan **ret, struct moe_error *err)
{
	struct engine *e = session->engine;
	struct plan_params params = base_params(e, layer, tokens, topk, ids, weights);
	struct moe_plan *plan;
	uint64_t given;
	int row = session_row(session, layer, err), r;

	if (row < 0)
		return row;
	params.mode = mode;
	if (mode == MOE_MODE_AUTO)
		params.mode = tokens == 1 || session->params.dual_batch ? MOE_MODE_DECODE : MOE_MODE_PREFETCH;
	pthread_mutex_lock(&e->lock);
	given = e->rows[row].given;
	params.slot_bytes = session_slice(session, (uint32_t)row)->bytes;
	params.frozen = e->dummy;
	params.n_copy = e->n_copy;
	params.zero_copy = session->params.zero_copy;
	params.read_pairs = DEVICE_READ_PAIRS;
	if (params.zero_copy == MOE_ZERO_COPY_COST)
		params.reuse = &e->rows[row].reuse;
	if (lanes_are_fixed(e) && params.mode == MOE_MODE_DECODE)
		params.update_expert_num = 0;
	/* The last MoE layer has nobody to defer to. */
	params.defer = e->decode && (uint32_t)row + 1 < e->n_rows ? session->params.approximate_defer : 0;
	if (e->broken == -ETIME)
		r = moe_error_set(
			err, -ETIME,
			"experts had not come within watchdog_ms: the session has given the daemon up; detach "
			"and attach again");
	else if (e->broken)
		r = moe_error_sys(err, e->broken,
				  "a fill has failed on this rank, or a plan was not submitted, so the ranks of the "
				  "group no longer cache the same experts: detach and attach all of them");
	else
		r = plan_new(&plan, e->rows[row].cache, e->n_experts, &params, err);
	if (r == 0) {
		e->n_promises += plan->n_cache_copies > 0;
		engine_tell_route(e, &params);
	}
	pthread_mutex_unlock(&e->lock);
	if (r < 0)
		return r;
	plan->owner = e;
	plan->given = given;
	plan->discard = discard_plan;
	*ret = plan;
	return 0;
}

void moe_set_n_copy(struct moe_session *session, uint32_t n_copy)
{
	pthread_mutex_lock(&session->engine->lock);
	session->engine->n_copy = n_copy;
	pthread_mutex_unlock(&session->engine->lock);
}

bool engine_is_dummy(struct engine *e)
{
	bool dummy;

	pthread_mutex_lock(&e->lock);
	dummy = e->dummy;
	pthread_mutex_unlock(&e->lock);
	return dummy;
}

int moe_compute(struct moe_session *session, uint32_t layer, uint32_t tokens, uint32_t topk, const int32_t *ids,
		const float *weights, const float *x, float *y, struct moe_error *err)
{
	struct engine *e = session->engine;
	struct plan_params params = base_params(e, layer, tokens, topk, ids, weights);
	struct moe_plan *plan;
	struct moe_step *step;
	int r = session_row(session, layer, err);

	if (r < 0)
		return r;
	params.frozen = engine_is_dummy(e);
	r = plan_new(&plan, NULL, e->n_experts, &params, err);
	if (r < 0)
		return r;
	pthread_mutex_lock(&e->lock);
	engine_tell_route(e, &params);
	pthread_mutex_unlock(&e->lock);
	plan->owner = e;
	r = step_submit(e, plan, x, NULL, &step, err);
	return r < 0 ? r : moe_wait(step, y, 0, err);
}

/* 1: there already; 0: the slot is empty now, and the expert is nowhere. */
static int clear_slot(struct engine *e, uint32_t row, int32_t expert, int32_t slot, struct moe_error *err)
{
	struct cache *cache = e->rows[row].cache;
	int r;

	pthread_mutex_lock(&e->lock);
	step_sweep(e);
	r = lanes_let_fill(e, "moe_fill", err);
	if (r < 0)
		goto unlock;
	if (cache->cache_map[expert] == slot && e->rows[row].content[slot] == expert)
		r = 1;
	else if (cache->slot_expert[slot] == CACHE_RESERVED)
		r = moe_error_set(err, -EBUSY, "moe_fill: slot %d: a prefetch into it is on its way; moe_wait ends it",
				  slot);
	else if (cache->cache_map[expert] == slot)
		cache_remove(cache, expert);
	else if (cache->cache_map[expert] >= 0)
		r = moe_error_set(err, -EEXIST, "moe_fill: expert %d is in slot %d already", expert,
				  cache->cache_map[expert]);
	else if (cache->slot_expert[slot] >= 0)
		cache_remove(cache, cache->slot_expert[slot]);
	e->rows[row].given += r == 0;
unlock:
	pthread_mutex_unlock(&e->lock);
	return r;
}

/* The plan, whose slot is empty; and the expert is in the cache. */
static int fill_slot(struct engine *e, uint32_t row, struct moe_plan *plan, struct moe_error *err)
{
	const struct moe_copy copy = plan->copies[0];
	const uint32_t layer = plan->layer;
	struct moe_step *step;
	int r = step_submit(e, plan, NULL, NULL, &step, err);

	if (r == 0)
		r = moe_wait(step, NULL, 0, err);
	if (r < 0)
		return r;
	pthread_mutex_lock(&e->lock);
	r = cache_insert(e->rows[row].cache, copy.expert, copy.slot);
	pthread_mutex_unlock(&e->lock);
	return r < 0 ? moe_error_sys(err, r, "moe_fill: layer %u was planned meanwhile", layer) : 0;
}

/* The other ranks of the group have the expert, or have kept what this one no longer has. */
static void break_group(struct engine *e, int code)
{
	pthread_mutex_lock(&e->lock);
	if (e->group && !e->broken)
		e->broken = code;
	pthread_mutex_unlock(&e->lock);
}

int moe_fill(struct moe_session *session, uint32_t layer, uint32_t expert, uint32_t slot, struct moe_error *err)
{
	struct engine *e = session->engine;
	const struct moe_copy copy = {(int32_t)expert, (int32_t)slot};
	struct moe_plan *plan;
	int row = session_row(session, layer, err), r;

	if (row < 0)
		return row;
	if (expert >= e->n_experts || slot >= e->n_slots)
		return moe_error_set(err, -EINVAL,
				     "moe_fill: expert %u into slot %u found; the model has %u experts, the session %u "
				     "slots a layer",
				     expert, slot, e->n_experts, e->n_slots);
	r = plan_new_fill(&plan, layer, e->n_experts, e->n_slots, &copy, 1, err);
	if (r < 0)
		return r;
	plan->owner = e;
	plan->frozen = engine_is_dummy(e);
	r = clear_slot(e, (uint32_t)row, (int32_t)expert, (int32_t)slot, err);
	if (r != 0) {
		moe_plan_free(plan);
		return MIN(r, 0);
	}
	r = fill_slot(e, (uint32_t)row, plan, err);
	if (r < 0)
		break_group(e, r);
	return r;
}

int engine_answered(struct engine *e, int r, const char *call, struct moe_error *err)
{
	if (r != -ETIME)
		return r < 0 ? moe_error_sys(err, r, "%s", call) : 0;
	engine_give_up(e, -ETIME);
	return moe_error_set(err, r,
			     "%s: the daemon has not answered within watchdog_ms (%llu): the session has given it up; "
			     "detach and attach again",
			     call, (unsigned long long)(e->watchdog_ns / 1000000));
}

int moe_nop(struct moe_session *session, struct moe_error *err)
{
	const struct moe_sqe sqe = {.op = MOE_OP_NOP};

	return engine_answered(session->engine, queue_call(&session->queue, &sqe, NULL), "moe_nop", err);
}

int moe_hint(struct moe_session *session, uint32_t layer, uint32_t n, const int32_t *ids, struct moe_error *err)
{
	return moe_hint_weighted(session, layer, n, ids, NULL, err);
}

int moe_hint_weighted(struct moe_session *session, uint32_t layer, uint32_t n, const int32_t *ids, const float *weights,
		      struct moe_error *err)
{
	struct engine *e = session->engine;
	struct moe_sqe sqe = {.op = MOE_OP_HINT, .layer = (uint16_t)layer, .count = n};
	uint32_t i;
	int r = session_row(session, layer, err);

	if (r < 0)
		return r;
	if (n == 0 || n > e->n_experts)
		return moe_error_set(err, -EINVAL, "moe_hint: %u ids found, 1 to %u expected", n, e->n_experts);
	for (i = 0; i < n; i++)
		if (ids[i] < 0 || (uint32_t)ids[i] >= e->n_experts)
			return moe_error_set(err, -EINVAL, "moe_hint: ids[%u]: %d found, 0 to %u expected", i, ids[i],
					     e->n_experts - 1);
	/* Nobody waits for a hint but the next one, which needs the same memory. */
	pthread_mutex_lock(&e->hint_lock);
	r = e->hint_in_flight ? queue_wait(&session->queue, &e->hint, e->watchdog_ns) : 0;
	if (r == -ETIMEDOUT)
		r = -ETIME;
	e->hint_in_flight = r == -ETIME;
	if (r == 0) {
		memcpy(e->hint_ids, ids, n * sizeof *ids);
		sqe.hint.ids = (uint64_t)((uint8_t *)e->hint_ids - session->data);
		/* A daemon that knows of none takes them for all alike. */
		if (weights && session->features & MOE_FEATURE_WEIGHTS) {
			memcpy(e->hint_weights, weights, n * sizeof *weights);
			sqe.hint.weights = (uint64_t)((uint8_t *)e->hint_weights - session->data);
		}
		r = engine_submit(e, &sqe, &e->hint);
		e->hint_in_flight = r == 0;
	}
	pthread_mutex_unlock(&e->hint_lock);
	return engine_answered(e, r, "moe_hint", err);
}

int moe_phase(struct moe_session *session, enum moe_step_phase phase, uint64_t step, bool dummy, struct moe_error *err)
{
	const struct moe_sqe sqe = {
		.op = MOE_OP_PHASE,
		.phase = {.phase = phase, .flags = dummy ? MOE_PHASE_DUMMY : 0, .step = step},
	};
	int r;

	if (phase != MOE_STEP_PREFILL && phase != MOE_STEP_DECODE)
		return moe_error_set(err, -EINVAL, "moe_phase: no such phase: %d", (int)phase);
	r = engine_answered(session->engine, queue_call(&session->queue, &sqe, NULL), "moe_phase", err);
	if (r < 0)
		return r;
	pthread_mutex_lock(&session->engine->lock);
	session->engine->dummy = dummy;
	session->engine->decode = phase == MOE_STEP_DECODE;
	session->engine->phase = (uint8_t)phase;
	session->engine->step = step;
	pthread_mutex_unlock(&session->engine->lock);
	return 0;
}
