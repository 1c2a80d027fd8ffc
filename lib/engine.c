/* SPDX-License-Identifier: MIT */
#include "engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/util.h"
#include "feeder.h"
#include "ghosts.h"
#include "guesses.h"
#include "lanes.h"
#include "plan.h"
#include "step.h"

void engine_forget(struct engine *e, uint32_t row, int32_t expert, int32_t slot, int code)
{
	struct cache *cache = e->rows[row].cache;

	if (cache->cache_map[expert] != slot)
		return;
	cache_remove(cache, expert);
	if (e->group && !e->broken)
		e->broken = code;
}

void engine_give_up(struct engine *e, int code)
{
	pthread_mutex_lock(&e->lock);
	if (!e->broken)
		e->broken = code;
	pthread_mutex_unlock(&e->lock);
	queue_give_up(&e->session->queue);
}

int engine_submit(struct engine *e, const struct moe_sqe *sqe, struct queue_op *op)
{
	const int r = queue_submit(&e->session->queue, sqe, op);

	if (r == -ETIME)
		engine_give_up(e, r);
	return r;
}

const char *engine_describe(const struct engine *e)
{
	if (!e->has_slots)
		return "";
	if (e->pages.described[0])
		return atomic_load(&e->pages.refused) ? e->pages.lost : e->pages.described;
	return e->ops->describe ? e->ops->describe(e->device) : e->ops->name;
}

int engine_device_error(const struct engine *e)
{
	int i, r = e->ops->stream_error(e->copy);

	for (i = 0; i < ENGINE_COMPUTES && r == 0; i++)
		r = e->ops->stream_error(e->compute[i].stream);
	return r;
}

static int check_params(const struct moe_session *s, struct moe_error *err)
{
	const struct moe_attach_params *p = &s->params;
	const struct device_ops *ops;
	const char *which;
	int r;

	if ((unsigned)p->fill > MOE_FILL_PULL || (unsigned)p->share > MOE_SHARE_GROUP ||
	    (unsigned)p->n_copy > MOE_N_COPY_STAIRS)
		return moe_error_set(err, -EINVAL, "moe_attach: no such fill (%d), share (%d) or n_copy (%d)",
				     (int)p->fill, (int)p->share, (int)p->n_copy);
	if (p->share == MOE_SHARE_GROUP && p->tp_size > 1 && p->n_copy == MOE_N_COPY_COST)
		return moe_error_set(
			err, -EINVAL,
			"moe_attach: share is MOE_SHARE_GROUP and n_copy MOE_N_COPY_COST, but the ranks must "
			"plan alike and measure differently: set n_copy to MOE_N_COPY_STAIRS, and use "
			"moe_set_n_copy on every rank for another number");
	if ((unsigned)p->zero_copy > MOE_ZERO_COPY_ALWAYS)
		return moe_error_set(err, -EINVAL, "moe_attach: no such zero_copy: %d", (int)p->zero_copy);
	if (p->zero_copy != MOE_ZERO_COPY_OFF && p->fill != MOE_FILL_PULL)
		return moe_error_set(err, -EINVAL,
				     "moe_attach: zero_copy reads the pool, which a session with MOE_FILL_PUSH does "
				     "not map: set fill to MOE_FILL_PULL");
	if ((unsigned)p->answers > MOE_ANSWERS_COPY || (unsigned)p->pages > MOE_PAGES_PREFETCH)
		return moe_error_set(err, -EINVAL, "moe_attach: no such answers (%d) or pages (%d)", (int)p->answers,
				     (int)p->pages);
	if (p->zero_copy == MOE_ZERO_COPY_COST && p->share == MOE_SHARE_GROUP && p->tp_size > 1)
		return moe_error_set(err, -EINVAL,
				     "moe_attach: share is MOE_SHARE_GROUP and zero_copy MOE_ZERO_COPY_COST, but the "
				     "ranks must plan alike and measure differently: set zero_copy to "
				     "MOE_ZERO_COPY_ALWAYS or MOE_ZERO_COPY_OFF");
	if (p->predict > 0 && p->dual_batch)
		return moe_error_set(err, -EINVAL,
				     "moe_attach: predict is %u and dual_batch is set, but of two micro-batches that "
				     "take turns each guess would be of the other one: set predict to 0",
				     p->predict);
	if (p->approximate_defer > 0 && p->approximate_defer >= s->info.topk)
		return moe_error_set(err, -EINVAL,
				     "moe_attach: approximate_defer %u found, at most %u expected: a token's strongest "
				     "expert of %u never waits",
				     p->approximate_defer, s->info.topk - 1, s->info.topk);
	if (!policy_find(p->policy))
		return moe_error_set(err, -EINVAL, "moe_attach: policy '%s' found, one of %s expected", p->policy,
				     policy_names());
	r = lanes_check(s, err);
	return r < 0 ? r : device_find(p->device, &ops, &which, err);
}

static int make_rows(struct engine *e, struct moe_error *err)
{
	const struct policy_ops *policy = policy_find(e->session->params.policy);
	uint32_t i;
	int r = 0;

	e->rows = calloc(MAX(e->n_rows, 1), sizeof *e->rows);
	if (!e->rows)
		return moe_error_set(err, -ENOMEM, "moe_attach: no memory for %u layers", e->n_rows);
	for (i = 0; i < e->n_rows && e->has_slots && r == 0; i++) {
		if (e->session->params.zero_copy == MOE_ZERO_COPY_COST)
			r = reuse_init(&e->rows[i].reuse, e->n_experts, err);
		if (r == 0)
			r = cache_new(&e->rows[i].cache, e->n_experts, e->n_slots, policy, err);
		if (r == 0) {
			e->rows[i].content = malloc(MAX(e->n_slots, 1) * sizeof(int32_t));
			if (!e->rows[i].content)
				r = moe_error_set(err, -ENOMEM, "moe_attach: no memory for %u slots", e->n_slots);
			else
				memset(e->rows[i].content, -1, e->n_slots * sizeof(int32_t));
		}
	}
	return r;
}

static int make_data(struct engine *e, struct moe_error *err)
{
	struct moe_session *s = e->session;
	const uint64_t steps = e->n_step_slots * step_data_bytes(s);
	const uint64_t hint = ALIGN_UP((uint64_t)e->n_experts * sizeof(int32_t), CACHE_LINE);
	int r = session_new_data(s, steps + lanes_data_bytes(e) + 2 * hint + guesses_data_bytes(e), err);

	if (r == 0) {
		e->hint_ids = (int32_t *)(s->data + steps + lanes_data_bytes(e));
		e->hint_weights = (float *)((uint8_t *)e->hint_ids + hint);
		r = guesses_new(&e->guesses, e, (uint8_t *)e->hint_weights + hint, err);
	}
	return r;
}

static void tell_slots(struct engine *e)
{
	const struct moe_session *s = e->session;
	uint32_t layer;

	for (layer = 0; layer < s->info.n_layers; layer++)
		if (s->info.layer_index[layer] >= 0)
			__atomic_store_n(&s->stats[layer].slots, e->n_slots, __ATOMIC_RELAXED);
}

/* For the fills of a decode step of each micro-batch. A cache that holds all experts is filled once. */
static uint32_t spare_slots(const struct moe_session *s)
{
	if (s->info.cache_slots == s->info.n_experts)
		return 0;
	return MISSBUF_COUNT * MIN(s->params.update_expert_num, s->info.cache_slots);
}

int engine_new(struct engine **ret, struct moe_session *session, struct moe_error *err)
{
	struct engine *e;
	int r = check_params(session, err);

	if (r < 0)
		return r;
	e = calloc(1, sizeof *e);
	if (!e)
		return moe_error_set(err, -ENOMEM, "moe_attach: no memory");
	*e = (struct engine){
		.session = session,
		.n_rows = session->info.n_moe_layers,
		.n_experts = session->info.n_experts,
		.n_slots = session->info.cache_slots,
		.chunk_bytes = ENGINE_CHUNK_BYTES,
		.miss_slots = session->info.miss_slots,
		.spare_slots = spare_slots(session),
		.has_slots = session->info.cache_slots + session->info.miss_slots > 0,
		.group = session->params.share == MOE_SHARE_GROUP && session->params.tp_size > 1,
		.slots.export_fd = -1,
		.compute = {{.work.export_fd = -1, .tokens = session->params.max_tokens},
			    {.work.export_fd = -1, .tokens = MIN(session->params.max_tokens, ENGINE_ASIDE_TOKENS)}},
		.watchdog_ns = (session->params.watchdog_ms ? session->params.watchdog_ms : ENGINE_WATCHDOG_MS) *
			       (uint64_t)1000000,
		.n_copy = UINT32_MAX,
		.n_step_slots = session->params.max_steps * (session->params.approximate_defer ? 3 : 1),
	};
	session->queue.patience_ns = e->watchdog_ns;
	pthread_mutex_init(&e->order, NULL);
	pthread_mutex_init(&e->lock, NULL);
	pthread_mutex_init(&e->hint_lock, NULL);
	ncopy_init(&e->ncopy, session->info.slot_bytes, session->info.slot_bytes, session->info.cpu_threads);
	r = make_rows(e, err);
	if (r == 0)
		r = make_data(e, err);
	if (r == 0)
		r = ghosts_new(&e->ghosts, e, err);
	if (r == 0 && e->has_slots)
		r = engine_open_device(e, err);
	if (r == 0)
		r = step_table_init(e, err);
	if (r == 0 && e->has_slots)
		r = feeder_new(&e->feeder, &session->queue, e->ops, err);
	if (r == 0 && session->params.lanes > 0)
		r = lanes_init(e, err);
	if (r < 0) {
		engine_free(e);
		return r;
	}
	tell_slots(e);
	*ret = e;
	return 0;
}

struct engine *engine_free(struct engine *engine)
{
	uint32_t i;

	if (!engine)
		return NULL;
	if (engine->hint_in_flight &&
	    queue_wait(&engine->session->queue, &engine->hint, engine->watchdog_ns) == -ETIMEDOUT)
		engine_give_up(engine, -ETIME);
	ghosts_free(engine->ghosts);
	guesses_free(engine->guesses);
	step_table_fini(engine);
	feeder_free(engine->feeder);
	engine_close_device(engine);
	for (i = 0; engine->rows && i < engine->n_rows; i++) {
		cache_free(engine->rows[i].cache);
		reuse_fini(&engine->rows[i].reuse);
		free(engine->rows[i].content);
	}
	free(engine->rows);
	pthread_mutex_destroy(&engine->hint_lock);
	pthread_mutex_destroy(&engine->lock);
	pthread_mutex_destroy(&engine->order);
	free(engine);
	return NULL;
}
