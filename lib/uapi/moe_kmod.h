/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR MIT */
/*
 * moe_kmod.h - the commands of /dev/moe-expert, the device of the kernel module moe_expert.
 *
 * Pools: the daemon hands over its memory files of huge pages (ADOPT), and they outlive it. Its successor lists them
 * (POOL) and gets descriptors of the same open files (TAKE), until it lets go of them (RELEASE). Leases: a client says
 * that it reads a range of a pool of a certain epoch (LEASE), until it says that it does no more (DROP), closes the
 * device (of several descriptors the first counts) or dies. A daemon that watches (WATCH) reads struct moe_kmod_event
 * from the device for each lease that ended without DROP.
 *
 * Register, then seal: of a pool whose keeper allows it (MOE_KMOD_POOL_MAP) a lease can be mapped writable (MAP), for
 * drivers that register no other memory. The client registers it, makes it readable with mprotect(2), and says SEAL: no
 * CPU can write through it again, whatever the process does. What was pinned before still can: it was meant for that.
 * Whether a lease was mapped, and sealed, is told by LEASES and by events.
 *
 * Queues: the daemon makes one (QUEUE_NEW) and fetches requests from it; clients put them there (SUBMIT). The law of it
 * stands below, at struct moe_kmod_queue_new.
 *
 * An open device belongs to the process that opened it: any other gets EPERM, however it came by the descriptor. The
 * keeper is the owner of the device's node (a udev rule names it) or has CAP_SYS_ADMIN; what only the keeper may do is
 * marked so, and of a pool only the user who adopted it, or CAP_SYS_ADMIN, may do it.
 *
 * Each command is an ioctl whose number holds the size of its struct. A later version of a struct has more fields at
 * its end: a caller with a shorter one is served, zeros being understood; one with a longer one is served when the rest
 * is zero, and gets E2BIG otherwise. Reserved fields and unknown flags must be zero, or the answer is EINVAL.
 */
#ifndef MOE_UAPI_KMOD_H
#define MOE_UAPI_KMOD_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define MOE_KMOD_DEVICE "/dev/moe-expert"
#define MOE_KMOD_ABI 1
#define MOE_KMOD_NAME 64                 /* bytes of a pool's name, with its zero */
#define MOE_KMOD_BLOB_MAX 0x1000000      /* bytes of what lies with a pool: 16 MiB */
#define MOE_KMOD_POOLS_MAX 1024          /* EMFILE: release one first */
#define MOE_KMOD_LEASES_MAX 4096         /* of one open device, EMFILE: drop one first */
#define MOE_KMOD_USER_DEVICES_MAX 1024   /* open devices of one user, EDQUOT from open(2) */
#define MOE_KMOD_USER_LEASES_MAX 16384   /* of all open devices of one user, EDQUOT: drop one first */
#define MOE_KMOD_EVENTS_MAX 4096         /* not yet read; of those above only the number is known */
#define MOE_KMOD_QUEUES_MAX 64           /* EMFILE: end one first */
#define MOE_KMOD_DEPTH_MAX 1024          /* tags of a queue */
#define MOE_KMOD_RECOVER_MS_MAX 86400000 /* a day */
#define MOE_KMOD_REQUESTS_MAX 256        /* of one open device in flight, EBUSY: take answers first */
#define MOE_KMOD_USER_REQUESTS_MAX 4096  /* of all open devices of one user, EDQUOT: likewise */

/* What this module can do: bits of moe_kmod_features.features. */
enum moe_kmod_feature {
	MOE_KMOD_HAS_POOLS = 1,   /* ADOPT, POOL, TAKE, RELEASE, EPOCH */
	MOE_KMOD_HAS_LEASES = 2,  /* LEASE, DROP, LEASES */
	MOE_KMOD_HAS_EVENTS = 4,  /* WATCH, read, poll */
	MOE_KMOD_HAS_SEAL = 8,    /* MAP, SEAL */
	MOE_KMOD_HAS_DMABUF = 16, /* DMABUF */
	MOE_KMOD_HAS_QUEUE = 32,  /* QUEUE_NEW, QUEUE, RECOVER, QUEUE_END, FETCH, COMMIT, SUBMIT, REAP, poll */
	MOE_KMOD_HAS_URING = 64,  /* FETCH, COMMIT, COMMIT_AND_FETCH, SUBMIT by IORING_OP_URING_CMD */
	MOE_KMOD_HAS_STAYS = 128  /* MOE_KMOD_REQUEST_STAYS */
};

struct moe_kmod_features {
	__u64 features; /* out: bits of enum moe_kmod_feature */
	__u32 abi;      /* out: MOE_KMOD_ABI of the module */
	__u32 keeper;   /* out: 1 when the caller is the keeper */
	__u64 client;   /* out: the caller's open device, as moe_kmod_fetched.client; in: 0 */
	__u64 reserved;
};

/* What clients may do with a pool beyond reading its files. */
enum moe_kmod_pool_flag {
	MOE_KMOD_POOL_MAP = 1,   /* MAP: its taker can write until it seals; the file without F_SEAL_WRITE */
	MOE_KMOD_POOL_DMABUF = 2 /* DMABUF: devices that no IOMMU restrains could write */
};

/* The keeper's. The file: a memfd of huge pages, sealed with F_SEAL_SHRINK and F_SEAL_GROW, with all its pages, that
 * nobody but its owner may write (its mode has no group's and other's write bits). Each page is pinned once. */
struct moe_kmod_adopt {
	__u64 id;         /* out: the pool, a number that is never used again until the module is unloaded */
	__u64 epoch;      /* of its content, chosen by the daemon, not zero */
	__u64 bytes;      /* size of the file, exactly: EINVAL otherwise */
	__u64 blob;       /* address of what is to lie with the pool, such as the model's manifest */
	__u32 blob_bytes; /* at most MOE_KMOD_BLOB_MAX, may be 0 */
	__s32 fd;
	__s32 node;               /* NUMA node, or -1; only told again */
	__u32 flags;              /* enum moe_kmod_pool_flag */
	char name[MOE_KMOD_NAME]; /* only told again; ends with a zero, zeros behind it */
};

/* Anybody's: the pool with the smallest id that is greater than the one given; ENOENT when there is none. */
struct moe_kmod_pool {
	__u64 id; /* in: after which; out: whose */
	__u64 epoch;
	__u64 bytes;
	__u64 page_bytes;
	__u32 blob_bytes;
	__u32 leases; /* that are held now */
	__u32 owner;  /* the user who adopted it */
	__s32 node;
	__u32 flags; /* enum moe_kmod_pool_flag; in: 0 */
	__u32 reserved;
	char name[MOE_KMOD_NAME];
};

/* The keeper's: a new descriptor, close-on-exec, of the file as it was adopted, and a copy of the blob. */
struct moe_kmod_take {
	__u64 id;
	__u64 blob;       /* address for blob_bytes bytes */
	__u32 blob_bytes; /* in: 0 for none, or room for all, ENOSPC otherwise; out: bytes of the blob */
	__s32 fd;         /* out */
};

/* The keeper's: no more leases; the memory is let go with the last lease, and with what is mapped of dma-bufs. */
struct moe_kmod_release {
	__u64 id;
	__u64 reserved;
};

/* The keeper's: the content was replaced. Leases that are held stay, with the epoch that they were taken with. */
struct moe_kmod_epoch {
	__u64 id;
	__u64 epoch; /* greater than the present one: EINVAL otherwise */
};

enum moe_kmod_lease_flag {
	MOE_KMOD_LEASE_FD = 1 /* with a descriptor of the pool's file, close-on-exec, that can only be read */
};

/* Anybody's. ESTALE: the pool has another epoch, or it was released; ENOENT: there never was such a pool. */
struct moe_kmod_lease {
	__u64 id; /* out: the lease */
	__u64 pool;
	__u64 epoch;
	__u64 offset; /* the range lies within the pool and is not empty: ERANGE otherwise */
	__u64 bytes;
	__u32 flags; /* enum moe_kmod_lease_flag */
	__s32 fd;    /* out: with MOE_KMOD_LEASE_FD, else -1 */
};

/* Its taker's: the end of a lease, ENOENT when the caller has none of this id. */
struct moe_kmod_drop {
	__u64 id;
	__u64 reserved;
};

/* Its taker's, once for each lease, of whole huge pages (EINVAL): maps its range, readable and writable. EPERM: the
 * keeper does not allow it, or the file is sealed with F_SEAL_WRITE; EEXIST: it was mapped before. A lease that is
 * mapped and not sealed cannot be dropped (EBUSY). */
struct moe_kmod_map {
	__u64 lease;
	__u64 address; /* out */
	__u64 bytes;   /* out: of the lease */
	__u64 reserved;
};

/* Its taker's: takes from every mapping that came of MAP, wherever it was moved to, the right to be made writable.
 * EBUSY, and nothing is changed: a part of it is writable yet, or watched by a userfaultfd, or another process has it,
 * by fork; ENOENT: there is no such lease, or it was not mapped. Sealing again, or what was unmapped, is no error. */
struct moe_kmod_seal {
	__u64 lease;
	__u64 reserved;
};

/* Its taker's, of whole pages of 4096 bytes (EINVAL): a dma-buf of the lease's range with one scatter entry for each
 * huge page, whose descriptor, close-on-exec, can only be read. Devices are mapped as those that read (DMA_TO_DEVICE),
 * even if they ask for both ways; those that would only write are refused (EACCES). After the lease's end it is neither
 * attached nor mapped any more (ESTALE); what a device or a process has mapped then stays until it lets go. EPERM: the
 * keeper does not allow it. */
struct moe_kmod_dmabuf {
	__u64 lease;
	__s32 fd; /* out */
	__u32 reserved;
};

/* What a lease's taker did with it. */
enum moe_kmod_lease_state {
	MOE_KMOD_LEASE_MAPPED = 1, /* by MAP: it could write */
	MOE_KMOD_LEASE_SEALED = 2  /* and since SEAL cannot any more */
};

/* The keeper's: the lease with the smallest id that is greater than the one given; ENOENT when there is none. */
struct moe_kmod_leases {
	__u64 id; /* in: after which; out: whose */
	__u64 pool;
	__u64 epoch;
	__u64 offset;
	__u64 bytes;
	__u32 pid;   /* of the process, as the caller's namespace counts; 0: not in it */
	__u32 uid;   /* who it was when it opened the device */
	__u32 state; /* bits of enum moe_kmod_lease_state */
	__u32 reserved;
};

/* The keeper's: from now on this open device reads events, until it is closed. EBUSY: another one does. Who is the
 * keeper no more, reads no more (EPERM). */
struct moe_kmod_watch {
	__u64 reserved;
};

enum moe_kmod_event_type {
	MOE_KMOD_EVENT_DROPPED = 1, /* a lease ended because the device was closed, or its taker died */
	MOE_KMOD_EVENT_LOST = 2,    /* events were lost, list the leases: `lease` is the number */
	/* a client that has gone, or that took it back, had a request that was fetched and not answered: `lease` is its
	 * seq, `pool` the queue, `epoch` the client, `state` the tag, which is to be committed all the same */
	MOE_KMOD_EVENT_ORPHAN = 3
};

struct moe_kmod_event {
	__u32 type; /* enum moe_kmod_event_type */
	__u32 pid;
	__u32 uid;
	__u32 state; /* bits of enum moe_kmod_lease_state: mapped and not sealed: it may still be able to write */
	__u64 lease;
	__u64 pool;
	__u64 epoch;
	__u64 offset;
	__u64 bytes;
};

/*
 * Law of the queue. A queue has tags, 0 to depth - 1. The daemon that serves it, which is who made it or recovered it,
 * fetches: a request of a client is given a tag, and written to where FETCH says. COMMIT answers what has this tag, and
 * frees the tag. Each request is answered exactly once, by COMMIT or by the end of its queue; one that its client takes
 * back or leaves behind is answered into nothing. Users take turns, one request each, and so do the clients of a user,
 * each in the order of its SUBMITs.
 *
 * A user who has as many of the tags as are free gets no further one: alone half of them, beside one who has those a
 * quarter. What he asks then waits, and FETCH says EAGAIN where nothing else does. So the first 1 + log2(depth) users
 * find a tag each, however long others keep theirs. The queue's owner, who could end it, and what is fetched again take
 * tags as long as there are any.
 *
 * When the daemon closes the device or dies the queue is parked: what it had fetched and not answered is kept, and
 * clients wait on, and may submit. RECOVER makes its successor the one that serves. It fetches first what its
 * predecessor had fetched, in the order of seq, marked REISSUED; the request may have been worked on, so work must bear
 * to be done twice. A queue that nobody recovers within recover_ms ends.
 *
 * Two ways to say the same, which mix: as ioctls, or, where HAS_URING is told, as IORING_OP_URING_CMD on the device by
 * a ring with SQE128. There cmd_op is the ioctl's number, the 80 bytes of the entry's cmd are its struct, and addr, len
 * and uring_cmd_flags are zero but for what is named here. Not with IOSQE_ASYNC, and not in a ring with
 * SQPOLL, whose thread acts as the process that made the ring for whoever has it (EOPNOTSUPP).
 *
 *   FETCH              completes when a request has this tag: res is 0, or EPERM if its task is the keeper no more
 *   COMMIT             completes at once
 *   COMMIT_AND_FETCH   is COMMIT, and unless that fails FETCH: io_uring only
 *   SUBMIT             completes when it is answered: res is answer.status; a struct moe_kmod_answer is written to
 *                      sqe.addr, unless that is 0; with CQE32 big_cqe[0] is answer.bytes
 *
 * The end of its ring takes back a FETCH that waits and a SUBMIT that is not answered: ECANCELED (up to Linux 6.12,
 * IORING_OP_ASYNC_CANCEL does not). The end of the thread that gave it does not, while another holds the ring; what
 * comes for a thread that has ended is told to nobody: of a SUBMIT that stays (MOE_KMOD_REQUEST_STAYS) res is
 * ECANCELED, and it goes on as if it had come by ioctl, so that a process whose threads come and go reaps its answer.
 * Whoever closes a ring while answers arrive may lose those, and a request that a FETCH of it was about to tell. As
 * ioctls none of them waits: FETCH without a request and REAP without an answer are EAGAIN, and poll(2) tells with
 * POLLPRI, to who serves a queue that FETCH has one, or that FETCH is ESTALE, for another has ended the queue; to a
 * client that REAP has one. An answer of a SUBMIT is taken by the way that the SUBMIT came.
 */

/* The keeper's, who serves it from now on. EEXIST: it has one already, which is to be recovered or ended. A device
 * serves one queue (EBUSY). */
struct moe_kmod_queue_new {
	__u32 id;                 /* out: a number that is never used again until the module is unloaded */
	__u32 depth;              /* tags, 1 to MOE_KMOD_DEPTH_MAX */
	__u32 recover_ms;         /* how long it stays without anybody who serves it, a day at most; 0: for ever */
	__u32 flags;              /* 0 */
	char name[MOE_KMOD_NAME]; /* only told again; ends with a zero, zeros behind it */
};

/* Anybody's: the queue with the smallest id that is greater than the one given; ENOENT when there is none. */
struct moe_kmod_queue {
	__u32 id; /* in: after which; out: whose */
	__u32 depth;
	__u32 recover_ms;
	__u32 owner;   /* the user who made it */
	__u32 served;  /* 1: by a daemon; 0: it is parked */
	__u32 waiting; /* requests that were not fetched yet, or are to be fetched again */
	__u32 fetched; /* and not answered yet */
	__u32 reserved;
	char name[MOE_KMOD_NAME];
};

/* The keeper's, of its own queues: EPERM. EBUSY: it is served. ESTALE: it has ended; ENOENT: there never was one. */
struct moe_kmod_recover {
	__u32 id;
	__u32 reissued; /* out: requests that were fetched before, and will be again */
	__u32 depth;    /* out */
	__u32 reserved;
};

/* The keeper's, of its own queues: all requests are answered with ESHUTDOWN. After recover_ms: with EHOSTDOWN. */
struct moe_kmod_queue_end {
	__u32 id;
	__u32 reserved;
};

/* What a request came to. The fields are those of struct moe_cqe. */
struct moe_kmod_answer {
	__s32 status; /* 0 or a negative errno value */
	__u32 pairs;
	__u64 wait_ns;
	__u64 work_ns;
	__u64 bytes;
	__u64 lease; /* of the ring ABI, not of this device */
	__u64 offset;
};

/* FETCH, COMMIT, COMMIT_AND_FETCH: of who serves the queue (EPERM). ENOENT: it has no such queue or tag. */
struct moe_kmod_tag {
	__u32 queue;
	__u32 tag;
	__u64 to;  /* FETCH: address for a struct moe_kmod_fetched; EFAULT: it is fetched again; COMMIT: 0 */
	__u64 seq; /* COMMIT: of the request, ESTALE: the tag has another or none; FETCH: 0, EBUSY: the tag has one */
	struct moe_kmod_answer answer; /* COMMIT; FETCH: zeros */
	__u64 reserved;
};

enum moe_kmod_fetched_flag {
	MOE_KMOD_FETCHED_REISSUED = 1 /* a daemon before this one had fetched it, or this one before it recovered */
};

/* A request with what the kernel vouches for: who asks, and which range of which pool it has leased. */
struct moe_kmod_fetched {
	__u64 seq;    /* of the request: grows, is never used again, stays the same when it is re-issued */
	__u64 client; /* its open device: a number that is never used again */
	__u32 pid;    /* of the process, as the daemon's namespace counts; 0: not in it */
	__u32 uid;    /* who that was when it opened the device */
	__u32 tag;
	__u32 flags; /* enum moe_kmod_fetched_flag */
	__u64 lease; /* 0: it named none, and the next four are 0 */
	__u64 pool;
	__u64 epoch;
	__u64 offset;
	__u64 bytes;
	__u64 sqe[8]; /* struct moe_sqe of moe_ring.h, as it was when it was checked */
};

enum moe_kmod_request_flag {
	MOE_KMOD_REQUEST_STAYS = 1 /* by io_uring, where HAS_STAYS is told: outlives the thread that submits it */
};

/*
 * Anybody's: SUBMIT. Checked when it is submitted, and copied once before: that the entry is well formed (EINVAL; of an
 * operation that the module does not know: EOPNOTSUPP), that the lease is the caller's (ENOENT) and of its pool's
 * present epoch (ESTALE), and that the pool is the queue's owner's (EPERM). Which expert lies in the lease's range
 * is for the daemon to judge. ESTALE: the queue has ended; ENOENT: there never was one. A client with requests in one
 * queue is refused in another (EXDEV).
 */
struct moe_kmod_request {
	__u32 queue;
	__u32 flags;  /* enum moe_kmod_request_flag; by ioctl 0 */
	__u64 lease;  /* a lease of this device on which the request stands, or 0 */
	__u64 sqe[8]; /* struct moe_sqe of moe_ring.h, by its own reserved fields */
};

/* Anybody's: the oldest answer to a SUBMIT by ioctl that was not reaped; EAGAIN: there is none. */
struct moe_kmod_reap {
	__u64 user_data; /* out: of the entry */
	struct moe_kmod_answer answer;
	__u64 reserved;
};

#define MOE_KMOD_IOC 0xe7
#define MOE_KMOD_FEATURES _IOWR(MOE_KMOD_IOC, 0, struct moe_kmod_features)
#define MOE_KMOD_ADOPT _IOWR(MOE_KMOD_IOC, 1, struct moe_kmod_adopt)
#define MOE_KMOD_POOL _IOWR(MOE_KMOD_IOC, 2, struct moe_kmod_pool)
#define MOE_KMOD_TAKE _IOWR(MOE_KMOD_IOC, 3, struct moe_kmod_take)
#define MOE_KMOD_RELEASE _IOWR(MOE_KMOD_IOC, 4, struct moe_kmod_release)
#define MOE_KMOD_EPOCH _IOWR(MOE_KMOD_IOC, 5, struct moe_kmod_epoch)
#define MOE_KMOD_LEASE _IOWR(MOE_KMOD_IOC, 6, struct moe_kmod_lease)
#define MOE_KMOD_DROP _IOWR(MOE_KMOD_IOC, 7, struct moe_kmod_drop)
#define MOE_KMOD_LEASES _IOWR(MOE_KMOD_IOC, 8, struct moe_kmod_leases)
#define MOE_KMOD_WATCH _IOWR(MOE_KMOD_IOC, 9, struct moe_kmod_watch)
#define MOE_KMOD_MAP _IOWR(MOE_KMOD_IOC, 10, struct moe_kmod_map)
#define MOE_KMOD_SEAL _IOWR(MOE_KMOD_IOC, 11, struct moe_kmod_seal)
#define MOE_KMOD_DMABUF _IOWR(MOE_KMOD_IOC, 12, struct moe_kmod_dmabuf)
#define MOE_KMOD_QUEUE_NEW _IOWR(MOE_KMOD_IOC, 13, struct moe_kmod_queue_new)
#define MOE_KMOD_QUEUE _IOWR(MOE_KMOD_IOC, 14, struct moe_kmod_queue)
#define MOE_KMOD_RECOVER _IOWR(MOE_KMOD_IOC, 15, struct moe_kmod_recover)
#define MOE_KMOD_QUEUE_END _IOWR(MOE_KMOD_IOC, 16, struct moe_kmod_queue_end)
#define MOE_KMOD_FETCH _IOWR(MOE_KMOD_IOC, 17, struct moe_kmod_tag)
#define MOE_KMOD_COMMIT _IOWR(MOE_KMOD_IOC, 18, struct moe_kmod_tag)
#define MOE_KMOD_COMMIT_AND_FETCH _IOWR(MOE_KMOD_IOC, 19, struct moe_kmod_tag)
#define MOE_KMOD_SUBMIT _IOWR(MOE_KMOD_IOC, 20, struct moe_kmod_request)
#define MOE_KMOD_REAP _IOWR(MOE_KMOD_IOC, 21, struct moe_kmod_reap)

#endif
