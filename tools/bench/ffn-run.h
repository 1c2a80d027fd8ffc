/* SPDX-License-Identifier: MIT */
/*
 * ffn-run - requests to one expert layer in this process, what they must come to, and what the machine could do.
 *
 * Requests take the experts in turn, so that all weights pass by before one comes again, whoever computes them: the CPU
 * pool here, or a peer. One request is in `x`, `ids` and `weights`; its result is in `y`.
 */
#ifndef TOOLS_BENCH_FFN_RUN_H
#define TOOLS_BENCH_FFN_RUN_H

#include <semaphore.h>

#include "bench.h"
#include "daemon/pool.h"
#include "tools/bench/ffn-model.h"

struct ffn_run {
	const struct options *o;
	struct ffn_shape shape;
	uint32_t format;
	uint32_t active, distinct; /* experts of a request: among which it chooses, and that it does choose */
	const struct kernels *kernels;
	struct ffn_model model;
	struct pool *pool;
	struct host *host;
	float *x, *y, *weights; /* [tokens][hidden], [tokens][hidden], [tokens][topk] */
	int32_t *ids;           /* [tokens][topk] */
	uint32_t turn;
	/* the burst under way */
	struct pool_compute job;
	uint32_t left;
	int status;
	sem_t over;
};

/* 0, 1 (failed) or 2 (the command line is wrong): the program's exit status, with a line on standard error. Whatever it
 * returns, ffn_run_free() follows. */
int ffn_run_make(struct ffn_run *ret, const struct options *o);
void ffn_run_free(struct ffn_run *run);

/* Another number of tokens, no more than it was made with; *o lives as long as the run. -ENOMEM. */
int ffn_run_retake(struct ffn_run *run, const struct options *o);

/* The experts of the next request: ids. */
void ffn_run_route(struct ffn_run *run);

/* Nanoseconds of a request in a burst of n, each begun by the end of the one before. */
double ffn_run_burst(struct ffn_run *run, uint32_t n);

/* Requests of a burst when one takes that long: together at most what one read of the limit reads, since memory that
 * others use is fast for moments only, and short bursts meet one more often. Of few tokens a round has as many bursts
 * as the limit has reads. */
uint32_t ffn_run_burst_length(const struct ffn_run *run, double request_ns);
uint32_t ffn_run_bursts(const struct ffn_run *run);

/* The largest error of the last request's first and last token, over the largest output; some rows stand for all. A
 * NaN where a result is none, or without memory. */
double ffn_run_error(const struct ffn_run *run);

/* What a result may be off by: more than any rounding of activations makes of it. */
#define FFN_ERROR_MAX 0.05

/* Best so far: bytes per nanosecond of streaming reads of the weights, multiplications and additions per nanosecond of
 * the instructions that the format's dot products are made of (0: not known). */
struct ffn_limits {
	double read_gbs, gflops;
};

/* Measures both once, in as many threads as the pool has, arithmetic for as long as a request takes. */
void ffn_run_limits(const struct ffn_run *run, uint32_t round, double request_ns, struct ffn_limits *limits);

/* Of a request: bytes of its experts as published, and multiplications and additions. */
double ffn_run_bytes(const struct ffn_run *run);
double ffn_run_flops(const struct ffn_run *run);

/* "shape": {...} */
void ffn_run_print_shape(const struct ffn_run *run);
/* One line for a person. */
void ffn_run_print_title(const struct ffn_run *run);

/* A number, or null for none. */
void print_json_number(double value);

#endif
