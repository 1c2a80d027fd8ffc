/* SPDX-License-Identifier: MIT */
/* plan-hot - moectl plan --policy hot: which hot experts a daemon would give copies on which NUMA nodes. */
#ifndef TOOLS_PLAN_HOT_H
#define TOOLS_PLAN_HOT_H

#include <jansson.h>
#include <stdio.h>

#include "plan-read.h"

/* Slots of a layer on all nodes together. All stages are one. */
int plan_hot(json_t **ret, const struct plan_loads *loads, uint32_t nodes, uint32_t slots, struct moe_error *err);

/* For a person. */
void plan_hot_print(const json_t *shown, FILE *to);

#endif
