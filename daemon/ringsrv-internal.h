/* SPDX-License-Identifier: MIT */
/*
 * ringsrv-internal - what the two halves of the ring server share: the queues (ringsrv.c), and what the entries ask for
 * (ringsrv-claim.c).
 */
#ifndef DAEMON_RINGSRV_INTERNAL_H
#define DAEMON_RINGSRV_INTERNAL_H

#include "daemon/ringsrv.h"

/* MOE_PAIRS_MAX bounds what one entry has: 1 M pairs are 8 MiB of ids and weights (routing.h). */
#define PAIR_BYTES (sizeof(int32_t) + sizeof(float))

/* The one way from client memory to an ordinary pointer; [offset, offset + bytes) was checked. */
static inline void *client_at(const struct clientmem *memory, uint64_t offset)
{
	return (uint8_t *)(uintptr_t)memory->base + offset;
}

/* The request's place in the journal. */
static inline uint32_t slot_of(const struct request *q)
{
	return (uint32_t)(q - q->session->requests);
}

/* The rest of the bits that HINT has set for a layer. */
const uint64_t *ringsrv_hinted(const struct session *s, uint32_t layer);

/* Lends the record of a FILL with MOE_SQE_LEASE, or -errno. */
int ringsrv_lend(struct session *s, struct request *q, int row);

/* A request that was claimed: to the scheduler, or (DONE, by its status) completed. */
void ringsrv_go_on(struct session *s, struct sched *sched, struct request *q, bool wait);

/* Of a session of a tiered model (ringsrv-tier.c). What was claimed without an error: true when it is taken care of.
 * CLAIMED -> DONE with -ECANCELED for one that waits for records. The end of a request, whatever it has waited for. A
 * lease was given back. One was lent to a request whose answer nobody hears. The leases of a session that goes on:
 * false when a record is not there. */
bool ringsrv_tier_claim(struct session *s, struct sched *sched, struct request *q);
void ringsrv_tier_cancel(struct session *s, struct request *q);
void ringsrv_tier_done(struct session *s, struct request *q);
void ringsrv_tier_released(struct session *s, uint64_t lease);
void ringsrv_tier_take_back(struct session *s, const struct request *q);
bool ringsrv_tier_revive(struct session *s);

/* Checks the private copy and prepares or does what it asks for. 0, and *ret_wait says whether the pool has to work; or
 * the completion's -errno. */
int ringsrv_claim(struct session *s, struct sched *sched, struct request *q, bool *ret_wait);

/* Of ids and weights that claiming the entry copies, at most. One entry alone never copies more than copied_max. */
uint64_t ringsrv_routing_bytes(const struct moe_sqe *e);

/* What claiming it reads, at most, that was not read ahead: ids and weights, or, for a CANCEL, all requests. It bounds
 * a turn. */
uint64_t ringsrv_read_bytes(const struct session *s, const struct moe_sqe *e);

/* Of the data arena. This thread looks only at copies of what a client has written there, and copies by a call: a page
 * of its mapping that the client is just taking away, with a hole of gibibytes, would be waited for until all of that
 * hole is made. */
bool ringsrv_read_data(const struct session *s, void *to, uint64_t bytes, uint64_t offset);

/* Of one whose ids and weights are more than a piece: reads another one. True: it can be claimed. */
bool ringsrv_read_ahead(struct session *s, const struct moe_sqe *e, uint64_t *read);

/* An expert of a layer that there is is asked for: was it announced? Each announcement counts once. */
void ringsrv_use_hint(struct session *s, uint32_t layer, uint32_t expert);

/* The pool is done with them, whenever the client retires the request. */
void ringsrv_drop_routing(struct session *s, struct request *q);

#endif
