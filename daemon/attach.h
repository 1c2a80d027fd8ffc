/* SPDX-License-Identifier: MIT */
/*
 * attach - whether a connection may have the session that it asks for.
 *
 * Law: only looks. What is wrong is said with the field, what was found and what was expected, so that nothing that is
 * made afterwards fails for a reason that the client could have known.
 */
#ifndef DAEMON_ATTACH_H
#define DAEMON_ATTACH_H

#include "daemon/peer.h"

struct entry;

/* 0, or -errno and *err. */
int attach_check(const struct peer *peer, const struct moe_msg_attach *attach, const struct entry *entry,
		 struct moe_error *err);

/* A pool file that the client may hold, the entry's; -errno: there is none. */
int attach_pool_fd(const struct entry *entry, uint32_t pool);

#endif
