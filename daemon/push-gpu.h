/* SPDX-License-Identifier: MIT */
/*
 * push-gpu - one GPU with one model's pool files registered. For the thread of push.h alone, which is the one that may
 * hang; but for push_model_take, which is not.
 */
#ifndef DAEMON_PUSH_GPU_H
#define DAEMON_PUSH_GPU_H

#include "daemon/pool.h"
#include "daemon/push.h"
#include "device/device.h"

struct push_gpu {
	struct push_gpu *next;
	uint8_t uuid[PUSH_UUID_BYTES];
	uint64_t epoch; /* the model's */
	uint32_t slots; /* that use it */
	bool registered, told_lost, told_failed;
	struct device *device;
	struct device_stream *stream; /* NULL: the GPU is lost, and the stream has ended */
	uint32_t n_pools;
	uint8_t *maps[MOE_POOLS_MAX];
	uint64_t bytes[MOE_POOLS_MAX];
};

/* A model's files, taken from it on the reactor's thread: the model may be gone before the other thread looks. */
struct push_model {
	uint64_t epoch;
	uint32_t n_pools;
	int fds[MOE_POOLS_MAX];
	uint64_t bytes[MOE_POOLS_MAX];
	uint64_t n_cuts;
	uint64_t *cuts; /* [n_cuts + 1] ascending: where records begin in each of them; the last is its end */
};

int push_model_take(struct push_model *ret, const struct resident *model, struct moe_error *err);
void push_model_drop(struct push_model *model);

int push_gpu_open(struct push_gpu **ret, const uint8_t uuid[PUSH_UUID_BYTES], uint64_t epoch, struct moe_error *err);
/* Maps and registers the pool files. Once; after a failure the GPU is to be closed. */
int push_gpu_register(struct push_gpu *gpu, const struct push_model *model, int registrar_fd, struct moe_error *err);
struct push_gpu *push_gpu_close(struct push_gpu *gpu);

#endif
