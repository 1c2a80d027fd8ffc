/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR MIT */
/*
 * moe_proto.h - the messages on the daemon's SOCK_SEQPACKET socket.
 *
 * One packet is one message; it begins with struct moe_msg, whose `fds` is the exact number of file descriptors that
 * come with it. The first message of a connection is HELLO. The client asks; the daemon answers each request with the
 * type | MOE_MSG_REPLY, or with MOE_MSG_ERROR (status and one line of text), in order, but for LOAD, TRACE, DEVICE and
 * QUERY: LOAD and TRACE are answered by any number of MOE_MSG_PROGRESS and, when what they began has ended, by their
 * reply, DEVICE when the memory is there, QUERY when the document is made. Until ATTACH or ARENA is answered nothing
 * else may be sent: EBUSY. Identity is never in a message: the kernel gives it (SO_PEERCRED, pidfd). Reserved bytes are
 * zero. A connection that breaks these rules is closed; one that is too many for its user is closed after a
 * MOE_MSG_ERROR that nobody asked for.
 */
#ifndef MOE_UAPI_PROTO_H
#define MOE_UAPI_PROTO_H

#include <linux/types.h>

#include "moe_manifest.h"

#define MOE_SOCKET_DEFAULT "/run/moe-expertd/socket"
#define MOE_PROTO_MAGIC 0x4d4f4558u /* "XEOM" */
#define MOE_PROTO_MAX 8192          /* bytes of the longest message */
#define MOE_PATH_BYTES 4096

enum moe_msg_type {
	MOE_MSG_HELLO = 1,
	MOE_MSG_ATTACH =
		2, /* reply: manifest, client region, daemon region (read-only), doorbell, then n_pools pool files */
	MOE_MSG_ARENA =
		3, /* one fd: an arena, a size-sealed memfd that the client made with all its pages; each kind once */
	MOE_MSG_QUERY =
		4, /* reply: one fd, read-only or sealed, a JSON document; it is there until this connection's next
			      QUERY, or its end */
	MOE_MSG_LOAD = 5,
	MOE_MSG_UNLOAD = 6,
	MOE_MSG_PROGRESS = 7,
	MOE_MSG_ERROR = 8,
	MOE_MSG_REGISTRAR = 9,   /* struct moe_msg both ways; reply: one fd, a sealed memory file, on which whoever
				* registers pool files with a GPU's driver holds a write lock (F_SETLK) */
	MOE_MSG_DEVICE = 10,     /* one fd: slots in a GPU's memory, as the driver exports it; answered once it is
			      * imported. In the place of MOE_ARENA_SLOTS */
	MOE_MSG_POLICY = 11,     /* MOE_FEATURE_POLICY */
	MOE_MSG_TRACE = 12,      /* one fd: a regular file that is open for writing. MOE_FEATURE_TRACE */
	MOE_MSG_TRACE_STOP = 13, /* struct moe_msg both ways: the recording ends */
	MOE_MSG_FORGET = 14,     /* MOE_FEATURE_HEAT: a model's heat begins anew; reply: struct moe_msg */
	MOE_MSG_REPLY = 0x100
};

/* Feature bits: the daemon answers HELLO with those that both sides have. */
#define MOE_FEATURE_RING 0x1       /* NOP, FILL, COMPUTE, RELEASE, HINT, PHASE as in moe_ring.h */
#define MOE_FEATURE_PUSH 0x2       /* FILL into a slot arena */
#define MOE_FEATURE_LEASE 0x4      /* FILL with MOE_SQE_LEASE */
#define MOE_FEATURE_BUDGET 0x8     /* ATTACH may name a device, whose budget for fills is shared */
#define MOE_FEATURE_REGISTRAR 0x10 /* MOE_MSG_REGISTRAR */
#define MOE_FEATURE_DEVICE 0x20    /* MOE_MSG_DEVICE: the daemon has been told to push into GPUs */
#define MOE_FEATURE_POLICY 0x40    /* MOE_MSG_POLICY */
#define MOE_FEATURE_TRACE 0x80     /* MOE_MSG_TRACE, MOE_MSG_TRACE_STOP; the tap of moe_ring.h */
#define MOE_FEATURE_AGREE 0x100    /* AGREE; ATTACH may have dp_size */
#define MOE_FEATURE_HEAT 0x200     /* FORGET; the heat of moe_ring.h */
#define MOE_FEATURE_WEIGHTS 0x400  /* HINT may have weights */
#define MOE_FEATURE_MODULE 0x800   /* ATTACH may name an open /dev/moe-expert: the daemon serves a queue there */
#define MOE_FEATURES_ALL 0xfff

struct moe_msg {
	__u32 magic; /* MOE_PROTO_MAGIC */
	__u16 type;
	__u16 fds;
	__u32 bytes; /* of the whole message */
	__s32 status;
};

struct moe_msg_hello {
	struct moe_msg msg;
	__u64 features;
	__u64 instance; /* reply: changes with each start of the daemon */
	__u32 pid;      /* reply */
	__u32 reserved;
};

struct moe_msg_attach {
	struct moe_msg msg;
	__u8 digest[MOE_DIGEST_BYTES]; /* all zero: whatever model has this name */
	char name[MOE_NAME_BYTES];     /* empty: the only model loaded, or the one with this digest */
	__u32 layout;                  /* MOE_LAYOUT_VERSION of the client */
	__u32 tp_rank;
	__u32 tp_size;
	__u32 dp_rank;
	__u32 ep_rank;
	__u32 entries; /* of each queue, a power of two */
	__u64 group;   /* names the replica whose ranks belong together; 0: a group of one */
	__u64 device; /* names the device whose memory the slots are; 0: one of the session's own. MOE_FEATURE_BUDGET */
	__u32 dp_size;  /* data-parallel ranks that agree on phases; 0: this one does not. MOE_FEATURE_AGREE */
	__u32 agree_ms; /* with dp_size: for how long it waits for another, 1 to MOE_AGREE_MS_MAX */
	__u64 client; /* the asker's open /dev/moe-expert (moe_kmod.h): it asks by the daemon's queue there, and not by
			 * its ring; 0: by its ring. MOE_FEATURE_MODULE */
};

struct moe_msg_attached {
	struct moe_msg msg;
	__u64 session;
	__u64 manifest_bytes;
	__u64 client_bytes;
	__u64 daemon_bytes;
	__u32 n_pools;
	__u32 cpu_threads; /* of the daemon's pool */
	__u64 queue;       /* with moe_msg_attach.client: the daemon's queue in the kernel module, else 0 */
	__u64 reserved;
};

enum moe_arena { MOE_ARENA_DATA = 1, MOE_ARENA_SLOTS = 2 };

struct moe_msg_arena {
	struct moe_msg msg;
	__u64 bytes; /* a multiple of 4096 */
	__u32 kind;  /* enum moe_arena */
	__u32 reserved;
};

#define MOE_DEVICE_UUID_BYTES 16

struct moe_msg_device {
	struct moe_msg msg;
	__u64 bytes; /* all of the memory that the fd stands for */
	__u8 uuid[MOE_DEVICE_UUID_BYTES];
	__u64 timeline; /* where in that memory the timeline is, 64-byte aligned; 0: there is none */
};

enum moe_query {
	MOE_QUERY_STATUS = 1,
	MOE_QUERY_STATS = 2,
	MOE_QUERY_MODELS = 3,
	MOE_QUERY_SESSIONS = 4,
	MOE_QUERY_HEAT = 5
};

struct moe_msg_query {
	struct moe_msg msg;
	__u32 what; /* enum moe_query */
	__u32 reserved;
};

struct moe_msg_document {
	struct moe_msg msg;
	__u64 bytes;
};

struct moe_msg_load {
	struct moe_msg msg;
	char name[MOE_NAME_BYTES]; /* empty: the folder's name */
	char path[MOE_PATH_BYTES]; /* absolute, NUL-terminated */
};

struct moe_msg_progress {
	struct moe_msg msg;
	__u64 done_bytes;
	__u64 total_bytes;
	__u64 elapsed_ns;
	__u64 eta_ns;
};

struct moe_msg_loaded {
	struct moe_msg msg;
	__u8 digest[MOE_DIGEST_BYTES];
	char name[MOE_NAME_BYTES];
	__u64 bytes; /* of this model's pool files */
	__u64 elapsed_ns;
};

struct moe_msg_unload {
	struct moe_msg msg;
	char name[MOE_NAME_BYTES];
};

#define MOE_POLICY_BYTES 32

struct moe_msg_policy {
	struct moe_msg msg;
	char name[MOE_NAME_BYTES];     /* of a tiered model; empty: the only model loaded */
	char policy[MOE_POLICY_BYTES]; /* by which its experts make room for each other from now on */
};

struct moe_msg_forget {
	struct moe_msg msg;
	char name[MOE_NAME_BYTES]; /* of a model; empty: the only one loaded */
};

/* What the routers choose, into the file (moe_trace.h), until a limit is met, it is stopped, or the asker leaves. */
struct moe_msg_trace {
	struct moe_msg msg;
	char name[MOE_NAME_BYTES]; /* the sessions of this model; empty: all */
	__u64 max_bytes;           /* of the file; 0: MOE_TRACE_BYTES_DEFAULT */
	__u64 max_steps;           /* of the session that has most; 0: no limit, as below */
	__u64 max_ms;
	__u64 reserved[2];
};

struct moe_msg_traced {
	struct moe_msg msg;
	__u64 bytes; /* of the file */
	__u64 routes;
	__u64 steps; /* of the session that has most */
	__u64 lost;
	__u32 sources;
	__u32 reason; /* enum moe_trace_reason */
	__u64 reserved;
};

#define MOE_TRACE_BYTES_DEFAULT (1ULL << 30)

struct moe_msg_error {
	struct moe_msg msg;
	char text[496];
};

#define MOE_PROTO_SIZE(type, size) MOE_PROTO_ASSERT(sizeof(struct type) == (size), #type)
#ifdef __cplusplus
#define MOE_PROTO_ASSERT(condition, text) static_assert(condition, text)
#else
#define MOE_PROTO_ASSERT(condition, text) _Static_assert(condition, text)
#endif

MOE_PROTO_SIZE(moe_msg, 16);
MOE_PROTO_SIZE(moe_msg_hello, 40);
MOE_PROTO_SIZE(moe_msg_attach, 152);
MOE_PROTO_SIZE(moe_msg_attached, 72);
MOE_PROTO_SIZE(moe_msg_arena, 32);
MOE_PROTO_SIZE(moe_msg_device, 48);
MOE_PROTO_SIZE(moe_msg_query, 24);
MOE_PROTO_SIZE(moe_msg_document, 24);
MOE_PROTO_SIZE(moe_msg_load, 4176);
MOE_PROTO_SIZE(moe_msg_progress, 48);
MOE_PROTO_SIZE(moe_msg_loaded, 112);
MOE_PROTO_SIZE(moe_msg_unload, 80);
MOE_PROTO_SIZE(moe_msg_policy, 112);
MOE_PROTO_SIZE(moe_msg_forget, 80);
MOE_PROTO_SIZE(moe_msg_trace, 120);
MOE_PROTO_SIZE(moe_msg_traced, 64);
MOE_PROTO_SIZE(moe_msg_error, 512);

#endif
