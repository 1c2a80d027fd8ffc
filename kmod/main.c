// SPDX-License-Identifier: GPL-2.0-only
/*
 * moe_expert - /dev/moe-expert: pools that outlive the daemon, leases whose
 * holders the kernel knows, and queues of requests between the two.
 * lib/uapi/moe_kmod.h is its specification.
 *
 * Lock order:
 *   0. the lock of the caller's io_uring, which the kernel holds when a
 *	command of it begins, goes on in its task, or is cancelled
 *   1. mmap_lock of the caller (vm_mmap, pinning, and any copy from or to
 *      user memory, which may fault)
 *   2. moe_lock
 *   3. the locks of lists that wait (poll, the end of a process, the work of
 *	a task), of pid and slab
 * So a command of another's io_uring is never completed where that is found
 * out, but in its own task (uring.c), and nothing touches user memory, maps or
 * pins under moe_lock, which guards all lists, all counts and what they hold;
 * files, pages and blobs of a pool never change while it has a reference. Pools
 * are freed after moe_lock is given back (moe_unlock): unpinning half a
 * terabyte takes its time.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/user_namespace.h>

#include "moe_expert.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

DEFINE_MUTEX(moe_lock); /* of all lists and counts, see above */
LIST_HEAD(moe_gone);
static LIST_HEAD(moe_users);
static u64 moe_client_ids = 1; /* the next one */
struct moe_counters moe_counters;

void moe_unlock(void)
{
	struct moe_pool *pool, *next;
	LIST_HEAD(gone);

	lockdep_assert_held(&moe_lock);
	list_splice_init(&moe_gone, &gone);
	mutex_unlock(&moe_lock);
	list_for_each_entry_safe(pool, next, &gone, list)
		moe_pool_free(pool);
}

/* With moe_lock held: the user of an open device more, or NULL. */
static struct moe_user *user_of(kuid_t uid)
{
	struct moe_user *user;

	list_for_each_entry(user, &moe_users, list) {
		if (uid_eq(user->uid, uid))
			return user;
	}
	return NULL;
}

int moe_give(struct moe_call *call, struct file *file)
{
	int fd = get_unused_fd_flags(O_CLOEXEC);

	if (fd < 0) {
		fput(file);
		return fd;
	}
	call->fd = fd;
	call->give = file;
	return fd;
}

/*
 * The keeper is who owns the node, or an administrator. Both who opened the
 * device and who calls must be: neither a descriptor that was passed on nor a
 * program with more rights that is talked into a call helps anybody. Asked
 * only where it matters: a refused capability may be an entry in the audit.
 */
bool moe_is_keeper(struct file *file)
{
	kuid_t owner = file_inode(file)->i_uid;

	return (uid_eq(file->f_cred->fsuid, owner) ||
		file_ns_capable(file, &init_user_ns, CAP_SYS_ADMIN)) &&
	       (uid_eq(current_fsuid(), owner) || capable(CAP_SYS_ADMIN));
}

static long get_features(struct moe_call *call)
{
	struct moe_kmod_features *f = &call->arg.features;

	if (f->client || f->reserved)
		return -EINVAL;
	f->features = MOE_KMOD_HAS_POOLS | MOE_KMOD_HAS_LEASES |
		      MOE_KMOD_HAS_EVENTS | MOE_KMOD_HAS_SEAL |
		      MOE_KMOD_HAS_QUEUE;
	if (IS_ENABLED(CONFIG_DMA_SHARED_BUFFER))
		f->features |= MOE_KMOD_HAS_DMABUF;
#ifdef MOE_HAVE_URING
	f->features |= MOE_KMOD_HAS_URING | MOE_KMOD_HAS_STAYS;
#endif
	f->abi = MOE_KMOD_ABI;
	f->keeper = moe_is_keeper(call->file);
	f->client = call->client->id;
	return 0;
}

/* By io_uring only. */
static long not_an_ioctl(struct moe_call *call)
{
	return -EOPNOTSUPP;
}

/**
 * struct command - what a command's number means
 * @bytes: of its struct in this version
 * @least: of its struct in the first version
 * @flags: KEEPER: for the keeper only; TELLS: has an answer to be written,
 *	without which what was done would be EFAULT for nothing
 * @run: does it
 * @undo: takes it back when the caller cannot be told (may be NULL)
 */
struct command {
	u16 bytes;
	u16 least;
	u16 flags;
	long (*run)(struct moe_call *call);
	void (*undo)(struct moe_call *call);
};

#define KEEPER 1
#define TELLS 2
#define COMMAND(cmd, type, first, who, fn, back) \
	[_IOC_NR(cmd)] = { sizeof(struct type), first, who, fn, back }

static const struct command commands[] = {
	COMMAND(MOE_KMOD_FEATURES, moe_kmod_features, 32, TELLS, get_features, NULL),
	COMMAND(MOE_KMOD_ADOPT, moe_kmod_adopt, 112, KEEPER | TELLS, moe_pool_adopt, moe_pool_undo),
	COMMAND(MOE_KMOD_POOL, moe_kmod_pool, 120, TELLS, moe_pool_next, NULL),
	COMMAND(MOE_KMOD_TAKE, moe_kmod_take, 24, KEEPER | TELLS, moe_pool_take, NULL),
	COMMAND(MOE_KMOD_RELEASE, moe_kmod_release, 16, KEEPER, moe_pool_release, NULL),
	COMMAND(MOE_KMOD_EPOCH, moe_kmod_epoch, 16, KEEPER, moe_pool_epoch, NULL),
	COMMAND(MOE_KMOD_LEASE, moe_kmod_lease, 48, TELLS, moe_lease_take, moe_lease_undo),
	COMMAND(MOE_KMOD_DROP, moe_kmod_drop, 16, 0, moe_lease_drop, NULL),
	COMMAND(MOE_KMOD_LEASES, moe_kmod_leases, 48, KEEPER | TELLS, moe_lease_next, NULL),
	COMMAND(MOE_KMOD_WATCH, moe_kmod_watch, 8, KEEPER, moe_event_watch, NULL),
	COMMAND(MOE_KMOD_MAP, moe_kmod_map, 32, TELLS, moe_seal_map, moe_seal_undo),
	COMMAND(MOE_KMOD_SEAL, moe_kmod_seal, 16, 0, moe_seal, NULL),
	COMMAND(MOE_KMOD_DMABUF, moe_kmod_dmabuf, 16, TELLS, moe_export, NULL),
	COMMAND(MOE_KMOD_QUEUE_NEW, moe_kmod_queue_new, 80, KEEPER | TELLS,
		moe_queue_new, moe_queue_undo),
	COMMAND(MOE_KMOD_QUEUE, moe_kmod_queue, 96, TELLS, moe_queue_next, NULL),
	COMMAND(MOE_KMOD_RECOVER, moe_kmod_recover, 16, KEEPER | TELLS, moe_queue_recover, NULL),
	COMMAND(MOE_KMOD_QUEUE_END, moe_kmod_queue_end, 8, KEEPER, moe_queue_end, NULL),
	COMMAND(MOE_KMOD_FETCH, moe_kmod_tag, 80, KEEPER, moe_queue_ioctl_fetch, NULL),
	COMMAND(MOE_KMOD_COMMIT, moe_kmod_tag, 80, KEEPER, moe_queue_ioctl_commit, NULL),
	COMMAND(MOE_KMOD_COMMIT_AND_FETCH, moe_kmod_tag, 80, KEEPER, not_an_ioctl, NULL),
	COMMAND(MOE_KMOD_SUBMIT, moe_kmod_request, 80, 0, moe_request_ioctl_submit, NULL),
	COMMAND(MOE_KMOD_REAP, moe_kmod_reap, 64, TELLS, moe_request_reap, NULL),
};

/* Runs it, tells the caller, and only then gives the descriptor. */
static long run(const struct command *c, struct moe_call *call,
		void __user *to, size_t bytes)
{
	long ret = c->run(call);

	if (!ret && c->flags & TELLS && copy_to_user(to, &call->arg, bytes)) {
		ret = -EFAULT;
		if (c->undo)
			c->undo(call);
	}
	if (!call->give)
		return ret;
	if (!ret) {
		fd_install(call->fd, call->give);
	} else {
		put_unused_fd(call->fd);
		fput(call->give);
	}
	return ret;
}

bool moe_is_mine(const struct moe_client *client)
{
	return task_tgid(current) == client->tgid;
}

static long moe_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct moe_call call = { .client = file->private_data, .file = file };
	void __user *user = (void __user *)arg;
	size_t bytes = _IOC_SIZE(cmd);
	unsigned int nr = _IOC_NR(cmd);
	const struct command *c;
	long ret = -EPERM;

	if (_IOC_TYPE(cmd) != MOE_KMOD_IOC || nr >= ARRAY_SIZE(commands) ||
	    _IOC_DIR(cmd) != (_IOC_READ | _IOC_WRITE))
		return -ENOTTY;
	c = &commands[array_index_nospec(nr, ARRAY_SIZE(commands))];
	if (moe_is_mine(call.client) && !(c->flags & KEEPER && !moe_is_keeper(file))) {
		call.closes = READ_ONCE(call.client->closes);
		ret = bytes < c->least ? -EINVAL :
		      copy_struct_from_user(&call.arg, c->bytes, user, bytes);
		if (!ret)
			ret = run(c, &call, user, min_t(size_t, bytes, c->bytes));
	}
	if (ret)
		trace_moe_refused(call.client, nr, ret);
	return ret;
}

/*
 * A process may share its table of descriptors with another, which is not a
 * thread of it (clone with CLONE_FILES): when it ends, nothing is closed. So
 * its end is waited for, too, as a pidfd does; the one who wakes holds locks
 * under which no mutex may be taken.
 */
static int death_wakes(struct wait_queue_entry *death, unsigned int mode,
		       int flags, void *key)
{
	schedule_work(&container_of(death, struct moe_client, death)->died);
	return 0;
}

/* Threads wake whoever waits for their process, too: the last one counts. */
static void moe_died(struct work_struct *died)
{
	struct moe_client *client = container_of(died, struct moe_client, died);
	struct task_struct *task;
	bool lives;

	rcu_read_lock();
	task = pid_task(client->tgid, PIDTYPE_TGID);
	lives = task && atomic_read(&task->signal->live);
	rcu_read_unlock();
	if (!lives)
		moe_lease_close(client);
}

/* With moe_lock held. False: its user has too many. */
static bool add_client(struct moe_client *client, struct moe_user **spare)
{
	struct moe_user *user = user_of(client->uid);

	if (user && user->devices >= MOE_KMOD_USER_DEVICES_MAX)
		return false;
	if (!user) {
		user = *spare;
		*spare = NULL;
		user->uid = client->uid;
		list_add_tail(&user->list, &moe_users);
	}
	user->devices++;
	client->user = user;
	client->id = moe_client_ids++;
	moe_counters.clients++;
	trace_moe_open(client);
	return true;
}

static int moe_open(struct inode *inode, struct file *file)
{
	struct moe_client *client = kzalloc(sizeof(*client), GFP_KERNEL_ACCOUNT);
	struct moe_user *spare = kzalloc(sizeof(*spare), GFP_KERNEL_ACCOUNT);
	bool opens;

	if (!client || !spare) {
		kfree(client);
		kfree(spare);
		return -ENOMEM;
	}
	client->tgid = get_pid(task_tgid(current));
	client->uid = current_fsuid();
	client->leases = RB_ROOT;
	INIT_LIST_HEAD(&client->requests);
	INIT_LIST_HEAD(&client->waiting);
	INIT_LIST_HEAD(&client->answers);
	INIT_LIST_HEAD(&client->turn);
	init_waitqueue_head(&client->wait);
	INIT_WORK(&client->died, moe_died);
	init_waitqueue_func_entry(&client->death, death_wakes);
	file->private_data = client;
	mutex_lock(&moe_lock);
	opens = add_client(client, &spare);
	moe_unlock();
	kfree(spare);
	if (opens) {
		add_wait_queue(&client->tgid->wait_pidfd, &client->death);
		return stream_open(inode, file);
	}
	put_pid(client->tgid);
	kfree(client);
	return -EDQUOT;
}

/*
 * Its process has closed a descriptor, or ends and closes all: that ends its
 * leases and its watch now, though another process may have inherited the open
 * device, or been passed it, and keep it. Of several descriptors the first
 * counts, as with locks of fcntl(2): who has the others is not to be known.
 * A thread that ends alone closes nothing, though it may have a table of its
 * own; with its process it does: of threads that all end any may come last,
 * and what the others have is closed after it.
 */
static int moe_flush(struct file *file, fl_owner_t id)
{
	struct moe_client *client = file->private_data;
	const struct signal_struct *signal = current->signal;
	const bool alone = current->flags & PF_EXITING &&
			   atomic_read(&signal->live) &&
			   !(READ_ONCE(signal->flags) & SIGNAL_GROUP_EXIT);

	if (moe_is_mine(client) && !alone)
		moe_lease_close(client);
	return 0;
}

static int moe_release(struct inode *inode, struct file *file)
{
	struct moe_client *client = file->private_data;
	struct moe_user *last = NULL;

	remove_wait_queue(&client->tgid->wait_pidfd, &client->death);
	cancel_work_sync(&client->died);
	moe_lease_close(client);
	mutex_lock(&moe_lock);
	if (!--client->user->devices) {
		last = client->user;
		list_del(&last->list);
	}
	moe_counters.clients--;
	trace_moe_close(client);
	moe_unlock();
	WARN_ON_ONCE(last && (last->leases || last->requests));
	kfree(last);
	put_pid(client->tgid);
	kfree(client);
	return 0;
}

static ssize_t moe_read(struct file *file, char __user *to, size_t bytes,
			loff_t *at)
{
	if (!moe_is_mine(file->private_data))
		return -EPERM;
	return moe_event_read(file, to, bytes);
}

static __poll_t moe_poll(struct file *file, poll_table *table)
{
	struct moe_client *client = file->private_data;

	if (!moe_is_mine(client) ||
	    (moe_event_watches(client) && !moe_is_keeper(file)))
		return EPOLLERR;
	return moe_event_poll(client, file, table) |
	       moe_queue_poll(client, file, table);
}

static const struct file_operations moe_operations = {
	.owner = THIS_MODULE,
	.open = moe_open,
	.flush = moe_flush,
	.release = moe_release,
	.read = moe_read,
	.poll = moe_poll,
	.unlocked_ioctl = moe_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
#ifdef MOE_HAVE_URING
	.uring_cmd = moe_uring,
#endif
};

static struct miscdevice moe_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "moe-expert",
	.fops = &moe_operations,
	.groups = moe_groups,
	.mode = 0600,
};

static int __init moe_init(void)
{
	return misc_register(&moe_device);
}

/* Each pool, each queue and each open device holds the module: there is nothing left. */
static void __exit moe_exit(void)
{
	misc_deregister(&moe_device);
	moe_queue_exit();
	WARN_ON(moe_counters.pools || moe_counters.leases ||
		moe_counters.clients || moe_counters.queues ||
		moe_counters.requests);
}

module_init(moe_init);
module_exit(moe_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Pools of expert weights that outlive their daemon, and leases on them");
MODULE_VERSION("0.1.0");
