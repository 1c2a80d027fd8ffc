/* SPDX-License-Identifier: MIT */
/*
 * eplb - DeepSeek's expert-parallel load balancer: which slots hold which expert, and how many copies each has.
 *
 * Law: pure, and the same everywhere: loads are binary32, sums are made in the order of placement, nothing is
 * contracted, equal loads go by the lowest index. With N | G it is hierarchical: groups are packed on nodes, experts
 * replicated within their node, slots packed on the node's GPUs. Otherwise it is global: one node, one group. Copies
 * of an expert are numbered in the order in which replication made them; log2phy goes by that number, not by slot.
 */
#ifndef EPLB_H
#define EPLB_H

#include <stdbool.h>
#include <stdint.h>

#include "placement/placement.h"

struct eplb_problem {
	uint32_t layers, experts, replicas, groups, nodes, gpus;
	const double *weight; /* [layers][experts] */
};

struct eplb_plan {
	bool global;
	uint32_t columns;                    /* of log2phy: the most copies of any expert */
	int32_t *phy2log, *log2phy, *logcnt; /* [layers][replicas], [layers][experts][columns], [layers][experts] */
};

/* -EINVAL: a precondition does not hold; the text names both numbers. */
int eplb_check(const struct eplb_problem *p, struct moe_error *err);
/* 0; -EINVAL; -E2BIG: log2phy would be too large; -ENOMEM. */
int eplb_plan(struct eplb_plan *ret, const struct eplb_problem *p, struct moe_error *err);
void eplb_plan_fini(struct eplb_plan *plan);

/* The same with as few moves within GPUs as vLLM has: where `from` has as many layers, ranks and slots, what stays on a
 * GPU stays in its slot. log2phy then goes by slot. */
int eplb_keep_slots(struct eplb_plan *plan, const struct eplb_problem *p, const struct placement *from,
		    struct moe_error *err);
/* phy2log as a placement. */
int eplb_placement(struct placement *ret, const struct eplb_plan *plan, const struct eplb_problem *p,
		   struct moe_error *err);

/* The largest GPU's load over the mean, 1 without load; and that load. */
double eplb_balance(const struct eplb_problem *p, const struct eplb_plan *plan, uint32_t layer, double *ret_max);

#endif
