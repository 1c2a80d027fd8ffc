/* SPDX-License-Identifier: MIT */
/*
 * plan-reads - which experts of a step the device reads in the pool: a third outcome beside a fill and the CPU.
 */
#ifndef LIB_PLAN_READS_H
#define LIB_PLAN_READS_H

#include "plan.h"

/* Whether the device may read an expert with so many pairs in this step. */
bool plan_may_read(const struct plan_params *params, uint32_t n_experts, uint32_t pairs);

/* The same, of one that is to have a slot for this step alone, and whether that pays. */
bool plan_reads_once(const struct plan_params *params, uint32_t n_experts, uint32_t pairs);

/* Decode, before the cache is updated: says which requests pass. */
void plan_pass_slots(const struct plan_params *params, struct cache *cache, struct moe_plan *plan);

/* Decode, after that: adds what is read; `keys` is room for n_experts. */
void plan_read_rest(const struct plan_params *params, const struct cache *cache, struct moe_plan *plan, uint64_t *keys);

/* When all copies are in the plan. */
void plan_add_read(struct moe_plan *plan, int32_t expert);

/* The step's requests, and its fills of cache slots, are history now. */
void plan_note_reuse(const struct plan_params *params, const struct moe_plan *plan);

#endif
