// SPDX-License-Identifier: GPL-2.0-only
/*
 * Shares: what part of a queue's tags one user may have.
 *
 * A user who has as many tags as are free gets no further one: alone half of
 * them, beside one who has those a quarter. So the first 1 + log2(depth) users
 * find one each, however long others keep theirs: an AGREE keeps a tag for
 * minutes. The queue's owner,
 * who could end it, and what had a tag before take tags as long as there are
 * any. Users take turns, and the clients of a user his.
 *
 * A share is there while its user has requests in the queue, those included
 * that are orphans or answered and not reaped.
 */
#include <linux/slab.h>

#include "queue.h"

struct moe_share *moe_share_new(kuid_t uid)
{
	struct moe_share *share = kzalloc(sizeof(*share), GFP_KERNEL_ACCOUNT);

	if (!share)
		return NULL;
	INIT_LIST_HEAD(&share->in);
	INIT_LIST_HEAD(&share->turn);
	INIT_LIST_HEAD(&share->clients);
	share->uid = uid;
	return share;
}

struct moe_share *moe_share_get(struct moe_queue *queue, kuid_t uid,
				struct moe_share **spare)
{
	struct moe_share *share;

	lockdep_assert_held(&moe_lock);
	list_for_each_entry(share, &queue->shares, in) {
		if (uid_eq(share->uid, uid)) {
			share->refs++;
			return share;
		}
	}
	share = *spare;
	*spare = NULL;
	if (share) {
		share->refs = 1;
		list_add_tail(&share->in, &queue->shares);
	}
	return share;
}

void moe_share_put(struct moe_share *share)
{
	lockdep_assert_held(&moe_lock);
	if (--share->refs)
		return;
	list_del_init(&share->in);
	kfree(share);
}

void moe_share_wait(struct moe_queue *queue, struct moe_share *share,
		    struct moe_client *client)
{
	lockdep_assert_held(&moe_lock);
	if (list_empty(&client->turn))
		list_add_tail(&client->turn, &share->clients);
	if (list_empty(&share->turn))
		list_add_tail(&share->turn, &queue->turns);
}

void moe_share_rest(struct moe_share *share, struct moe_client *client)
{
	lockdep_assert_held(&moe_lock);
	list_del_init(&client->turn);
	if (list_empty(&share->clients))
		list_del_init(&share->turn);
}

struct moe_share *moe_share_turn(struct moe_queue *queue, bool all)
{
	const u32 free = queue->depth - queue->fetched;
	struct moe_share *share;

	lockdep_assert_held(&moe_lock);
	list_for_each_entry(share, &queue->turns, turn) {
		if (all || share->fetched < free || uid_eq(share->uid, queue->owner))
			return share;
	}
	return NULL;
}
