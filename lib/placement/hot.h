/* SPDX-License-Identifier: MIT */
/*
 * hot - which hot experts of a layer get whole copies on which NUMA nodes, where there is room for some.
 *
 * Law: pure. Every expert is somewhere anyway (its rows lie on all nodes, docs/decisions/0056), so a node's slots hold
 * what is worth a copy: the hottest 7/8 as many experts as there are slots on all nodes, replicated and packed on the
 * nodes by EPLB. No node has an expert twice. What stays on a node stays in its slot. A layer changes only when that
 * is worth HOT_GAIN of its pairs, or makes the busiest node that much less busy: heat that wavers moves nothing.
 */
#ifndef PLACEMENT_HOT_H
#define PLACEMENT_HOT_H

#include <stdbool.h>
#include <stdint.h>

#include "moe-error.h"
#include "placement/transfer.h"

#define HOT_GAIN 0.05
#define HOT_NONE (-1)

struct hot_problem {
	uint32_t experts, nodes, slots; /* slots: of a node; at most as many as experts */
	const double *weight;           /* [experts]: pairs */
	const int32_t *now;             /* [nodes][slots], HOT_NONE: empty */
};

/* Of the experts that have copies: their part of all pairs, and the busiest node's load over the mean if each expert's
 * pairs were dealt evenly to its copies (1 without any). */
struct hot_worth {
	double covered, balance;
};

struct hot_plan {
	bool change;
	int32_t *at; /* [nodes][slots]; as it is now where nothing changes */
	struct hot_worth before, after;
	struct transfer_plan moves; /* to_rank: the node; from_rank: a node, or one of those that stand for the rows */
};

/* 0; -EINVAL: a number is 0, or there are more slots than experts; -ENOMEM. */
int hot_plan(struct hot_plan *ret, const struct hot_problem *p, struct moe_error *err);
void hot_plan_fini(struct hot_plan *plan);

#endif
