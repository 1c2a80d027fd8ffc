/* SPDX-License-Identifier: MIT */
/*
 * overlap - which new list goes to which rank, so that most experts stay where they are.
 *
 * Law: the assignment whose overlaps add up to the most (the Hungarian method, by shortest augmenting paths).
 */
#ifndef OVERLAP_PLACEMENT_H
#define OVERLAP_PLACEMENT_H

#include <stdint.h>

#include "moe-error.h"

/* `to` is `lists` with its ranks in another order; all are [ranks][slots]. 0 or -ENOMEM. */
int overlap_permute(int32_t *to, const int32_t *from, const int32_t *lists, uint32_t ranks, uint32_t slots,
		    struct moe_error *err);

#endif
