/* SPDX-License-Identifier: MIT */
/*
 * diskring - reads of shards, many at a time, on one io_uring from one thread.
 *
 * Law: a read is whole or it is an error. What comes short is read on, what is interrupted or refused for now (EINTR,
 * EAGAIN) is asked for again, some times; a file that ends early was cut (-ESTALE). From diskring_add() until `done`
 * the kernel may write into the read's memory, whatever has happened meanwhile: nothing is freed before in_flight is 0.
 * Where the kernel takes no more reads for a second, those that it has not taken fail, and `broken` says so; those that
 * it has are waited for, and then the ring can be closed and opened anew.
 *
 * Probed when it is opened: the memory that is read into is registered where the kernel and RLIMIT_MEMLOCK allow that,
 * which spares it looking up pages at each read. All of a ring is one thread's; another one wakes it by its eventfd.
 */
#ifndef DAEMON_DISKRING_H
#define DAEMON_DISKRING_H

#include <liburing.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/shardfile.h"
#include "moe-error.h"

/* `length` bytes of a file from `offset` on, of which it has `expected`. */
struct diskread {
	const struct shardfile *file;
	uint8_t *memory;
	uint64_t offset;
	uint32_t length, expected;
	uint64_t bytes; /* read for it, those read twice included */

	uint32_t got, refusals; /* the ring's, and the rest */
	struct diskread *next;
};

/* How a read of its bytes from `got` on ended: `result` bytes, or -errno. 1: the rest is to be read; 0: it is whole. */
int diskread_took(struct diskread *read, int64_t result, struct moe_error *err);

/* The whole read by pread(2), for who has no ring. */
int diskread_sync(struct diskread *read, struct moe_error *err);

struct diskring {
	/* The caller's. */
	const char *name; /* in log lines */
	uint32_t depth;
	uint8_t *memory; /* that holds all reads' memory */
	size_t bytes;
	int wake_fd; /* an eventfd, or -1: nobody wakes it */
	/* Whole (error NULL), or not. May add reads. */
	void (*done)(void *userdata, struct diskread *read, const struct moe_error *error);
	void *userdata;

	uint32_t in_flight; /* reads that were added and are not done */
	bool open;
	int broken; /* -errno with which the kernel refuses reads for good, or 0 */

	struct io_uring ring; /* the ring's own, and the rest */
	bool fixed, armed;
	struct diskread wake;           /* stands for the poll of wake_fd */
	uint64_t refused_ns;            /* since when it takes none just now, 0: it does */
	struct diskread *first, **last; /* what the kernel has not taken, in its order */
	uint32_t n_waiting;
};

/* -errno: no ring can be had. */
int diskring_open(struct diskring *ring);
/* Nothing is in flight. Also one that is not open. */
void diskring_close(struct diskring *ring);

static inline bool diskring_has_room(const struct diskring *ring)
{
	return ring->open && !ring->broken && ring->in_flight < ring->depth;
}

/* There is room. */
void diskring_add(struct diskring *ring, struct diskread *read);

/* Hands over what was added, and waits for nothing. */
void diskring_submit(struct diskring *ring);

/* Hands over what was added, and while anything is in flight waits: for an end of a read, a wake-up, or so long
 * (UINT64_MAX: for ever). */
void diskring_turn(struct diskring *ring, uint64_t wait_ns);

#endif
