/* SPDX-License-Identifier: MIT */
/*
 * plan-job - one thing that moectl plan is to do: a planner is asked, and its answer becomes what is shown, and the new
 * placement.
 *
 * Law: of Ascend's policies a layer of --map and --transfers is the new one only where a worker would take it; the
 * others are kept, and named. Planners know neither files nor options: what they refuse is put into words by who asks.
 */
#ifndef TOOLS_PLAN_JOB_H
#define TOOLS_PLAN_JOB_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "arguments.h"
#include "placement/eplb.h"
#include "placement/placement.h"
#include "plan-policy.h"
#include "plan-read.h"

struct plan_job {
	const struct plan_arguments *arg;
	uint64_t redundant; /* copies beyond one of each expert, as --config says */
	const struct plan_policy *policy;
	const char *map_word; /* what names the file of the new map, for texts */
	bool records;         /* its folder is made where it is not there yet */
	json_t *loads;        /* what --weights names, where it was read already */
	struct placement to;  /* the new one, where --map or --transfers ask for it */
	json_t *shown;
};

/* Both: `shown` and, where it is wanted, `to`; 0, -ENOMEM, or what the planner refuses. `from`: what is there, or NULL.
 */
int plan_job_eplb(struct plan_job *job, struct eplb_problem *p, const struct placement *from, struct moe_error *err);
int plan_job_balance(struct plan_job *job, const struct plan_state *s, enum balance_policy policy,
		     struct moe_error *err);

/* -ENOMEM. */
int plan_no_memory(struct moe_error *err);

/* A shape's number that a planner complains of: its name there, in a case num_ and this, and an option's. NULL: it is
 * of something else. */
const char *plan_shape_word(const char *text);

#endif
