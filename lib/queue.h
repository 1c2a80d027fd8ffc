/* SPDX-License-Identifier: MIT */
/*
 * queue - the client's end of a session's ring (moe_ring.h): posts entries, hands out completions.
 *
 * Law: one lock guards the tails and heads that this side writes, so that any thread may submit or wait. Of the threads
 * that wait, one is the leader: it polls briefly, then sleeps on cq_tail, drains the completion queue and wakes the
 * others; nobody holds the lock while asleep. A wait ends with the completion, with the time-out, or with -EPIPE when
 * the daemon has closed the socket: never later than 100 ms after that.
 *
 * Or, with `module`, the client's end of the daemon's queue in the kernel module (queue-module.h): the same law, but
 * what is posted and drained goes by its commands, and the leader sleeps in io_uring_enter(2), or in poll(2).
 */
#ifndef LIB_QUEUE_H
#define LIB_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/crowd.h"
#include "moe-error.h"
#include "uapi/moe_ring.h"

/* One request in flight. The caller's memory; stays in place from queue_submit until the wait has returned its end. */
struct queue_op {
	_Atomic uint32_t state; /* enum moe_request_state as this side sees it */
	bool wakes;             /* the daemon slept when it was submitted */
	uint32_t spin_us;       /* it is waited for awake, and then asleep */
	struct moe_cqe cqe;     /* valid once retired */
};

struct queue_module;

struct queue {
	pthread_mutex_t lock;
	struct moe_client_page *client;       /* written here */
	const struct moe_daemon_page *daemon; /* written by the daemon */
	struct moe_sqe *sqes;
	const struct moe_cqe *cqes;
	uint32_t entries;
	uint32_t sq_tail, cq_head; /* ours, under the lock */
	uint32_t sq_alone;         /* likewise */
	bool alone_able;           /* the daemon knows of it */
	uint32_t in_flight;        /* under the lock */
	bool leading;              /* a thread waits on cq_tail; under the lock */
	uint64_t looked_ns;        /* when it was last looked whether the daemon lives; under the lock */
	uint32_t followers;        /* the other waiters that sleep on `turn`; under the lock */
	_Atomic uint32_t turn;     /* changes with each drain and each change of leader, if there are any */
	_Atomic uint32_t events;   /* ends of requests, and kicks; written under the lock */
	_Atomic bool dead;
	int doorbell, socket;
	struct queue_module *module; /* in the ring's place, or NULL */
	struct crowd crowd;
	uint64_t patience_ns; /* how long a full ring and the answer to queue_call are waited for; 0: for ever */
};

/* Maps nothing and owns nothing but its lock: regions, doorbell and socket belong to the session. */
int queue_init(struct queue *queue, struct moe_client_page *client, const struct moe_daemon_page *daemon, int doorbell,
	       int socket);
void queue_fini(struct queue *queue);

/* Posts and publishes one entry (user_data is the queue's). Waits while the ring is full. 0, -EPIPE, -ETIME. */
int queue_submit(struct queue *queue, const struct moe_sqe *sqe, struct queue_op *op);

/* The request's end. 0: retired, look at op->cqe.status; -ETIMEDOUT (the op stays in flight); -EPIPE (the op is over).
 * timeout_ns 0: no limit. */
int queue_wait(struct queue *queue, struct queue_op *op, uint64_t timeout_ns);

/* Also over, with 0, when any request of this session has ended, or queue_kick was called, since queue_events() was
 * `since`. Through the kernel module a kick is seen when the time is over. */
int queue_wait_any(struct queue *queue, struct queue_op *op, uint32_t since, uint64_t timeout_ns);
uint32_t queue_events(const struct queue *queue);
void queue_kick(struct queue *queue);

/* Drains what is there without waiting; true when the op has ended. */
bool queue_poll(struct queue *queue, struct queue_op *op);

/* The daemon is not waited for any more, whether or not it lives: every wait ends now, as when it is gone. */
void queue_give_up(struct queue *queue);

/* Submit, wait, and the completion's status, or -EPIPE. -ETIME: none has come in patience_ns, and the daemon has been
 * given up. *ret_cqe may be NULL. */
int queue_call(struct queue *queue, const struct moe_sqe *sqe, struct moe_cqe *ret_cqe);

#endif
