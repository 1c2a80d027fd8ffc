/* SPDX-License-Identifier: MIT */
/*
 * group - do the ranks that say that they belong together have the same weights?
 *
 * Law: sessions of one user that name one group are the ranks of one replica: tensor-parallel, data-parallel and
 * expert-parallel ones alike add up or pass on what others have computed. One that attaches to other weights (another
 * digest) than one that is there is refused where the models have the same shape: nothing else would notice. Where the
 * shapes differ it is warned of: a model that drafts for another one may share its group. One that attaches to the same
 * weights under another name is refused only where it wants to agree on phases, for it would not find the others there.
 * The error and the journal name the ranks that differ.
 */
#ifndef DAEMON_GROUP_H
#define DAEMON_GROUP_H

#include "daemon/peer.h"
#include "daemon/registry.h"

/* 0, -ESTALE: other weights, -EXDEV: the same ones, but another entry. */
int group_check(const struct peer *peer, const struct moe_msg_attach *attach, const struct entry *entry,
		struct moe_error *err);

#endif
