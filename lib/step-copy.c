/* SPDX-License-Identifier: MIT */
/*
 * step-copy - how a step's experts get into their slots.
 *
 * Push: the daemon writes into the slot arena, so a FILL may only be posted once nobody reads the places any more. When
 * that is so already, which is the rule, moe_submit posts them at once; else the feeder does, once the copy stream,
 * behind the events, has written `go`. Either way the copy stream goes on once all have come: the feeder says so, or,
 * in a GPU that the daemon pushes into, the timeline does, which the daemon's stream there writes (moe_ring.h).
 * A large slice is several FILLs, of chunks: each of them is a bounded piece of work for the pool, and what has not
 * begun can be taken back.
 * Pull: each record is leased; once the feeder says that all are, the copy stream copies the slices' planes from the
 * mapped pool files, each of which has some of their rows, and writes `pulled`: the feeder gives the leases back.
 * What the plan reads in the pool is leased with the copies and not copied; those leases end behind `read`.
 *
 * Whatever fails here, the copy stream's wait is ended: by the feeder, which this file gives the step in every case.
 */

#include "base/util.h"
#include "step.h"

#define PULL_BATCH 48 /* copies in one call: four experts of twelve planes */

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

	if (plan_leases(plan) == 0)
		return;
	chunks = DIV_UP(session_slice(s, step->row)->bytes, step->engine->chunk_bytes);
	chunks = MIN(chunks, chunks_max(s) / plan_leases(plan));
	if (s->params.fill == MOE_FILL_PULL)
		chunks = 1;
	step->n_chunks = (uint32_t)MAX(chunks, 1);
	for (i = 0; i < plan_leases(plan) * step->n_chunks; i++)
		step->fills[i] = (struct step_request){0};
}

/* -- places ------------------------------------------------------------------------------------------------------- */

void step_take_places(struct moe_step *step)
{
	struct engine *e = step->engine;
	struct engine_row *row = &e->rows[step->row];
	const struct moe_plan *plan = step->plan;
	const struct place_use copies = {step->copied, step->seq};
	uint32_t i;

	step->users = (struct place_users){0};
	for (i = 0; i < plan->n_cache_copies; i++) {
		const struct moe_copy *copy = &plan->copies[i];

		row->content[copy->slot] = copy->expert;
		if (!plan->speculative)
			places_fill(&e->places, step->row, (uint32_t)copy->slot, &row->read, &copies, &step->users);
	}
	for (i = 0; i < plan->n_copies; i++)
		step->places[i] = engine_slot(e, step->row, plan->layer, plan->copies[i].slot);
}

void step_forget_places(struct moe_step *step)
{
	struct places *places = &step->engine->places;
	uint32_t i;

	for (i = 0; i < step->plan->n_cache_copies; i++) {
		struct place_slot *at = places_slot(places, step->row, (uint32_t)step->plan->copies[i].slot);

		if (at->filled.event == step->copied)
			at->filled = (struct place_use){0};
	}
	places_forget(places, step->copied);
}

/* -- FILLs -------------------------------------------------------------------------------------------------------- */

/* The chunks of a copy are about alike and begin at cache lines. */
static uint64_t chunk_begin(const struct moe_step *step, uint32_t chunk)
{
	const uint64_t bytes = session_slice(step->engine->session, step->row)->bytes;

	return bytes / CACHE_LINE * chunk / step->n_chunks * CACHE_LINE;
}

static struct moe_sqe fill_entry(const struct moe_step *step, uint32_t fill, uint8_t flags)
{
	const struct engine *e = step->engine;
	const uint32_t copy = fill / step->n_chunks, chunk = fill % step->n_chunks;
	struct moe_sqe sqe = {
		.op = MOE_OP_FILL,
		.flags = flags,
		.layer = (uint16_t)step->plan->layer,
		.fill.expert = (uint32_t)step->plan->copies[copy].expert,
		.fill.dst = flags & MOE_SQE_LEASE ? 0 : step->places[copy] * e->session->info.slot_bytes,
	};

	if (step->n_chunks > 1) {
		sqe.fill.from = chunk_begin(step, chunk);
		sqe.fill.bytes = chunk_begin(step, chunk + 1) - sqe.fill.from;
	}
	if (e->signals && flags == 0) {
		sqe.flags = MOE_SQE_SIGNAL;
		sqe.fill.signal = step->number + fill;
	}
	return sqe;
}

void step_post_fills(struct moe_step *step, uint8_t flags)
{
	uint32_t i;

	for (i = 0; i < plan_leases(step->plan) * step->n_chunks; i++) {
		const struct moe_sqe sqe = fill_entry(step, i, flags);

		step_post(step, &step->fills[i], &sqe);
	}
}

void step_close_number(struct moe_step *step, uint32_t fill)
{
	struct moe_sqe sqe = fill_entry(step, fill, 0);

	sqe.fill.bytes = 1;
	step_post(step, &step->fills[fill], &sqe);
}

/* -- speculation -------------------------------------------------------------------------------------------------- */

void step_post_speculative(struct moe_step *step)
{
	step_post_fills(step, MOE_SQE_PREFETCH);
}

void step_settle_speculative(struct moe_step *step)
{
	struct engine_row *row = &step->engine->rows[step->row];
	uint32_t i;

	for (i = 0; i < step->plan->n_copies; i++) {
		const struct moe_copy *copy = &step->plan->copies[i];

		cache_release(row->cache, copy->slot);
		/* -EEXIST: a plan has cached it elsewhere meanwhile. */
		if (step_fill_status(step, i) < 0 || cache_insert(row->cache, copy->expert, copy->slot) < 0)
			row->content[copy->slot] = -1;
	}
}

/* -- pull --------------------------------------------------------------------------------------------------------- */

/* Copies on their way to the device in one call. */
struct pull_batch {
	struct engine *engine;
	struct device_copy copies[PULL_BATCH];
	uint32_t n;
};

static int pull_flush(struct pull_batch *b)
{
	const uint32_t n = b->n;

	b->n = 0;
	return n ? b->engine->ops->copy_to_device(b->engine->copy, b->copies, n) : 0;
}

static int pull_planes(struct pull_batch *b, device_ptr to, const uint8_t *from, const struct moe_slice *slice)
{
	int i, r = 0;

	for (i = 0; i < MOE_PARTS * MOE_PLANES && r == 0; i++) {
		const struct moe_slice_plane *p = &slice->plane[i / MOE_PLANES][i % MOE_PLANES];

		if (p->rows == 0)
			continue;
		b->copies[b->n++] = (struct device_copy){.to = to + p->slot_offset,
							 .from = from + p->offset,
							 .pitch = p->pitch,
							 .width = p->width,
							 .rows = p->rows};
		if (b->n == PULL_BATCH)
			r = pull_flush(b);
	}
	return r;
}

/* From one pool file. */
static int pull_share(struct pull_batch *b, struct moe_step *step, uint32_t share)
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

		r = pull_planes(b, e->slots.base + step->places[i] * s->info.slot_bytes,
				s->pools[share].map + record->offset, &slice);
	}
	return r;
}

static int pull_copies(struct moe_step *step)
{
	struct pull_batch batch = {.engine = step->engine};
	uint32_t share;
	int r = 0;

	for (share = 0; share < step->engine->session->n_pools && r == 0; share++)
		r = pull_share(&batch, step, share);
	return r == 0 ? pull_flush(&batch) : r;
}

/* -- both --------------------------------------------------------------------------------------------------------- */

/* What the step's copies must not overtake: who uses the places of the cache that they go to, and an event or NULL of
 * the miss buffer. */
static struct device_event *find_missbuf(struct moe_step *step)
{
	struct engine *e = step->engine;
	const struct moe_plan *plan = step->plan;
	struct device_event *released = NULL;

	pthread_mutex_lock(&e->lock);
	if (plan->n_copies > plan->n_cache_copies)
		released = e->missbufs[plan->layer % MISSBUF_COUNT].released;
	pthread_mutex_unlock(&e->lock);
	return released;
}

static bool is_over(const struct engine *e, struct device_event *event)
{
	return !event || e->ops->event_query(event) == 0;
}

static bool users_are_over(const struct moe_step *step, struct device_event *missbuf)
{
	bool over = is_over(step->engine, missbuf);
	int i;

	for (i = 0; i < PLACE_STREAMS && over; i++)
		over = is_over(step->engine, step->users.last[i].event);
	return over;
}

static int wait_users(const struct moe_step *step, struct device_event *missbuf)
{
	const struct engine *e = step->engine;
	int i, r = 0;

	for (i = 0; i < PLACE_COPY && r == 0; i++)
		if (step->users.last[i].event)
			r = e->ops->stream_wait_event(e->copy, step->users.last[i].event);
	if (missbuf && r == 0)
		r = e->ops->stream_wait_event(e->copy, missbuf);
	return r;
}

static int start_push(struct moe_step *step, struct device_event *missbuf)
{
	struct engine *e = step->engine;
	const uint32_t before = atomic_load(&e->numbered), last = before + step->plan->n_copies * step->n_chunks;
	int r = 0;

	atomic_store(&e->numbered, last);
	step->number = before + 1;
	if (users_are_over(step, missbuf) && !step_missbuf_fills(step)) {
		step_begin_push(step);
	} else {
		step->stage = STEP_GO;
		r = wait_users(step, missbuf);
		if (r == 0)
			r = e->ops->stream_write_word(e->copy, &step->words->go, step->turn);
	}
	if (r < 0)
		return r;
	return e->signals ? e->ops->stream_wait_at(e->copy, e->timeline, last)
			  : e->ops->stream_wait_word(e->copy, &step->words->ready, step->turn);
}

static int start_pull(struct moe_step *step, struct device_event *missbuf)
{
	struct engine *e = step->engine;
	int r;

	step->stage = STEP_LEASES;
	step_post_fills(step, MOE_SQE_LEASE);
	r = wait_users(step, missbuf);
	if (r == 0)
		r = e->ops->stream_wait_word(e->copy, &step->words->ready, step->turn);
	if (r == 0)
		r = e->ops->event_record(step->copy_begin, e->copy);
	if (r == 0)
		r = pull_copies(step);
	if (r == 0)
		r = e->ops->stream_write_word(e->copy, &step->words->pulled, step->turn);
	if (r < 0) /* nobody will: what is read in vain is immutable */
		e->ops->word_write(&step->words->pulled, step->turn);
	return r;
}

void step_start_copies(struct moe_step *step)
{
	struct engine *e = step->engine;
	struct device_event *missbuf = find_missbuf(step);
	int r;

	step->spoiled = e->session->params.fill == MOE_FILL_PULL ? start_pull(step, missbuf)
								 : start_push(step, missbuf);
	r = e->ops->event_record(step->copied, e->copy);
	if (step->spoiled == 0)
		step->spoiled = r;
	if (step->spoiled < 0)
		step_fail(step, step->spoiled);
	step_feed(step);
}

void step_copy_cost(struct moe_step *step, uint64_t *ret_bytes, uint64_t *ret_ns)
{
	struct engine *e = step->engine;
	uint64_t ns = 0;
	uint32_t i;

	if (e->session->params.fill == MOE_FILL_PULL)
		ns = e->ops->event_elapsed_ns(step->copy_begin, step->copied);
	for (i = 0; e->session->params.fill == MOE_FILL_PUSH && i < step->plan->n_copies * step->n_chunks; i++) {
		const struct moe_cqe *cqe = &step->fills[i].op.cqe;

		/* A GPU's copies run one after the other, and the daemon has the time of each from events (push.h).
		 * Those of the pool were posted together: the last one's end is the end of all. */
		ns = e->ops->exports ? MAX(ns, cqe->wait_ns + cqe->work_ns) : ns + cqe->work_ns;
	}
	*ret_bytes = step->plan->n_copies * session_slice(e->session, step->row)->bytes;
	*ret_ns = ns;
}
