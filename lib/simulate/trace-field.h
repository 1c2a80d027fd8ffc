/* SPDX-License-Identifier: MIT */
/*
 * trace-field - numbers and ids of a trace's JSON, each checked where it is read, and named where it is wrong.
 *
 * Law: an error says the file, the case or the line, the field, what was found and what is expected.
 */
#ifndef LIB_TRACE_FIELD_H
#define LIB_TRACE_FIELD_H

#include <jansson.h>
#include <stdint.h>

#include "moe-error.h"

/* Where a value stands: FILE: case ID: line N: array[index][index][index]. */
struct trace_at {
	const char *file;
	const char *id;    /* of the case; NULL: none */
	unsigned line;     /* 0: not known */
	const char *array; /* NULL: the field is one of the object's own */
	unsigned depth;
	size_t index[4];
};

/* -EINVAL, always. field: NULL: the place itself. */
int trace_wrong(const struct trace_at *at, const char *field, struct moe_error *err, const char *format, ...)
	__attribute__((format(printf, 4, 5), cold));

int trace_number(const struct trace_at *at, const json_t *object, const char *field, uint64_t min, uint64_t max,
		 uint64_t *ret, struct moe_error *err);

/* The ids of one token: up to topk distinct ones, or none, below `experts`. ret [topk]. */
int trace_ids(const struct trace_at *at, const json_t *ids, uint32_t topk, uint32_t experts, int32_t *ret,
	      uint32_t *ret_n, struct moe_error *err);

/* "a string", "7": for texts. */
const char *trace_kind(const json_t *value);

#endif
