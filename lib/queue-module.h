/* SPDX-License-Identifier: MIT */
/*
 * queue-module - a session's requests through the kernel module (moe_kmod.h): an open /dev/moe-expert, by which the
 * daemon's queue is asked. What queue.c does to the ring it does to this one, by the same law and under the same lock.
 *
 * By a small ring of io_uring of its own where module and kernel have that, any thread posting there: a request stays
 * when the thread that posted it ends (MOE_KMOD_REQUEST_STAYS), and its answer is reaped by ioctl then. Elsewhere, or
 * where that is wanted, by ioctl and poll.
 *
 * An open device belongs to the process that opened it: a child that was forked asks nothing by it, and takes nothing
 * from the ring, whose memory it shares.
 */
#ifndef LIB_QUEUE_MODULE_H
#define LIB_QUEUE_MODULE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cmdring.h"
#include "moe-error.h"
#include "uapi/moe_ring.h"

struct queue_module_slot;

struct queue_module {
	int fd;          /* -1: none */
	uint32_t queue;  /* the daemon's, as it has said when attached */
	uint64_t client; /* this open device, for the daemon */
	pid_t pid;       /* whose it is */
	bool *mine;      /* a page that is wiped in a child, or NULL */
	struct cmdring ring;
	struct queue_module_slot *slots; /* of what is in the ring; NULL: by ioctl and poll */
	uint32_t free, taken;            /* slots */
	_Atomic uint32_t strays;         /* in flight, whose thread has ended: to be reaped */
	_Atomic uint32_t refused;        /* completions of what has ended when it was posted: to be taken */
};

/* Opens the device; `plain`: by ioctl and poll, whatever else there is. -EOPNOTSUPP: there is none, or none that can do
 * it; -EACCES. */
int queue_module_open(struct queue_module *module, bool plain, struct moe_error *err);
void queue_module_close(struct queue_module *module);

/* 0; -EAGAIN: later; -EPIPE: the queue has ended; another -errno is the request's end: it was refused as it is. */
int queue_module_post(struct queue_module *module, const struct moe_sqe *sqe);

/* The next answer, as a completion without `op`, `layer` and `seq`: 1; 0: there is none now; -EPIPE: there will be
 * none any more. With an answer that comes of the queue's end *ret_over is set. */
int queue_module_next(struct queue_module *module, struct moe_cqe *ret, bool *ret_over);

/* False: this is a child of the process that opened it, to which the queue has ended. */
bool queue_module_mine(const struct queue_module *module);

/* "io_uring" or "ioctl". */
const char *queue_module_way(const struct queue_module *module);

/* Of any thread: whether completions of refusals are to be taken; they end every sleep at once, and keep slots. */
bool queue_module_refused(const struct queue_module *module);

/* Of any thread: whether there is an answer that nobody has taken yet; a refusal is none. */
bool queue_module_news(const struct queue_module *module);

/* Sleeps until there may be an answer, the socket has hung up (by io_uring that is not heard), or the
 * time is over. */
void queue_module_sleep(struct queue_module *module, int socket, uint64_t timeout_ns);

#endif
