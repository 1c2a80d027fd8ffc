/* SPDX-License-Identifier: MIT */
/*
 * bench - moe-bench: what the daemon reaches, beside what this machine can do, measured in the same run.
 *
 * Law: a bare time says nothing on a shared machine, so each verb measures the machine's own limit next to the thing
 * itself, alternating, and prints the ratio. Samples are sorted; p50, p99 and p99.9 are printed, the best where the
 * question is "what can it reach".
 */
#ifndef TOOLS_BENCH_H
#define TOOLS_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "moe-expert.h"

struct options {
	const char *socket, *model, *path;
	const char *shape, *format, *isa;
	bool json, check, skew;
	uint32_t samples, tokens, hold, threads, hidden, inter, experts, topk, active;
	uint64_t bytes; /* of weights in rotation */
	double seconds;
};

int bench_ring(const struct options *o);
int bench_compute(const struct options *o);
int bench_ffn(const struct options *o);
int bench_compare(const struct options *o);
int bench_load(const struct options *o);
int bench_attach(const struct options *o);
int bench_restart(const struct options *o);

/* -- samples.c ---------------------------------------------------------------------------------------------------- */

struct summary {
	double best, p50, p99, p999, worst;
};

/* Sorts the samples (nanoseconds, at least one). */
struct summary summarise(double *samples, uint32_t n);

/* -- limits.c: what the machine itself does ----------------------------------------------------------------------- */

/* Bytes per nanosecond of streaming reads by `threads` threads over `bytes` of memory, one pass, the better half of two
 * patterns; `memory` is aligned to 64. */
double limit_read(const void *memory, uint64_t bytes, uint32_t threads);

/* Operations per nanosecond of struct kernels' peak_bf16 or peak_int8 in `threads` threads. */
double limit_compute(uint64_t (*peak)(uint64_t rounds), uint64_t rounds, uint32_t threads);

/* Memory for limit_read: huge pages where the system gives them, touched. NULL without room. */
void *limit_memory(uint64_t bytes);

enum pingpong { PINGPONG_MEMORY, PINGPONG_FUTEX, PINGPONG_EVENTFD, PINGPONGS };
extern const char *const pingpong_names[PINGPONGS];

/* Round trips between two processes without any daemon, into samples[n]. 0 or -errno. */
int limit_pingpong(enum pingpong kind, double *samples, uint32_t n);

/* Bytes per nanosecond of O_DIRECT reads of all *.safetensors of the folder, queue depth 16, 512 KiB. -errno below
 * 0. */
double limit_disk(const char *folder, uint64_t *ret_bytes);

/* -- main.c ------------------------------------------------------------------------------------------------------- */

int bench_fail(const struct moe_error *err);

#endif
