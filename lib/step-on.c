/* SPDX-License-Identifier: MIT */
/*
 * step-on - a step whose x and y lie in the device's memory, on a stream of the caller's.
 *
 * Law. The step begins after all that was given to that stream before it, and what is given to it later begins after
 * the step: the host waits for neither. The caller's stream gets an event on both sides and what adds the CPU's part;
 * all else runs on the library's own.
 *
 *     theirs    given |                                            | done?  answer?  y += CPU part | finished
 *     compute         | given?  x to the data arena, here   experts | done
 *     feeder                    here?  COMPUTE ...                            answer
 *
 * (`word?` is a wait for it.) The answer comes in every case: a failed or a late CPU part has failed the step before
 * that, and what y holds then is nobody's.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "lanes.h"
#include "moe-expert.h"
#include "step.h"

#define ALIGNMENT 16 /* of x and y, for the kernels */

/* -- the CPU's part, by the feeder -------------------------------------------------------------------------------- */

/* 1: x has come; 0: it has not; or why it never will. */
static int x_is_here(const struct moe_step *step)
{
	const int r = device_word_reached(&step->words->here, step->turn);

	return r ? r : engine_device_error(step->engine);
}

/* True: it has ended, well or not. */
static bool run_cpu(struct moe_step *step, struct feeder_job *job, struct feeder_need *ret)
{
	struct queue *queue = &step->engine->session->queue;

	if (!step->relayed) {
		const int r = x_is_here(step);

		if (r == 0) {
			/* A compute stream writes it, however much it was given before: no copy waits for that. */
			ret->word = &step->words->here;
			ret->value = step->turn;
			ret->behind = false;
			ret->apart = true;
			return false;
		}
		if (r < 0)
			step_fail(step, r);
		if (atomic_load(&step->error) < 0)
			return true;
		/* Only from here on is it the daemon that is waited for. */
		job->left_ns = step->engine->watchdog_ns;
		step_start_cpu(step);
		step->relayed = true;
	}
	if (step->compute.posted && !queue_poll(queue, &step->compute.op) && !atomic_load(&queue->dead)) {
		ret->op = &step->compute.op;
		return false;
	}
	step_end(step, &step->compute, 0);
	return true;
}

static bool run_relay(struct feeder_job *job, bool late, struct feeder_need *ret)
{
	struct moe_step *step = (struct moe_step *)((uint8_t *)job - offsetof(struct moe_step, relay));
	bool over = true;

	if (late) {
		engine_give_up(step->engine, -ETIME);
		step_fail(step, -ETIME);
	} else {
		over = run_cpu(step, job, ret);
	}
	if (over)
		step->engine->ops->word_write(&step->words->answer, step->turn);
	return over;
}

/* -- streams ------------------------------------------------------------------------------------------------------ */

static uint64_t floats_of(const struct moe_step *step)
{
	return (uint64_t)step->plan->tokens * step->engine->session->info.hidden;
}

static struct device_stream *compute_of(const struct moe_step *step)
{
	return step->engine->compute[step->side].stream;
}

static int send_x(struct moe_step *step)
{
	const struct engine *e = step->engine;
	struct device_stream *compute = compute_of(step);
	int r = e->ops->copy_to_host(compute, step->x, step->on.x, floats_of(step) * sizeof(float));

	return r == 0 ? e->ops->stream_write_word(compute, &step->words->here, step->turn) : r;
}

void step_begin_on(struct moe_step *step)
{
	const struct engine *e = step->engine;
	int r = e->ops->event_record(step->given, step->theirs);

	if (r == 0)
		r = e->ops->stream_wait_event(compute_of(step), step->given);
	if (r == 0 && step->has_cpu)
		r = send_x(step);
	if (r < 0)
		step_fail(step, r);
	if (!step->has_cpu)
		return;
	if (r < 0) /* nobody will */
		e->ops->word_write(&step->words->here, step->turn);
	step->relayed = false;
	step->relay.run = run_relay;
	step->relay.left_ns = UINT64_MAX;
	feeder_give(e->feeder, &step->relay);
}

static device_ptr landing_of(const struct moe_step *step)
{
	const struct engine *e = step->engine;

	if (!e->landing.base)
		return 0;
	return e->landing.base + lanes_landing_bytes(e) +
	       (uint64_t)(step - e->steps) * step_rows_bytes(e->session, e->session->params.max_tokens);
}

/* The device's part is in y, or there is none and y is nothing yet. */
static int add_cpu(struct moe_step *step)
{
	const struct engine *e = step->engine;
	const uint64_t n = floats_of(step), bytes = n * sizeof(float);
	int r = step->has_cpu ? e->ops->stream_wait_word(step->theirs, &step->words->answer, step->turn) : 0;

	if (r < 0)
		return r;
	if (step->has_device)
		return step->has_cpu ? e->ops->add(step->theirs, step->on.y, step->y, n, landing_of(step)) : 0;
	if (!step->has_cpu)
		memset(step->y, 0, bytes);
	return e->ops->copy_to_device(step->theirs, &(struct device_copy){step->on.y, step->y, bytes, bytes, 1}, 1);
}

void step_end_on(struct moe_step *step)
{
	const struct engine *e = step->engine;
	int r = step->has_device ? 0 : e->ops->event_record(step->done, compute_of(step)), recorded;

	if (r == 0)
		r = e->ops->stream_wait_event(step->theirs, step->done);
	if (r == 0)
		r = add_cpu(step);
	recorded = e->ops->event_record(step->finished, step->theirs);
	if (r == 0)
		r = recorded;
	if (r < 0)
		step_fail(step, r);
}

/* -- end ---------------------------------------------------------------------------------------------------------- */

int step_await_on(struct moe_step *step, uint64_t deadline)
{
	const int r = step->has_cpu ? feeder_wait(&step->relay, step_time_left(deadline)) : 0;

	return r == 0 ? step_await_event(step, step->finished, deadline) : r;
}

bool step_on_is_over(struct moe_step *step)
{
	return (!step->has_cpu || feeder_is_over(&step->relay)) &&
	       step->engine->ops->event_query(step->finished) != -EBUSY;
}

/* -- the call ----------------------------------------------------------------------------------------------------- */

static int check_on(const struct engine *e, const struct moe_plan *plan, const struct step_on *on,
		    struct moe_error *err)
{
	const uint64_t bytes = (uint64_t)plan->tokens * e->session->info.hidden * sizeof(float);

	if (plan->owner != e)
		return moe_error_set(err, -EINVAL, "moe_submit_on: the plan was made by another session");
	if (plan->later)
		return moe_error_set(err, -EINVAL,
				     "moe_submit_on: the plan defers pairs: attach without "
				     "approximate_defer");
	if (!e->has_slots)
		return moe_error_set(err, -ENOTSUP,
				     "moe_submit_on: a session without slots has no device: set "
				     "cache_expert_num");
	if (!on->x || !on->y || on->x % ALIGNMENT || on->y % ALIGNMENT)
		return moe_error_set(err, -EINVAL,
				     "moe_submit_on: x is at %#llx and y at %#llx; expected device memory at multiples "
				     "of %d",
				     (unsigned long long)on->x, (unsigned long long)on->y, ALIGNMENT);
	if (on->x < on->y + bytes && on->y < on->x + bytes)
		return moe_error_set(err, -EINVAL, "moe_submit_on: x and y overlap");
	return 0;
}

int moe_submit_on(struct moe_session *session, struct moe_plan *plan, uintptr_t stream, uint64_t x, uint64_t y,
		  struct moe_step **ret, struct moe_error *err)
{
	const struct step_on on = {stream, x, y};
	const int r = check_on(session->engine, plan, &on, err);

	if (r < 0) {
		moe_plan_free(plan);
		return r;
	}
	return step_submit(session->engine, plan, NULL, &on, ret, err);
}
