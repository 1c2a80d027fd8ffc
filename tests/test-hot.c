/* SPDX-License-Identifier: MIT */
/* Hot experts: where copies should lie is sound, worth it, and reached by the moves; heat that wavers moves nothing. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "placement/hot.h"
#include "tests/tap.h"

enum { EXPERTS_MOST = 64, NODES_MOST = 4 };

static unsigned long long seed;

static uint32_t pick(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) >> 33) % n;
}

/* A few are hot, most are not. */
static void heat(double *weight, uint32_t n)
{
	for (uint32_t e = 0; e < n; e++)
		weight[e] = pick(5) ? pick(20) : 50 + pick(1000);
}

static bool sound(const struct hot_problem *p, const int32_t *at)
{
	for (uint32_t n = 0; n < p->nodes; n++)
		for (uint32_t s = 0; s < p->slots; s++) {
			const int32_t *node = at + n * p->slots;

			if (node[s] < 0 || node[s] >= (int32_t)p->experts || placement_holds(node, s, node[s]))
				return false;
			for (uint32_t other = 0; other < p->slots; other++)
				if (p->now[n * p->slots + other] == node[s] && other != s)
					return false; /* it stays, but not in its slot */
		}
	return true;
}

/* The moves lead from now to there; who sends has the expert, or stands for the rows. */
static bool reached(const struct hot_problem *p, const struct hot_plan *plan)
{
	int32_t at[NODES_MOST * EXPERTS_MOST];

	memcpy(at, p->now, p->nodes * p->slots * sizeof *at);
	for (size_t i = 0; i < plan->moves.n; i++) {
		const struct transfer *t = &plan->moves.list[i];
		const int32_t *to = &at[t->to_rank * p->slots + t->to_slot];

		if (t->to_rank >= p->nodes || t->expert >= p->experts || *to == (int32_t)t->expert)
			return false;
		if (t->from_rank < p->nodes && p->now[t->from_rank * p->slots + t->from_slot] != (int32_t)t->expert)
			return false;
		at[t->to_rank * p->slots + t->to_slot] = (int32_t)t->expert;
	}
	return memcmp(at, plan->at, p->nodes * p->slots * sizeof *at) == 0;
}

/* No other choice of as many experts covers more. */
static double covered_most(const struct hot_problem *p, uint32_t n)
{
	bool taken[EXPERTS_MOST] = {false};
	double all = 0, covered = 0;

	for (uint32_t e = 0; e < p->experts; e++)
		all += p->weight[e];
	for (uint32_t i = 0; i < n; i++) {
		uint32_t best = UINT32_MAX;

		for (uint32_t e = 0; e < p->experts; e++)
			if (!taken[e] && (best == UINT32_MAX || p->weight[e] > p->weight[best]))
				best = e;
		taken[best] = true;
		covered += p->weight[best];
	}
	return all > 0 ? covered / all : 0;
}

static uint32_t distinct(const struct hot_problem *p, const int32_t *at)
{
	bool seen[EXPERTS_MOST] = {false};
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->nodes * p->slots; i++) {
		n += !seen[at[i]];
		seen[at[i]] = true;
	}
	return n;
}

static void test_random(void)
{
	uint32_t unsound = 0, unreached = 0, uncovered = 0, worse = 0, changes = 0, restless = 0;

	for (uint32_t i = 0; i < 4000; i++) {
		double weight[EXPERTS_MOST];
		int32_t now[NODES_MOST * EXPERTS_MOST];
		struct hot_problem p = {
			.nodes = 2 + pick(3), .experts = 1 + pick(EXPERTS_MOST), .weight = weight, .now = now};

		p.slots = 1 + pick(MIN(p.experts, 16u));
		memset(now, 0xff, sizeof now);
		for (uint32_t look = 0; look < 4; look++) {
			struct hot_plan plan, again;

			heat(weight, p.experts);
			if (hot_plan(&plan, &p, NULL) < 0) {
				unsound++;
				break;
			}
			changes += plan.change;
			unsound += plan.change && !sound(&p, plan.at);
			unreached += plan.change ? !reached(&p, &plan) : plan.moves.n > 0;
			worse += plan.after.covered < plan.before.covered;
			uncovered += plan.change && plan.after.covered < covered_most(&p, distinct(&p, plan.at)) - 1e-9;
			memcpy(now, plan.at, p.nodes * p.slots * sizeof *now);
			hot_plan_fini(&plan);
			for (uint32_t e = 0; e < p.experts; e++)
				weight[e] *= 0.99 + 0.02 * pick(1000) / 1000;
			restless += hot_plan(&again, &p, NULL) < 0 || (again.change && look > 0 && plan.change);
			hot_plan_fini(&again);
		}
	}
	ok(unsound == 0 && changes > 4000, "%u changes are sound, and what stays keeps its slot", changes);
	ok(unreached == 0, "the moves lead there");
	ok(uncovered == 0, "those that have copies are the hottest");
	ok(worse == 0, "no change covers less");
	ok(restless == 0, "two percent more or less moves nothing that was just moved");
}

static void test_known(void)
{
	const double weight[6] = {100, 1, 90, 2, 3, 80};
	int32_t now[4] = {-1, -1, -1, -1};
	struct hot_problem p = {.experts = 6, .nodes = 2, .slots = 2, .weight = weight, .now = now};
	struct hot_plan plan;
	struct moe_error err = {0};

	require(hot_plan(&plan, &p, &err) == 0, "a plan");
	ok(plan.change && plan.moves.n == 4 && plan.before.covered == 0, "four copies where there were none");
	ok(placement_holds(plan.at, 2, 0) && placement_holds(plan.at + 2, 2, 0) &&
		   placement_holds(plan.at, 2, 2) != placement_holds(plan.at + 2, 2, 2) &&
		   placement_holds(plan.at, 2, 5) != placement_holds(plan.at + 2, 2, 5),
	   "the hottest is on both nodes, the next two on one each");
	hot_plan_fini(&plan);
	p.slots = 7;
	ok(hot_plan(&plan, &p, &err) == -EINVAL, "more slots than experts: %s", err.text);
	p.slots = 0;
	ok(hot_plan(&plan, &p, &err) == -EINVAL, "no slots");
}

int main(void)
{
	seed = tap_seed();
	test_known();
	test_random();
	return tap_done();
}
