/* SPDX-License-Identifier: MIT */
/*
 * model-ghosts - what the ghost caches of all sessions of a model have found, of all its replicas, added up.
 *
 * Law: counts of caches of the same policy and slots are added, each with what was asked of it: sessions whose own
 * caches differ look at different ones. The same for bounds of the same slots. Of fixed size: what has no room is
 * counted as left out. A session that ends leaves its counts here; those of attached ones are added when somebody
 * asks. What a client says is checked for names and nothing else: numbers may be any. The reactor's alone. It holds no
 * address: it lies in a memory file (daemon/tally.h) that a daemon which takes over goes on with.
 *
 * The steps themselves are looked at in the workers (ghosts.h of the library), where the routing is: a sink of the taps
 * would do it on the reactor, 3 to 60 microseconds a step of a layer, and make every session write routes.
 */
#ifndef DAEMON_MODEL_GHOSTS_H
#define DAEMON_MODEL_GHOSTS_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/policy.h"
#include "uapi/moe_ring.h"

#define MODEL_GHOSTS_CACHES 28
#define MODEL_GHOSTS_BOUNDS 8

struct model_ghost {
	uint64_t policy; /* its place in the table of policy.h */
	uint64_t slots, asked, asked_pairs, hits, hits_pairs;
	uint64_t own; /* of `asked`: by sessions whose own cache is like it */
};

struct model_bound {
	uint64_t slots, asked, hits;
	uint64_t own; /* what the sessions' own caches found of the same */
};

struct model_ghosts {
	uint64_t sessions, layers, steps, asked, asked_pairs; /* layers: the most that one session looks at */
	uint64_t left_out;                                    /* caches and bounds */
	uint32_t n_caches, n_bounds;
	struct model_ghost caches[MODEL_GHOSTS_CACHES];
	struct model_bound bounds[MODEL_GHOSTS_BOUNDS];
};

/* The policy of a session's cache; NULL: there is no such cache, no such policy, or one before has the same words. */
const struct policy_ops *session_ghost_policy(const struct moe_ghost_stats *stats, int cache);

/* Whether all places and counts are within their tables, as far as a daemon before may have written them. */
bool model_ghosts_good(const struct model_ghosts *ghosts);

/* A session without ghost caches adds nothing. */
void model_ghosts_add(struct model_ghosts *to, const struct moe_ghost_stats *from);

/* The one that most was asked of as a session's own; NULL: none. */
const struct model_ghost *model_ghosts_own(const struct model_ghosts *ghosts);

#endif
