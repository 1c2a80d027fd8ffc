/* SPDX-License-Identifier: MIT */
/*
 * pages - what a driver is told of the pool's pages, where the device reads all memory by the host's page tables.
 *
 * Law. It is advice: what the device reads is right whatever becomes of it. The first refusal is the last call of this
 * kind in a session, and is told in the line on the device (moe_session_info): from then on the pool is read where it
 * lies, as without advice. The pages' home stays the host, whose CPU pool reads them too.
 *
 * A prefetch is a fill without a slot: it stands in the stream in front of the kernel that reads the expert in the
 * pool, under the same lease.
 */
#ifndef LIB_PAGES_H
#define LIB_PAGES_H

#include <stdatomic.h>
#include <stdint.h>

#include "moe-error.h"

struct engine;
struct device_stream;
struct moe_step;

struct pages {
	_Atomic int refused;            /* 0, or the code of the first refusal */
	_Atomic uint64_t asked_bytes;   /* that were to be prefetched so far */
	char described[256], lost[256]; /* the device's line, and what it becomes by a refusal */
};

/* The pool is mapped and made known to the device. -EINVAL, -EOPNOTSUPP: the session cannot have what it asks for. A
 * driver that refuses is no failure. */
int pages_begin(struct engine *e, struct moe_error *err);

/* What the step reads in the pool is fetched by this stream, in front of the kernel. */
void pages_fetch(struct moe_step *step, struct device_stream *stream);

#endif
