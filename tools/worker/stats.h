/* SPDX-License-Identifier: MIT */
/* stats - what a run did, for people (a table) and for scripts (JSON). */
#ifndef WORKER_STATS_H
#define WORKER_STATS_H

#include <jansson.h>

#include "tools/worker/run.h"

struct stats_times {
	uint64_t prefill_tokens, prefill_ns;
	uint64_t decode_tokens, decode_ns;
};

/* All pairs, by whatever path; and what they must be: tokens through the model x MoE layers x top-k. */
uint64_t stats_pairs(const struct experts_stats *stats);
uint64_t stats_pairs_expected(const struct run *run);

void stats_print(const struct run *run, const struct stats_times *times);

/* Adds pairs, fills, fill_bytes, hit_rate, experts, mode, tp, slots and where the dense part was computed to an object.
 * 0 or -ENOMEM. */
int stats_add(const struct run *run, json_t *object, struct moe_error *err);

/* The object as one line on standard output, which is written when this returns. 0, or -errno: a part of it is lost. */
int stats_write(const json_t *object, struct moe_error *err);

#endif
