/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR MIT */
/*
 * moe_ring.h - the ring: a session's submission and completion queues in shared memory.
 *
 * Two regions, each one memfd made and sized by the daemon, size-sealed:
 *
 *   client region  (client writes; the daemon trusts nothing in it)
 *     struct moe_client_page | sqes[sq_entries] | struct moe_layer_stats[n_layers] | the tap | the heat
 *   daemon region  (daemon writes; the client maps it read-only)
 *     struct moe_daemon_page | cqes[cq_entries] | the hottest | what the daemon has taken of the heat
 *
 * Law of the queues. Both are single-producer, single-consumer; indices run freely modulo 2^32 and entries lie at
 * index & (entries - 1). The producer fills the entry, then stores the tail with release order; the consumer loads the
 * tail with acquire order, copies the entry once, then stores the head with release order. A client keeps at most
 * cq_entries requests in flight, so a completion always finds room.
 *
 * A completion is given out by the last word of it that is stored, with release order: `seq`, its index + 1. cq_tail
 * follows, and may stay behind while a daemon that was killed between the two has no successor yet. So a client that
 * polls looks at one cache line, that of the completion at its head; cq_tail is what it sleeps on.
 *
 * Law of the lone request. Lines that are met again and again stay near; the places of a queue do not. So a client
 * with nothing in flight, whose daemon says alone_able, may put an entry beside sq_tail, in `alone`, instead of in its
 * place: first the words of it, then sq_alone = its index + 1, then sq_tail, as ever. sq_alone = 0 names none, so an
 * entry with index 2^32 - 1 does not lie there, and one that lies in its place must not be named by a sq_alone that was
 * left from another. Such an entry's completion is given out in the daemon page's `alone` first, by its seq there, and
 * then in its place in the queue, as ever: a client may look at either. After a daemon's end it may be given out in its
 * place only. The seq in `alone` is never that of a completion that is still to come.
 *
 * Law of sleeping. Daemon, before it sleeps or polls this ring no more: store sq_wait = 1, full fence, look at the tail
 * again, then wait for the doorbell (an eventfd). Client after a tail store, at the latest before it waits for long:
 * full fence; if sq_wait is set, write 1 to the doorbell. Who has the completion by then need not. The other way about:
 * client stores cq_wait = 1, full fence, loads cq_tail, looks at the completion at its head, then FUTEX_WAITs on the
 * cq_tail that it loaded; the daemon after a cq_tail store: full fence; if cq_wait is set, FUTEX_WAKEs cq_tail, four
 * sleepers at most: a client with more lets them wake each other. Each fence's partner is the fence of the other side.
 *
 * Law of the timeline. It is a 32-bit word in a GPU's memory, 0 at first, that a client's stream waits for without
 * anybody's host in between. A client numbers the FILLs that count in it 1, 2, 3, ... modulo 2^32, each number once, in
 * any order. The GPU writes n only when all FILLs up to the n-th have brought all that they were asked for, behind
 * them, and it may leave numbers out. So one that fails stops the timeline until another FILL with its number has come;
 * whoever waits beyond is the client's to free.
 *
 * Law of the agreement. Sessions of one user, model and group that were attached with the same dp_size are its members;
 * the number of one is dp_rank * tp_size + tp_rank. Rounds are numbered 1, 2, 3, ... A round collects an AGREE of each
 * member and is decided when it has them all: PREFILL if one of them wishes it, else DECODE if one does, else NONE.
 * Whose wish it is not runs a dummy step. A member that has ended, or for which another has waited for agree_ms, is
 * given up: those who wait are told so (-EOWNERDEAD, the round is over for all of them), and it takes part again from
 * its next AGREE on. -ESTALE: the round was decided without this member; round 0 names the one that is being collected.
 *
 * Law of the tap. It is a ring of tap_bytes bytes at tap_offset, a power of two; with tap_bytes 0 there is none, as of
 * a daemon before it. A client that knows of it says so in tap_able. While the daemon's tap_on is set, the client puts
 * a struct moe_route (moe_trace.h) there for each layer of each step that it plans, dummy ones excepted: one producer,
 * one consumer, byte indices that run freely modulo 2^32, records that go on at the beginning where the ring ends. A
 * record that has no room is not waited for: the client counts it in tap_lost. It loads tap_on with acquire order,
 * since the pages of the tap are made, and tap_head is moved to its tail, before that is set.
 *
 * Law of the waits. At waits_offset (0: there are none, as of a daemon before them) the client region has a histogram
 * for each of the model's layers, of how long moe_wait waited for each step of it, in nanoseconds, but for dummy steps.
 * Values below 16 have a bucket each; above, each power of two is cut into 8 buckets of equal width, so value v with
 * highest bit h is in bucket 8 (h - 3) + (v >> (h - 3)); from 2^40 on all are in the last. Buckets only grow.
 *
 * Law of the heat. At heat_offset, in cells __u32[n_moe_layers][n_experts], the client counts the (token, expert) pairs
 * that its routers choose, modulo 2^32, and in heat_steps the steps, those of its first MoE layer; dummy ones excepted.
 * The daemon reads both when it likes, and adds what has come to the model's heat; of a group's tensor ranks, which
 * route alike, it reads rank 0's alone. At hottest_offset it has written, in cells of the same shape, what the model's
 * heat was when the session was attached, for all sessions of a group the same. With heat_offset 0 there is neither, as
 * of a daemon before them. Nothing that is computed depends on them.
 *
 * All integers are little-endian; every reserved byte is zero, and a set one is refused with -EINVAL, so that it can be
 * given a meaning later. Two arenas, memfds that the client makes, seals and registers (MOE_MSG_ARENA), hold what
 * moves: offsets named x, ids, weights, y count bytes from the start of the data arena, `dst` of a fill from the start
 * of the slot arena.
 */
#ifndef MOE_UAPI_RING_H
#define MOE_UAPI_RING_H

#include <linux/types.h>

#define MOE_RING_MAGIC 0x32676e69722d656dULL /* "me-ring2" */
#define MOE_RING_PAGE 4096
#define MOE_RING_ENTRIES_MIN 8
#define MOE_RING_ENTRIES_MAX 4096
#define MOE_TOPK_MAX 64
#define MOE_PAIRS_MAX (1u << 20) /* tokens * topk of a COMPUTE */
#define MOE_TOKENS_MAX 65536
#define MOE_AGREE_MAX 64          /* members of a group: dp_size x tp_size */
#define MOE_AGREE_MS_MAX 600000   /* how long a member may wait for another: ten minutes */
#define MOE_TIMELINE_WINDOW 65536 /* numbers of the timeline that may come before their turn */

enum moe_op {
	MOE_OP_NOP = 0,     /* completes at once */
	MOE_OP_FILL = 1,    /* copy one record's slice into a slot, or (MOE_SQE_LEASE) lend the record */
	MOE_OP_COMPUTE = 2, /* y = sum_k w_k * expert_k(x) on the CPU pool */
	MOE_OP_RELEASE = 3, /* give a lease back */
	MOE_OP_HINT = 4,    /* experts that will probably be asked for at this layer */
	MOE_OP_PHASE = 5,   /* the step that begins now: its phase, its number, whether it is a dummy */
	MOE_OP_CANCEL = 6,  /* a request of this session that still waits is not to be done */
	MOE_OP_AGREE = 7,   /* which phase the next step has, with the data-parallel ranks of the group */
	MOE_OP_COUNT = 8
};

/* moe_sqe.flags */
#define MOE_SQE_LEASE 0x01    /* FILL: no copy; the completion names offset and lease */
#define MOE_SQE_WHOLE 0x02    /* COMPUTE: whole experts, not the session's slice */
#define MOE_SQE_PREFETCH 0x04 /* FILL: speculative, after all work that is not; not with MOE_SQE_LEASE */
#define MOE_SQE_SIGNAL 0x08   /* FILL into a GPU's memory: counts in the timeline; with neither of the two above */
#define MOE_SQE_FLAGS 0x0f

enum moe_type { MOE_TYPE_F32 = 0, MOE_TYPE_BF16 = 1, MOE_TYPE_F16 = 2 };
enum moe_phase { MOE_PHASE_NONE = 0, MOE_PHASE_PREFILL = 1, MOE_PHASE_DECODE = 2 };

/* moe_sqe.phase.flags */
#define MOE_PHASE_DUMMY 0x01

struct moe_sqe {
	__u64 user_data; /* returned untouched */
	__u8 op;         /* enum moe_op */
	__u8 flags;      /* MOE_SQE_* */
	__u16 layer;     /* the model's own layer number; 0 for NOP, RELEASE, PHASE, CANCEL, AGREE */
	__u32 count;     /* COMPUTE: tokens; HINT: ids; else 0 */
	union {
		struct {
			__u32 expert;
			__u32 reserved0;
			__u64 dst;    /* 64-byte aligned offset of the slot in the slot arena; 0 with MOE_SQE_LEASE */
			__u64 from;   /* the range of the packed slice that is copied, to dst + from; any bytes ... */
			__u64 bytes;  /* ... of it, at least one; 0, with `from` 0: all of it */
			__u32 signal; /* with MOE_SQE_SIGNAL: its number in the timeline (MOE_MSG_DEVICE); else 0 */
			__u32 reserved1;
			__u64 reserved2;
		} fill;
		struct {
			__u32 topk;
			__u8 x_type; /* MOE_TYPE_F32 or MOE_TYPE_BF16 */
			__u8 y_type; /* the same */
			__u16 reserved0;
			__u64 x;       /* [count][hidden] of x_type, 64-byte aligned */
			__u64 ids;     /* [count][topk] __s32, -1: not for the CPU; 64-byte aligned */
			__u64 weights; /* [count][topk] float, 64-byte aligned */
			__u64 y;       /* [count][hidden] of y_type, 64-byte aligned, written whole */
			__u64 reserved1;
		} compute;
		struct {
			__u64 lease;
			__u64 reserved[5];
		} release;
		struct {
			__u64 ids;     /* [count] __s32, 64-byte aligned */
			__u64 weights; /* [count] float, 64-byte aligned: how probable, 0 to 1; 0: all are alike */
			__u64 reserved[4];
		} hint;
		struct {
			__u32 phase; /* enum moe_phase */
			__u32 flags; /* MOE_PHASE_DUMMY */
			__u64 step;
			__u64 reserved[4];
		} phase;
		struct {
			__u64 user_data; /* the request's: one that waits, if several have it */
			__u64 reserved[5];
		} cancel;
		struct {
			__u32 phase;  /* enum moe_phase: the wish; MOE_PHASE_NONE: no work */
			__u32 tokens; /* of it */
			__u64 round;  /* the one after the last; 0: the one that is being collected */
			__u64 reserved[4];
		} agree;
		__u64 payload[6];
	};
};

struct moe_cqe {
	__u64 user_data;
	__s32 status; /* 0 or a negative errno value */
	__u8 op;
	__u8 reserved;
	__u16 layer;
	__u64 wait_ns; /* from the claim to the first work */
	__u64 work_ns; /* from the first work to the last */
	__u32 pairs;   /* COMPUTE: (token, expert) pairs computed; AGREE: the most tokens of a member */
	__u32 seq;     /* index + 1: the completion is given out */
	__u64 bytes;   /* FILL: bytes of the slice, or of the range that was asked for; AGREE: the phase */
	__u64 lease;   /* FILL with MOE_SQE_LEASE: the lease ...; AGREE: the round, also when it has failed */
	__u64 offset;  /* ... and the record's offset in each pool file; AGREE: the set of members given up */
};

enum moe_stats_mode {
	MOE_STATS_DECODE = 0,
	MOE_STATS_PREFETCH = 1,
	MOE_STATS_FULL = 2,
	MOE_STATS_DUAL_BATCH = 3, /* decode with two micro-batches in flight */
	MOE_STATS_MODES = 4
};

/*
 * What a client counts per mode, cumulative: how long the parts of its steps were, which run side by side, and what the
 * steps took. Only steps whose end was waited for: of the others, `hidden`, nobody knows when they ended.
 */
struct moe_mode_stats {
	__u64 steps;
	__u64 hidden;
	__u64 copy_ns;   /* of experts into slots */
	__u64 device_ns; /* device compute */
	__u64 cpu_ns;    /* CPU pool work */
	__u64 taken_ns;  /* in flight; what several steps are at the same time, is shared among them */
	__u64 reads;     /* experts that the device read in the pool, without a copy ... */
	__u64 read_bytes;
};

#define MOE_GHOST_CACHES 7

struct moe_ghost_cache {
	__u8 policy[16]; /* its name, and zeros; none: there is no such cache */
	__u64 slots;     /* of a layer */
	__u64 hits;      /* distinct experts of a step that it had */
	__u64 hits_pairs;
};

/* What a client finds out about caches that it does not have, in some of its layers; cumulative. */
struct moe_ghost_stats {
	__u64 layers; /* that are looked at; 0: none */
	__u64 steps;  /* of all of them */
	__u64 asked;  /* distinct experts of each step */
	__u64 asked_pairs;
	__u64 bound_slots; /* no cache of so many slots has more than bound_hits ... */
	__u64 bound_asked; /* ... of so many experts that were asked for */
	__u64 bound_hits;
	__u64 bound_own; /* of the same, what the first cache had */
	/* The same three of each layer's last window of steps, not cumulative. Asked 0: none is over, or a client that
	 * does not know them. */
	__u64 recent_asked;
	__u64 recent_hits;
	__u64 recent_own;
	__u64 reserved[2];
	struct moe_ghost_cache caches[MOE_GHOST_CACHES]; /* the first is like the session's own */
};

/* At offset 0 of the client region. One cache line per word that the other side polls. */
struct moe_client_page {
	__u32 sq_tail;
	__u32 sq_alone; /* index + 1 of the entry that lies in `alone`; 0: of none */
	__u64 alone[7]; /* a struct moe_sqe but for its last word, which is zero */
	__u32 cq_head;
	__u32 pad1[15];
	__u32 cq_wait; /* 1: the client sleeps on cq_tail */
	__u32 pad2[15];
	struct moe_mode_stats modes[MOE_STATS_MODES];
	__u32 tap_tail;
	__u32 tap_able;   /* 1: the client knows of the tap */
	__u64 tap_lost;   /* routes that had no room, cumulative */
	__u64 heat_steps; /* cumulative */
	__u64 pad3[5];
	struct moe_ghost_stats ghosts;
};

/* At offset 0 of the daemon region. */
struct moe_daemon_page {
	__u64 magic; /* MOE_RING_MAGIC */
	__u64 epoch; /* the model's: changes when it is unloaded and loaded again */
	__u32 sq_entries;
	__u32 cq_entries;
	__u64 sqe_offset;   /* in the client region */
	__u64 stats_offset; /* in the client region: struct moe_layer_stats[n_layers] */
	__u64 cqe_offset;   /* in the daemon region */
	__u64 reserved[2];
	__u32 sq_head;
	__u32 pad0[15];
	__u32 cq_tail; /* also the futex word */
	__u32 pad1[15];
	__u32 sq_wait; /* 1: the daemon sleeps on the doorbell */
	__u32 pad2[15];
	__u64 tap_offset; /* in the client region */
	__u32 tap_bytes;
	__u32 tap_on; /* 1: routes are wanted */
	__u32 tap_head;
	__u32 tap_made;       /* 1: the tap has its pages */
	__u64 waits_offset;   /* in the client region: struct moe_histogram[n_layers], or 0 */
	__u64 heat_offset;    /* in the client region; 0: none */
	__u64 hottest_offset; /* in the daemon region */
	__u64 heat_taken;     /* of heat_steps, by the daemon */
	__u32 alone_able;     /* 1: the daemon knows of sq_alone */
	__u32 pad3;
	struct moe_cqe alone; /* of the last entry that lay in the client's `alone` */
};

#define MOE_HISTOGRAM_BUCKETS 304

/* How often a value was seen, by the law of the waits. */
struct moe_histogram {
	__u64 buckets[MOE_HISTOGRAM_BUCKETS];
};

/*
 * What a client counts per layer, cumulative; the daemon reads a snapshot and adds nothing of its own. Pairs are
 * (token, expert) pairs by the path on which they were computed; hit + miss_buffer + pool + cpu + local is tokens x
 * top-k.
 */
struct moe_layer_stats {
	__u64 steps;
	__u64 tokens;
	__u64 pairs_hit;         /* on a cache slot */
	__u64 pairs_miss_buffer; /* on a miss-buffer slot */
	__u64 pairs_cpu;         /* on the daemon's CPU pool */
	__u64 pairs_local;       /* by the client without the daemon */
	__u64 pairs_resident; /* of them, whose expert was in a cache slot before the step: the hit rate's numerator */
	__u64 fills;
	__u64 fill_bytes;
	__u64 active_sum; /* distinct experts per step, summed */
	__u64 active_max;
	__u64 wait_ns;    /* the step waited for fills and CPU results */
	__u64 cpu_ns;     /* CPU pool work */
	__u64 device_ns;  /* device compute */
	__u64 copy_ns;    /* device or push copies */
	__u64 slots;      /* cache slots of this layer (a level, not a sum) */
	__u64 pairs_pool; /* by the device, on an expert that it read in the pool */
	__u64 reads;      /* such experts */
	__u64 read_bytes;
	__u64 guessed;       /* experts that the client guessed for steps (it counts those that it had a guess for) */
	__u64 guess_asked;   /* distinct experts that these steps asked for */
	__u64 guess_found;   /* of these, those that had been guessed: the recall's numerator */
	__u64 experts_asked; /* distinct experts of each step; 0 of a client that does not count the next: */
	__u64 experts_resident; /* of them, those that were in a cache slot before the step */
};

/*
 * The ten states of a request. Each arrow belongs to one owner; the table is asserted by both sides.
 *
 *   FREE -> POSTED      client    the entry is filled
 *   POSTED -> PUBLISHED client    sq_tail is stored
 *   PUBLISHED -> CLAIMED ring server  the entry is copied out and validated
 *   CLAIMED -> QUEUED   scheduler waits for the pool
 *   CLAIMED -> DONE     ring server   no work for the pool: NOP, leases, refusals; cancelled before QUEUED
 *   QUEUED -> RUNNING   pool
 *   QUEUED -> DONE      scheduler cancelled by CANCEL, or its session has died
 *   RUNNING -> DONE     pool
 *   DONE -> COMPLETED   ring server   cq_tail is stored
 *   COMPLETED -> RETIRED client   cq_head is stored
 *   RETIRED -> REAPED   ring server   cq_head was seen; the tag's books are closed
 *   DONE, COMPLETED -> REAPED ring server  its session has died
 *   REAPED -> FREE      client and ring server
 */
enum moe_request_state {
	MOE_REQUEST_FREE,
	MOE_REQUEST_POSTED,
	MOE_REQUEST_PUBLISHED,
	MOE_REQUEST_CLAIMED,
	MOE_REQUEST_QUEUED,
	MOE_REQUEST_RUNNING,
	MOE_REQUEST_DONE,
	MOE_REQUEST_COMPLETED,
	MOE_REQUEST_RETIRED,
	MOE_REQUEST_REAPED,
	MOE_REQUEST_STATES
};

static inline int moe_request_arrow(unsigned int from, unsigned int to)
{
	static const __u16 arrows[MOE_REQUEST_STATES] = {
		1u << MOE_REQUEST_POSTED,                               /* FREE */
		1u << MOE_REQUEST_PUBLISHED,                            /* POSTED */
		1u << MOE_REQUEST_CLAIMED,                              /* PUBLISHED */
		1u << MOE_REQUEST_QUEUED | 1u << MOE_REQUEST_DONE,      /* CLAIMED */
		1u << MOE_REQUEST_RUNNING | 1u << MOE_REQUEST_DONE,     /* QUEUED */
		1u << MOE_REQUEST_DONE,                                 /* RUNNING */
		1u << MOE_REQUEST_COMPLETED | 1u << MOE_REQUEST_REAPED, /* DONE */
		1u << MOE_REQUEST_RETIRED | 1u << MOE_REQUEST_REAPED,   /* COMPLETED */
		1u << MOE_REQUEST_REAPED,                               /* RETIRED */
		1u << MOE_REQUEST_FREE,                                 /* REAPED */
	};

	return from < MOE_REQUEST_STATES && to < MOE_REQUEST_STATES && (arrows[from] >> to & 1);
}

#ifdef __cplusplus
#define MOE_ASSERT(condition, text) static_assert(condition, text)
#else
#define MOE_ASSERT(condition, text) _Static_assert(condition, text)
#endif
#define MOE_AT(type, field, offset) MOE_ASSERT(__builtin_offsetof(type, field) == (offset), #type "." #field)

MOE_ASSERT(sizeof(struct moe_sqe) == 64, "moe_sqe is one cache line");
MOE_ASSERT(sizeof(struct moe_cqe) == 64, "moe_cqe is one cache line");
MOE_ASSERT(sizeof(struct moe_mode_stats) == 64, "moe_mode_stats");
MOE_ASSERT(sizeof(struct moe_ghost_stats) == 384, "moe_ghost_stats");
MOE_ASSERT(sizeof(struct moe_client_page) == 896, "moe_client_page");
MOE_ASSERT(sizeof(struct moe_daemon_page) == 384, "moe_daemon_page");
MOE_ASSERT(sizeof(struct moe_layer_stats) == 192, "moe_layer_stats");
MOE_AT(struct moe_sqe, op, 8);
MOE_AT(struct moe_sqe, layer, 10);
MOE_AT(struct moe_sqe, count, 12);
MOE_AT(struct moe_sqe, fill.dst, 24);
MOE_AT(struct moe_sqe, fill.bytes, 40);
MOE_AT(struct moe_sqe, fill.signal, 48);
MOE_AT(struct moe_sqe, cancel.user_data, 16);
MOE_AT(struct moe_sqe, compute.x_type, 20);
MOE_AT(struct moe_sqe, compute.x, 24);
MOE_AT(struct moe_sqe, compute.y, 48);
MOE_AT(struct moe_sqe, release.lease, 16);
MOE_AT(struct moe_sqe, phase.step, 24);
MOE_AT(struct moe_sqe, agree.round, 24);
MOE_AT(struct moe_cqe, status, 8);
MOE_AT(struct moe_cqe, wait_ns, 16);
MOE_AT(struct moe_cqe, pairs, 32);
MOE_AT(struct moe_cqe, offset, 56);
MOE_AT(struct moe_client_page, alone, 8);
MOE_AT(struct moe_client_page, cq_head, 64);
MOE_AT(struct moe_client_page, cq_wait, 128);
MOE_AT(struct moe_client_page, modes, 192);
MOE_AT(struct moe_client_page, tap_tail, 448);
MOE_AT(struct moe_daemon_page, cqe_offset, 40);
MOE_AT(struct moe_daemon_page, sq_head, 64);
MOE_AT(struct moe_daemon_page, cq_tail, 128);
MOE_AT(struct moe_daemon_page, sq_wait, 192);
MOE_AT(struct moe_daemon_page, tap_offset, 256);
MOE_AT(struct moe_daemon_page, waits_offset, 280);
MOE_AT(struct moe_daemon_page, alone, 320);

#endif
