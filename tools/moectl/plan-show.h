/* SPDX-License-Identifier: MIT */
/*
 * plan-show - plans as JSON, in the field names of the published vectors, and as a table.
 *
 * Law: pure but for the stream that is given. Ratios are rounded to as many digits as the vectors have.
 */
#ifndef TOOLS_PLAN_SHOW_H
#define TOOLS_PLAN_SHOW_H

#include <jansson.h>
#include <stdio.h>

#include "placement/balance.h"
#include "placement/eplb.h"
#include "placement/transfer.h"

/* NULL of each: no memory. */
json_t *plan_show_eplb(const struct eplb_problem *p, const struct eplb_plan *plan);
json_t *plan_show_balance(const struct balance_problem *p, const struct balance_plan *plan, const char *policy);
/* A map as ranks use it: {layers: [{expert_map, log2phy, redundant}]}. */
json_t *plan_show_map(const struct placement *p, uint32_t tp);
json_t *plan_show_transfers(const struct transfer_plan *plan, enum transfer_rule rule);

/* For a person: what an object of those above says. */
void plan_print(const json_t *shown, FILE *to);

#endif
