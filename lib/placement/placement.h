/* SPDX-License-Identifier: MIT */
/*
 * placement - which logical expert each slot of each rank holds, layer by layer.
 *
 * Law: pure. A sound placement has every expert 0..E-1 of a layer on some rank, and none twice on one rank. A rank's
 * load is the sum over its slots of an expert's load divided by the number of that expert's copies; imbalance is the
 * largest rank's load over the mean, 1 where there is no load. An expert that stays on a rank stays in its slot: who
 * makes a new list for a rank aligns it with the old one.
 */
#ifndef PLACEMENT_H
#define PLACEMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moe-error.h"

#define PLACEMENT_LAYERS_MAX 4096
#define PLACEMENT_EXPERTS_MAX 16384
#define PLACEMENT_SLOTS_MAX 65536 /* of all ranks together */

struct placement {
	uint32_t layers, ranks, slots, experts; /* slots: of a rank */
	int32_t *at;                            /* [layers][ranks][slots] */
};

/* All slots hold expert 0. -EINVAL: a number is 0 or beyond its limit; -ENOMEM. */
int placement_new(struct placement *ret, uint32_t layers, uint32_t ranks, uint32_t slots, uint32_t experts,
		  struct moe_error *err);
int placement_copy(struct placement *ret, const struct placement *from, struct moe_error *err);
void placement_fini(struct placement *p);

/* Slots 0..E-1 in order, then the copies 0, 1, ..., cut evenly: where there is no map. */
int placement_initial(struct placement *ret, uint32_t layers, uint32_t ranks, uint32_t slots, uint32_t experts,
		      struct moe_error *err);

static inline size_t placement_row(const struct placement *p, uint32_t layer, uint32_t rank)
{
	return ((size_t)layer * p->ranks + rank) * p->slots;
}

/* Is the layer sound? `what` begins the error's line. */
int placement_check_layer(const struct placement *p, uint32_t layer, const char *what, struct moe_error *err);
int placement_check(const struct placement *p, const char *what, struct moe_error *err);

/* May a plan begin with it? As sound, but that an expert may be twice on a rank: published placements are so. */
int placement_check_start(const struct placement *p, const char *what, struct moe_error *err);

/* May the layer of `to` take the place of that of `from`: sound, and who stays on a rank stays in its slot? */
int placement_check_step(const struct placement *from, const struct placement *to, uint32_t layer,
			 struct moe_error *err);

/* A rank's new list in the old one's order: what stays keeps its slot, the rest fills free slots in its own
 * order. Of equal ones in a list the first is taken first. `scratch` has room for as many; no id is negative. */
void placement_align(const int32_t *old, int32_t *list, uint32_t slots, int32_t *scratch);

/* Copies of each expert of the layer, into [experts]. */
void placement_copies(const struct placement *p, uint32_t layer, uint32_t *ret);

/* Of a layer under load[experts]; the largest rank's load as well unless NULL. -1: no memory. */
double placement_imbalance(const struct placement *p, uint32_t layer, const double *load, double *ret_max);

/* How many (rank, expert) of `to` are not in `from`. */
uint64_t placement_moved_in(const struct placement *from, const struct placement *to);

static inline bool placement_holds(const int32_t *rank, uint32_t slots, int32_t expert)
{
	for (uint32_t i = 0; i < slots; i++)
		if (rank[i] == expert)
			return true;
	return false;
}

#endif
