/* SPDX-License-Identifier: MIT */
/*
 * ringsrv-tier - requests to a tiered model: between its claim and what it asked for, a request waits until its records
 * are in frames, and pins them until it is completed or dropped.
 *
 * It stays CLAIMED meanwhile, and in flight in the journal: a successor claims it again, and it waits again. Only then
 * does it go the way of all others: to the scheduler, or, a lease, to its completion. A lease takes its number and its
 * place in the journal when its record is there, so that what the journal says is lent is in memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "daemon/ringsrv-internal.h"
#include "daemon/tier.h"

/* Of a long request so many tokens tell a policy what it wants: the reactor does not count for long. */
#define POLICY_TOKENS_MAX 256u

struct tier_wait {
	struct request *request;
	struct sched *sched;
	bool lease; /* a place for it is reserved */
	struct frames_ask ask;
};

int ringsrv_tier_join(struct session *s)
{
	if (!s->entry->tier)
		return 0;
	s->tier_user = frames_join(tier_frames(s->entry->tier), s->uid);
	return s->tier_user ? 0 : -ENOMEM;
}

uint64_t ringsrv_tier_bytes(const struct session *s)
{
	const struct tier_wait *w = NULL;

	return s->entry->tier ? sizeof *w + s->entry->model->manifest->n_experts * sizeof w->ask.experts[0] : 0;
}

void ringsrv_tier_leave(struct session *s)
{
	if (s->tier_user)
		frames_leave(tier_frames(s->entry->tier), s->tier_user);
	s->tier_user = NULL;
}

static struct frames *frames_of_session(const struct session *s)
{
	return tier_frames(s->entry->tier);
}

static uint32_t row_of(const struct session *s, uint32_t layer)
{
	return (uint32_t)s->entry->model->layer_index[layer];
}

static uint32_t record_of(const struct session *s, const struct request *fill)
{
	return row_of(s, fill->sqe.layer) * s->entry->model->manifest->n_experts + fill->sqe.fill.expert;
}

static void forget(struct request *q)
{
	struct tier_wait *w = q->tier;

	if (w->lease)
		frames_unreserve_lease(frames_of_session(q->session), q->session->tier_user);
	free(w);
	q->tier = NULL;
}

void ringsrv_tier_done(struct session *s, struct request *q)
{
	if (!q->tier)
		return;
	frames_cancel(frames_of_session(s), &q->tier->ask);
	forget(q);
}

/* Its record is there: from now on the lease holds it. */
static int lend(struct session *s, struct request *q)
{
	const uint32_t row = row_of(s, q->sqe.layer);
	int r = ringsrv_lend(s, q, (int)row);

	if (r < 0)
		return r;
	frames_lease(frames_of_session(s), s->tier_user, record_of(s, q));
	q->tier->lease = false;
	return 0;
}

static void go_on(struct session *s, struct request *q)
{
	struct sched *sched = q->tier->sched;
	const bool lease = q->tier->lease;

	if (lease)
		q->cqe.status = lend(s, q);
	ringsrv_go_on(s, sched, q, !lease);
}

static void ready(struct frames_ask *ask, int status)
{
	struct tier_wait *w = container_of(ask, struct tier_wait, ask);
	struct request *q = w->request;
	struct sched *sched = w->sched;
	struct session *s = q->session;

	if (status == 0) {
		go_on(s, q);
		return;
	}
	forget(q);
	q->cqe.status = status;
	ringsrv_go_on(s, sched, q, false);
}

/* -- what a request asks for -------------------------------------------------------------------------------------- */

static struct tier_wait *wait_new(struct sched *sched, struct request *q, uint32_t room)
{
	struct tier_wait *w = calloc(1, sizeof *w + room * sizeof w->ask.experts[0]);

	if (!w)
		return NULL;
	w->request = q;
	w->sched = sched;
	w->ask.user = q->session->tier_user;
	w->ask.ready = ready;
	w->ask.class = q->priority;
	return w;
}

/* Of the copy that the pool works on, which no client can reach. NULL: no memory. */
static struct tier_wait *list_computed(struct session *s, struct sched *sched, struct request *q)
{
	const uint32_t n_experts = s->entry->model->manifest->n_experts;
	const uint64_t pairs = (uint64_t)q->compute.tokens * q->compute.topk;
	struct tier_wait *w = wait_new(sched, q, n_experts);
	uint32_t n = 0;

	if (!w)
		return NULL;
	for (uint64_t i = 0; i < pairs; i++)
		if (q->compute.ids[i] >= 0)
			w->ask.experts[q->compute.ids[i]] = 1;
	for (uint32_t e = 0; e < n_experts; e++)
		if (w->ask.experts[e])
			w->ask.experts[n++] = e;
	w->ask.n = n;
	w->ask.tokens = (struct policy_tokens){MIN(q->compute.tokens, POLICY_TOKENS_MAX), q->compute.topk,
					       q->compute.ids, q->compute.weights};
	return w;
}

static struct tier_wait *list_filled(struct sched *sched, struct request *q)
{
	struct tier_wait *w = wait_new(sched, q, 1);

	if (!w)
		return NULL;
	w->lease = q->sqe.flags & MOE_SQE_LEASE;
	w->ask.n = 1;
	w->ask.experts[0] = q->sqe.fill.expert;
	return w;
}

static int ask_for(struct session *s, struct sched *sched, struct request *q)
{
	struct tier_wait *w;

	if (q->sqe.op == MOE_OP_FILL && q->sqe.flags & MOE_SQE_LEASE &&
	    !frames_reserve_lease(frames_of_session(s), s->tier_user))
		return -ENOSPC;
	w = q->sqe.op == MOE_OP_COMPUTE ? list_computed(s, sched, q) : list_filled(sched, q);
	if (!w) {
		if (q->sqe.op == MOE_OP_FILL && q->sqe.flags & MOE_SQE_LEASE)
			frames_unreserve_lease(frames_of_session(s), s->tier_user);
		return -ENOMEM;
	}
	w->ask.row = row_of(s, q->sqe.layer);
	w->ask.wraps = w->ask.row < s->tier_row;
	s->tier_row = w->ask.row;
	q->tier = w;
	return 0;
}

bool ringsrv_tier_claim(struct session *s, struct sched *sched, struct request *q)
{
	struct frames *frames = frames_of_session(s);

	if (q->sqe.op == MOE_OP_HINT)
		frames_hint(frames, s->ahead, row_of(s, q->sqe.layer), ringsrv_hinted(s, q->sqe.layer), s->chances);
	if (q->sqe.op != MOE_OP_COMPUTE && q->sqe.op != MOE_OP_FILL)
		return false;
	if (q->sqe.op == MOE_OP_COMPUTE)
		frames_hint(frames, s->ahead, row_of(s, q->sqe.layer), NULL, NULL);
	q->cqe.status = ask_for(s, sched, q);
	if (q->cqe.status < 0)
		ringsrv_go_on(s, sched, q, false);
	else if (q->tier->ask.n == 0) {
		forget(q);
		ringsrv_go_on(s, sched, q, true);
	} else if (frames_ask(frames, &q->tier->ask)) {
		go_on(s, q);
	}
	return true;
}

/* -- leases ------------------------------------------------------------------------------------------------------- */

/* UINT32_MAX: no record of this model. */
static uint32_t leased_record(const struct session *s, uint32_t key)
{
	const struct moe_manifest *m = s->entry->model->manifest;
	const uint32_t layer = journal_key_layer(key), expert = journal_key_expert(key);

	if (layer >= m->n_layers || s->entry->model->layer_index[layer] < 0 || expert >= m->n_experts)
		return UINT32_MAX;
	return row_of(s, layer) * m->n_experts + expert;
}

void ringsrv_tier_released(struct session *s, uint64_t lease)
{
	frames_unlease(frames_of_session(s), s->tier_user, leased_record(s, journal_lease_key(&s->journal, lease)));
}

void ringsrv_tier_take_back(struct session *s, const struct request *q)
{
	frames_unlease(frames_of_session(s), s->tier_user, record_of(s, q));
}

bool ringsrv_tier_revive(struct session *s)
{
	uint32_t cursor = 0, key;
	bool good = true;

	while (journal_next_lease(&s->journal, &cursor, &key)) {
		const uint32_t record = leased_record(s, key);

		if (record != UINT32_MAX && frames_lease_again(frames_of_session(s), s->tier_user, record))
			continue;
		journal_forget_lease(&s->journal, cursor - 1);
		good = false;
	}
	return good;
}

void ringsrv_tier_cancel(struct session *s, struct request *q)
{
	ringsrv_tier_done(s, q);
	q->cqe.status = -ECANCELED;
	request_move(q, MOE_REQUEST_DONE);
}

void ringsrv_tier_kill(struct session *s)
{
	uint32_t cursor = 0, key;

	for (uint32_t i = 0; i < s->requests_used; i++) {
		struct request *q = &s->requests[i];

		if (!q->tier || atomic_load_explicit(&q->state, memory_order_relaxed) != MOE_REQUEST_CLAIMED)
			continue;
		ringsrv_tier_cancel(s, q);
		ringsrv_drop(q);
	}
	while (!s->unrevived && journal_next_lease(&s->journal, &cursor, &key))
		frames_unlease(frames_of_session(s), s->tier_user, leased_record(s, key));
	for (uint32_t row = 0; row < s->entry->model->manifest->n_moe_layers; row++)
		frames_hint(frames_of_session(s), s->ahead, row, NULL, NULL);
}
