/* SPDX-License-Identifier: MIT */
/*
 * scheduler - in which order claimed requests reach the pool.
 *
 * Law: decode before prefill before background; within a class sessions take turns, within a session requests go in the
 * order of their claim. Of each class at most `window` requests run at a time: later ones of another session, and of a
 * higher class always, do not stand behind a long row that was handed to the pool already. All functions are the
 * reactor's, but for the pool's `done` callbacks, which put a request on a lock-free stack and wake the loop.
 */
#ifndef DAEMON_SCHEDULER_H
#define DAEMON_SCHEDULER_H

#include <stdbool.h>

#include "daemon/loop.h"
#include "daemon/request.h"

struct sched;

/* A session's waiting requests, embedded in struct session. */
struct sched_client {
	struct request_list waiting[POOL_PRIORITIES];
	struct sched_client *next[POOL_PRIORITIES]; /* in the turn list of that class */
	bool in_turn[POOL_PRIORITIES];
};

int sched_new(struct sched **ret, struct pool *pool, struct moe_error *err);
struct sched *sched_free(struct sched *sched); /* nothing may run; takes NULL, returns NULL */
/* Whom to wake when a request is done. Before the first request. */
void sched_set_loop(struct sched *sched, struct loop *loop);

void sched_client_init(struct sched_client *client);

/* CLAIMED -> QUEUED. */
void sched_queue(struct sched *sched, struct sched_client *client, struct request *request);

/* Hands out what the window allows: QUEUED -> RUNNING. */
void sched_dispatch(struct sched *sched);

/* The next request that has ended since (DONE), or NULL. */
struct request *sched_next_done(struct sched *sched);

/* Takes the client's waiting requests away: QUEUED -> DONE with -ECANCELED, calling `cancelled` for each. */
void sched_cancel(struct sched *sched, struct sched_client *client, void (*cancelled)(struct request *));

#endif
