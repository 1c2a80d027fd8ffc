/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the files of moe_expert share. main.c says in which order locks are
 * taken, and what moe_lock guards.
 */
#ifndef MOE_EXPERT_H
#define MOE_EXPERT_H

#include <linux/fs.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/poll.h>
#include <linux/rbtree.h>
#include <linux/types.h>
#include <linux/uidgid.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "uapi/moe_kmod.h"

struct io_uring_cmd;
struct moe_queue;

/**
 * struct moe_user - all open devices of one user, whose limits are asked at each
 *	command: no walk through them, nor through others'
 * @list: in moe_users while there is one
 * @uid: who that is
 * @devices: that are open
 * @leases: of all of them
 * @requests: of all of them
 */
struct moe_user {
	struct list_head list;
	kuid_t uid;
	u32 devices;
	u32 leases;
	u32 requests;
};

/**
 * struct moe_client - one open device
 * @id: grows, is never used again
 * @tgid: the process that opened it, the only one it serves
 * @uid: who that was
 * @user: the same, with what all devices of this user have
 * @leases: that it has, by moe_lease.by_client
 * @n_leases: their number
 * @closes: how often its process closed a descriptor of it
 * @death: waits for the end of @tgid, whoever else has its descriptors
 * @died: ends its leases then
 * @serves: the queue from which it fetches
 * @ended: another has ended that, and no FETCH has told it yet
 * @requests: that it waits for or may reap, by moe_request.by_client
 * @n_requests: their number
 * @queue: the id of the queue in which they are
 * @waiting: those that were never fetched, by moe_request.in
 * @answers: those that it may reap, by moe_request.in
 * @turn: in moe_queue.turns while there are any waiting
 * @wait: polls for requests to fetch, and for answers
 */
struct moe_client {
	u64 id;
	struct pid *tgid;
	kuid_t uid;
	struct moe_user *user;
	struct rb_root leases;
	u32 n_leases;
	u32 closes;
	struct wait_queue_entry death;
	struct work_struct died;
	struct moe_queue *serves;
	bool ended;
	struct list_head requests;
	u32 n_requests;
	u32 queue;
	struct list_head waiting;
	struct list_head answers;
	struct list_head turn;
	wait_queue_head_t wait;
};

/**
 * struct moe_pool - an adopted memory file
 * @list: in moe_pools by id, from RELEASE on in no list, then in moe_gone
 * @id: grows, is never used again
 * @epoch: of its content
 * @bytes: its size
 * @refs: one for moe_pools, one for each lease and for each command at work
 * @leases: that are held
 * @owner: who adopted it
 * @node: as the daemon said
 * @flags: what clients may do, enum moe_kmod_pool_flag
 * @page_shift: of its huge pages
 * @file: as the daemon had it open
 * @pages: the first small page of each huge page, pinned
 * @n_pages: that are pinned
 * @blob: what the daemon keeps with it
 * @blob_bytes: its size
 * @name: as the daemon said
 */
struct moe_pool {
	struct list_head list;
	u64 id;
	u64 epoch;
	u64 bytes;
	u32 refs;
	u32 leases;
	kuid_t owner;
	s32 node;
	u32 flags;
	unsigned int page_shift;
	struct file *file;
	struct page **pages;
	unsigned long n_pages;
	void *blob;
	u32 blob_bytes;
	char name[MOE_KMOD_NAME];
};

/**
 * struct moe_lease - one lease, later the event of its end
 * @by_id: in moe_leases, then in moe_events
 * @by_client: in its client's leases, by @id
 * @pool: NULL once it is an event
 * @tgid: of the process that took it
 * @uid: who that was when it opened the device
 * @id: grows, is never used again
 * @pool_id: of @pool, for the event
 * @epoch: of the pool when it was taken
 * @offset: where the range begins
 * @bytes: how long it is
 * @state: what its taker did with it, enum moe_kmod_lease_state
 * @map: the pool's file, opened for this lease's mapping alone, so that its
 *	references tell who else has a part of that; NULL until MAP
 * @exports: dma-bufs of it, by moe_export.by_lease
 */
struct moe_lease {
	struct list_head by_id;
	struct rb_node by_client;
	struct moe_pool *pool;
	struct pid *tgid;
	kuid_t uid;
	u64 id;
	u64 pool_id;
	u64 epoch;
	u64 offset;
	u64 bytes;
	u32 state;
	struct file *map;
	struct list_head exports;
};

union moe_arg {
	struct moe_kmod_features features;
	struct moe_kmod_adopt adopt;
	struct moe_kmod_pool pool;
	struct moe_kmod_take take;
	struct moe_kmod_release release;
	struct moe_kmod_epoch epoch;
	struct moe_kmod_lease lease;
	struct moe_kmod_drop drop;
	struct moe_kmod_leases leases;
	struct moe_kmod_watch watch;
	struct moe_kmod_map map;
	struct moe_kmod_seal seal;
	struct moe_kmod_dmabuf dmabuf;
	struct moe_kmod_queue_new queue_new;
	struct moe_kmod_queue queue;
	struct moe_kmod_recover recover;
	struct moe_kmod_queue_end queue_end;
	struct moe_kmod_tag tag;
	struct moe_kmod_request request;
	struct moe_kmod_reap reap;
};

/**
 * struct moe_call - one command on its way
 * @client: whose
 * @file: through which open device
 * @closes: of @client when it began: what another thread closes meanwhile,
 *	which may be its last descriptor, gets no lease and does not watch
 * @arg: the caller's struct, longer and shorter ones made this kernel's
 * @fd: a number for @give
 * @give: becomes a descriptor of the caller's once the answer is copied
 */
struct moe_call {
	struct moe_client *client;
	struct file *file;
	u32 closes;
	union moe_arg arg;
	int fd;
	struct file *give;
};

/* What there is and what was, guarded by moe_lock; see counters.c. */
struct moe_counters {
	u64 clients;
	u64 pools;
	u64 pages;
	u64 leases;
	u64 events;
	u64 exports;
	u64 adopted;
	u64 leased;
	u64 dropped;
	u64 queues;
	u64 requests;
	u64 submitted;
	u64 answered;
	u64 reissued;
	u64 abandoned;
};

extern struct mutex moe_lock;
extern struct list_head moe_gone;
extern struct moe_counters moe_counters;
extern const struct attribute_group *moe_groups[];

/* Unlocks moe_lock, then frees the pools that lost their last reference. */
void moe_unlock(void);

/* Whether it serves this process; and whether this process is the keeper. */
bool moe_is_mine(const struct moe_client *client);
bool moe_is_keeper(struct file *file);

/* Gives the caller a descriptor of @file, whose reference it takes. */
int moe_give(struct moe_call *call, struct file *file);

long moe_pool_adopt(struct moe_call *call);
void moe_pool_undo(struct moe_call *call);
long moe_pool_next(struct moe_call *call);
long moe_pool_take(struct moe_call *call);
long moe_pool_release(struct moe_call *call);
long moe_pool_epoch(struct moe_call *call);

/* With moe_lock held. An id that was given once and has no pool: ESTALE. */
struct moe_pool *moe_pool_find(u64 id);
void moe_pool_put(struct moe_pool *pool);
void moe_pool_free(struct moe_pool *pool);

/* The pool's file opened once more, with O_RDONLY or O_RDWR. */
struct file *moe_pool_open(struct moe_pool *pool, int how);

long moe_lease_take(struct moe_call *call);
void moe_lease_undo(struct moe_call *call);
long moe_lease_drop(struct moe_call *call);
long moe_lease_next(struct moe_call *call);

/* With moe_lock held: the client's lease of this id, or NULL. */
struct moe_lease *moe_lease_find(struct moe_client *client, u64 id);

/* Ends the client's leases, which become events, and its watch. */
void moe_lease_close(struct moe_client *client);

long moe_seal_map(struct moe_call *call);
void moe_seal_undo(struct moe_call *call);
long moe_seal(struct moe_call *call);

/* With moe_lock held: it is mapped, and its taker may write through it. */
bool moe_seal_is_open(const struct moe_lease *lease);

#if IS_ENABLED(CONFIG_DMA_SHARED_BUFFER)
long moe_export(struct moe_call *call);

/* With moe_lock held: its dma-bufs are of no lease any more. */
void moe_export_end(struct moe_lease *lease);
#else
static inline long moe_export(struct moe_call *call)
{
	return -EOPNOTSUPP;
}

static inline void moe_export_end(struct moe_lease *lease)
{
}
#endif

long moe_queue_new(struct moe_call *call);
void moe_queue_undo(struct moe_call *call);
long moe_queue_next(struct moe_call *call);
long moe_queue_recover(struct moe_call *call);
long moe_queue_end(struct moe_call *call);
long moe_queue_ioctl_fetch(struct moe_call *call);
long moe_queue_ioctl_commit(struct moe_call *call);
long moe_request_ioctl_submit(struct moe_call *call);
long moe_request_reap(struct moe_call *call);

/* With moe_lock held: its requests are dropped, the queue it serves is parked. */
void moe_queue_close(struct moe_client *client);
void moe_queue_exit(void);
__poll_t moe_queue_poll(struct moe_client *client, struct file *file,
			poll_table *table);

/* With moe_lock held: a line for each queue, as sysfs_emit. */
ssize_t moe_queue_show(char *to);

/* With moe_lock held: the oldest orphan as an event; none of them is one. */
bool moe_request_notice(struct moe_kmod_event *to);
void moe_request_forget(void);

#ifdef MOE_HAVE_URING
int moe_uring(struct io_uring_cmd *cmd, unsigned int issue_flags);
#endif

/* With moe_lock held: one more event is to be, if there is room and a watcher. */
bool moe_event_room(void);
void moe_event_wake(void);
bool moe_event_watches(const struct moe_client *client);

long moe_event_watch(struct moe_call *call);
ssize_t moe_event_read(struct file *file, char __user *to, size_t bytes);
__poll_t moe_event_poll(struct moe_client *client, struct file *file,
			poll_table *table);

#endif
