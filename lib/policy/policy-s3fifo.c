/* SPDX-License-Identifier: MIT */
/*
 * s3-fifo - a small queue for newcomers, a main one for those that were requested again, and ghosts: the last that were
 * evicted from the small one.
 *
 * Small is a tenth of the slots, at least one. Its oldest goes to main when it was requested more than once since it
 * came, else it leaves and is a ghost. Main's oldest is put back while it was requested since, and that is forgotten by
 * one (counts stop at 3), else it leaves. A ghost that comes back goes to main. There are as many ghosts as main has
 * places. What is held is passed over.
 */
#include "policy/policy.h"
#include "policy/policy-list.h"
#include "policy/policy-loops.h"

#define SMALL_PART 0.1

enum where { OUT, SMALL, MAIN, GHOST };

struct s3fifo {
	struct policy_list list[4]; /* by where; all have the same numbers, as an expert is in one of them */
	uint32_t n[4];
	int32_t from[4]; /* of small and main: what is older is held, until something is released */
	uint32_t n_slots, small_max, ghosts_max;
	uint8_t *where, *count; /* [n_experts] */
	bool *held;             /* [n_experts] */
	int32_t numbers[];
};

static size_t s3fifo_bytes(uint32_t n_experts, uint32_t n_slots)
{
	return sizeof(struct s3fifo) + 2 * (size_t)n_experts * sizeof(int32_t) + 3 * (size_t)n_experts;
}

static void s3fifo_tune(void *state, double small)
{
	struct s3fifo *s = state;
	const double part = s->n_slots * small + 1e-9; /* 0.29 of 100 are 29 */

	s->small_max = part < 1 ? 1 : (uint32_t)part;
	s->ghosts_max = s->n_slots > s->small_max ? s->n_slots - s->small_max : 0;
}

static void s3fifo_init(void *state, uint32_t n_experts, uint32_t n_slots)
{
	struct s3fifo *s = state;

	for (int i = 0; i < 4; i++) {
		policy_list_init(&s->list[i], s->numbers, s->numbers + n_experts, n_experts);
		s->n[i] = 0;
		s->from[i] = POLICY_LIST_END;
	}
	s->n_slots = n_slots;
	s3fifo_tune(s, SMALL_PART);
	s->where = (uint8_t *)(s->numbers + 2 * (size_t)n_experts);
	s->count = s->where + n_experts;
	s->held = (bool *)(s->count + n_experts);
	for (uint32_t i = 0; i < n_experts; i++) {
		s->where[i] = OUT;
		s->count[i] = 0;
		s->held[i] = false;
	}
}

static void move(struct s3fifo *s, int32_t expert, enum where to)
{
	const enum where from = s->where[expert];

	if (from != OUT) {
		if (s->from[from] == expert)
			s->from[from] = s->list[from].next[expert];
		policy_list_unlink(&s->list[from], expert);
		s->n[from]--;
	}
	if (to != OUT) {
		policy_list_append(&s->list[to], expert);
		s->n[to]++;
		if (s->from[to] == POLICY_LIST_END)
			s->from[to] = expert;
	}
	s->where[expert] = to;
}

static void s3fifo_request(void *state, int32_t expert, uint32_t pairs)
{
	struct s3fifo *s = state;

	if ((s->where[expert] == SMALL || s->where[expert] == MAIN) && s->count[expert] < 3)
		s->count[expert]++;
}

static void s3fifo_hold(void *state, int32_t expert)
{
	((struct s3fifo *)state)->held[expert] = true;
}

static void s3fifo_release(void *state, int32_t expert)
{
	struct s3fifo *s = state;

	s->held[expert] = false;
	s->from[SMALL] = s->list[SMALL].cold;
	s->from[MAIN] = s->list[MAIN].cold;
}

static int32_t oldest(struct s3fifo *s, enum where where)
{
	int32_t at = s->from[where];

	while (at != POLICY_LIST_END && s->held[at])
		at = s->list[where].next[at];
	s->from[where] = at;
	return at;
}

/* Of small; what has earned it goes to main on the way. */
static int32_t oldest_small(struct s3fifo *s)
{
	int32_t at;

	while ((at = oldest(s, SMALL)) >= 0 && s->count[at] > 1) {
		s->count[at] = 0;
		move(s, at, MAIN);
	}
	return at;
}

static int32_t oldest_main(struct s3fifo *s)
{
	int32_t at;

	while ((at = oldest(s, MAIN)) >= 0 && s->count[at] > 0) {
		s->count[at]--;
		move(s, at, MAIN);
	}
	return at;
}

static int32_t s3fifo_coldest(void *state)
{
	struct s3fifo *s = state;
	int32_t at = -1;

	if (s->n[SMALL] >= s->small_max)
		at = oldest_small(s);
	if (at < 0)
		at = oldest_main(s);
	if (at < 0)
		at = oldest_small(s);
	/* Main had none to give, and then all of small have earned their place in it. */
	return at < 0 ? oldest_main(s) : at;
}

static void s3fifo_evict(void *state, int32_t expert)
{
	struct s3fifo *s = state;

	move(s, expert, s->where[expert] == SMALL && s->ghosts_max ? GHOST : OUT);
	if (s->n[GHOST] > s->ghosts_max)
		move(s, s->list[GHOST].cold, OUT);
}

static void s3fifo_admit(void *state, int32_t expert)
{
	struct s3fifo *s = state;

	move(s, expert, s->where[expert] == GHOST ? MAIN : SMALL);
	s->count[expert] = 0;
	s->held[expert] = true;
}

static void s3fifo_remove(void *state, int32_t expert)
{
	move(state, expert, OUT);
}

static void s3fifo_settle(void *state)
{
}

static uint32_t s3fifo_sort(void *state, int32_t *ret)
{
	const struct s3fifo *s = state;
	const uint32_t n = policy_list_copy(&s->list[SMALL], ret);

	return n + policy_list_copy(&s->list[MAIN], ret + n);
}

POLICY_LOOPS(s3fifo, s3fifo_request, s3fifo_hold, s3fifo_release, s3fifo_coldest, s3fifo_evict, s3fifo_admit)

const struct policy_ops policy_s3_fifo = {
	.name = "s3-fifo",
	.by_heat = true,
	.param = "small",
	.param_value = SMALL_PART,
	.param_max = 1,
	.bytes = s3fifo_bytes,
	.init = s3fifo_init,
	.tune = s3fifo_tune,
	POLICY_LOOPS_OPS(s3fifo),
	.coldest = s3fifo_coldest,
	.evict = s3fifo_evict,
	.admit = s3fifo_admit,
	.settle = s3fifo_settle,
	.remove = s3fifo_remove,
	.sort = s3fifo_sort,
};
