// SPDX-License-Identifier: GPL-2.0-only
/*
 * Queues: where the requests of clients wait for a daemon.
 *
 * A queue has a number of tags; with each the daemon works on one request. Who
 * made or recovered it serves it, until it closes the device or dies: then it
 * is parked, and what was fetched and not answered is kept for the next one. A
 * queue holds the module, not the daemon; it ends by QUEUE_END, or when nobody
 * recovers it in time, and then all that wait are answered.
 */
#include <linux/cred.h>
#include <linux/err.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

#include "queue.h"
#include "trace.h"

static LIST_HEAD(moe_queues);
static u32 moe_queue_ids = 1; /* the next one */
static void expire(struct work_struct *work);
static DECLARE_DELAYED_WORK(moe_expiry, expire);

struct moe_queue *moe_queue_find(u32 id)
{
	struct moe_queue *queue;

	lockdep_assert_held(&moe_lock);
	list_for_each_entry(queue, &moe_queues, list) {
		if (queue->id == id)
			return queue;
	}
	return ERR_PTR(id && id < moe_queue_ids ? -ESTALE : -ENOENT);
}

void moe_queue_put(struct moe_queue *queue)
{
	lockdep_assert_held(&moe_lock);
	if (!--queue->refs)
		kvfree(queue);
}

void moe_queue_kick(struct moe_queue *queue)
{
	struct moe_request *request;
	struct moe_tag *tag;

	lockdep_assert_held(&moe_lock);
	while (!list_empty(&queue->fetching) && moe_queue_ready(queue)) {
		tag = list_first_entry(&queue->fetching, struct moe_tag, in);
		list_del_init(&tag->in);
		request = moe_request_next(queue, false);
		moe_request_fetch(queue, tag, request);
		moe_uring_tell(tag->cmd, tag->turn);
	}
	/* Without a key: io_uring's poll does not hear one that is EPOLLPRI alone. */
	if (queue->server && moe_queue_ready(queue))
		wake_up_interruptible(&queue->server->wait);
}

long moe_queue_tell(struct file *file, struct moe_queue *queue, u32 index,
		    u32 turn, u64 to)
{
	struct moe_tag *tag = &queue->tags[index];
	struct moe_kmod_fetched fetched;
	long ret = -ECANCELED;

	mutex_lock(&moe_lock);
	if (tag->state == MOE_TAG_TELLS && tag->turn == turn) {
		moe_request_describe(tag->request, &fetched);
		ret = 0;
	}
	moe_unlock();
	if (ret)
		return ret;
	/* The work of a task that has ended is done where there is no memory. */
	if (!moe_is_keeper(file))
		ret = -EPERM;
	else if (!current->mm ||
		 copy_to_user(u64_to_user_ptr(to), &fetched, sizeof(fetched)))
		ret = -EFAULT;
	mutex_lock(&moe_lock);
	if (tag->state != MOE_TAG_TELLS || tag->turn != turn) {
		ret = -ECANCELED;
	} else if (ret) {
		moe_request_again(queue, tag, 0);
		moe_queue_kick(queue);
	} else {
		tag->state = MOE_TAG_WORKS;
		tag->cmd = NULL;
	}
	moe_unlock();
	return ret;
}

/* With moe_lock held: the caller's queue's tag, if it serves that. */
static struct moe_tag *find_tag(struct moe_call *call, struct moe_queue **queue)
{
	const struct moe_kmod_tag *arg = &call->arg.tag;

	call->client->ended = false; /* ESTALE tells, if it was this queue */
	*queue = moe_queue_find(arg->queue);
	if (IS_ERR(*queue))
		return ERR_CAST(*queue);
	if (call->client->closes != call->closes)
		return ERR_PTR(-EBADF);
	if ((*queue)->server != call->client)
		return ERR_PTR(-EPERM);
	if (arg->tag >= (*queue)->depth)
		return ERR_PTR(-ENOENT);
	return &(*queue)->tags[array_index_nospec(arg->tag, (*queue)->depth)];
}

/* With moe_lock held. */
static long begin_fetch(struct moe_call *call, struct io_uring_cmd *cmd,
			struct moe_queue **queue, u32 *turn)
{
	struct moe_tag *tag = find_tag(call, queue);

	if (IS_ERR(tag))
		return PTR_ERR(tag);
	if (tag->state != MOE_TAG_FREE)
		return -EBUSY;
	if (!cmd && !moe_queue_ready(*queue))
		return -EAGAIN;
	(*queue)->refs++;
	tag->cmd = cmd;
	if (cmd) {
		tag->state = MOE_TAG_FETCHES;
		list_add_tail(&tag->in, &(*queue)->fetching);
		moe_uring_fetch(cmd, *queue, tag - (*queue)->tags, call->arg.tag.to);
		moe_queue_kick(*queue);
		return 0;
	}
	moe_request_fetch(*queue, tag, moe_request_next(*queue, false));
	*turn = tag->turn;
	return 0;
}

long moe_queue_fetch(struct moe_call *call, struct io_uring_cmd *cmd)
{
	const struct moe_kmod_tag *arg = &call->arg.tag;
	struct moe_queue *queue;
	u32 turn = 0;
	long ret;

	if (arg->seq || arg->reserved ||
	    memchr_inv(&arg->answer, 0, sizeof(arg->answer)))
		return -EINVAL;
	mutex_lock(&moe_lock);
	ret = begin_fetch(call, cmd, &queue, &turn);
	moe_unlock();
	if (ret || cmd)
		return ret;
	ret = moe_queue_tell(call->file, queue, arg->tag, turn, arg->to);
	mutex_lock(&moe_lock);
	moe_queue_put(queue);
	moe_unlock();
	return ret;
}

/* With moe_lock held. */
static long commit(struct moe_call *call)
{
	const struct moe_kmod_tag *arg = &call->arg.tag;
	struct moe_request *request;
	struct moe_queue *queue;
	struct moe_tag *tag;

	tag = find_tag(call, &queue);
	if (IS_ERR(tag))
		return PTR_ERR(tag);
	if (tag->state != MOE_TAG_WORKS || tag->request->seq != arg->seq)
		return -ESTALE;
	request = tag->request;
	tag->request = NULL;
	tag->state = MOE_TAG_FREE;
	tag->turn++;
	queue->fetched--;
	request->share->fetched--;
	moe_request_answer(request, &arg->answer);
	moe_queue_kick(queue); /* more tags are free: who has many may get one */
	return 0;
}

long moe_queue_commit(struct moe_call *call, struct io_uring_cmd *cmd)
{
	const struct moe_kmod_tag *arg = &call->arg.tag;
	struct moe_queue *queue;
	u32 turn;
	long ret;

	if (arg->reserved || arg->answer.status > 0 || arg->answer.status < -MAX_ERRNO)
		return -EINVAL;
	/* One hold for both: what fails has not been committed. */
	mutex_lock(&moe_lock);
	ret = commit(call);
	if (!ret && cmd)
		ret = begin_fetch(call, cmd, &queue, &turn);
	moe_unlock();
	return ret;
}

long moe_queue_ioctl_fetch(struct moe_call *call)
{
	return moe_queue_fetch(call, NULL);
}

long moe_queue_ioctl_commit(struct moe_call *call)
{
	return call->arg.tag.to ? -EINVAL : moe_queue_commit(call, NULL);
}

/* With moe_lock held: what waits in the tags goes back, or fails. */
static void empty_tags(struct moe_queue *queue)
{
	struct moe_tag *tag;

	for (tag = queue->tags; tag < queue->tags + queue->depth; tag++) {
		if (tag->state == MOE_TAG_FETCHES) {
			list_del_init(&tag->in);
			moe_uring_cancel(tag->cmd);
			tag->cmd = NULL;
			tag->state = MOE_TAG_FREE;
		} else if (tag->request) {
			trace_moe_request_park(tag->request, 0);
			moe_request_again(queue, tag, MOE_KMOD_FETCHED_REISSUED);
		}
	}
}

static void park(struct moe_queue *queue)
{
	empty_tags(queue);
	queue->server->serves = NULL;
	queue->server = NULL;
	if (!queue->recover_ms)
		return;
	queue->ends = jiffies + msecs_to_jiffies(queue->recover_ms);
	cancel_delayed_work(&moe_expiry);
	schedule_delayed_work(&moe_expiry, 0);
}

/* With moe_lock held. */
static void end(struct moe_queue *queue, int status)
{
	const struct moe_kmod_answer answer = { .status = status };
	struct moe_share *share, *next;
	struct moe_request *request;

	empty_tags(queue);
	while ((request = moe_request_next(queue, true)))
		moe_request_answer(request, &answer);
	list_for_each_entry_safe(share, next, &queue->shares, in)
		list_del_init(&share->in);
	if (queue->server)
		queue->server->serves = NULL;
	queue->server = NULL;
	list_del_init(&queue->list);
	moe_counters.queues--;
	moe_queue_put(queue);
	module_put(THIS_MODULE);
}

/* At the time of the next end there is work again. */
static void expire(struct work_struct *work)
{
	struct moe_queue *queue, *next;
	unsigned long left = MAX_JIFFY_OFFSET;

	mutex_lock(&moe_lock);
	list_for_each_entry_safe(queue, next, &moe_queues, list) {
		if (queue->server || !queue->recover_ms)
			continue;
		if (time_after_eq(jiffies, queue->ends))
			end(queue, -EHOSTDOWN);
		else
			left = min(left, queue->ends - jiffies);
	}
	if (left != MAX_JIFFY_OFFSET)
		schedule_delayed_work(&moe_expiry, left);
	moe_unlock();
}

void moe_queue_exit(void)
{
	cancel_delayed_work_sync(&moe_expiry);
}

void moe_queue_close(struct moe_client *client)
{
	struct moe_request *request, *next;

	lockdep_assert_held(&moe_lock);
	list_for_each_entry_safe(request, next, &client->requests, by_client) {
		trace_moe_request_drop(request, request->answer.status);
		moe_request_drop(request);
	}
	if (client->serves)
		park(client->serves);
}

/* With moe_lock held. */
static long add(struct moe_call *call, struct moe_queue *queue)
{
	struct moe_queue *other;
	u32 queues = 0;

	if (call->client->closes != call->closes)
		return -EBADF;
	if (call->client->serves)
		return -EBUSY;
	list_for_each_entry(other, &moe_queues, list) {
		if (uid_eq(other->owner, queue->owner))
			return -EEXIST;
		queues++;
	}
	if (queues >= MOE_KMOD_QUEUES_MAX)
		return -EMFILE;
	__module_get(THIS_MODULE);
	queue->id = moe_queue_ids++;
	queue->server = call->client;
	call->client->serves = queue;
	list_add_tail(&queue->list, &moe_queues);
	moe_counters.queues++;
	return 0;
}

static struct moe_queue *allocate(const struct moe_kmod_queue_new *arg)
{
	struct moe_queue *queue;
	u32 i;

	queue = kvzalloc(struct_size(queue, tags, arg->depth), GFP_KERNEL_ACCOUNT);
	if (!queue)
		return NULL;
	queue->refs = 1;
	queue->owner = current_fsuid();
	queue->recover_ms = arg->recover_ms;
	queue->depth = arg->depth;
	memcpy(queue->name, arg->name, sizeof(queue->name));
	INIT_LIST_HEAD(&queue->list);
	INIT_LIST_HEAD(&queue->again);
	INIT_LIST_HEAD(&queue->shares);
	INIT_LIST_HEAD(&queue->turns);
	INIT_LIST_HEAD(&queue->fetching);
	for (i = 0; i < arg->depth; i++)
		INIT_LIST_HEAD(&queue->tags[i].in);
	return queue;
}

long moe_queue_new(struct moe_call *call)
{
	struct moe_kmod_queue_new *arg = &call->arg.queue_new;
	const size_t length = strnlen(arg->name, sizeof(arg->name));
	struct moe_queue *queue;
	long ret;

	if (arg->flags || !arg->depth || arg->depth > MOE_KMOD_DEPTH_MAX ||
	    arg->recover_ms > MOE_KMOD_RECOVER_MS_MAX || length == sizeof(arg->name) ||
	    memchr_inv(arg->name + length, 0, sizeof(arg->name) - length))
		return -EINVAL;
	queue = allocate(arg);
	if (!queue)
		return -ENOMEM;
	mutex_lock(&moe_lock);
	ret = add(call, queue);
	arg->id = queue->id;
	if (ret)
		moe_queue_put(queue);
	moe_unlock();
	return ret;
}

void moe_queue_undo(struct moe_call *call)
{
	struct moe_queue *queue;

	mutex_lock(&moe_lock);
	queue = moe_queue_find(call->arg.queue_new.id);
	if (!IS_ERR(queue))
		end(queue, -ESHUTDOWN);
	moe_unlock();
}

long moe_queue_next(struct moe_call *call)
{
	struct moe_kmod_queue *out = &call->arg.queue;
	struct moe_queue *queue;
	long ret = -ENOENT;

	if (out->reserved)
		return -EINVAL;
	mutex_lock(&moe_lock);
	list_for_each_entry(queue, &moe_queues, list) {
		if (queue->id <= out->id)
			continue;
		*out = (struct moe_kmod_queue){
			.id = queue->id,
			.depth = queue->depth,
			.recover_ms = queue->recover_ms,
			.owner = from_kuid_munged(current_user_ns(), queue->owner),
			.served = !!queue->server,
			.waiting = queue->waiting,
			.fetched = queue->fetched,
		};
		memcpy(out->name, queue->name, sizeof(out->name));
		ret = 0;
		break;
	}
	moe_unlock();
	return ret;
}

/* With moe_lock held: a queue that this keeper may use as its own. */
static struct moe_queue *find_own(u32 id)
{
	struct moe_queue *queue = moe_queue_find(id);

	if (!IS_ERR(queue) && !uid_eq(queue->owner, current_fsuid()) &&
	    !capable(CAP_SYS_ADMIN))
		return ERR_PTR(-EPERM);
	return queue;
}

long moe_queue_recover(struct moe_call *call)
{
	struct moe_kmod_recover *arg = &call->arg.recover;
	struct moe_request *request;
	struct moe_queue *queue;
	long ret;

	if (arg->reserved)
		return -EINVAL;
	mutex_lock(&moe_lock);
	queue = find_own(arg->id);
	ret = PTR_ERR_OR_ZERO(queue);
	if (!ret && call->client->closes != call->closes)
		ret = -EBADF;
	if (!ret && (queue->server || call->client->serves))
		ret = -EBUSY;
	if (!ret) {
		queue->server = call->client;
		call->client->serves = queue;
		arg->depth = queue->depth;
		arg->reissued = 0;
		list_for_each_entry(request, &queue->again, in)
			arg->reissued++;
		moe_queue_kick(queue); /* who polls already */
	}
	moe_unlock();
	return ret;
}

long moe_queue_end(struct moe_call *call)
{
	struct moe_client *server = NULL;
	struct moe_queue *queue;

	if (call->arg.queue_end.reserved)
		return -EINVAL;
	mutex_lock(&moe_lock);
	queue = find_own(call->arg.queue_end.id);
	if (!IS_ERR(queue)) {
		server = queue->server;
		end(queue, -ESHUTDOWN);
	}
	if (server && server != call->client) {
		server->ended = true;
		wake_up_interruptible(&server->wait);
	}
	moe_unlock();
	return PTR_ERR_OR_ZERO(queue);
}

__poll_t moe_queue_poll(struct moe_client *client, struct file *file,
			poll_table *table)
{
	bool ready;

	poll_wait(file, &client->wait, table);
	mutex_lock(&moe_lock);
	ready = client->ended || !list_empty(&client->answers) ||
		(client->serves && moe_queue_ready(client->serves));
	moe_unlock();
	return ready ? EPOLLPRI : 0;
}

ssize_t moe_queue_show(char *to)
{
	struct moe_queue *queue;
	ssize_t at = 0;

	lockdep_assert_held(&moe_lock);
	list_for_each_entry(queue, &moe_queues, list)
		at += sysfs_emit_at(to, at, "%u %s depth=%u waiting=%u fetched=%u name=%s\n",
				    queue->id, queue->server ? "served" : "parked",
				    queue->depth, queue->waiting, queue->fetched,
				    queue->name);
	return at;
}
