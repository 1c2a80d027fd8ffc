/* SPDX-License-Identifier: MIT */
/*
 * keeper-store - the descriptors that a keeper holds, in the order in which they came.
 *
 * Law: what goes over a limit is refused, and logged by name, the first one after each start of the daemon. All numbers
 * are from `first` on: those below are free to be given to a child. A watched one is dropped when it hangs up.
 */
#ifndef DAEMON_KEEPER_STORE_H
#define DAEMON_KEEPER_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moe-error.h"

struct keeper_kept;

struct keeper_store {
	int epoll; /* the keeper's; data.fd of an event is the descriptor's number */
	int first;
	uint32_t max, n;
	size_t names_bytes;
	struct keeper_kept *kept;
	char *names; /* room for LISTEN_FDNAMES */
	bool refused;
};

/* Raises the limit of open files as far as it goes, and takes all memory. 0 or -errno. */
int keeper_store_init(struct keeper_store *ret, uint32_t max, struct moe_error *err);
void keeper_store_clear(struct keeper_store *store);

/* The fd stays the caller's. */
void keeper_store_put(struct keeper_store *store, int fd, const char *name, bool watched);

void keeper_store_drop(struct keeper_store *store, const char *name);
bool keeper_store_has(const struct keeper_store *store, const char *name);

/* After an event of this number. */
void keeper_store_drop_hung_up(struct keeper_store *store, int fd);

/* In a child: copies from HANDOVER_LISTEN_FD on, and their names between colons. */
const char *keeper_store_hand_back(const struct keeper_store *store);

#endif
