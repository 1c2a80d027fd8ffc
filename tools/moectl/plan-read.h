/* SPDX-License-Identifier: MIT */
/*
 * plan-read - loads, cases and maps for moectl plan, from JSON texts to what planners take.
 *
 * Law: pure; whatever does not fit is refused with file, field, found and expected. A case is an object with the fields
 * of the published vectors: weight and num_replicas, num_groups, num_nodes, num_gpus for EPLB, placement and workload
 * for Ascend's policies; what is not needed is passed over, what can be checked (layers, experts, ranks, slots) is.
 */
#ifndef TOOLS_PLAN_READ_H
#define TOOLS_PLAN_READ_H

#include <jansson.h>

#include "placement/balance.h"
#include "placement/eplb.h"

#define PLAN_FILE_MAX (1ull << 28)
#define PLAN_DEPTH_MAX 4

/* Numbers in nested lists that are all of one length. */
struct tensor {
	uint32_t depth, n[PLAN_DEPTH_MAX];
	bool ids; /* they are experts' */
	double *at;
};

/* What an expert has to do, in one stage or several. */
struct plan_loads {
	uint32_t stages, layers, experts;
	double *weight; /* [stages][layers][experts] */
};

/* Any JSON value; -EINVAL names line and column. */
int plan_parse(json_t **ret, const char *file, const char *text, size_t bytes, struct moe_error *err);

/* Numbers of `field` of a case or file, 0 to 1e30, nested `min` to `max` deep. `place` begins the field's name:
 * "cases[3]." */
int plan_read_tensor(struct tensor *ret, const char *file, const char *place, const char *field, const json_t *value,
		     uint32_t min, uint32_t max, struct moe_error *err);

/* [layers][experts] or [stages][layers][experts], bare or as "weight"; or what moectl heat --json prints. */
int plan_read_loads(struct plan_loads *ret, const char *file, const json_t *document, struct moe_error *err);
void plan_loads_fini(struct plan_loads *loads);

/* A case for EPLB. Its weight is free()'d as (double *). */
int plan_read_eplb(struct eplb_problem *ret, const char *file, const char *place, const json_t *one,
		   struct moe_error *err);

/* A case for Ascend's policies: work is [stages][layers][ranks][slots]. */
struct plan_state {
	struct placement from;
	uint32_t stages;
	double *work;
};
int plan_read_state(struct plan_state *ret, const char *file, const char *place, const json_t *one,
		    struct moe_error *err);
/* The same of loads: each copy of an expert has an equal share. `from` is copied. */
int plan_share_loads(struct plan_state *ret, const struct placement *from, const struct plan_loads *loads,
		     struct moe_error *err);
void plan_state_fini(struct plan_state *state);

#endif
