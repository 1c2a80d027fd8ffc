/* SPDX-License-Identifier: MIT */
/*
 * trace - the parts of moectl trace: recordings (moe-trace(5)) are made by the daemon, shown, and written in other
 * forms.
 *
 * Law: a file that exists is written over only where its name was given.
 */
#ifndef TOOLS_TRACE_H
#define TOOLS_TRACE_H

#include <jansson.h>

#include "moectl.h"
#include "simulate/trace-routes.h"

/* Each returns the exit status. */
int trace_record(const struct arguments *arg);
int trace_stop(const struct arguments *arg);
int trace_show(const struct arguments *arg, const char *path);
int trace_convert(const struct arguments *arg, const char *from, const char *to);

/* trace-show-steps.c: of any form but a recording. */
int trace_show_steps(const struct arguments *arg, const struct trace_file *file);

/* trace-write.c: -EINVAL: the trace has what the form cannot say; -EIO. `to` stays open. */
int trace_write(FILE *to, const struct trace_case *one, const char *form, struct moe_error *err);
bool trace_has_form(const char *form);
const char *trace_forms(void); /* of all, and of expert-map, for texts */

/* Pairs of each layer's experts, [layer][expert]; layers that nobody routed in, dense ones, are left out. NULL: no
 * memory. */
json_t *trace_loads(const struct sim_trace *trace);

#endif
