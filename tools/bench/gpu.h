/* SPDX-License-Identifier: MIT */
/*
 * gpu - what `moe-bench device` measures with: one CUDA device, host memory that is registered with it, memory of its
 * own, one stream, and rounds in which several ways of doing the same take turns.
 *
 * Law. Times are those between two events of the stream. A burst of small commands stands behind a gate, a word that
 * the stream waits for and that is written when all of the burst has been given: so what a host needs to give commands
 * is not in the times. Behind a gate stands nothing that may wait for the device (managed memory, other libraries).
 *
 * One thread. The device's context is current from gpu_open to gpu_close.
 */
#ifndef TOOLS_BENCH_GPU_H
#define TOOLS_BENCH_GPU_H

#include "bench.h"
#include "device/device-cuda.h"

#define GPU_PAGE 4096u
#define GPU_ROUNDS_MAX 64
#define GPU_SUMS_BLOCKS 2048 /* of kernels that measure limits, at most */
#define GPU_EVENTS 33

/* Words by which host and stream meet, each in a cache line of its own. */
struct gpu_words {
	uint32_t gate, pad0[15];
	uint32_t request, pad1[15];
	uint32_t answer, pad2[15];
};

/* Of the driver, but not of the library; NULL: it has none. */
struct gpu_managed {
	CUresult (*alloc)(CUdeviceptr *ret, size_t bytes, unsigned flags);
	CUresult (*free)(CUdeviceptr at);
	CUresult (*prefetch)(CUdeviceptr at, size_t bytes, CUmemLocation to, unsigned flags, CUstream stream);
};

struct gpu {
	const struct options *o;
	const char *name; /* "cuda" or "cuda:N" */
	struct device *device;
	const struct cuda_driver *cu;
	struct gpu_managed managed;
	bool simulated;              /* the driver is the tests' */
	uint32_t blocks, processors; /* blocks: of limits' kernels */
	struct device_stream *stream;
	struct device_event *events[GPU_EVENTS];
	uint8_t *host; /* registered */
	uint64_t host_bytes;
	CUdeviceptr host_at;     /* its address for the device */
	struct gpu_words *words; /* registered too; `turn` is the gate's latest value */
	uint32_t turn;
	struct device_memory memory, sums;
	json_t *absent, *failed; /* lists of {what, why} */
};

/* 0, or a negative code with the error set; gpu_close() follows whatever it returns. */
int gpu_open(struct gpu *ret, const struct options *o, struct moe_error *err);
void gpu_close(struct gpu *gpu);

/* Sets the error: what the device has failed with, or `what`. Returns r. */
int gpu_error(const struct gpu *gpu, int r, const char *what, struct moe_error *err);

/* What is not there, or has failed, and why. */
void gpu_note(json_t *list, const char *what, const char *why);

/* Gives the i-th command of a burst to the stream: 0 or negative. */
typedef int gpu_work(void *arg, uint32_t i);

/* Nanoseconds of one of n. */
int gpu_time(struct gpu *gpu, bool gated, gpu_work *work, void *arg, uint32_t n, double *ret_ns, struct moe_error *err);

/* The same with an event behind each of n < GPU_EVENTS: nanoseconds of each, behind a gate. */
int gpu_time_each(struct gpu *gpu, gpu_work *work, void *arg, uint32_t n, double *ret_ns, struct moe_error *err);

/* Waits for all that the stream has. */
int gpu_settle(struct gpu *gpu, struct moe_error *err);

/* -- rounds ------------------------------------------------------------------------------------------------------- */

/* One way of several to do the same. measure NULL: it is not there. */
struct gpu_way {
	const char *name;
	int (*measure)(void *arg, double *ret_ns, struct moe_error *err);
	double ns[GPU_ROUNDS_MAX];
};

/* Each way once, uncounted; then rounds of all of them in turn. */
int gpu_rounds(struct gpu_way *ways, uint32_t n, void *arg, uint32_t rounds, struct moe_error *err);

/* {best, median} of amount / ns, and the best alone; null and 0 of a way that is not there. Sorts the samples. */
json_t *gpu_rate_json(struct gpu_way *way, uint32_t rounds, double amount);
double gpu_best(const struct gpu_way *way, uint32_t rounds);

/* {p50, p99, best} in microseconds. Sorts. */
json_t *gpu_us_json(double *ns, uint32_t n);

/* -- limits (gpu-limits.c) ---------------------------------------------------------------------------------------- */

/* Gives a kernel to the stream that reads so many bytes from a device address. */
int gpu_give_read(struct gpu *gpu, CUdeviceptr from, uint64_t bytes);
/* What it has summed up. */
int gpu_read_sum(struct gpu *gpu, uint32_t *ret, struct moe_error *err);

/* Operations per nanosecond of dense bfloat16 products: by the instruction that the kernels use, on shared memory
 * alone; and by cuBLAS, where it can be loaded. */
struct gpu_dense;
int gpu_dense_open(struct gpu_dense **ret, struct gpu *gpu, struct moe_error *err);
struct gpu_dense *gpu_dense_close(struct gpu_dense *dense);
int gpu_dense_mma(struct gpu_dense *dense, double *ret_ns, struct moe_error *err);
int gpu_dense_cublas(struct gpu_dense *dense, double *ret_ns, struct moe_error *err);
double gpu_dense_mma_operations(const struct gpu_dense *dense);
double gpu_dense_cublas_operations(const struct gpu_dense *dense); /* 0: it is not there */
/* 0, or -EBADMSG: the results of either are not the right ones. */
int gpu_dense_check(struct gpu_dense *dense, struct moe_error *err);

/* -- what is measured: each adds its part to `to`, 0 or negative with the error set ------------------------------- */

int gpu_links(struct gpu *gpu, json_t *to, struct moe_error *err);   /* gpu-links.c */
int gpu_experts(struct gpu *gpu, json_t *to, struct moe_error *err); /* gpu-experts.c */

/* With a daemon: */
int gpu_fills(struct gpu *gpu, struct moe_client *client, json_t *to, struct moe_error *err);   /* gpu-fills.c */
int gpu_lane(struct gpu *gpu, struct moe_client *client, json_t *to, struct moe_error *err);    /* gpu-lane.c */
int gpu_overlap(struct gpu *gpu, struct moe_client *client, json_t *to, struct moe_error *err); /* gpu-overlap.c */

void gpu_print(const json_t *all); /* gpu-print.c: as text */

#endif
