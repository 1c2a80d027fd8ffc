/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tracepoints, in /sys/kernel/tracing/events/moe_expert: one for each
 * transition of an open device, a pool and a lease. They cost nothing while
 * nobody looks.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM moe_expert

#if !defined(MOE_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define MOE_TRACE_H

#include <linux/tracepoint.h>

#include "moe_expert.h"
#include "queue.h"

DECLARE_EVENT_CLASS(moe_client_class,
	TP_PROTO(const struct moe_client *client),
	TP_ARGS(client),
	TP_STRUCT__entry(
		__field(pid_t, pid)
		__field(uid_t, uid)
		__field(u32, leases)
	),
	TP_fast_assign(
		__entry->pid = pid_nr(client->tgid);
		__entry->uid = __kuid_val(client->uid);
		__entry->leases = client->n_leases;
	),
	TP_printk("pid=%d uid=%u leases=%u", __entry->pid, __entry->uid,
		  __entry->leases)
);

/* The device was opened; its last descriptor was closed. */
DEFINE_EVENT(moe_client_class, moe_open,
	TP_PROTO(const struct moe_client *client), TP_ARGS(client));
DEFINE_EVENT(moe_client_class, moe_close,
	TP_PROTO(const struct moe_client *client), TP_ARGS(client));

DECLARE_EVENT_CLASS(moe_pool_class,
	TP_PROTO(const struct moe_pool *pool),
	TP_ARGS(pool),
	TP_STRUCT__entry(
		__field(u64, pool)
		__field(u64, epoch)
		__field(u64, bytes)
		__field(u32, leases)
		__array(char, name, MOE_KMOD_NAME)
	),
	TP_fast_assign(
		__entry->pool = pool->id;
		__entry->epoch = pool->epoch;
		__entry->bytes = pool->bytes;
		__entry->leases = pool->leases;
		memcpy(__entry->name, pool->name, MOE_KMOD_NAME);
	),
	TP_printk("pool=%llu epoch=%llu bytes=%llu leases=%u name=%s",
		  __entry->pool, __entry->epoch, __entry->bytes,
		  __entry->leases, __entry->name)
);

/* Adopted; taken back; released; another epoch; its memory is let go. */
DEFINE_EVENT(moe_pool_class, moe_adopt,
	TP_PROTO(const struct moe_pool *pool), TP_ARGS(pool));
DEFINE_EVENT(moe_pool_class, moe_take,
	TP_PROTO(const struct moe_pool *pool), TP_ARGS(pool));
DEFINE_EVENT(moe_pool_class, moe_release,
	TP_PROTO(const struct moe_pool *pool), TP_ARGS(pool));
DEFINE_EVENT(moe_pool_class, moe_epoch,
	TP_PROTO(const struct moe_pool *pool), TP_ARGS(pool));
DEFINE_EVENT(moe_pool_class, moe_gone,
	TP_PROTO(const struct moe_pool *pool), TP_ARGS(pool));

DECLARE_EVENT_CLASS(moe_lease_class,
	TP_PROTO(const struct moe_lease *lease),
	TP_ARGS(lease),
	TP_STRUCT__entry(
		__field(u64, lease)
		__field(u64, pool)
		__field(u64, epoch)
		__field(u64, offset)
		__field(u64, bytes)
		__field(pid_t, pid)
		__field(u32, state)
	),
	TP_fast_assign(
		__entry->lease = lease->id;
		__entry->pool = lease->pool_id;
		__entry->epoch = lease->epoch;
		__entry->offset = lease->offset;
		__entry->bytes = lease->bytes;
		__entry->pid = pid_nr(lease->tgid);
		__entry->state = lease->state;
	),
	TP_printk("lease=%llu pool=%llu epoch=%llu offset=%llu bytes=%llu pid=%d state=%u",
		  __entry->lease, __entry->pool, __entry->epoch,
		  __entry->offset, __entry->bytes, __entry->pid,
		  __entry->state)
);

/* Taken; ended by DROP; ended with its holder; mapped; sealed; made a dma-buf. */
DEFINE_EVENT(moe_lease_class, moe_lease,
	TP_PROTO(const struct moe_lease *lease), TP_ARGS(lease));
DEFINE_EVENT(moe_lease_class, moe_drop,
	TP_PROTO(const struct moe_lease *lease), TP_ARGS(lease));
DEFINE_EVENT(moe_lease_class, moe_end,
	TP_PROTO(const struct moe_lease *lease), TP_ARGS(lease));
DEFINE_EVENT(moe_lease_class, moe_map,
	TP_PROTO(const struct moe_lease *lease), TP_ARGS(lease));
DEFINE_EVENT(moe_lease_class, moe_seal,
	TP_PROTO(const struct moe_lease *lease), TP_ARGS(lease));
DEFINE_EVENT(moe_lease_class, moe_export,
	TP_PROTO(const struct moe_lease *lease), TP_ARGS(lease));

DECLARE_EVENT_CLASS(moe_request_class,
	TP_PROTO(const struct moe_request *request, int status),
	TP_ARGS(request, status),
	TP_STRUCT__entry(
		__field(u64, seq)
		__field(u64, client)
		__field(pid_t, pid)
		__field(u32, queue)
		__field(u32, tag)
		__field(u32, op)
		__field(s32, status)
	),
	TP_fast_assign(
		__entry->seq = request->seq;
		__entry->client = request->client_id;
		__entry->pid = pid_nr(request->tgid);
		__entry->queue = request->body.queue;
		__entry->tag = request->tag;
		__entry->op = (request->body.sqe[1]) & 0xff;
		__entry->status = status;
	),
	TP_printk("seq=%llu client=%llu pid=%d queue=%u tag=%u op=%u status=%d",
		  __entry->seq, __entry->client, __entry->pid, __entry->queue,
		  __entry->tag, __entry->op, __entry->status)
);

/*
 * Submitted; given to the daemon; answered; its daemon has gone; given to the
 * next one; its client has gone; taken back.
 */
DEFINE_EVENT(moe_request_class, moe_request_submit,
	TP_PROTO(const struct moe_request *request, int status),
	TP_ARGS(request, status));
DEFINE_EVENT(moe_request_class, moe_request_fetch,
	TP_PROTO(const struct moe_request *request, int status),
	TP_ARGS(request, status));
DEFINE_EVENT(moe_request_class, moe_request_commit,
	TP_PROTO(const struct moe_request *request, int status),
	TP_ARGS(request, status));
DEFINE_EVENT(moe_request_class, moe_request_park,
	TP_PROTO(const struct moe_request *request, int status),
	TP_ARGS(request, status));
DEFINE_EVENT(moe_request_class, moe_request_reissue,
	TP_PROTO(const struct moe_request *request, int status),
	TP_ARGS(request, status));
DEFINE_EVENT(moe_request_class, moe_request_drop,
	TP_PROTO(const struct moe_request *request, int status),
	TP_ARGS(request, status));
DEFINE_EVENT(moe_request_class, moe_request_cancel,
	TP_PROTO(const struct moe_request *request, int status),
	TP_ARGS(request, status));

/* A command that was refused: its number, and the error. */
TRACE_EVENT(moe_refused,
	TP_PROTO(const struct moe_client *client, unsigned int nr, long error),
	TP_ARGS(client, nr, error),
	TP_STRUCT__entry(
		__field(pid_t, pid)
		__field(unsigned int, nr)
		__field(long, error)
	),
	TP_fast_assign(
		__entry->pid = pid_nr(client->tgid);
		__entry->nr = nr;
		__entry->error = error;
	),
	TP_printk("pid=%d command=%u error=%ld", __entry->pid, __entry->nr,
		  __entry->error)
);

#endif

#undef TRACE_INCLUDE_PATH
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_PATH .
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
