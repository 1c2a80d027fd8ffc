/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR MIT */
/*
 * moe_trace.h - what a model's routers have chosen, as a client writes it into its tap and as a file has it.
 *
 * The tap is a ring of bytes at the end of a session's client region (moe_ring.h, the law of the tap). A file is
 *
 *   struct moe_trace_head | records
 *
 * A record begins with its length in bytes, a multiple of 8, and its kind; those of a kind that a reader does not know
 * are passed over. Records stand in the order in which the daemon took them; those of one source in the order in which
 * its client planned them. What is behind the last whole record is what a daemon that was killed has left: no error.
 *
 *   MOE_TRACE_SOURCE  before the first record that names it: a session, and the model that it works with
 *   MOE_TRACE_ROUTE   one layer of one step: of each token the router's choices, in the router's order
 *   MOE_TRACE_LOST    so many routes of the source are missing here, or a little before
 *   MOE_TRACE_LEFT    the session has ended
 *   MOE_TRACE_END     the last record of a recording that was ended in order
 *
 * A pass is what a session routes from one of its first layers to the last: it begins with each route whose layer is
 * not above that of the source's route before, or whose step is another one. All integers are little-endian, reserved
 * bytes are zero.
 */
#ifndef MOE_UAPI_TRACE_H
#define MOE_UAPI_TRACE_H

#include <linux/types.h>

#include "moe_manifest.h"

#define MOE_TRACE_MAGIC 0x4543415254454f4dULL /* "MOETRACE" */
#define MOE_TRACE_VERSION 1
#define MOE_TRACE_NOBODY 0xffff /* an id: padding, no expert */

enum moe_trace_kind {
	MOE_TRACE_ROUTE = 1,
	MOE_TRACE_SOURCE = 2,
	MOE_TRACE_LOST = 3,
	MOE_TRACE_LEFT = 4,
	MOE_TRACE_END = 5
};

/* Why a recording ended. */
enum moe_trace_reason {
	MOE_TRACE_STOPPED = 0, /* somebody asked for it, or who had asked for the recording has left */
	MOE_TRACE_STEPS = 1,   /* as many steps as were asked for */
	MOE_TRACE_TIME = 2,    /* as long */
	MOE_TRACE_BYTES = 3    /* the file is as large as it may be */
};

struct moe_trace_head {
	__u64 magic; /* MOE_TRACE_MAGIC */
	__u32 version;
	__u32 bytes;    /* of this head: the first record is behind it */
	__u64 began_ns; /* since 1970 */
	__u64 reserved;
};

/* Behind it __u16 ids[tokens][topk], then, 4-byte aligned, float weights[tokens][topk] as the planner got them, then
 * zeroes up to a multiple of 8. */
struct moe_route {
	__u32 bytes; /* of the record, with all that */
	__u8 kind;   /* MOE_TRACE_ROUTE */
	__u8 topk;   /* 1 to MOE_TOPK_MAX */
	__u16 layer; /* the model's own layer number */
	__u64 step;  /* as the client's last PHASE has it; 0 before the first one */
	__u32 tokens;
	__u8 phase;   /* enum moe_phase of the last PHASE */
	__u8 mode;    /* of the plan: enum moe_stats_mode, up to MOE_STATS_FULL */
	__u16 source; /* of a file; in a tap 0 */
};

struct moe_trace_source {
	__u32 bytes;
	__u8 kind; /* MOE_TRACE_SOURCE */
	__u8 reserved0;
	__u16 source;  /* its number in this file */
	__u64 session; /* the daemon's number */
	__u64 group;   /* of the attach; 0: a group of one */
	__u32 pid;
	__u32 dp_rank;
	__u32 n_layers;
	__u32 n_experts;
	__u32 topk; /* of the model */
	__u32 reserved1;
	__u8 digest[MOE_DIGEST_BYTES]; /* of the model */
	char model[MOE_NAME_BYTES];
};

/* MOE_TRACE_LOST, MOE_TRACE_LEFT (lost is 0). */
struct moe_trace_mark {
	__u32 bytes;
	__u8 kind;
	__u8 reserved;
	__u16 source;
	__u64 lost;
};

struct moe_trace_end {
	__u32 bytes;
	__u8 kind;   /* MOE_TRACE_END */
	__u8 reason; /* enum moe_trace_reason */
	__u16 reserved;
	__u64 ended_ns; /* since 1970 */
	__u64 routes;
	__u64 lost;
};

/* Where the weights of a route are, counted from its beginning, and how long it is. */
static inline __u64 moe_route_weights(__u64 tokens, __u64 topk)
{
	return (sizeof(struct moe_route) + 2 * tokens * topk + 3) & ~3ULL;
}

static inline __u64 moe_route_bytes(__u64 tokens, __u64 topk)
{
	return (moe_route_weights(tokens, topk) + 4 * tokens * topk + 7) & ~7ULL;
}

#ifdef __cplusplus
#define MOE_TRACE_ASSERT(condition, text) static_assert(condition, text)
#else
#define MOE_TRACE_ASSERT(condition, text) _Static_assert(condition, text)
#endif

MOE_TRACE_ASSERT(sizeof(struct moe_trace_head) == 32, "moe_trace_head");
MOE_TRACE_ASSERT(sizeof(struct moe_route) == 24, "moe_route");
MOE_TRACE_ASSERT(sizeof(struct moe_trace_source) == 128, "moe_trace_source");
MOE_TRACE_ASSERT(sizeof(struct moe_trace_mark) == 16, "moe_trace_mark");
MOE_TRACE_ASSERT(sizeof(struct moe_trace_end) == 32, "moe_trace_end");

#endif
