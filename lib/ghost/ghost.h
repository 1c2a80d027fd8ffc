/* SPDX-License-Identifier: MIT */
/*
 * ghost - what other caches of a layer would have found, while the layer is in use: caches without slots, which see the
 * same steps and only keep books (cache.h), and the most that any cache could have found.
 *
 * The caches are those of the simulator's pinned mode, with no limit of fills: each gives the same counts as sim_layer
 * for the same steps.
 *
 * The bound is Belady's choice of bound_slots experts for windows of GHOST_WINDOW steps, each of which may begin with
 * whatever experts are best for it: so no cache of as many slots, whatever it held before, finds more in the window.
 * Knowing where a window begins is worth something, and the window's end hides what comes: the true limit is lower.
 * A window is looked at one step at a time while the next one passes; the bound lags behind by as much.
 *
 * Nothing allocates after ghost_new. Not thread-safe.
 */
#ifndef LIB_GHOST_H
#define LIB_GHOST_H

#include <stdint.h>

#include "moe-error.h"
#include "policy/policy.h"

#define GHOST_WINDOW 128
#define GHOST_CACHES_MAX 7

struct ghost_cache {
	const struct policy_ops *policy;
	uint32_t slots; /* at most the experts */
};

/* Of steps that the bound has looked at: what they asked for, what of it no cache of bound_slots could have exceeded,
 * and what the first cache found. If that has bound_slots, own <= hits. */
struct ghost_bound {
	uint64_t asked, hits, own;
};

struct ghost_counts {
	uint64_t steps, asked, asked_pairs; /* asked: distinct experts, of each step */
	uint64_t hits[GHOST_CACHES_MAX], hits_pairs[GHOST_CACHES_MAX];
	struct ghost_bound bound;  /* of all windows */
	struct ghost_bound recent; /* of each layer's last one that was looked at whole */
};

struct ghost;

/* -EINVAL: too many caches, or a number of experts or slots that cache_new refuses; -ENOMEM. */
int ghost_new(struct ghost **ret, uint32_t experts, const struct ghost_cache *caches, uint32_t n_caches,
	      uint32_t bound_slots, struct moe_error *err);
struct ghost *ghost_free(struct ghost *ghost); /* takes NULL, returns NULL */

/* One step of the layer; adds to *counts. A step without ids is none. */
void ghost_step(struct ghost *ghost, const struct policy_tokens *tokens, struct ghost_counts *counts);

#endif
