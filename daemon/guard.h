/* SPDX-License-Identifier: MIT */
/*
 * guard - client memory of which the kernel cannot give a page.
 *
 * An arena has all its pages when it is registered, but its client can punch holes into it afterwards, and a page can
 * fail in hardware. Touching such a page is SIGBUS where no memory is left to commit.
 *
 * Law: a mapping of client memory is guarded as long as it lasts. SIGBUS within one puts memory of the daemon's own
 * there (a few MiB, made at the start and the same for all, so that it is never short), and marks the guard: the thread
 * goes on with data that mean nothing, and the reactor cuts the session off. SIGBUS anywhere else ends the daemon, as
 * it would without this. A thread that touches such memory does not block the signal: Linux would not ask the handler.
 * That one only reads a list that never loses a member; all else is the reactor's alone.
 */
#ifndef DAEMON_GUARD_H
#define DAEMON_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "moe-error.h"

struct guard;

/* For the process, once: the handler and its memory. */
int guard_start(struct moe_error *err);
/* At the end, when no memory is guarded any more. */
void guard_stop(void);

/* `base`: a page's beginning. -ENOMEM. */
int guard_new(struct guard **ret, const volatile void *base, uint64_t bytes, struct moe_error *err);
/* Before the mapping goes. Takes NULL, returns NULL. */
struct guard *guard_free(struct guard *guard);

/* True when a page of it had to be replaced. Takes NULL. */
bool guard_hit(const struct guard *guard);
/* How often that has happened in all: unchanged, nobody needs to look. */
uint64_t guard_hits(void);

#endif
