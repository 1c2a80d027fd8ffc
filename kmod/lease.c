// SPDX-License-Identifier: GPL-2.0-only
/*
 * Leases: who reads which range of which pool.
 *
 * A lease holds its pool, so that a pool's memory stays until the last one
 * ends. It ends by DROP, or when the process that opened the device closes it
 * or ends; then, and if somebody watches, it becomes an event: nothing is
 * allocated on that way, so nothing can fail there. Events that nobody reads
 * are kept up to MOE_KMOD_EVENTS_MAX, then only counted.
 */
#include <linux/cred.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/wait.h>

#include "moe_expert.h"
#include "trace.h"

static LIST_HEAD(moe_leases);
static LIST_HEAD(moe_events);
static u64 moe_lease_ids = 1; /* the next one */
static u64 moe_events_lost;
static struct moe_client *moe_watcher;
static DECLARE_WAIT_QUEUE_HEAD(moe_event_wait);

static void lease_free(struct moe_lease *lease)
{
	put_pid(lease->tgid);
	kfree(lease);
}

/* With moe_lock held: of no list any more, and its pool is let go. */
static void detach(struct moe_client *client, struct moe_lease *lease)
{
	list_del(&lease->by_id);
	rb_erase(&lease->by_client, &client->leases);
	client->n_leases--;
	client->user->leases--;
	moe_counters.leases--;
	moe_export_end(lease);
	if (lease->map)
		fput(lease->map);
	lease->map = NULL;
	lease->pool->leases--;
	moe_pool_put(lease->pool);
	lease->pool = NULL;
}

bool moe_event_room(void)
{
	const bool room = moe_counters.events < MOE_KMOD_EVENTS_MAX;

	lockdep_assert_held(&moe_lock);
	if (moe_watcher && room)
		moe_counters.events++;
	else if (moe_watcher)
		moe_events_lost++;
	return moe_watcher && room;
}

void moe_event_wake(void)
{
	wake_up_interruptible_poll(&moe_event_wait, EPOLLIN);
}

/* With moe_lock held: the watcher will read of it, or that it cannot. */
static void become_event(struct moe_lease *lease)
{
	if (moe_event_room())
		list_add_tail(&lease->by_id, &moe_events);
	else
		lease_free(lease);
}

/* With moe_lock held: what it has not read is of no use to the next one. */
static void unwatch(void)
{
	struct moe_lease *lease, *next;

	list_for_each_entry_safe(lease, next, &moe_events, by_id) {
		list_del(&lease->by_id);
		lease_free(lease);
	}
	moe_request_forget();
	WRITE_ONCE(moe_watcher, NULL);
	moe_counters.events = 0;
	moe_events_lost = 0;
}

void moe_lease_close(struct moe_client *client)
{
	struct moe_lease *lease;
	struct rb_node *first;

	mutex_lock(&moe_lock);
	client->closes++;
	moe_queue_close(client);
	while ((first = rb_first(&client->leases))) {
		lease = rb_entry(first, struct moe_lease, by_client);
		trace_moe_end(lease);
		detach(client, lease);
		moe_counters.dropped++;
		become_event(lease);
	}
	if (moe_watcher == client)
		unwatch();
	moe_unlock();
	moe_event_wake();
}

static bool is_before(struct rb_node *a, const struct rb_node *b)
{
	return rb_entry(a, struct moe_lease, by_client)->id <
	       rb_entry(b, struct moe_lease, by_client)->id;
}

static int compare_id(const void *key, const struct rb_node *node)
{
	const u64 id = *(const u64 *)key;
	const u64 other = rb_entry(node, struct moe_lease, by_client)->id;

	return id < other ? -1 : id > other;
}

/* With moe_lock held. */
static long add(struct moe_call *call, struct moe_lease *lease)
{
	struct moe_client *client = call->client;
	struct moe_pool *pool = moe_pool_find(lease->pool_id);

	if (client->closes != call->closes)
		return -EBADF;
	if (IS_ERR(pool))
		return PTR_ERR(pool);
	if (pool->epoch != lease->epoch)
		return -ESTALE;
	if (!lease->bytes || lease->offset >= pool->bytes ||
	    lease->bytes > pool->bytes - lease->offset)
		return -ERANGE;
	if (client->n_leases >= MOE_KMOD_LEASES_MAX)
		return -EMFILE;
	if (client->user->leases >= MOE_KMOD_USER_LEASES_MAX)
		return -EDQUOT;
	pool->refs++;
	pool->leases++;
	lease->pool = pool;
	lease->id = moe_lease_ids++;
	list_add_tail(&lease->by_id, &moe_leases);
	rb_add(&lease->by_client, &client->leases, is_before);
	client->n_leases++;
	client->user->leases++;
	moe_counters.leases++;
	moe_counters.leased++;
	trace_moe_lease(lease);
	return 0;
}

struct moe_lease *moe_lease_find(struct moe_client *client, u64 id)
{
	struct rb_node *node;

	lockdep_assert_held(&moe_lock);
	node = rb_find(&id, &client->leases, compare_id);
	return node ? rb_entry(node, struct moe_lease, by_client) : NULL;
}

static long drop(struct moe_client *client, u64 id)
{
	struct moe_lease *lease;
	long ret = 0;

	mutex_lock(&moe_lock);
	lease = moe_lease_find(client, id);
	if (!lease)
		ret = -ENOENT;
	else if (moe_seal_is_open(lease))
		ret = -EBUSY;
	else
		detach(client, lease);
	moe_unlock();
	if (ret)
		return ret;
	trace_moe_drop(lease);
	lease_free(lease);
	return 0;
}

/* With a reference to the pool, which is looked up again by add(). */
static long give_file(struct moe_call *call, u64 id)
{
	struct moe_pool *pool;
	struct file *file;
	int fd;

	mutex_lock(&moe_lock);
	pool = moe_pool_find(id);
	if (!IS_ERR(pool))
		pool->refs++;
	moe_unlock();
	if (IS_ERR(pool))
		return PTR_ERR(pool);
	file = moe_pool_open(pool, O_RDONLY);
	fd = IS_ERR(file) ? PTR_ERR(file) : moe_give(call, file);
	mutex_lock(&moe_lock);
	moe_pool_put(pool);
	moe_unlock();
	return fd;
}

long moe_lease_take(struct moe_call *call)
{
	struct moe_kmod_lease *arg = &call->arg.lease;
	struct moe_lease *lease;
	long ret;

	if (arg->flags & ~MOE_KMOD_LEASE_FD)
		return -EINVAL;
	lease = kzalloc(sizeof(*lease), GFP_KERNEL_ACCOUNT);
	if (!lease)
		return -ENOMEM;
	lease->pool_id = arg->pool;
	lease->epoch = arg->epoch;
	lease->offset = arg->offset;
	lease->bytes = arg->bytes;
	INIT_LIST_HEAD(&lease->exports);
	lease->uid = call->client->uid;
	lease->tgid = get_pid(call->client->tgid);
	arg->fd = -1;
	ret = 0;
	if (arg->flags & MOE_KMOD_LEASE_FD) {
		arg->fd = give_file(call, arg->pool);
		ret = min(arg->fd, 0);
	}
	if (!ret) {
		mutex_lock(&moe_lock);
		ret = add(call, lease);
		arg->id = lease->id;
		moe_unlock();
	}
	if (ret)
		lease_free(lease);
	return ret;
}

void moe_lease_undo(struct moe_call *call)
{
	drop(call->client, call->arg.lease.id);
}

long moe_lease_drop(struct moe_call *call)
{
	if (call->arg.drop.reserved)
		return -EINVAL;
	return drop(call->client, call->arg.drop.id);
}

long moe_lease_next(struct moe_call *call)
{
	struct moe_kmod_leases *out = &call->arg.leases;
	struct moe_lease *lease;
	long ret = -ENOENT;

	if (out->reserved)
		return -EINVAL;
	mutex_lock(&moe_lock);
	list_for_each_entry(lease, &moe_leases, by_id) {
		if (lease->id <= out->id)
			continue;
		*out = (struct moe_kmod_leases){
			.id = lease->id,
			.pool = lease->pool_id,
			.epoch = lease->epoch,
			.offset = lease->offset,
			.bytes = lease->bytes,
			.pid = pid_vnr(lease->tgid),
			.uid = from_kuid_munged(current_user_ns(), lease->uid),
			.state = lease->state,
		};
		ret = 0;
		break;
	}
	moe_unlock();
	return ret;
}

long moe_event_watch(struct moe_call *call)
{
	long ret = 0;

	if (call->arg.watch.reserved)
		return -EINVAL;
	mutex_lock(&moe_lock);
	if (call->client->closes != call->closes)
		ret = -EBADF;
	else if (moe_watcher && moe_watcher != call->client)
		ret = -EBUSY;
	else
		WRITE_ONCE(moe_watcher, call->client);
	moe_unlock();
	return ret;
}

/* Without moe_lock: asked again under it. */
bool moe_event_watches(const struct moe_client *client)
{
	return READ_ONCE(moe_watcher) == client;
}

static bool has_events(void)
{
	return READ_ONCE(moe_counters.events) || READ_ONCE(moe_events_lost);
}

/* With moe_lock held: the oldest event, or how many were lost after all. */
static bool pop(struct moe_kmod_event *to)
{
	struct moe_lease *lease = list_first_entry_or_null(&moe_events,
							   struct moe_lease, by_id);

	if (lease) {
		*to = (struct moe_kmod_event){
			.type = MOE_KMOD_EVENT_DROPPED,
			.pid = pid_vnr(lease->tgid),
			.uid = from_kuid_munged(current_user_ns(), lease->uid),
			.state = lease->state,
			.lease = lease->id,
			.pool = lease->pool_id,
			.epoch = lease->epoch,
			.offset = lease->offset,
			.bytes = lease->bytes,
		};
		list_del(&lease->by_id);
		moe_counters.events--;
		lease_free(lease);
		return true;
	}
	if (moe_request_notice(to)) {
		moe_counters.events--;
		return true;
	}
	if (!moe_events_lost)
		return false;
	*to = (struct moe_kmod_event){
		.type = MOE_KMOD_EVENT_LOST,
		.lease = moe_events_lost,
	};
	moe_events_lost = 0;
	return true;
}

/* What cannot be copied counts as lost. */
static ssize_t read_events(struct moe_client *client, char __user *to,
			   size_t bytes)
{
	struct moe_kmod_event event;
	size_t done = 0;
	bool more, mine;

	do {
		mutex_lock(&moe_lock);
		mine = moe_watcher == client;
		more = mine && pop(&event);
		moe_unlock();
		if (!mine)
			return -EPERM;
		if (more && copy_to_user(to + done, &event, sizeof(event))) {
			mutex_lock(&moe_lock);
			if (moe_watcher == client)
				moe_events_lost += event.type == MOE_KMOD_EVENT_LOST ?
						   event.lease : 1;
			moe_unlock();
			return done ? done : -EFAULT;
		}
		done += more ? sizeof(event) : 0;
	} while (more && bytes - done >= sizeof(event));
	return done ? done : -EAGAIN;
}

/* The keeper who watches and then loses what made it one, reads no more. */
ssize_t moe_event_read(struct file *file, char __user *to, size_t bytes)
{
	struct moe_client *client = file->private_data;
	ssize_t ret;

	do {
		if (!moe_is_keeper(file))
			return -EPERM;
		if (bytes < sizeof(struct moe_kmod_event))
			return -EINVAL;
		ret = read_events(client, to, bytes);
		if (ret != -EAGAIN || file->f_flags & O_NONBLOCK)
			return ret;
	} while (!wait_event_interruptible(moe_event_wait, has_events() ||
					   !moe_event_watches(client)));
	return -ERESTARTSYS;
}

__poll_t moe_event_poll(struct moe_client *client, struct file *file,
			poll_table *table)
{
	poll_wait(file, &moe_event_wait, table);
	return moe_event_watches(client) && has_events() ?
	       EPOLLIN | EPOLLRDNORM : 0;
}
