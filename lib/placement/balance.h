/* SPDX-License-Identifier: MIT */
/*
 * balance - vLLM Ascend's policies: from where experts lie and what they had to do to where they should lie.
 *
 * Law: pure; a layer at a time. Each policy returns a placement whose lists are aligned with the old ones. A layer for
 * which it finds nothing better, or nothing sound, is kept as it was. Whoever moves experts takes a layer only when
 * placement_check_step() finds nothing: `random` promises nothing, and a layer that is kept is as sound as it was. Each
 * new one is sound, whatever it began with.
 *
 * swift divides an expert's load evenly among its copies and measures against the layer's own mean. Upstream divides
 * by one copy more than there are (2/3, 3/4, ... instead of 1/2, 2/3, ...) and measures every layer against the first
 * one's mean: BALANCE_SWIFT_UPSTREAM does as it does, also in its binary32. Otherwise loads are the same that are
 * nearer than 2^-40 of them, and nothing moves for less.
 */
#ifndef BALANCE_H
#define BALANCE_H

#include <stdbool.h>
#include <stdint.h>

#include "placement/placement.h"

#define BALANCE_RANKS_MAX 4096
#define BALANCE_FLASHLB_EXPERTS_MAX 2048 /* a matrix of their square */

enum balance_policy { BALANCE_RANDOM, BALANCE_DYNAMIC, BALANCE_SWIFT, BALANCE_SWIFT_UPSTREAM, BALANCE_FLASHLB };

struct balance_problem {
	const struct placement *from; /* as placement_check_start() wants it */
	uint32_t stages;              /* flashlb looks at each, the others at their sum */
	const double *work;           /* [stages][layers][ranks][slots]: tokens */
	double *last; /* flashlb: [layers], 1 / score when it was last planned, 0 at first; NULL: always plan */
};

struct balance_plan {
	bool change; /* the sum of the largest loads sinks below 0.95 of what it was */
	struct placement to;
	uint32_t *fillers; /* [layers]: swift's slots for which no rank pair was free */
};

/* 0; -EINVAL: the problem is none, or the policy cannot do it; -ENOMEM. */
int balance_plan(struct balance_plan *ret, enum balance_policy policy, const struct balance_problem *p,
		 struct moe_error *err);
void balance_plan_fini(struct balance_plan *plan);

/* An expert's tokens in all stages, all copies together, into [experts]. */
void balance_load(const struct balance_problem *p, uint32_t layer, double *ret);

#endif
