/* SPDX-License-Identifier: MIT */
/*
 * modqueue - the daemon as the server of its queue in the kernel module (moe_kmod.h): the second way by which sessions
 * ask.
 *
 * Law: a session that has named its open device when it attached (moe_msg_attach.client) is asked through the queue and
 * never by its ring. What is fetched is believed as far as the kernel vouches for it: a request goes to the session
 * whose client, process and user it has, and to nobody else; where there is none it is answered with -ENOTCONN. From
 * there on it is a request as any other (ringsrv.h): the same checks, accounts, scheduler and counters. It ends with
 * COMMIT, once; a session that is left to a successor answers nothing, and the module issues again what was fetched.
 *
 * Requests of one session are entered in the order in which they were fetched. One for which its session has no room
 * keeps its tag and waits, and so do those behind it; other sessions pass. While all tags are taken nothing is fetched.
 *
 * By io_uring, where module and kernel have that: a FETCH waits for each free tag, and an answer is COMMIT_AND_FETCH,
 * in a ring of its own, for an entry of such a ring is twice as long as one of the reactor's. The reactor reads that
 * ring's completions from memory in each turn, and polls its descriptor only to sleep. Elsewhere by ioctl and poll,
 * the same queue. What a daemon before this one had fetched is fetched by ioctl, before there are sessions. The
 * reactor's alone.
 */
#ifndef DAEMON_MODQUEUE_H
#define DAEMON_MODQUEUE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cmdring.h"
#include "daemon/loop.h"
#include "daemon/modpools.h"
#include "uapi/moe_kmod.h"
#include "uapi/moe_ring.h"

#define MODQUEUE_DEPTH 256 /* tags: requests of all clients that the daemon works on */
#define MODQUEUE_BUCKETS 64

struct sched;
struct session;

enum modqueue_state {
	MODQUEUE_FREE,
	MODQUEUE_FETCHES, /* a FETCH of it waits in the module */
	MODQUEUE_COMMITS, /* its COMMIT_AND_FETCH is being issued */
	MODQUEUE_HELD     /* it has a request */
};

struct modqueue_tag {
	struct moe_kmod_fetched fetched; /* while it fetches the kernel's */
	enum modqueue_state state;
	int refused;               /* its last COMMIT, or 0 */
	struct modqueue_tag *next; /* free, or that waits to be entered */
};

/* All zero: none is served. */
struct modqueue {
	const struct modpools_ops *ops;
	int fd;               /* an open device of its own */
	struct cmdring ring;  /* of its commands, if `rings` */
	bool rings;           /* it is asked by io_uring */
	bool left;            /* to a successor */
	struct source source; /* the device, or the ring */
	struct loop *loop;    /* that watches it, or NULL */
	uint32_t id, depth;   /* id 0: none is served */
	struct modqueue_tag *tags, *free;
	struct modqueue_tag *first, **last;     /* fetched, and not entered yet */
	struct modqueue_tag *come, **last_come; /* by io_uring, since the last turn */
	bool asked;                             /* by ioctl: there may be something to fetch */
	uint64_t turn;
	uint64_t fetched, reissued, refused; /* refused: without a session */
	struct session *clients[MODQUEUE_BUCKETS];
};

/* Where the module is used and has queues: recovers this user's, and fetches what its last server had fetched, or makes
 * one. Without it the daemon runs all the same: the log says why. */
void modqueue_open(struct modqueue *queue, const struct modpools *modpools);
/* Fetches from now on. */
int modqueue_watch(struct modqueue *queue, struct loop *loop, struct moe_error *err);
/* Before sessions are left to a successor: what waits here stays in the module. */
void modqueue_leave(struct modqueue *queue);
/* `ends`: in order, the queue goes and who waits is told. Otherwise it waits for a successor. */
void modqueue_close(struct modqueue *queue, bool ends);

/* Fetches and enters a bounded number. True: did something. */
bool modqueue_turn(struct modqueue *queue, struct sched *sched);

/* The reactor is about to sleep. True: there is something to do. */
bool modqueue_park(struct modqueue *queue);

/* How it is asked: "io_uring", "ioctl", or "none": it serves none. */
const char *modqueue_way(const struct modqueue *queue);

/* A session that is asked through the queue; and no more. */
void modqueue_join(struct modqueue *queue, struct session *session);
void modqueue_part(struct session *session);
/* Whether one of this process is asked by this open device already. */
bool modqueue_has(const struct modqueue *queue, uint64_t client, pid_t pid, uid_t uid);

/* The answer, and the tag is free: 0 or -errno, when the module has taken none. */
int modqueue_commit(struct modqueue *queue, uint32_t tag, const struct moe_cqe *cqe);

/* Whether the module has issued this request again (userdata: the modqueue, or NULL: there is none). */
bool modqueue_issues(void *userdata, uint64_t seq);

#endif
