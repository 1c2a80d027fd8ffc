/* SPDX-License-Identifier: MIT */
/* agree - the phase of the next step, agreed on with the data-parallel ranks of the group (AGREE of moe_ring.h). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "base/util.h"
#include "engine.h"
#include "session.h"

/* "2, 5": data-parallel ranks; with tensor ranks "2 (tensor rank 1)". Cut off where `text` ends. */
static const char *names_of(const struct moe_session *s, uint64_t lost, char *text, size_t size)
{
	size_t n = 0;
	uint32_t i;

	text[0] = '\0';
	for (i = 0; i < MOE_AGREE_MAX && n < size; i++) {
		const uint32_t tp = s->params.tp_size;

		if (!(lost >> i & 1))
			continue;
		n += (size_t)snprintf(text + n, size - n, "%s%u", n > 0 ? ", " : "", i / tp);
		if (tp > 1 && n < size)
			n += (size_t)snprintf(text + n, size - n, " (tensor rank %u)", i % tp);
	}
	return text;
}

/* The daemon answers when the last rank has come, or agree_ms are over. */
static int ask(struct moe_session *s, const struct moe_sqe *sqe, struct queue_op *op)
{
	const uint64_t patience_ns = s->engine->watchdog_ns + (uint64_t)s->params.agree_ms * 1000000;
	int r = queue_submit(&s->queue, sqe, op);

	if (r == 0)
		r = queue_wait(&s->queue, op, patience_ns);
	if (r == -ETIMEDOUT)
		r = -ETIME;
	if (r == -ETIME) /* also of a ring that stays full; the op is the caller's: nobody may find it later */
		engine_give_up(s->engine, r);
	return r < 0 ? r : op->cqe.status;
}

static int refused(const struct moe_session *s, int r, const struct moe_cqe *cqe, struct moe_error *err)
{
	char who[160];

	switch (r) {
	case -EOWNERDEAD:
		return moe_error_set(err, r,
				     "moe_agree: step %" PRIu64 ": of %u data-parallel ranks these have ended, or have "
				     "not come for agree_ms (%u): %s; the others agree without them from the next step "
				     "on",
				     (uint64_t)cqe->lease, s->params.dp_size, s->params.agree_ms,
				     names_of(s, cqe->offset, who, sizeof who));
	case -ESTALE:
		return moe_error_set(err, r,
				     "moe_agree: this rank was late, and step %" PRIu64
				     " was agreed on without it; its "
				     "next call joins the step that the others are at",
				     (uint64_t)cqe->lease);
	case -ETIME:
		return moe_error_set(err, r,
				     "moe_agree: the daemon has not answered within agree_ms and watchdog_ms (%" PRIu64
				     "): the session has given it up; detach and attach again",
				     s->engine->watchdog_ns / 1000000 + s->params.agree_ms);
	default:
		return moe_error_sys(err, r, "moe_agree");
	}
}

/* What moe_phase would, but for the daemon, which knows already. */
static void enter_step(struct engine *e, const struct moe_agreement *a)
{
	if (a->phase == MOE_STEP_NONE)
		return;
	pthread_mutex_lock(&e->lock);
	e->dummy = a->dummy;
	e->decode = a->phase == MOE_STEP_DECODE;
	e->phase = (uint8_t)a->phase;
	e->step = a->step;
	pthread_mutex_unlock(&e->lock);
}

int moe_agree(struct moe_session *session, enum moe_step_phase wish, uint32_t tokens, struct moe_agreement *ret,
	      struct moe_error *err)
{
	const struct moe_sqe sqe = {
		.op = MOE_OP_AGREE,
		.agree = {.phase = wish, .tokens = tokens, .round = session->round},
	};
	struct queue_op op = {0};
	int r;

	if (!session->params.dp_size)
		return moe_error_set(err, -EINVAL, "moe_agree: dp_size 0: this session was attached alone");
	if (wish < MOE_STEP_NONE || wish > MOE_STEP_DECODE || tokens > MOE_TOKENS_MAX ||
	    (wish == MOE_STEP_NONE && tokens))
		return moe_error_set(
			err, -EINVAL,
			"moe_agree: phase %d with %u tokens found: MOE_STEP_NONE with 0, or another with at "
			"most %d expected",
			(int)wish, tokens, MOE_TOKENS_MAX);
	r = ask(session, &sqe, &op);
	session->round = r == 0 || r == -EOWNERDEAD ? op.cqe.lease + 1 : 0;
	if (r < 0)
		return refused(session, r, &op.cqe, err);
	*ret = (struct moe_agreement){
		.phase = (enum moe_step_phase)op.cqe.bytes,
		.dummy = op.cqe.bytes != MOE_PHASE_NONE && op.cqe.bytes != wish,
		.tokens = op.cqe.pairs,
		.step = op.cqe.lease,
	};
	enter_step(session->engine, ret);
	return 0;
}
