/* SPDX-License-Identifier: MIT */
/*
 * gpu - the worker's own use of a GPU, as a serving framework would have it: the primary context, one stream, memory,
 * kernels, one captured graph. The library shares the context and is handed the stream and addresses; it knows nothing
 * of this.
 *
 * Law of failures: the first call that the driver refuses is written down, nothing is given to the stream after it, and
 * gpu_wait and gpu_capture_end say it. So who gives commands need not look at each of them. One thread.
 */
#ifndef WORKER_CUDA_GPU_H
#define WORKER_CUDA_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "moe-error.h"
#include "tools/worker/cuda/dense-kernels.h"

struct gpu;

/* `device` as --device takes it: "cuda" or "cuda:N". -ENODEV: there is none, or no driver; -EINVAL: no such name. */
int gpu_open(struct gpu **ret, const char *device, struct moe_error *err);
struct gpu *gpu_close(struct gpu *gpu); /* waits; frees all memory; takes NULL, returns NULL */
const char *gpu_name(const struct gpu *gpu);
uintptr_t gpu_stream(const struct gpu *gpu); /* a CUstream */

/* Device memory at a multiple of 256; host memory that the GPU copies from and to. Both until gpu_close. */
int gpu_alloc(struct gpu *gpu, uint64_t bytes, uint64_t *ret, struct moe_error *err);
int gpu_host(struct gpu *gpu, uint64_t bytes, void **ret, struct moe_error *err);

/* Rows of any host memory; returns when they are there. */
int gpu_upload(struct gpu *gpu, uint64_t to, uint64_t to_pitch, const void *from, uint64_t from_pitch, uint64_t width,
	       uint64_t rows, struct moe_error *err);

/* To the stream. Host memory is gpu_host's. */
void gpu_launch(struct gpu *gpu, enum dense_kernel_id kernel, uint64_t blocks, const void *params);
void gpu_to_device(struct gpu *gpu, uint64_t to, const void *from, uint64_t bytes);
void gpu_to_host(struct gpu *gpu, void *to, uint64_t from, uint64_t bytes);

/* Until all that was given is done. */
int gpu_wait(struct gpu *gpu, struct moe_error *err);

/* What is given to the stream between the two becomes the graph, and is not run; gpu_replay runs it. */
int gpu_capture_begin(struct gpu *gpu, struct moe_error *err);
int gpu_capture_end(struct gpu *gpu, struct moe_error *err);
void gpu_replay(struct gpu *gpu);

#endif
