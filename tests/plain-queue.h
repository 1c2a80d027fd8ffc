/* SPDX-License-Identifier: MIT */
/*
 * plain-queue - the rules of sieve, s3-fifo and arc as they are written, on plain arrays, oldest first. An expert is in
 * one queue at most; who is held keeps his place in sieve's and s3-fifo's, and leaves arc's to join at the young end.
 *
 * coldest() is the one that moves things: the hand, the marks, and who goes from small to main.
 */
#ifndef TESTS_PLAIN_QUEUE_H
#define TESTS_PLAIN_QUEUE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/util.h"

#define PLAIN_QUEUE_MAX 300

struct plain_queue {
	uint32_t n;
	int32_t at[PLAIN_QUEUE_MAX];
};

static uint32_t plain_find(const struct plain_queue *q, int32_t expert)
{
	uint32_t i = 0;

	while (i < q->n && q->at[i] != expert)
		i++;
	return i;
}

static bool plain_has(const struct plain_queue *q, int32_t expert)
{
	return plain_find(q, expert) < q->n;
}

static void plain_push(struct plain_queue *q, int32_t expert)
{
	q->at[q->n++] = expert;
}

static void plain_take(struct plain_queue *q, int32_t expert)
{
	const uint32_t i = plain_find(q, expert);

	if (i == q->n)
		return;
	q->n--;
	memmove(q->at + i, q->at + i + 1, (q->n - i) * sizeof *q->at);
}

/* young, old: all of sieve's; small and main; what was requested once, and again. */
struct plain_queues {
	enum { PLAIN_NONE, PLAIN_SIEVE, PLAIN_S3_FIFO, PLAIN_ARC } rule;
	uint32_t slots;
	struct plain_queue young, old, ghost_young, ghost_old;
	bool member[PLAIN_QUEUE_MAX], held[PLAIN_QUEUE_MAX];
	bool is_old[PLAIN_QUEUE_MAX], was_ghost[PLAIN_QUEUE_MAX]; /* of arc */
	uint32_t count[PLAIN_QUEUE_MAX];                          /* sieve's mark, s3-fifo's number */
	int32_t hand;                                             /* of sieve: who is looked at next, -1: the oldest */
	double target;                                            /* of arc */
};

/* -- sieve -------------------------------------------------------------------------------------------------------- */

static int32_t plain_sieve(struct plain_queues *q)
{
	uint32_t i = plain_find(&q->young, q->hand), others = 0;

	for (uint32_t j = 0; j < q->young.n; j++)
		others += !q->held[q->young.at[j]];
	for (; others > 0; i++) {
		int32_t e;

		i = i >= q->young.n ? 0 : i;
		e = q->young.at[i];
		if (q->held[e])
			continue;
		if (q->count[e] == 0)
			return q->hand = e;
		q->count[e] = 0;
	}
	return -1;
}

/* -- s3-fifo ------------------------------------------------------------------------------------------------------ */

static uint32_t plain_small(const struct plain_queues *q)
{
	return MAX(q->slots / 10, 1u);
}

/* The oldest that is not held and has no reason to be put at the end of main. */
static int32_t plain_oldest(struct plain_queues *q, struct plain_queue *from)
{
	for (uint32_t i = 0; i < from->n;) {
		const int32_t e = from->at[i];
		const bool stays = from == &q->young ? q->count[e] > 1 : q->count[e] > 0;

		i++;
		if (q->held[e])
			continue;
		if (!stays)
			return e;
		q->count[e] = from == &q->young ? 0 : q->count[e] - 1;
		plain_take(from, e);
		plain_push(&q->old, e);
		i = 0;
	}
	return -1;
}

static int32_t plain_s3_fifo(struct plain_queues *q)
{
	int32_t e = -1;

	if (q->young.n >= plain_small(q))
		e = plain_oldest(q, &q->young);
	if (e < 0)
		e = plain_oldest(q, &q->old);
	if (e < 0)
		e = plain_oldest(q, &q->young);
	return e < 0 ? plain_oldest(q, &q->old) : e;
}

/* -- arc ---------------------------------------------------------------------------------------------------------- */

static uint32_t plain_members(const struct plain_queues *q, bool old)
{
	uint32_t n = 0;

	for (uint32_t e = 0; e < PLAIN_QUEUE_MAX; e++)
		n += q->member[e] && q->is_old[e] == old;
	return n;
}

static int32_t plain_arc(const struct plain_queues *q)
{
	if (q->young.n > 0 && (q->old.n == 0 || plain_members(q, false) > q->target))
		return q->young.at[0];
	return q->old.n > 0 ? q->old.at[0] : -1;
}

static void plain_arc_request(struct plain_queues *q, int32_t e)
{
	const double young = q->ghost_young.n, old = q->ghost_old.n;

	if (q->member[e]) {
		q->is_old[e] = true;
		return;
	}
	if (plain_has(&q->ghost_young, e))
		q->target = MIN(q->target + MAX(1., old / young), (double)q->slots);
	else if (plain_has(&q->ghost_old, e))
		q->target = MAX(q->target - MAX(1., young / old), 0.);
	else
		return;
	plain_take(&q->ghost_young, e);
	plain_take(&q->ghost_old, e);
	q->was_ghost[e] = true;
}

static void plain_arc_trim(struct plain_queues *q)
{
	while (q->ghost_young.n && plain_members(q, false) + q->ghost_young.n > q->slots)
		plain_take(&q->ghost_young, q->ghost_young.at[0]);
	while (q->ghost_old.n &&
	       plain_members(q, false) + plain_members(q, true) + q->ghost_young.n + q->ghost_old.n > 2 * q->slots)
		plain_take(&q->ghost_old, q->ghost_old.at[0]);
}

/* -- all three ---------------------------------------------------------------------------------------------------- */

static int32_t plain_coldest(struct plain_queues *q)
{
	return q->rule == PLAIN_SIEVE ? plain_sieve(q) : q->rule == PLAIN_ARC ? plain_arc(q) : plain_s3_fifo(q);
}

static void plain_request(struct plain_queues *q, int32_t e)
{
	if (q->rule == PLAIN_ARC)
		plain_arc_request(q, e);
	else if (q->member[e])
		q->count[e] = MIN(q->count[e] + 1, q->rule == PLAIN_SIEVE ? 1u : 3u);
}

static void plain_hold(struct plain_queues *q, int32_t e)
{
	q->held[e] = true;
	if (q->rule == PLAIN_ARC) {
		plain_take(&q->young, e);
		plain_take(&q->old, e);
	}
}

static void plain_release(struct plain_queues *q, int32_t e)
{
	q->held[e] = false;
	if (q->rule == PLAIN_ARC)
		plain_push(q->is_old[e] ? &q->old : &q->young, e);
}

static void plain_admit(struct plain_queues *q, int32_t e)
{
	q->member[e] = q->held[e] = true;
	q->count[e] = 0;
	if (q->rule == PLAIN_ARC) {
		q->is_old[e] = q->was_ghost[e];
		q->was_ghost[e] = false;
		plain_arc_trim(q);
		return;
	}
	plain_push(plain_has(&q->ghost_young, e) ? &q->old : &q->young, e);
	plain_take(&q->ghost_young, e);
}

static void plain_gone(struct plain_queues *q, int32_t e, bool evicted)
{
	const uint32_t i = plain_find(&q->young, e);
	const bool was_small = i < q->young.n;

	if (q->hand == e)
		q->hand = i + 1 < q->young.n ? q->young.at[i + 1] : -1;
	plain_take(&q->young, e);
	plain_take(&q->old, e);
	q->member[e] = q->held[e] = false;
	if (!evicted)
		return;
	if (q->rule == PLAIN_ARC)
		plain_push(q->is_old[e] ? &q->ghost_old : &q->ghost_young, e);
	if (q->rule == PLAIN_S3_FIFO && was_small)
		plain_push(&q->ghost_young, e);
	if (q->rule == PLAIN_S3_FIFO && q->ghost_young.n > q->slots - plain_small(q))
		plain_take(&q->ghost_young, q->ghost_young.at[0]);
}

/* As sort() says it: not who leaves, but who stands where. */
static uint32_t plain_order(const struct plain_queues *q, int32_t *ret)
{
	memcpy(ret, q->young.at, q->young.n * sizeof *ret);
	memcpy(ret + q->young.n, q->old.at, q->old.n * sizeof *ret);
	return q->young.n + q->old.n;
}

#endif
