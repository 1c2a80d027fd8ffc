/* SPDX-License-Identifier: MIT */
/*
 * step-feed - a step's copies as the feeder sees them: a machine that is run when an answer or a word may have come.
 *
 * push: GO -> FILLS -> over; pull: LEASES -> PULLED -> over, or -> READ -> over. Every way out writes `ready`. What the
 * copies have not brought is judged before that, so that whoever reads the slots behind the word has been failed
 * already.
 *
 * Where streams wait for the timeline instead, the daemon writes it, and no further than to the first FILL that has
 * failed: whoever is behind it waits while the feeder fails all that count on it. Then a FILL of one byte closes its
 * number, and the streams go on: FILLS -> CLOSE -> over.
 *
 * Where that fails too, or the daemon is given up, the session is over: nobody behind the number would be let go. All
 * steps are failed, and the timeline is written as if all had come, again and again until the copy stream has left it,
 * because the daemon may still write smaller numbers that came late: -> AID -> over.
 */
#include <errno.h>

#include "base/util.h"
#include "step.h"

/* -- judging ------------------------------------------------------------------------------------------------------ */

int step_fill_status(const struct moe_step *step, uint32_t copy)
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

/* The copy has not brought what the maps promise: nobody may count on the slot, whoever does already is failed. */
static void fill_failed(struct moe_step *step, const struct moe_copy *copy, int code)
{
	struct engine *e = step->engine;
	uint32_t i;

	step->lost = true;
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

static void all_failed(struct moe_step *step, int code)
{
	uint32_t i;

	for (i = 0; i < plan_leases(step->plan); i++)
		fill_failed(step, &step->plan->copies[i], code);
}

/* All requests have ended. A lease must be for the bytes that the manifest names: those are the ones copied. */
static void judge(struct moe_step *step)
{
	const struct moe_session *s = step->engine->session;
	uint32_t i;

	for (i = 0; i < plan_leases(step->plan); i++) {
		const struct moe_copy *copy = &step->plan->copies[i];
		struct step_request *fill = &step->fills[i * step->n_chunks];
		int r = step->spoiled < 0 ? step->spoiled : step_fill_status(step, i);

		if (r == 0 && step->stage == STEP_LEASES &&
		    fill->op.cqe.offset !=
			    s->records[(uint64_t)step->row * step->engine->n_experts + (uint32_t)copy->expert].offset)
			r = -EPROTO;
		if (r < 0)
			fill_failed(step, copy, r);
	}
}

/* -- stages ------------------------------------------------------------------------------------------------------- */

static struct missbuf *missbuf_of(const struct moe_step *step)
{
	return &step->engine->missbufs[step->plan->layer % MISSBUF_COUNT];
}

/* An arrow that is not there: an order is missing between the streams. */
static void check_arrow(struct moe_step *step, int r)
{
	if (r < 0)
		step_fail(step, r);
}

static void write_ready(struct moe_step *step)
{
	step->engine->ops->word_write(&step->words->ready, step->turn);
}

bool step_missbuf_fills(const struct moe_step *step)
{
	return step->use && missbuf_state(missbuf_of(step)) == MISSBUF_FILLING;
}

void step_begin_push(struct moe_step *step)
{
	if (step->use)
		check_arrow(step, missbuf_fill(missbuf_of(step), step->use));
	step_post_fills(step, 0);
	step->stage = STEP_FILLS;
}

/* True: all requests of the copies have ended. */
static bool end_fills(struct moe_step *step, struct feeder_need *ret)
{
	struct queue *queue = &step->engine->session->queue;

	for (; step->n_ended < plan_leases(step->plan) * step->n_chunks; step->n_ended++) {
		struct step_request *fill = &step->fills[step->n_ended];

		if (fill->posted && !fill->ended && !queue_poll(queue, &fill->op) && !atomic_load(&queue->dead)) {
			ret->op = &fill->op;
			return false;
		}
		step_end(step, fill, 0);
	}
	return true;
}

/* True: the copy stream has written the word, or never will; then the copies are failed. A step behind another one
 * that still waits has its word seen after that one's, even if both came meanwhile: miss buffers take their arrows in
 * order. */
static bool end_word(struct moe_step *step, const uint32_t *word, struct feeder_need *ret)
{
	int r;

	if (!ret->behind && device_word_reached(word, step->turn))
		return true;
	r = engine_device_error(step->engine);
	if (r < 0) {
		all_failed(step, r);
		return true;
	}
	ret->word = word;
	ret->value = step->turn;
	return false;
}

static void give_leases_back(struct moe_step *step, uint32_t first, uint32_t end)
{
	uint32_t i;

	for (i = first; i < end; i++) {
		struct moe_sqe sqe = {.op = MOE_OP_RELEASE};

		if (step->fills[i].status < 0)
			continue;
		sqe.release.lease = step->fills[i].op.cqe.lease;
		step_post(step, &step->releases[i], &sqe);
	}
}

/* -- the timeline that has stopped -------------------------------------------------------------------------------- */

/* The numbers that have not come are asked for again, behind what has been judged. False: that is no use. */
static bool begin_close(struct moe_step *step)
{
	uint32_t i, n = 0;

	if (step->stage != STEP_FILLS || step->spoiled < 0 || atomic_load(&step->engine->session->queue.dead))
		return false;
	for (i = 0; i < step->plan->n_copies * step->n_chunks; i++) {
		if (!step->fills[i].posted)
			return false;
		if (step->fills[i].status < 0) {
			step_close_number(step, i);
			n++;
		}
	}
	step->stage = STEP_CLOSE;
	step->n_ended = 0;
	return n > 0;
}

static bool all_closed(const struct moe_step *step)
{
	uint32_t i;

	for (i = 0; i < step->plan->n_copies * step->n_chunks; i++)
		if (step->fills[i].status < 0)
			return false;
	return true;
}

static void fail_all_steps(struct engine *e, int code)
{
	uint32_t i;

	pthread_mutex_lock(&e->lock);
	for (i = 0; i < e->n_step_slots; i++)
		if (e->steps[i].plan)
			step_fail(&e->steps[i], code);
	pthread_mutex_unlock(&e->lock);
}

/* Nobody who waits for the timeline reads what has not come: the session is over, every step has failed. */
static void begin_aid(struct moe_step *step)
{
	struct engine *e = step->engine;
	const int code = atomic_load(&step->error);

	engine_give_up(e, code);
	fail_all_steps(e, code);
	step->stage = STEP_AID;
	step->feed.left_ns = e->watchdog_ns;
}

/* True: the copy stream has left the timeline, or will not: then it does not live. */
static bool end_aid(struct moe_step *step, struct feeder_need *ret)
{
	struct engine *e = step->engine;

	if (e->ops->stream_write_at(e->aid, e->timeline, atomic_load(&e->numbered)) < 0)
		return true;
	if (e->ops->event_query(step->copied) != -EBUSY)
		return true;
	ret->word = &step->words->ready;
	ret->value = step->turn;
	return false;
}

/* Some copies have not come, and who counted on them knows. True: the streams go on. */
static bool free_timeline(struct moe_step *step, bool late, struct feeder_need *ret)
{
	bool closes = step->stage == STEP_CLOSE;

	if (!late && !closes) {
		closes = begin_close(step);
		if (closes && !end_fills(step, ret))
			return false;
	}
	if (!late && closes && all_closed(step))
		return true;
	begin_aid(step);
	return end_aid(step, ret);
}

/* -- the machines ------------------------------------------------------------------------------------------------- */

static bool run_push(struct moe_step *step, struct feeder_need *ret)
{
	if (step->stage == STEP_GO) {
		if (step->spoiled < 0) {
			all_failed(step, step->spoiled);
			return true;
		}
		if (!end_word(step, &step->words->go, ret))
			return false;
		if (step_missbuf_fills(step)) { /* an earlier job judges that use of it first */
			ret->word = &step->words->ready;
			ret->value = step->turn;
			return false;
		}
		step_begin_push(step);
	}
	if (!end_fills(step, ret))
		return false;
	judge(step);
	if (step->use)
		check_arrow(step, missbuf_move(missbuf_of(step), MISSBUF_FILLING, MISSBUF_READY));
	return true;
}

static bool run_pull(struct moe_step *step, struct feeder_job *job, struct feeder_need *ret)
{
	const struct moe_plan *plan = step->plan;

	if (step->stage == STEP_LEASES) {
		if (!end_fills(step, ret))
			return false;
		judge(step);
		write_ready(step);
		step->stage = STEP_PULLED;
	}
	if (step->stage == STEP_PULLED) {
		if (!end_word(step, &step->words->pulled, ret))
			return false;
		if (step->use) {
			check_arrow(step, missbuf_fill(missbuf_of(step), step->use));
			check_arrow(step, missbuf_move(missbuf_of(step), MISSBUF_FILLING, MISSBUF_READY));
		}
		give_leases_back(step, 0, plan->n_copies);
		if (plan->n_reads == 0)
			return true;
		/* From here on it is the device that is waited for, and who has given it work before. */
		job->left_ns = UINT64_MAX;
		step->stage = STEP_READ;
	}
	ret->behind = false;
	ret->apart = true;
	if (!end_word(step, &step->words->read, ret))
		return false;
	give_leases_back(step, plan->n_copies, plan_leases(plan));
	return true;
}

static bool run_copies(struct feeder_job *job, bool late, struct feeder_need *ret)
{
	struct moe_step *step = (struct moe_step *)((uint8_t *)job - offsetof(struct moe_step, feed));
	bool over = true;

	if (step->stage == STEP_AID) {
		over = late || end_aid(step, ret);
	} else if (late) {
		engine_give_up(step->engine, -ETIME);
		all_failed(step, -ETIME);
	} else if (step->stage == STEP_CLOSE) {
		over = end_fills(step, ret);
	} else {
		over = step->engine->session->params.fill == MOE_FILL_PULL ? run_pull(step, job, ret)
									   : run_push(step, ret);
	}
	if (over && step->lost && step->engine->signals && step->stage != STEP_AID)
		over = free_timeline(step, late, ret);
	if (over)
		write_ready(step);
	return over;
}

void step_feed(struct moe_step *step)
{
	struct engine *e = step->engine;

	step->n_ended = 0;
	step->lost = false;
	step->feed.run = run_copies;
	step->feed.left_ns = e->watchdog_ns;
	feeder_give(e->feeder, &step->feed);
}
