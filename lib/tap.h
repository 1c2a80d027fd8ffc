/* SPDX-License-Identifier: MIT */
/*
 * tap - the client's end of a session's tap: what its routers choose, for a daemon that wants to know (moe_ring.h, the
 * law of the tap).
 *
 * Law: one load of a word that the daemon writes while nobody wants it. Nothing is waited for: what has no room is
 * counted. One thread at a time writes: the engine's lock, under which a step is planned, so that routes stand in the
 * tap in the order in which the caches have seen them.
 */
#ifndef LIB_TAP_H
#define LIB_TAP_H

#include <stdbool.h>
#include <stdint.h>

#include "moe-error.h"
#include "uapi/moe_ring.h"
#include "uapi/moe_trace.h"

struct tap {
	struct moe_client_page *client;
	const struct moe_daemon_page *daemon; /* NULL: there is no tap */
	uint8_t *ring;
	uint32_t bytes, tail;
};

struct tap_route {
	uint32_t layer, tokens, topk;
	uint64_t step;
	uint8_t phase, mode;  /* as struct moe_route has them */
	const int32_t *ids;   /* [tokens][topk] -1: none */
	const float *weights; /* [tokens][topk] */
};

/* In the regions of a session: -EPROTO where the daemon's words are no tap. Without one all is well, too. */
int tap_init(struct tap *ret, void *client_region, uint64_t client_bytes, const struct moe_daemon_page *daemon,
	     struct moe_error *err);

static inline bool tap_is_on(const struct tap *tap)
{
	return tap->daemon && __atomic_load_n(&tap->daemon->tap_on, __ATOMIC_ACQUIRE);
}

/* Of a tap that is on. */
void tap_write(struct tap *tap, const struct tap_route *route);

#endif
