/* SPDX-License-Identifier: MIT */
/*
 * routing - ids and weights of a computation, copied out of the client's memory before it is claimed.
 *
 * Law: a million pairs are 8 MiB, which take milliseconds to copy and to check, and other sessions do not wait for so
 * long: where they are more than a piece, the entry stays at the head of its queue while they are read, a piece in a
 * turn. It is not claimed until then: nobody else knows of it, and with its session what was read goes. An entry that
 * the client changes meanwhile is begun anew. The reactor's alone.
 */
#ifndef DAEMON_ROUTING_H
#define DAEMON_ROUTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "uapi/moe_ring.h"

#define ROUTING_PIECE ((uint64_t)256 << 10) /* bytes of ids and weights: some hundred microseconds */

struct session;

/* All zero: none is begun. */
struct routing {
	struct moe_sqe sqe; /* whose they are */
	int32_t *ids; /* of each pair, then as many weights, then counts; NULL: none is begun, or there was no memory */
	uint64_t pairs, done;
	uint64_t asked; /* pairs with an expert */
	int status;     /* 0 or -errno: nothing more is read */
	bool begun;
};

/* Of an entry that asks for `pairs` of a layer that there is. A piece of it, or nothing where all is read: true. */
bool routing_read(struct session *session, const struct moe_sqe *sqe, uint64_t pairs);

/* What is not read yet, at once; then they are the caller's, who frees *ret_ids. 0 or -errno. */
int routing_take(struct session *session, const struct moe_sqe *sqe, uint64_t pairs, int32_t **ret_ids,
		 uint64_t *ret_asked);

void routing_drop(struct routing *routing);

/* How many pairs of each expert there are among those that routing_take gave, which stands behind their weights where
 * there are more pairs than experts; else NULL. */
static inline const uint32_t *routing_counts(const int32_t *ids, uint64_t pairs, uint32_t n_experts)
{
	return pairs > n_experts ? (const uint32_t *)(ids + 2 * pairs) : NULL;
}

#endif
