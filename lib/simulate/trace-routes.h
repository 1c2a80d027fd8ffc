/* SPDX-License-Identifier: MIT */
/*
 * trace-routes - a recording of the daemon (uapi/moe_trace.h, moe-trace(5)), record by record, and as a trace.
 *
 * Law: a file is read up to its last whole record: one that was cut off is no error, only the end. A whole record that
 * contradicts itself or its source is -EINVAL, with the byte where it is. Bytes may lie anywhere: nothing is read in
 * place but by copies.
 */
#ifndef LIB_TRACE_ROUTES_H
#define LIB_TRACE_ROUTES_H

#include "simulate/trace-file.h"
#include "uapi/moe_trace.h"

struct routes {
	const char *name; /* of the file, for texts */
	const uint8_t *data;
	size_t size, at, record; /* `record`: where the last one begins */
	struct moe_trace_head head;
	struct moe_trace_source *sources; /* [n_sources], by their numbers */
	uint32_t n_sources;
};

/* One record. Of others than routes only the members of their kind are set. */
struct routes_record {
	enum moe_trace_kind kind;
	struct moe_route route;
	const uint8_t *ids, *weights; /* routes_id, routes_weight */
	struct moe_trace_mark mark;
	struct moe_trace_end end;
};

static inline int32_t routes_id(const struct routes_record *r, size_t i)
{
	const uint32_t id = r->ids[2 * i] | (uint32_t)r->ids[2 * i + 1] << 8;

	return id == MOE_TRACE_NOBODY ? -1 : (int32_t)id;
}

float routes_weight(const struct routes_record *record, size_t i);

/* -EINVAL: no recording, or of another version. */
int routes_open(struct routes *ret, const struct trace_source *file, struct moe_error *err);
/* 1: the next record that is known; 0: there is no whole one any more; -EINVAL, -ENOMEM. */
int routes_next(struct routes *routes, struct routes_record *ret, struct moe_error *err);
void routes_close(struct routes *routes);

/* Where passes of a source begin (moe_trace.h). All zero at first. */
struct routes_pass {
	uint64_t step, passes;
	uint32_t layer;
};
bool routes_begins(struct routes_pass *pass, const struct moe_route *route);

/* All sources, one after the other: they have to be of one model. A pass is a step. */
int routes_read(struct trace_file *ret, const struct trace_source *file, struct moe_error *err);

#endif
