/* SPDX-License-Identifier: MIT */
/*
 * trace-params - "params" of a run: the numbers that its rule has instead of its own, each checked against its limits.
 *
 *   lfu-decay            period, in events
 *   ema, mrs             kept, of a score by an event; of mrs also alpha, which is the rest: what a new weight counts
 *   ebco-soft, -hard     alpha, the share of an event
 *   s3-fifo              small, the part of the slots that is for newcomers
 *   original             cache_topk and update_expert_num, its K and U; without them all that is asked for, no limit
 *
 * Law: what is not named stays as it is. A name that the policy does not have and a value beyond its limits are
 * errors.
 */
#ifndef LIB_TRACE_PARAMS_H
#define LIB_TRACE_PARAMS_H

#include "simulate/simulate.h"
#include "simulate/trace-field.h"

/* params: NULL, or what the file has; at: of the run. -EINVAL. */
int trace_params(struct sim_tuning *ret, const struct trace_at *at, const char *policy, const json_t *params,
		 struct moe_error *err);

/* Whether the policy has a number of this name. */
bool trace_params_has(const char *policy, const char *key);

#endif
