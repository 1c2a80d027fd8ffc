/* SPDX-License-Identifier: MIT */
/*
 * transfer - who sends what to whom, so that one placement becomes another.
 *
 * Law: all that is sent or copied is read as it was before; a rank gets an expert from elsewhere once, into the first
 * slot that wants it, and copies it from there (of_new). Nothing is said of slots that keep their expert. By vLLM's
 * rule those who hold an expert share its receivers evenly, and transfers can be made in rounds in which a rank is in
 * one pair at most; by Ascend's the sender is the lowest rank that gives the expert up, else the lowest that holds it,
 * and each rank numbers what it receives.
 */
#ifndef TRANSFER_H
#define TRANSFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "placement/placement.h"

enum transfer_rule { TRANSFER_ASCEND, TRANSFER_VLLM };

struct transfer {
	uint32_t layer, expert;
	uint32_t from_rank, from_slot, to_rank, to_slot;
	uint32_t round;  /* of its layer: vLLM's; 0 for what stays on its rank */
	uint32_t buffer; /* Ascend's: the how many-th of the layer that the rank receives */
	bool of_new;     /* from_slot is one of the new placement's, and was received before */
};

struct transfer_plan {
	struct transfer *list; /* by layer */
	size_t n;
};

/* Both are sound, of one shape but for copies on a rank: those that EPLB makes may be two on one. -EINVAL: an expert
 * is nowhere in `from`, or the shapes differ; -ENOMEM. */
int transfer_plan(struct transfer_plan *ret, enum transfer_rule rule, const struct placement *from,
		  const struct placement *to, struct moe_error *err);
void transfer_plan_fini(struct transfer_plan *plan);

/* vLLM's: of equal shapes each rank's list is aligned with the old one, so that nothing moves within a rank. */
int transfer_preserve(const struct placement *from, struct placement *to, struct moe_error *err);

#endif
