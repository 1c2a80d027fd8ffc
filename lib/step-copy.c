/* SPDX-License-Identifier: MIT */
/*
 * step-copy - how a step's experts get into their slots.
 *
 * Push: the daemon writes into the slot arena, so a FILL may only be posted once nobody reads the slots any more. When
 * that is so already, which is the rule, moe_submit posts them at once; else the copy stream does, behind the events.
 * A large slice is several FILLs, of chunks: each of them is a bounded piece of work for the pool, and what has not
 * begun can be taken back.
 * Pull: each record is leased, the copy stream copies the slice's planes from the mapped pool files, each of which has
 * some of their rows, and gives the leases back.
 */
#include <assert.h>
#include <errno.h>

#include "base/util.h"
#include "step.h"

/* Half the queue: the chunks of one step do not make others wait for places in it. */
static uint32_t chunks_max(const struct moe_session *s)
{
	return s->queue.entries / 2;
}

uint32_t step_fills_max(const struct moe_session *session)
{
	return MAX(session->info.n_experts, chunks_max(session));
}

void step_cut_copies(struct moe_step *step)
{
	const struct moe_session *s = step->engine->session;
	const struct moe_plan *plan = step->plan;
	uint64_t chunks;
	uint32_t i;

	if (plan->n_copies == 0)
		return;
	chunks = DIV_UP(session_slice(s, step->row)->bytes, step->engine->chunk_bytes);
	chunks = MIN(chunks, chunks_max(s) / plan->n_copies);
	if (s->params.fill == MOE_FILL_PULL)
		chunks = 1;
	step->n_chunks = (uint32_t)MAX(chunks, 1);
	for (i = 0; i < plan->n_copies * step->n_chunks; i++)
		step->fills[i] = (struct step_request){0};
}

/* The chunks of a copy are about alike and begin at cache lines. */
static uint64_t chunk_begin(const struct moe_step *step, uint32_t chunk)
{
	const uint64_t bytes = session_slice(step->engine->session, step->row)->bytes;

	return bytes / CACHE_LINE * chunk / step->n_chunks * CACHE_LINE;
}

static void post_fills(struct moe_step *step, uint8_t flags)
{
	struct engine *e = step->engine;
	const struct moe_plan *plan = step->plan;
	uint32_t i;

	for (i = 0; i < plan->n_copies * step->n_chunks; i++) {
		const struct moe_copy *copy = &plan->copies[i / step->n_chunks];
		const uint32_t chunk = i % step->n_chunks;
		const uint32_t slot = engine_slot(e, step->row, plan->layer, copy->slot);
		struct moe_sqe sqe = {
			.op = MOE_OP_FILL,
			.flags = flags,
			.layer = (uint16_t)plan->layer,
			.fill.expert = (uint32_t)copy->expert,
			.fill.dst = flags & MOE_SQE_LEASE ? 0 : slot * e->session->info.slot_bytes,
		};

		if (step->n_chunks > 1) {
			sqe.fill.from = chunk_begin(step, chunk);
			sqe.fill.bytes = chunk_begin(step, chunk + 1) - sqe.fill.from;
		}
		step_post(step, &step->fills[i], &sqe);
	}
}

/* Of one copy, all of whose FILLs have ended: 0 when each has brought what it was asked for. */
static int fill_status(const struct moe_step *step, uint32_t copy)
{
	const struct step_request *fills = &step->fills[copy * step->n_chunks];
	uint64_t bytes = 0;
	uint32_t i;

	for (i = 0; i < step->n_chunks; i++) {
		if (fills[i].status < 0)
			return fills[i].status;
		bytes += fills[i].op.cqe.bytes;
	}
	return bytes == session_slice(step->engine->session, step->row)->bytes ? 0 : -EPROTO;
}

/* -- speculation -------------------------------------------------------------------------------------------------- */

void step_post_speculative(struct moe_step *step)
{
	post_fills(step, MOE_SQE_PREFETCH);
}

void step_settle_speculative(struct moe_step *step)
{
	struct engine_row *row = &step->engine->rows[step->row];
	uint32_t i;

	for (i = 0; i < step->plan->n_copies; i++) {
		const struct moe_copy *copy = &step->plan->copies[i];

		cache_release(row->cache, copy->slot);
		/* -EEXIST: a plan has cached it elsewhere meanwhile. */
		if (fill_status(step, i) < 0 || cache_insert(row->cache, copy->expert, copy->slot) < 0)
			row->content[copy->slot] = -1;
	}
}

/* -- the end of fills --------------------------------------------------------------------------------------------- */

/* The copy has not brought what the maps promise: nobody may count on the slot, whoever does already is failed. */
static void fill_failed(struct moe_step *step, const struct moe_copy *copy, int code)
{
	struct engine *e = step->engine;
	uint32_t i;

	step_fail(step, code);
	if ((uint32_t)copy->slot >= e->n_slots)
		return; /* a miss buffer's place is nobody else's */
	pthread_mutex_lock(&e->lock);
	for (i = 0; i < e->n_step_slots; i++) {
		struct moe_step *other = &e->steps[i];

		if (other->plan && other->seq > step->seq && other->row == step->row &&
		    other->plan->expert_map[copy->expert] == copy->slot)
			step_fail(other, code);
	}
	if (e->rows[step->row].content[copy->slot] == copy->expert) {
		e->rows[step->row].content[copy->slot] = -1;
		engine_forget(e, step->row, copy->expert, copy->slot, code);
	}
	if (e->group && !e->broken)
		e->broken = code;
	pthread_mutex_unlock(&e->lock);
}

static void move_missbuf(struct moe_step *step, enum missbuf_state from, enum missbuf_state to)
{
	struct engine *e = step->engine;
	int r;

	if (step->plan->n_copies == step->plan->n_cache_copies)
		return;
	r = missbuf_move(&e->missbufs[step->plan->layer % MISSBUF_COUNT], from, to);
	assert(r == 0);
	if (r < 0)
		step_fail(step, r);
}

/* Waits for all fills and judges them. */
static void end_fills(struct moe_step *step)
{
	uint32_t i;

	for (i = 0; i < step->plan->n_copies * step->n_chunks; i++)
		step_end(step, &step->fills[i], 0);
	for (i = 0; i < step->plan->n_copies; i++) {
		const int r = fill_status(step, i);

		if (r == 0)
			continue;
		step->fills[i * step->n_chunks].status = r;
		fill_failed(step, &step->plan->copies[i], r);
	}
}

/* -- push, on the copy stream ------------------------------------------------------------------------------------- */

static void push_begin(struct moe_step *step)
{
	move_missbuf(step, MISSBUF_FREE, MISSBUF_FILLING);
	post_fills(step, 0);
}

static int push_end(void *arg)
{
	struct moe_step *step = arg;

	end_fills(step);
	move_missbuf(step, MISSBUF_FILLING, MISSBUF_READY);
	return 0;
}

static int push_all(void *arg)
{
	push_begin(arg);
	return push_end(arg);
}

/* -- pull, on the copy stream ------------------------------------------------------------------------------------- */

static int pull_begin(void *arg)
{
	struct moe_step *step = arg;
	struct moe_session *s = step->engine->session;
	uint32_t i;

	end_fills(step);
	for (i = 0; i < step->plan->n_copies; i++) {
		const struct moe_copy *copy = &step->plan->copies[i];
		const struct moe_record *record =
			&s->records[(uint64_t)step->row * step->engine->n_experts + (uint32_t)copy->expert];
		const struct step_request *fill = &step->fills[i];

		/* What is copied is where the manifest says; the lease must be for the same bytes. */
		if (fill->status == 0 && fill->op.cqe.offset != record->offset)
			fill_failed(step, copy, -EPROTO);
	}
	move_missbuf(step, MISSBUF_FREE, MISSBUF_FILLING);
	return 0;
}

static int pull_end(void *arg)
{
	struct moe_step *step = arg;
	uint32_t i;

	for (i = 0; i < step->plan->n_copies; i++) {
		struct moe_sqe sqe = {.op = MOE_OP_RELEASE};

		if (step->fills[i].status < 0)
			continue;
		sqe.release.lease = step->fills[i].op.cqe.lease;
		step_post(step, &step->releases[i], &sqe);
	}
	move_missbuf(step, MISSBUF_FILLING, MISSBUF_READY);
	return 0;
}

static int pull_planes(struct engine *e, device_ptr to, const uint8_t *from, const struct moe_slice *slice)
{
	int i, r = 0;

	for (i = 0; i < MOE_PARTS * MOE_PLANES && r == 0; i++) {
		const struct moe_slice_plane *p = &slice->plane[i / MOE_PLANES][i % MOE_PLANES];

		if (p->rows == 0)
			continue;
		if (p->pitch == p->width)
			r = e->ops->copy_to_device(e->copy, to + p->slot_offset, from + p->offset, p->rows * p->width);
		else
			r = e->ops->copy_rows_to_device(e->copy, to + p->slot_offset, from + p->offset, p->pitch,
							p->width, p->rows);
	}
	return r;
}

/* From one pool file. */
static int pull_share(struct moe_step *step, uint32_t share)
{
	struct engine *e = step->engine;
	const struct moe_session *s = e->session;
	const struct moe_plan *plan = step->plan;
	struct moe_slice slice;
	uint32_t i;
	int r = 0;

	moe_slice_share(&slice, session_slice(s, step->row), session_layout(s, step->row), share);
	for (i = 0; i < plan->n_copies && r == 0; i++) {
		const struct moe_record *record =
			&s->records[(uint64_t)step->row * e->n_experts + (uint32_t)plan->copies[i].expert];
		const uint32_t slot = engine_slot(e, step->row, plan->layer, plan->copies[i].slot);

		r = pull_planes(e, e->slots.base + slot * s->info.slot_bytes, s->pools[share].map + record->offset,
				&slice);
	}
	return r;
}

static int pull_copies(struct moe_step *step)
{
	uint32_t share;
	int r = 0;

	for (share = 0; share < step->engine->session->n_pools && r == 0; share++)
		r = pull_share(step, share);
	return r;
}

/* -- both --------------------------------------------------------------------------------------------------------- */

static bool is_over(const struct engine *e, struct device_event *event)
{
	return !event || e->ops->event_query(event) == 0;
}

/* What the step's copies must not overtake: events, or NULL. */
static void find_readers(struct moe_step *step, struct device_event **ret_slots, struct device_event **ret_missbuf)
{
	struct engine *e = step->engine;
	const struct moe_plan *plan = step->plan;

	pthread_mutex_lock(&e->lock);
	*ret_slots = plan->n_cache_copies ? e->rows[step->row].read : NULL;
	*ret_missbuf = plan->n_copies > plan->n_cache_copies ? e->missbufs[plan->layer % MISSBUF_COUNT].released : NULL;
	pthread_mutex_unlock(&e->lock);
}

static int start_push(struct moe_step *step, struct device_event *slots, struct device_event *missbuf)
{
	struct engine *e = step->engine;
	int r = 0;

	if (is_over(e, slots) && is_over(e, missbuf)) {
		push_begin(step);
		return e->ops->stream_wait_host(e->copy, push_end, step);
	}
	if (slots)
		r = e->ops->stream_wait_event(e->copy, slots);
	if (missbuf && r == 0)
		r = e->ops->stream_wait_event(e->copy, missbuf);
	if (r == 0)
		r = e->ops->stream_wait_host(e->copy, push_all, step);
	return r;
}

static int start_pull(struct moe_step *step, struct device_event *slots, struct device_event *missbuf)
{
	struct engine *e = step->engine;
	int r = 0;

	post_fills(step, MOE_SQE_LEASE);
	if (slots)
		r = e->ops->stream_wait_event(e->copy, slots);
	if (missbuf && r == 0)
		r = e->ops->stream_wait_event(e->copy, missbuf);
	if (r == 0)
		r = e->ops->stream_wait_host(e->copy, pull_begin, step);
	if (r == 0)
		r = e->ops->event_record(step->copy_begin, e->copy);
	if (r == 0)
		r = pull_copies(step);
	if (r == 0)
		r = e->ops->stream_wait_host(e->copy, pull_end, step);
	return r;
}

void step_start_copies(struct moe_step *step)
{
	struct engine *e = step->engine;
	struct device_event *slots, *missbuf;
	int r;

	find_readers(step, &slots, &missbuf);
	if (e->session->params.fill == MOE_FILL_PULL)
		r = start_pull(step, slots, missbuf);
	else
		r = start_push(step, slots, missbuf);
	if (r < 0)
		step_fail(step, r);
	r = e->ops->event_record(step->copied, e->copy);
	if (r < 0)
		step_fail(step, r);
}

void step_copy_cost(struct moe_step *step, uint64_t *ret_bytes, uint64_t *ret_ns)
{
	struct engine *e = step->engine;
	uint64_t ns = 0;
	uint32_t i;

	if (e->session->params.fill == MOE_FILL_PULL) {
		ns = e->ops->event_time_ns(step->copied) - e->ops->event_time_ns(step->copy_begin);
	} else {
		/* They were posted together: the last one's end is the end of all. */
		for (i = 0; i < step->plan->n_copies * step->n_chunks; i++)
			ns = MAX(ns, step->fills[i].op.cqe.wait_ns + step->fills[i].op.cqe.work_ns);
	}
	*ret_bytes = step->plan->n_copies * session_slice(e->session, step->row)->bytes;
	*ret_ns = ns;
}
