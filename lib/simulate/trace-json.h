/* SPDX-License-Identifier: MIT */
/* trace-json - readers of the JSON forms that trace-file.h describes. */
#ifndef LIB_TRACE_JSON_H
#define LIB_TRACE_JSON_H

#include "simulate/trace-file.h"

/* Any of them. */
int trace_json_read(struct trace_file *ret, const struct trace_source *source, struct moe_error *err);

/* An object a line. */
int trace_lines_read(struct trace_file *ret, const struct trace_source *source, struct moe_error *err);

#endif
