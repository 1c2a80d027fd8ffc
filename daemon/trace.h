/* SPDX-License-Identifier: MIT */
/*
 * trace - one recording of what clients route, into a file that somebody has handed in (moe_trace.h).
 *
 * Law: the reactor takes routes from the taps and lays them into memory; a thread of the recording's own writes that
 * memory into the file, so that no disk is waited for. What comes while the thread has not caught up is counted as
 * lost. The file never has a part of a record before another one: what is written is whole records one after the other,
 * and only the last one may be cut off, by a full disk or by the daemon's death. A recording ends with its daemon; the
 * successor does not go on with it.
 */
#ifndef DAEMON_TRACE_H
#define DAEMON_TRACE_H

#include <sys/types.h>

#include "daemon/taps.h"
#include "uapi/moe_proto.h"

struct trace;

struct trace_params {
	const char *model;                     /* "": of all models */
	uint64_t max_bytes, max_steps, max_ms; /* as struct moe_msg_trace has them */
	uid_t uid;                             /* whose file it is, for the closer */
};

/* Begins. The file is the caller's: a duplicate is kept. -EINVAL: it is none that can be written; -ENOMEM, ... */
int trace_start(struct trace **ret, struct taps *taps, int fd, const struct trace_params *params,
		struct moe_error *err);

/* Takes nothing more; what was taken is written. The first reason counts. */
void trace_stop(struct trace *trace, enum moe_trace_reason reason);

/* Stopped, or failed, and the thread is at its end. */
bool trace_is_over(const struct trace *trace);

/* As it is now; of one that is over, how it has ended: 0, or the -errno of writing, with *err. */
int trace_result(struct trace *trace, struct moe_msg_traced *ret, struct moe_error *err);

/* Of its limits, the share that is used up of the one that will be met first. */
double trace_progress(const struct trace *trace);
uint64_t trace_elapsed_ns(const struct trace *trace);
uint64_t trace_max_bytes(const struct trace *trace);

/* Stops it; waits a moment for the thread, which may hang in a write as long as the disk does: then its memory is left.
 * Takes NULL, returns NULL. */
struct trace *trace_free(struct trace *trace);

#endif
