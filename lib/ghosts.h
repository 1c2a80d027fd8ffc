/* SPDX-License-Identifier: MIT */
/*
 * ghosts - a session that finds out, while it works, what other caches would have found: of other sizes with its own
 * policy, and of its own size with others, for some of its layers (ghost/ghost.h).
 *
 * Law: no result and no slot depends on it. Submitted steps of tokens are looked at, but for dummy ones, after their
 * copies and computations have been asked for. The sampled layers are spread evenly over all; their counts are added up
 * in the client page. Of a group only rank 0 does it: all see the same routing.
 */
#ifndef LIB_GHOSTS_H
#define LIB_GHOSTS_H

#include <stdint.h>

#include "moe-error.h"

struct engine;
struct ghosts;
struct moe_plan;

/* Nothing is made, and *ret is NULL, where the session has no ghosts. */
int ghosts_new(struct ghosts **ret, struct engine *engine, struct moe_error *err);
struct ghosts *ghosts_free(struct ghosts *ghosts); /* takes NULL, returns NULL */

/* The plan has been submitted; it is still the caller's. Takes NULL ghosts. */
void ghosts_step(struct ghosts *ghosts, uint32_t row, const struct moe_plan *plan);

#endif
