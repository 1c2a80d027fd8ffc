/* SPDX-License-Identifier: MIT */
/*
 * moetrc - recorded routing of decode steps, one token a step, as a file has it:
 *
 *   "MOETRC1\0", then four numbers: layers, experts (at most 256), topk, sequences
 *   of each sequence: the number of its steps, 0 or more, then steps * layers * topk ids, a byte each, in the router's
 *   order, then as many weights, two bytes each: the router's probability times 65535
 *
 * Numbers have four bytes, the lowest first; nothing follows the last sequence.
 */
#ifndef LIB_MOETRC_H
#define LIB_MOETRC_H

#include "simulate/simulate.h"

/* Together: step s is one token of each sequence that is as long; else the sequences come one after the other.
 * -EINVAL: *err says what is wrong and at which byte. -ENOMEM. */
int moetrc_parse(struct sim_trace *ret, const void *data, size_t size, bool together, struct moe_error *err);

void sim_trace_fini(struct sim_trace *trace);

#endif
