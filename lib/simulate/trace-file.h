/* SPDX-License-Identifier: MIT */
/*
 * trace-file - recorded routing in any form it comes in. A binary form is told by its first bytes, one of JSON by what
 * its first object has:
 *
 *   moetrc   moetrc.h
 *   binary   what the daemon has recorded (trace-routes.h, moe-trace(5))
 *   trace    {"layers", "experts", "topk", "steps": [step][layer][token][ids]}
 *   vectors  {"cases": [{"id", "trace", "results": [{"policy", "mode", "capacity", "params"}, ...]}, ...]}, or one
 *            case: a trace and the runs that somebody made of it
 *   JSONL    an object a line. {"layers", "experts", "topk"} first, then for each token of each layer, in any order,
 *            {"step", "layer", "token", "experts": [ids], "weights": [numbers]}; the first line and weights may be
 *            left out. Or {"tok", "layers": [layer][ids]}: each is a step of one token
 *
 * A trace of no steps is one, if its shape is known; and a token that asks for nothing is one: policies divide by them.
 *
 * What JSONL does not say of its shape is the least that its ids need. Other members are passed over. Steps that nobody
 * asked anything in are no steps. -EINVAL: *err has the file, the line or field, what was found and what is expected.
 */
#ifndef LIB_TRACE_FILE_H
#define LIB_TRACE_FILE_H

#include "simulate/simulate.h"

#define TRACE_FILE_BYTES_MAX ((size_t)4 << 30)

/* A run that the file names. */
struct trace_run {
	char *policy; /* also belady and belady-pinned, of those modes */
	enum sim_mode mode;
	const char *mode_name; /* as the file has it: belady may be asked for as pinned */
	uint32_t capacity;
	char *params;   /* JSON, as the file has it; sound for trace_params() */
	bool evictions; /* the file has their log */
};

struct trace_case {
	char *id; /* the file's name where it has none */
	struct sim_trace trace;
	struct trace_run *runs;
	uint32_t n_runs;
};

struct trace_file {
	const char *format;
	bool several; /* {"cases": ...}, of which there may be just one */
	struct trace_case *cases;
	uint32_t n;
};

/* What a reader is given. */
struct trace_source {
	const char *name; /* of the file, for texts */
	const uint8_t *data;
	size_t size;
	bool together; /* sequences, of forms that have them: step by step beside each other; else one by one */
};

/* "-": standard input. -EINVAL, -ENOMEM, -E2BIG or why it could not be read. */
int trace_file_read(struct trace_file *ret, const char *path, bool together, struct moe_error *err);
int trace_file_parse(struct trace_file *ret, const struct trace_source *source, struct moe_error *err);
void trace_file_free(struct trace_file *file); /* one of zeroes, too */

/* The file of one trace, which becomes its own; -ENOMEM, and the trace is freed. */
int trace_file_single(struct trace_file *ret, const char *format, const struct trace_source *source,
		      struct sim_trace *trace, struct moe_error *err);

#endif
