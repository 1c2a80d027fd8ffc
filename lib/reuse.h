/* SPDX-License-Identifier: MIT */
/*
 * reuse - how often an expert of one layer will be read from a cache slot, if it gets one now.
 *
 * Law. An expert that was asked for `gap` steps ago is expected again in as many steps, and again after that. A slot
 * keeps its expert for slots / fills-a-step steps, the residence; fills-a-step is an average that forgets a 64th with
 * each step. So an expert that gets a slot is read 1 + residence / gap times before it leaves. Its slot is not free of
 * charge: whoever is coldest leaves for it, and takes residence / gap reads along. What is left is what the slot is
 * worth to this expert: the reads that reuse_expect gives. Free slots cost nobody anything.
 *
 * An expert that was never asked for has the whole time since the beginning as its gap. Pure: no clock, no lock.
 */
#ifndef LIB_REUSE_H
#define LIB_REUSE_H

#include <stdint.h>

#include "moe-error.h"

struct reuse {
	uint64_t step;         /* begins at 1 */
	double fills_per_step; /* average */
	uint64_t *seen;        /* [n_experts] the step that asked for the expert last, 0: none */
};

int reuse_init(struct reuse *ret, uint32_t n_experts, struct moe_error *err);
void reuse_fini(struct reuse *reuse);

/* Reads of the expert from a slot of `n_slots`, less those of `coldest` that it would cost (-1: a slot is free). At
 * least this step's. */
double reuse_expect(const struct reuse *reuse, int32_t expert, int32_t coldest, uint32_t n_slots);

/* A step asks for the expert; then the step ends, with so many fills of cache slots. */
void reuse_note(struct reuse *reuse, int32_t expert);
void reuse_end_step(struct reuse *reuse, uint32_t fills);

#endif
