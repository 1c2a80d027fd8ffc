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

#include <jansson.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "moe-expert.h"

struct options {
	const char *socket, *model, *path;
	const char *shape, *format, *isa, *device, *transport;
	bool json, check, skew;
	uint32_t samples, sessions, beside, tokens, hold, threads, hidden, inter, experts, topk, active, slots;
	uint64_t bytes; /* of weights in rotation */
	double seconds; /* 0: not given */
};

int bench_ring(const struct options *o);
int bench_compute(const struct options *o);
int bench_ffn(const struct options *o);
int bench_compare(const struct options *o);
int bench_device(const struct options *o);
int bench_policy(const struct options *o);
int bench_load(const struct options *o);
int bench_attach(const struct options *o);
int bench_restart(const struct options *o);
int bench_plan(const struct options *o);

/* -- samples.c ---------------------------------------------------------------------------------------------------- */

struct summary {
	double best, p50, p99, p999, worst;
};

/* Sorts the samples (nanoseconds, at least one). */
struct summary summarise(double *samples, uint32_t n);

/* -- limits.c: what the machine itself does ----------------------------------------------------------------------- */

/* Bytes per nanosecond of streaming reads by `threads` threads over `bytes` of memory, one pass, the best of so many
 * patterns on a part each; `memory` is aligned to 64. */
#define LIMIT_READ_WAYS 4
double limit_read(const void *memory, uint64_t bytes, uint32_t threads);

/* Nanoseconds of a copy by so many threads, with stores that go past the caches or by memcpy. All are multiples of
 * 64. */
double limit_copy(void *to, const void *from, uint64_t bytes, uint32_t threads, bool past_caches);

/* Operations per nanosecond of struct kernels' peak_bf16 or peak_int8 in `threads` threads, in `ns` nanoseconds or a
 * little more: on a machine that others use as well the best of short times is more than any longer one gets. */
double limit_compute(uint64_t (*peak)(uint64_t rounds), double ns, uint32_t threads);

/* Memory for limit_read: huge pages where the system gives them, touched. NULL without room. */
void *limit_memory(uint64_t bytes);

/* -- limit-disk.c ------------------------------------------------------------------------------------------------- */

/* Bytes per nanosecond of O_DIRECT reads of a model's files, all *.safetensors of a folder or a GGUF model (a file, its
 * parts, or a folder with one), queue depth 32, 512 KiB. -errno below 0. */
double limit_disk(const char *path, uint64_t *ret_bytes);

/* -- strangers.c -------------------------------------------------------------------------------------------------- */

struct strangers {
	uint32_t n;
	pid_t *pids;
};

/* Starts n processes that compute on this process's CPUs, one on each by turns, until strangers_end or its death. */
int strangers_start(struct strangers *ret, uint32_t n, struct moe_error *err);
void strangers_end(struct strangers *strangers); /* of one that has not started, too, if all zero */

/* -- pingpong.c --------------------------------------------------------------------------------------------------- */

enum pingpong { PINGPONG_MEMORY, PINGPONG_FUTEX, PINGPONG_EVENTFD };

/* The CPUs of the two sides; -1: wherever the scheduler puts them. */
struct pingpong_place {
	int self, partner;
};

/* The CPU where the other side (a daemon) is, -1 for unknown, and another for us: the present one if it can be. */
struct pingpong_place limit_place(int partner_cpu);

/* This thread stays on place->self until sched_setaffinity gives it back what *ret_before has. */
void limit_pin(const struct pingpong_place *place, cpu_set_t *ret_before);

/* Round trips between two processes without any daemon, each after a pause, into samples[n]. 0 or -errno. */
int limit_pingpong(const struct pingpong_place *place, enum pingpong kind, uint32_t pause_us, double *samples,
		   uint32_t n);

/* -- main.c ------------------------------------------------------------------------------------------------------- */

/* One of the daemon's documents, or NULL; its process id, or 0. */
json_t *bench_document(struct moe_client *client, enum moe_document what);
int bench_daemon_pid(struct moe_client *client);

int bench_fail(const struct moe_error *err);

/* Sleeps, or less when a signal comes. */
void bench_pause(double seconds);

#endif
