/* SPDX-License-Identifier: MIT */
/*
 * loop - the reactor: one io_uring does everything that waits.
 *
 * Law: one thread runs the loop and all handlers. A source is an fd; while it is readable `ready` is called once a
 * turn, and may leave the rest for the next one. A removed source stays in memory until the kernel has let go of it, by
 * word or with the end of the ring: then `gone` is called, the place to free it. What the kernel refuses is asked for
 * again: only when it refuses one source again and again, or everything for a second, the loop ends with an error.
 * While `poll` (the rings) finds work the loop does not sleep; when it has found none for `spin_us`, or once in a crowd
 * (base/crowd.h), the loop calls `park`, polls once more, and sleeps in io_uring until an event; then `unpark`.
 */
#ifndef DAEMON_LOOP_H
#define DAEMON_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "moe-error.h"

struct loop;

struct source {
	int fd;
	void (*ready)(struct source *source, uint32_t events); /* POLLIN, POLLHUP, ... */
	uint32_t also;                                         /* events that it hears beside POLLIN and hang-ups */
	void (*taken)(struct source *source, int sock);        /* of loop_take: a connection, or -errno */
	void (*gone)(struct source *source);                   /* may be NULL */
	bool once;                                             /* after it only loop_again watches it on */
	bool armed, removed, takes;                            /* the loop's, and the rest */
	uint32_t refusals;                                     /* polls that failed, in a row */
	struct source *next_leaving;
};

struct loop_hooks {
	bool (*poll)(void *userdata); /* true: did something */
	bool (*park)(void *userdata); /* true: did something, do not sleep */
	void (*unpark)(void *userdata);
	void *userdata;
	uint32_t spin_us;
};

/* -EOPNOTSUPP: io_uring is forbidden here. */
int loop_new(struct loop **ret, const struct loop_hooks *hooks, struct moe_error *err);
struct loop *loop_free(struct loop *loop); /* takes NULL, returns NULL */

/* What of io_uring it uses: bits of enum uring_feature (base/uring.h). */
uint64_t loop_uses(const struct loop *loop);

int loop_add(struct loop *loop, struct source *source, struct moe_error *err);
/* Watches a `once` source again that is not armed. -EBUSY: the kernel takes no poll just now. */
int loop_again(struct loop *loop, struct source *source);
/* Of a `once` listening socket that is not armed: the kernel takes connections in, close-on-exec and non-blocking, and
 * each comes to `taken`, until one of these calls finds it not `armed`: after an error or a loop_take_end. -EBUSY. */
int loop_take(struct loop *loop, struct source *source);
void loop_take_end(struct loop *loop, struct source *source);
/* The kernel does not know that: it is not among loop_uses. */
void loop_take_missing(struct loop *loop);
/* Completions that wait to be handled. */
uint32_t loop_waiting(const struct loop *loop);
void loop_remove(struct loop *loop, struct source *source);

/* Runs until loop_stop; returns its code, or -errno when io_uring fails. */
int loop_run(struct loop *loop);
void loop_stop(struct loop *loop, int code);

/* One poll and one look at io_uring, waiting for nothing: for who turns the reactor by hand. False: nothing was there
 * to do. */
bool loop_turn(struct loop *loop);

/* From `poll`: it takes long, so that sources have their turn after it and not only after several polls. */
void loop_look(struct loop *loop);

/* Lets the kernel finish with removed sources, so that their `gone` runs; gives up when none has gone for a second. For
 * the end. */
void loop_drain(struct loop *loop);

/* From `poll`: something was found that had been there since then (CLOCK_MONOTONIC, nanoseconds). */
void loop_found(struct loop *loop, uint64_t since_ns);

/* From any thread: the loop polls again soon, asleep or not. */
void loop_wake(struct loop *loop);

#endif
