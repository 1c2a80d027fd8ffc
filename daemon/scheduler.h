/* SPDX-License-Identifier: MIT */
/*
 * scheduler - in which order claimed requests are worked on, and how many are with the pool.
 *
 * Law: decode before prefill before background. Within a class the sessions have equal shares of the pool, counted in
 * what their requests cost and not in requests: each request has a virtual end, its cost after the virtual end of the
 * session's request before it, or after the class's virtual time if that is later, and the pool works on the lowest
 * virtual end first, between units of others even. Virtual time is the latest virtual end of what has ended: who was
 * idle has no claim on the past, and who asks for little at a time does not wait for who asks for much. (This is
 * weighted fair queueing with equal weights.) Within a session requests go in the order of their claim.
 *
 * Users have equal shares in the same way, however many sessions they have: what a request costs counts as many times
 * as its user has sessions with requests in the class.
 *
 * Of each session and class at most `window` requests are with the pool; the others can still be cancelled. All
 * functions are the reactor's, but for the pool's `done` callbacks, which put a request on a lock-free stack and wake
 * the loop.
 */
#ifndef DAEMON_SCHEDULER_H
#define DAEMON_SCHEDULER_H

#include <stdbool.h>

#include "daemon/loop.h"
#include "daemon/request.h"

struct sched;

/* A user, embedded in its account. */
struct sched_user {
	uint32_t busy[POOL_PRIORITIES]; /* its sessions that have requests */
};

/* A session's requests, embedded in struct session; it stays until all of them have ended. */
struct sched_client {
	struct sched_user *user; /* NULL: one of its own */
	struct request_list waiting[POOL_PRIORITIES];
	uint32_t running[POOL_PRIORITIES], pending[POOL_PRIORITIES]; /* the latter: waiting or running */
	uint64_t end[POOL_PRIORITIES];                               /* virtual, of the latest request */
};

int sched_new(struct sched **ret, struct pool *pool, struct moe_error *err);
struct sched *sched_free(struct sched *sched); /* nothing may run; takes NULL, returns NULL */
/* Whom to wake when a request is done. Before the first request. */
void sched_set_loop(struct sched *sched, struct loop *loop);

void sched_client_init(struct sched_client *client);

/* CLAIMED -> QUEUED, and -> RUNNING when the window has room. */
void sched_queue(struct sched *sched, struct sched_client *client, struct request *request);

/* The next request that has ended since (DONE), or NULL. Its session's next one may start. */
struct request *sched_next_done(struct sched *sched);

/* Takes the client's waiting requests away: QUEUED -> DONE with -ECANCELED, calling `cancelled` for each. */
void sched_cancel(struct sched *sched, struct sched_client *client, void (*cancelled)(struct request *));

#endif
