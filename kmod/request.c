// SPDX-License-Identifier: GPL-2.0-only
/*
 * Requests: what a client asks of a daemon, from SUBMIT to its one answer.
 *
 * A request waits for its client's turn, is fetched, and is answered. When the
 * daemon goes it is to be fetched again, before all others and by seq. When
 * its client goes, or takes it back, it is dropped; if the daemon works on it
 * by then it becomes an orphan, which keeps its tag until the daemon commits
 * it into nothing, and an event, for which nothing must be allocated.
 */
#include <linux/cred.h>
#include <linux/err.h>
#include <linux/slab.h>

#include "queue.h"
#include "trace.h"
#include "uapi/moe_ring.h"

static LIST_HEAD(moe_notices);
static u64 moe_request_seqs = 1; /* the next one */

void moe_request_put(struct moe_request *request)
{
	lockdep_assert_held(&moe_lock);
	if (--request->refs)
		return;
	moe_counters.requests--;
	moe_share_put(request->share);
	put_pid(request->tgid);
	kfree(request);
}

void moe_request_describe(const struct moe_request *request,
			  struct moe_kmod_fetched *to)
{
	*to = (struct moe_kmod_fetched){
		.seq = request->seq,
		.client = request->client_id,
		.pid = pid_vnr(request->tgid),
		.uid = from_kuid_munged(current_user_ns(), request->uid),
		.tag = request->tag,
		.flags = request->flags,
		.lease = request->lease,
		.pool = request->pool,
		.epoch = request->epoch,
		.offset = request->offset,
		.bytes = request->bytes,
	};
	memcpy(to->sqe, request->body.sqe, sizeof(to->sqe));
}

bool moe_queue_ready(struct moe_queue *queue)
{
	return !list_empty(&queue->again) || moe_share_turn(queue, false);
}

struct moe_request *moe_request_next(struct moe_queue *queue, bool all)
{
	struct moe_request *request;
	struct moe_client *client;
	struct moe_share *share;

	lockdep_assert_held(&moe_lock);
	request = list_first_entry_or_null(&queue->again, struct moe_request, in);
	if (request) {
		queue->waiting--;
		list_del_init(&request->in);
		return request;
	}
	share = moe_share_turn(queue, all);
	if (!share)
		return NULL;
	client = list_first_entry(&share->clients, struct moe_client, turn);
	request = list_first_entry(&client->waiting, struct moe_request, in);
	queue->waiting--;
	list_del_init(&request->in);
	list_move_tail(&client->turn, &share->clients);
	list_move_tail(&share->turn, &queue->turns);
	if (list_empty(&client->waiting))
		moe_share_rest(share, client);
	return request;
}

void moe_request_fetch(struct moe_queue *queue, struct moe_tag *tag,
		       struct moe_request *request)
{
	request->at = MOE_REQUEST_FETCHED;
	request->tag = tag - queue->tags;
	tag->request = request;
	tag->state = MOE_TAG_TELLS;
	tag->turn++;
	queue->fetched++;
	request->share->fetched++;
	if (request->flags & MOE_KMOD_FETCHED_REISSUED) {
		moe_counters.reissued++;
		trace_moe_request_reissue(request, 0);
	} else {
		trace_moe_request_fetch(request, 0);
	}
}

void moe_request_again(struct moe_queue *queue, struct moe_tag *tag, u32 flags)
{
	struct moe_request *request = tag->request, *other;
	struct list_head *before = &queue->again;

	tag->request = NULL;
	tag->cmd = NULL;
	tag->state = MOE_TAG_FREE;
	tag->turn++;
	queue->fetched--;
	request->share->fetched--;
	if (!request->client) {
		moe_request_put(request);
		return;
	}
	request->at = MOE_REQUEST_AGAIN;
	request->flags |= flags;
	list_for_each_entry(other, &queue->again, in) {
		if (other->seq > request->seq) {
			before = &other->in;
			break;
		}
	}
	list_add_tail(&request->in, before);
	queue->waiting++;
}

/* With moe_lock held: it is no client's. */
static void leave(struct moe_request *request)
{
	list_del_init(&request->by_client);
	request->client->n_requests--;
	request->client->user->requests--;
	request->client = NULL;
}

/* What io_uring is answered is on its way from here on, and holds it. */
static void answer_uring(struct moe_request *request)
{
	request->refs++;
	moe_uring_answer(request);
}

void moe_request_answer(struct moe_request *request,
			const struct moe_kmod_answer *answer)
{
	struct moe_client *client = request->client;

	lockdep_assert_held(&moe_lock);
	request->queue = NULL;
	request->at = MOE_REQUEST_ANSWERED;
	trace_moe_request_commit(request, answer->status);
	if (!client) {
		/* Its own answer may be on its way, read without moe_lock. */
		moe_request_put(request);
		return;
	}
	request->answer = *answer;
	moe_counters.answered++;
	if (request->cmd) {
		answer_uring(request);
		if (request->body.flags & MOE_KMOD_REQUEST_STAYS)
			return; /* the client's, until it is told */
		leave(request);
		moe_request_put(request);
	} else {
		list_add_tail(&request->in, &client->answers);
		wake_up_interruptible(&client->wait);
	}
}

void moe_request_told(struct moe_request *request, bool told)
{
	struct moe_client *client = request->client;

	lockdep_assert_held(&moe_lock);
	if (client && !told) {
		list_add_tail(&request->in, &client->answers);
		wake_up_interruptible(&client->wait);
	} else if (client) {
		leave(request);
		moe_request_put(request);
	}
	moe_request_put(request);
}

/* It is an orphan: the daemon learns of it, and its tag holds it. */
static void orphan(struct moe_request *request)
{
	if (!moe_event_room())
		return;
	request->refs++;
	list_add_tail(&request->notice, &moe_notices);
}

void moe_request_drop(struct moe_request *request)
{
	struct moe_client *client = request->client;
	bool held = false;

	lockdep_assert_held(&moe_lock);
	list_del_init(&request->in);
	if (request->at == MOE_REQUEST_FETCHED) {
		orphan(request);
		held = true;
	} else if (request->at != MOE_REQUEST_ANSWERED) {
		request->queue->waiting--;
	}
	if (list_empty(&client->waiting))
		moe_share_rest(request->share, client);
	if (request->at != MOE_REQUEST_ANSWERED)
		moe_counters.abandoned++;
	leave(request);
	if (request->cmd) {
		request->answer.status = -ECANCELED;
		answer_uring(request);
	}
	if (!held)
		moe_request_put(request);
}

bool moe_request_notice(struct moe_kmod_event *to)
{
	struct moe_request *request;

	lockdep_assert_held(&moe_lock);
	request = list_first_entry_or_null(&moe_notices, struct moe_request, notice);
	if (!request)
		return false;
	*to = (struct moe_kmod_event){
		.type = MOE_KMOD_EVENT_ORPHAN,
		.pid = pid_vnr(request->tgid),
		.uid = from_kuid_munged(current_user_ns(), request->uid),
		.state = request->tag,
		.lease = request->seq,
		.pool = request->body.queue,
		.epoch = request->client_id,
	};
	list_del_init(&request->notice);
	moe_request_put(request);
	return true;
}

void moe_request_forget(void)
{
	struct moe_kmod_event event;

	while (moe_request_notice(&event))
		;
}

/* What the entry may not have set: reserved fields, and flags without meaning. */
static long check_entry(const struct moe_sqe *sqe)
{
	const u64 *words = sqe->payload;
	u64 zero = sqe->count, flags = 0;
	unsigned int used = 0, i;

	switch (sqe->op) {
	case MOE_OP_NOP:
		break;
	case MOE_OP_FILL:
		flags = MOE_SQE_FLAGS;
		zero |= sqe->fill.reserved0 | sqe->fill.reserved1 | sqe->fill.reserved2;
		used = 6;
		break;
	case MOE_OP_COMPUTE:
		flags = MOE_SQE_WHOLE;
		zero = sqe->compute.reserved0 | sqe->compute.reserved1;
		used = 6;
		break;
	case MOE_OP_HINT:
		zero = 0;
		used = 2;
		break;
	case MOE_OP_RELEASE:
	case MOE_OP_CANCEL:
		used = 1;
		break;
	case MOE_OP_PHASE:
	case MOE_OP_AGREE:
		used = 2;
		break;
	default:
		return -EOPNOTSUPP;
	}
	if (sqe->op != MOE_OP_FILL && sqe->op != MOE_OP_COMPUTE && sqe->op != MOE_OP_HINT)
		zero |= sqe->layer;
	for (i = used; i < ARRAY_SIZE(sqe->payload); i++)
		zero |= words[i];
	return zero || sqe->flags & ~flags ? -EINVAL : 0;
}

/* With moe_lock held: what it stands on is the client's, and of today. */
static long check_lease(struct moe_client *client, struct moe_request *request,
			const struct moe_queue *queue)
{
	struct moe_lease *lease;
	struct moe_pool *pool;

	if (!request->lease)
		return 0;
	lease = moe_lease_find(client, request->lease);
	if (!lease)
		return -ENOENT;
	pool = moe_pool_find(lease->pool_id);
	if (IS_ERR(pool))
		return PTR_ERR(pool);
	if (lease->epoch != pool->epoch)
		return -ESTALE;
	if (!uid_eq(pool->owner, queue->owner))
		return -EPERM;
	request->pool = lease->pool_id;
	request->epoch = lease->epoch;
	request->offset = lease->offset;
	request->bytes = lease->bytes;
	return 0;
}

/* With moe_lock held. 1: its user needs a share, and there is no spare one. */
static long add(struct moe_call *call, struct moe_request *request,
		struct moe_share **spare)
{
	struct moe_queue *queue = moe_queue_find(request->body.queue);
	struct moe_client *client = call->client;
	long ret;

	if (client->closes != call->closes)
		return -EBADF;
	if (IS_ERR(queue))
		return PTR_ERR(queue);
	if (client->n_requests && client->queue != queue->id)
		return -EXDEV;
	if (client->n_requests >= MOE_KMOD_REQUESTS_MAX)
		return -EBUSY;
	if (client->user->requests >= MOE_KMOD_USER_REQUESTS_MAX)
		return -EDQUOT;
	ret = check_lease(client, request, queue);
	if (ret)
		return ret;
	request->share = moe_share_get(queue, request->uid, spare);
	if (!request->share)
		return 1;
	request->queue = queue;
	request->client = client;
	request->client_id = client->id;
	request->seq = moe_request_seqs++;
	client->queue = queue->id;
	client->n_requests++;
	client->user->requests++;
	list_add_tail(&request->by_client, &client->requests);
	list_add_tail(&request->in, &client->waiting);
	moe_share_wait(queue, request->share, client);
	queue->waiting++;
	moe_counters.requests++;
	moe_counters.submitted++;
	trace_moe_request_submit(request, 0);
	if (request->cmd)
		moe_uring_submit(request->cmd, request);
	moe_queue_kick(queue);
	return 0;
}

/* A user's first request in a queue brings his share, made without moe_lock. */
static long admit(struct moe_call *call, struct moe_request *request)
{
	struct moe_share *spare = NULL;
	long ret;

	do {
		mutex_lock(&moe_lock);
		ret = add(call, request, &spare);
		moe_unlock();
	} while (ret > 0 && (spare = moe_share_new(request->uid)));
	kfree(spare);
	return ret > 0 ? -ENOMEM : ret;
}

long moe_request_submit(struct moe_call *call, struct io_uring_cmd *cmd, u64 to)
{
	const struct moe_kmod_request *arg = &call->arg.request;
	struct moe_request *request;
	long ret;

	BUILD_BUG_ON(sizeof(struct moe_sqe) != sizeof(arg->sqe));
	if (arg->flags & ~(cmd ? MOE_KMOD_REQUEST_STAYS : 0))
		return -EINVAL;
	ret = check_entry((const struct moe_sqe *)arg->sqe);
	if (ret)
		return ret;
	request = kzalloc(sizeof(*request), GFP_KERNEL_ACCOUNT);
	if (!request)
		return -ENOMEM;
	request->refs = 1;
	request->cmd = cmd;
	request->to = to;
	request->body = *arg;
	request->lease = arg->lease;
	request->uid = call->client->uid;
	request->tgid = get_pid(call->client->tgid);
	INIT_LIST_HEAD(&request->by_client);
	INIT_LIST_HEAD(&request->in);
	INIT_LIST_HEAD(&request->notice);
	ret = admit(call, request);
	if (ret) {
		put_pid(request->tgid);
		kfree(request);
	}
	return ret;
}

long moe_request_ioctl_submit(struct moe_call *call)
{
	return moe_request_submit(call, NULL, 0);
}

/* What cannot be copied to the caller is lost, as with any read. */
long moe_request_reap(struct moe_call *call)
{
	struct moe_kmod_reap *arg = &call->arg.reap;
	struct moe_request *request;

	if (arg->reserved)
		return -EINVAL;
	mutex_lock(&moe_lock);
	request = list_first_entry_or_null(&call->client->answers,
					   struct moe_request, in);
	if (request) {
		arg->user_data = request->body.sqe[0];
		arg->answer = request->answer;
		list_del_init(&request->in);
		leave(request);
		moe_request_put(request);
	}
	moe_unlock();
	return request ? 0 : -EAGAIN;
}
