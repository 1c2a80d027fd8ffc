/* SPDX-License-Identifier: MIT */
/*
 * pollset - which rings the reactor polls, and in what order.
 *
 * Law: a session is polled or parked. A parked one costs nothing: its sq_wait is up and its doorbell is armed, so the
 * client rings, which makes it polled. A polled one that has been silent for 20 ms is parked: doorbell armed, sq_wait
 * stored, full fence, and one more look at the tail (the law of sleeping in moe_ring.h, for one ring).
 *
 * A turn serves users one after the other, and of each its sessions one after the other, from where the last turn
 * stopped to the first that has work. While several users have polled sessions a user gets one entry a turn, and is
 * passed over until it has paid, turn by turn, for the bytes that were copied for it, and for each session whose lines
 * have left the cache since it was served: a thousand sessions of one user cost another one no more than one session
 * does.
 *
 * While the reactor sleeps all polled sessions have their sq_wait up, too; those that are silent for long stay parked
 * when it wakes. A doorbell is heard once and armed again when its session is parked: who rings without need is not
 * heard. The reactor's alone.
 */
#ifndef DAEMON_POLLSET_H
#define DAEMON_POLLSET_H

#include <stdbool.h>
#include <stdint.h>

struct sched;
struct session;

/* A user's part of it, embedded in its account. All zero: no session is polled. */
struct pollset_user {
	struct session *at;     /* polled next, of a ring of all that are */
	struct session *newest; /* came last of them, or any of them */
	uint32_t polled;
	uint64_t debt;      /* bytes copied for it, and wake-ups and cold sessions as if they were some, not yet paid */
	uint32_t visits;    /* to its sessions, that found something beside other users */
	uint64_t parked_ns; /* when one of its sessions was parked last */
	struct pollset_user *next, *prev;
};

/* All zero: empty. */
struct pollset {
	struct pollset_user *at; /* served next, of a ring of those with polled sessions */
	uint32_t users, turns;
	uint64_t read_ns;       /* the clock, every few turns */
	uint64_t now;           /* time in which a client could be seen to be silent */
	bool parked;            /* all flags are up */
	struct session *broken; /* the first of those that broke the ring's law */
};

/* A new session, which is parked, or one that was revived, which is polled. */
void pollset_add(struct pollset *set, struct session *session, bool polled);

/* The doorbell has rung. */
void pollset_wake(struct session *session);

/* For good; also one that is not in a set. */
void pollset_remove(struct session *session);

/* One turn. True when there was something to do, or there will be. */
bool pollset_turn(struct pollset *set, struct sched *sched);

/* A session that broke the ring's law and has left the set, or NULL. */
struct session *pollset_next_broken(struct pollset *set);

/* Before the reactor's sleep: all flags up, then a look at each ring. True: there was something to do, do not sleep. */
bool pollset_park(struct pollset *set, struct sched *sched);
/* After it, or instead of it. */
void pollset_unpark(struct pollset *set);

#endif
