/* SPDX-License-Identifier: MIT */
/*
 * request - one entry of a client's submission queue from its claim to its reaping.
 *
 * Law: a request walks the table of moe_ring.h, and request_move asserts each arrow. This side sees PUBLISHED ..
 * REAPED. Between CLAIMED and DONE the request is the scheduler's and then the pool's; before and after, the ring
 * server's; of a tiered model it is CLAIMED until its records are in memory (ringsrv-tier.c). All that decides anything
 * (the entry, the ids, the weights) is a private copy made at the claim.
 */
#ifndef DAEMON_REQUEST_H
#define DAEMON_REQUEST_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

#include "daemon/crash.h"
#include "daemon/pool.h"
#include "uapi/moe_ring.h"

struct modqueue;
struct session;
struct sched;
struct sched_client;

struct request {
	_Atomic uint32_t state; /* enum moe_request_state */
	struct session *session;
	struct sched *sched; /* from its queueing on, as `client` */
	struct sched_client *client;
	struct moe_sqe sqe; /* the private copy */
	struct moe_cqe cqe; /* what will be completed */
	uint64_t claim_ns;
	enum pool_priority priority;
	uint64_t cost;             /* KiB that it moves to and from memory, and arithmetic as if it were: about */
	uint64_t order, charged;   /* the scheduler's: virtual end, and what the cost counts for */
	struct modqueue *modqueue; /* with a tag */
	bool alone;             /* its entry lay beside sq_tail, and its client looks for the answer beside the queue */
	uint32_t tag;           /* of the kernel module's queue, + 1; 0: it came by the ring */
	void *copy;             /* ids and weights of a COMPUTE */
	struct tier_wait *tier; /* of a tiered model: the records that it needs in memory, NULL: none */
	union {
		struct pool_compute compute;
		struct pool_copy fill;
	};
	void (*start)(struct request *); /* of a FILL that is not the pool's, else NULL */
	struct request *next;            /* in the one list that it is on */
};

static inline void request_move(struct request *request, enum moe_request_state to)
{
	const uint32_t from = atomic_load_explicit(&request->state, memory_order_acquire);

	assert(moe_request_arrow(from, to));
	(void)from;
	atomic_store_explicit(&request->state, to, memory_order_release);
	crash_at((enum crash_point)to);
}

/* A first-in first-out list. */
struct request_list {
	struct request *head, **tail;
};

static inline void request_list_init(struct request_list *list)
{
	list->head = NULL;
	list->tail = &list->head;
}

static inline void request_list_push(struct request_list *list, struct request *request)
{
	request->next = NULL;
	*list->tail = request;
	list->tail = &request->next;
}

static inline struct request *request_list_pop(struct request_list *list)
{
	struct request *request = list->head;

	if (request) {
		list->head = request->next;
		if (!list->head)
			list->tail = &list->head;
	}
	return request;
}

/* Takes out one that is in the list. */
static inline void request_list_remove(struct request_list *list, struct request *request)
{
	struct request **at = &list->head;

	while (*at != request)
		at = &(*at)->next;
	*at = request->next;
	if (!request->next)
		list->tail = at;
}

#endif
