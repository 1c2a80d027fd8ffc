/* SPDX-License-Identifier: MIT */
/*
 * registrar - the right to register a model's memory with a GPU's driver: one process on the host has it at a time.
 *
 * Drivers hold one lock for all processes while they pin pages; several that register side by side take longer than one
 * after the other, or never end. So whoever registers pool files holds a write lock (F_SETLK) on one memory file that
 * the daemon hands out, and others wait. The lock is the kernel's: it goes when its holder does, however that ends; it
 * stays when the daemon goes; it is not a forked child's; and the kernel says whose it is. docs/decisions/0025.
 *
 * Such locks are a process's, not a thread's, and closing any descriptor of the file drops them: so in one process one
 * session at a time has the file at all, from `registrar_take` to `registrar_give`. Nobody is first in the queue.
 */
#ifndef LIB_REGISTRAR_H
#define LIB_REGISTRAR_H

#include <stdint.h>

#include "moe-expert.h"

#define REGISTRAR_WAIT_MS 600000

struct registrar {
	struct moe_session *session;
	int fd; /* -1: not held */
	uint64_t began_ns, total_bytes, done_bytes;
};

/* Waits for the right, register_wait_ms at most, and tells the session's register_progress of it. *ret is written in
 * every case. -EBUSY: it is still another's, which *err names; -EPIPE: the daemon is gone; -EPROTO: it has no such
 * file. */
int registrar_take(struct registrar *ret, struct moe_session *session, uint64_t total_bytes, struct moe_error *err);

/* So many bytes more are registered. -EPIPE: the daemon is gone, register no more. */
int registrar_note(struct registrar *registrar, uint64_t bytes, struct moe_error *err);

void registrar_give(struct registrar *registrar); /* also where it is not held */

#endif
