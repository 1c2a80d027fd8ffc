/* SPDX-License-Identifier: MIT */
/*
 * warm - a session whose caches begin with the model's hottest experts (moe_ring.h, the law of the heat).
 *
 * Law: of each layer as many experts as there are slots and as have any heat, the hottest nearest to the hot end of the
 * cache; of two that are as hot the one of the lower id. What a policy counts of experts begins at nothing all the
 * same. Ranks of a group have been told the same heat, so that they fill the same. No result depends on it.
 */
#ifndef LIB_WARM_H
#define LIB_WARM_H

#include "moe-expert.h"

/* Before the session is anybody else's. Fills and waits: 0, also when the daemon knows of no heat, or -errno. */
int warm_caches(struct moe_session *session, struct moe_error *err);

#endif
