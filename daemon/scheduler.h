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
 * A cost is about the KiB that the pool moves for a request, arithmetic being counted as if it were that: slices that
 * are read or copied, and a computation's x and y, also of rows without a pair, which are written too. So nobody has
 * the pool work for nothing.
 *
 * Users have equal shares in the same way, however many sessions they have: what a request costs counts as many times
 * as its user has sessions with requests in the class.
 *
 * Of each session and class at most `window` requests are with the pool; the others can still be cancelled, and what is
 * cancelled counts for nothing. All functions are the reactor's, but for the pool's `done` callbacks, which put a
 * request on a lock-free stack and wake the loop.
 *
 * A session's slot arena is its device's memory, and of the fills into one device's at most `fill_budget` bytes are
 * with the pool, or one fill that is larger: so many threads at most copy for one device, whatever it asks for.
 * Sessions of one user that name the same device share that budget, and take it in the order of their virtual ends; one
 * that names none has one of its own. A fill counts its own class and the more urgent ones, so none waits for a less
 * urgent one; computations go past fills that wait.
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

/* Each kind in the order of its claims. */
enum sched_kind { SCHED_COMPUTE, SCHED_FILL, SCHED_KINDS };

/* A session's requests, embedded in struct session; it stays until all of them have ended. */
struct sched_client {
	struct sched_user *user; /* NULL: one of its own */
	struct request_list waiting[POOL_PRIORITIES][SCHED_KINDS];
	struct sched_client *sharer;       /* of its budget: the next of a ring of them, or itself */
	uint64_t filling[POOL_PRIORITIES]; /* bytes of the fills that are with the pool */
	uint32_t running[POOL_PRIORITIES], pending[POOL_PRIORITIES]; /* the latter: waiting or running */
	uint64_t end[POOL_PRIORITIES];                               /* virtual, of the latest request */
};

/* By measurement (docs/decisions/0015): enough that fills alone lose nothing, so little that they leave room. */
#define SCHED_FILL_BUDGET_THREAD ((uint64_t)4 << 20)
#define SCHED_FILL_BUDGET_MAX ((uint64_t)64 << 20)

/* fill_budget: in bytes, 0: the default. */
int sched_new(struct sched **ret, struct pool *pool, uint64_t fill_budget, struct moe_error *err);
struct sched *sched_free(struct sched *sched); /* nothing may run; takes NULL, returns NULL */
/* As of sched_new; holds for fills that are not yet with the pool. */
void sched_set_fill_budget(struct sched *sched, uint64_t bytes);
uint64_t sched_fill_budget(const struct sched *sched);
/* Whom to wake when a request is done. Before the first request. */
void sched_set_loop(struct sched *sched, struct loop *loop);

void sched_client_init(struct sched_client *client);

/* A ring is walked for each fill: so many sessions may share a budget. */
#define SCHED_SHARERS_MAX 64

/* A client that has asked for nothing shares the budget of another one, until it parts. Nothing of it waits or runs
 * then. */
void sched_share(struct sched_client *client, struct sched_client *with);
void sched_part(struct sched *sched, struct sched_client *client);

/* CLAIMED -> QUEUED, and -> RUNNING when the window has room. */
void sched_queue(struct sched *sched, struct sched_client *client, struct request *request);

/* The next request that has ended since (DONE), or NULL. Its session's next one may start. */
struct request *sched_next_done(struct sched *sched);

/* Takes a waiting request away: QUEUED -> DONE with -ECANCELED. */
void sched_cancel(struct sched *sched, struct request *request);

/* All waiting requests of the client, calling `cancelled` for each. */
void sched_cancel_all(struct sched *sched, struct sched_client *client, void (*cancelled)(struct request *));

/* Bytes of the client's fills that are with the pool. */
static inline uint64_t sched_filling(const struct sched_client *client)
{
	uint64_t bytes = 0;

	for (int i = 0; i < POOL_PRIORITIES; i++)
		bytes += client->filling[i];
	return bytes;
}

#endif
