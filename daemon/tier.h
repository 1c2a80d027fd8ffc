/* SPDX-License-Identifier: MIT */
/*
 * tier - a tiered model while it is served: its frames, and the reader that fills them.
 *
 * Law: the reactor's alone. What the frames decide (frames.h) the reader does (reader.h), on its own threads; the loop
 * is woken when it is done, and tier_poll() brings the one together with the other. A record's place in the resident
 * model's table is written when its frame is chosen, before anybody has it pinned, and cleared when it loses the frame:
 * while it is pinned the pool reads it without asking anyone.
 *
 * The pool files are writable for the daemon alone: clients get read-only descriptors of them, or none and no session.
 */
#ifndef DAEMON_TIER_H
#define DAEMON_TIER_H

#include "daemon/frames.h"
#include "daemon/loop.h"
#include "daemon/store.h"

struct tier;

/* The table and the counters are those of the model's books, and stay in place, as the model. Paused, as
 * frames_pause(). */
int tier_new(struct tier **ret, struct resident *model, const struct policy_ops *policy, uint32_t *table,
	     struct frames_counters *counters, struct loop *loop, struct moe_error *err);

/* Before the model; takes NULL, returns NULL. Waits for what is being read: on a slow disk long. After tier_part(),
 * which is the reactor's and lets go of its loop, any thread may do it. */
struct tier *tier_free(struct tier *tier);
void tier_part(struct tier *tier);

struct frames *tier_frames(struct tier *tier);
const struct frames_counters *tier_counters(const struct tier *tier);
uint64_t tier_read_bytes(const struct tier *tier); /* from disk, by this daemon, since the model was loaded */

/* What clients may hold of a pool file: read-only. -errno: it cannot be made (no /proc). */
int tier_client_fd(const struct tier *tier, uint32_t pool);

/* Takes what has been read, and lets those go on that can. True when there was something. */
bool tier_poll(struct tier *tier);

#endif
