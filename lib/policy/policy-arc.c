/* SPDX-License-Identifier: MIT */
/*
 * arc - a list of what was requested once and one of what was requested again, ghosts of both, and a target p for the
 * first that the ghosts that come back move.
 *
 * A ghost of the first list comes back: p grows by max(1, |B2| / |B1|); of the second: it shrinks by
 * max(1, |B1| / |B2|). While the first list is longer than p its least recently used one leaves, else that of the
 * second. The first list with its ghosts is never longer than the cache, all four never longer than two of it. What is
 * held is in no list: it joins the second one, or the first one when it has just come.
 */
#include "policy/policy.h"
#include "policy/policy-list.h"
#include "policy/policy-loops.h"

enum where { OUT, ONCE, AGAIN, GHOST_ONCE, GHOST_AGAIN };

struct arc {
	struct policy_list list[5]; /* by where; all have the same numbers */
	uint32_t n[5];              /* with what is held */
	uint32_t n_slots;
	double target;
	uint8_t *where; /* [n_experts] */
	bool *known;    /* [n_experts]: it was a ghost when it was asked for, and has not come since */
	int32_t numbers[];
};

static size_t arc_bytes(uint32_t n_experts, uint32_t n_slots)
{
	return sizeof(struct arc) + 2 * (size_t)n_experts * sizeof(int32_t) + 2 * (size_t)n_experts;
}

static void arc_init(void *state, uint32_t n_experts, uint32_t n_slots)
{
	struct arc *a = state;

	for (int i = 0; i < 5; i++) {
		policy_list_init(&a->list[i], a->numbers, a->numbers + n_experts, n_experts);
		a->n[i] = 0;
	}
	a->n_slots = n_slots;
	a->target = 0;
	a->where = (uint8_t *)(a->numbers + 2 * (size_t)n_experts);
	a->known = (bool *)(a->where + n_experts);
	for (uint32_t i = 0; i < n_experts; i++) {
		a->where[i] = OUT;
		a->known[i] = false;
	}
}

/* Into the list, or held by it. */
static void move(struct arc *a, int32_t expert, enum where to, bool linked)
{
	const enum where from = a->where[expert];

	policy_list_unlink(&a->list[from], expert);
	a->n[from] -= from != OUT;
	a->n[to] += to != OUT;
	a->where[expert] = (uint8_t)to;
	if (to != OUT && linked)
		policy_list_append(&a->list[to], expert);
}

static void adapt(struct arc *a, bool once)
{
	const double mine = a->n[once ? GHOST_ONCE : GHOST_AGAIN], other = a->n[once ? GHOST_AGAIN : GHOST_ONCE];
	const double step = other > mine ? other / mine : 1;

	a->target += once ? step : -step;
	if (a->target < 0)
		a->target = 0;
	if (a->target > a->n_slots)
		a->target = a->n_slots;
}

static void arc_request(void *state, int32_t expert, uint32_t pairs)
{
	struct arc *a = state;
	const enum where where = a->where[expert];

	if (where == ONCE)
		move(a, expert, AGAIN, false);
	if (where != GHOST_ONCE && where != GHOST_AGAIN)
		return;
	adapt(a, where == GHOST_ONCE);
	move(a, expert, OUT, false);
	a->known[expert] = true;
}

static void arc_hold(void *state, int32_t expert)
{
	struct arc *a = state;

	policy_list_unlink(&a->list[a->where[expert]], expert);
}

static void arc_release(void *state, int32_t expert)
{
	struct arc *a = state;

	policy_list_append(&a->list[a->where[expert]], expert);
}

static int32_t arc_coldest(void *state)
{
	const struct arc *a = state;
	const int32_t once = a->list[ONCE].cold, again = a->list[AGAIN].cold;

	if (once >= 0 && (again < 0 || a->n[ONCE] > a->target))
		return once;
	return again;
}

static void trim(struct arc *a)
{
	while (a->n[GHOST_ONCE] && a->n[ONCE] + a->n[GHOST_ONCE] > a->n_slots)
		move(a, a->list[GHOST_ONCE].cold, OUT, false);
	while (a->n[GHOST_AGAIN] && a->n[ONCE] + a->n[AGAIN] + a->n[GHOST_ONCE] + a->n[GHOST_AGAIN] > 2 * a->n_slots)
		move(a, a->list[GHOST_AGAIN].cold, OUT, false);
}

static void arc_evict(void *state, int32_t expert)
{
	struct arc *a = state;

	move(a, expert, a->where[expert] == ONCE ? GHOST_ONCE : GHOST_AGAIN, true);
}

static void arc_admit(void *state, int32_t expert)
{
	struct arc *a = state;

	move(a, expert, a->known[expert] ? AGAIN : ONCE, false);
	a->known[expert] = false;
	trim(a);
}

static void arc_remove(void *state, int32_t expert)
{
	move(state, expert, OUT, false);
}

static void arc_settle(void *state)
{
}

static uint32_t arc_sort(void *state, int32_t *ret)
{
	const struct arc *a = state;
	const uint32_t n = policy_list_copy(&a->list[ONCE], ret);

	return n + policy_list_copy(&a->list[AGAIN], ret + n);
}

POLICY_LOOPS(arc, arc_request, arc_hold, arc_release, arc_coldest, arc_evict, arc_admit)

const struct policy_ops policy_arc = {
	.name = "arc",
	.by_heat = true,
	.bytes = arc_bytes,
	.init = arc_init,
	POLICY_LOOPS_OPS(arc),
	.coldest = arc_coldest,
	.evict = arc_evict,
	.admit = arc_admit,
	.settle = arc_settle,
	.remove = arc_remove,
	.sort = arc_sort,
};
