/* SPDX-License-Identifier: MIT */
#include "tools/worker/cuda/gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/util.h"
#include "tools/worker/cuda/driver.h"

#define PAGE 4096u
#define STAGE_BYTES (8u << 20)
#define MEMORIES_MAX 16u
#define BLOCKS_MAX 0x7fffffffu

struct host_memory {
	void *base;
	uint64_t bytes;
};

struct gpu {
	struct driver cu;
	CUdevice device;
	CUcontext context;
	CUstream stream;
	CUmodule module;
	CUfunction functions[DENSE_KERNEL_COUNT];
	CUgraphExec graph;
	CUdeviceptr memories[MEMORIES_MAX];
	struct host_memory hosts[MEMORIES_MAX];
	uint32_t n_memories, n_hosts;
	void *stage;    /* gpu_host's; made when it is first needed */
	char name[96];  /* e.g. "GPU 0 (NVIDIA H200)" */
	CUresult code;  /* the first that was not CUDA_SUCCESS ... */
	const char *at; /* ... and the call that said it */
};

/* Whether all is well; writes down what is not. */
static bool went_well(struct gpu *gpu, CUresult result, const char *call)
{
	if (result != CUDA_SUCCESS && gpu->code == CUDA_SUCCESS) {
		gpu->code = result;
		gpu->at = call;
	}
	return gpu->code == CUDA_SUCCESS;
}

/* Nothing is called after a failure. */
#define CALL(gpu, function, ...)                                                                                       \
	went_well(gpu, (gpu)->code != CUDA_SUCCESS ? (gpu)->code : (gpu)->cu.function(__VA_ARGS__), #function)

static int failure(const struct gpu *gpu, struct moe_error *err)
{
	const char *name = NULL;

	if (gpu->code == CUDA_SUCCESS)
		return 0;
	gpu->cu.cuGetErrorName(gpu->code, &name);
	return moe_error_set(err, gpu->code == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO, "%s: %s: %s", gpu->name,
			     gpu->at, name ? name : "an unknown error");
}

/* -- life --------------------------------------------------------------------------------------------------------- */

static int find_device(struct gpu *gpu, const char *device, struct moe_error *err)
{
	const char *which = strncmp(device, "cuda", 4) == 0 ? device + 4 : "?";
	char name[64] = "GPU", *end = NULL;
	long number = 0;
	int count = 0;

	if (which[0] == ':') {
		number = strtol(which + 1, &end, 10);
		which = end > which + 1 ? end : "?";
	}
	if (*which || number < 0)
		return moe_error_set(err, -EINVAL, "--device %s: expected cuda or cuda:N to compute on", device);
	if (gpu->cu.cuDeviceGetCount(&count) != CUDA_SUCCESS || number >= count ||
	    gpu->cu.cuDeviceGet(&gpu->device, (int)number) != CUDA_SUCCESS)
		return moe_error_set(err, -ENODEV, "--device %s: this process may use %d GPUs", device, count);
	gpu->cu.cuDeviceGetName(name, sizeof(name), gpu->device);
	snprintf(gpu->name, sizeof(gpu->name), "GPU %ld (%s)", number, name);
	return 0;
}

/* Loaded whole, now: a kernel that is loaded at its first launch may wait for a stream that waits for the host. */
static void load_kernels(struct gpu *gpu)
{
	static const char *const names[] = {
#define X(name, params) #name,
		DENSE_KERNELS(X)
#undef X
	};
	int unused;

	CALL(gpu, cuModuleLoadData, &gpu->module, dense_fatbin);
	for (uint32_t i = 0; i < DENSE_KERNEL_COUNT; i++) {
		CALL(gpu, cuModuleGetFunction, &gpu->functions[i], gpu->module, names[i]);
		CALL(gpu, cuFuncGetAttribute, &unused, CU_FUNC_ATTRIBUTE_NUM_REGS, gpu->functions[i]);
	}
}

static int start(struct gpu *gpu, struct moe_error *err)
{
	if (CALL(gpu, cuDevicePrimaryCtxRetain, &gpu->context, gpu->device))
		CALL(gpu, cuCtxPushCurrent, gpu->context);
	CALL(gpu, cuStreamCreate, &gpu->stream, CU_STREAM_NON_BLOCKING);
	load_kernels(gpu);
	return failure(gpu, err);
}

int gpu_open(struct gpu **ret, const char *device, struct moe_error *err)
{
	struct gpu *gpu = calloc(1, sizeof(*gpu));
	int r;

	if (!gpu)
		return moe_error_set(err, -ENOMEM, "no memory for a GPU");
	r = driver_load(&gpu->cu, err);
	if (r == 0)
		r = find_device(gpu, device, err);
	if (r == 0)
		r = start(gpu, err);
	if (r < 0) {
		gpu_close(gpu);
		return r;
	}
	*ret = gpu;
	return 0;
}

/* Also after a failure: then the driver's answers do not matter. */
struct gpu *gpu_close(struct gpu *gpu)
{
	CUcontext context;

	if (!gpu)
		return NULL;
	if (gpu->stream)
		gpu->cu.cuStreamSynchronize(gpu->stream);
	if (gpu->graph)
		gpu->cu.cuGraphExecDestroy(gpu->graph);
	while (gpu->n_memories > 0)
		gpu->cu.cuMemFree(gpu->memories[--gpu->n_memories]);
	while (gpu->n_hosts > 0) {
		gpu->cu.cuMemHostUnregister(gpu->hosts[--gpu->n_hosts].base);
		munmap(gpu->hosts[gpu->n_hosts].base, gpu->hosts[gpu->n_hosts].bytes);
	}
	if (gpu->module)
		gpu->cu.cuModuleUnload(gpu->module);
	if (gpu->stream)
		gpu->cu.cuStreamDestroy(gpu->stream);
	if (gpu->context) {
		gpu->cu.cuCtxPopCurrent(&context);
		gpu->cu.cuDevicePrimaryCtxRelease(gpu->device);
	}
	free(gpu);
	return NULL;
}

const char *gpu_name(const struct gpu *gpu)
{
	return gpu->name;
}

uintptr_t gpu_stream(const struct gpu *gpu)
{
	return (uintptr_t)gpu->stream;
}

/* -- memory ------------------------------------------------------------------------------------------------------- */

int gpu_alloc(struct gpu *gpu, uint64_t bytes, uint64_t *ret, struct moe_error *err)
{
	CUdeviceptr memory;

	if (gpu->n_memories == MEMORIES_MAX)
		return moe_error_set(err, -ENOMEM, "%s: more than %u allocations", gpu->name, MEMORIES_MAX);
	if (!CALL(gpu, cuMemAlloc, &memory, bytes)) {
		if (gpu->code == CUDA_ERROR_OUT_OF_MEMORY)
			return moe_error_set(err, -ENOMEM,
					     "%s: no %llu MiB for the dense weights and the context: use "
					     "--dense host",
					     gpu->name, (unsigned long long)bytes >> 20);
		return failure(gpu, err);
	}
	gpu->memories[gpu->n_memories++] = memory;
	*ret = memory;
	return 0;
}

int gpu_host(struct gpu *gpu, uint64_t bytes, void **ret, struct moe_error *err)
{
	const uint64_t room = ALIGN_UP(bytes, (uint64_t)PAGE);
	void *base;

	if (gpu->n_hosts == MEMORIES_MAX)
		return moe_error_set(err, -ENOMEM, "%s: more than %u registrations", gpu->name, MEMORIES_MAX);
	base = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED)
		return moe_error_set(err, -ENOMEM, "no memory to copy from and to the GPU (%llu bytes)",
				     (unsigned long long)bytes);
	if (!CALL(gpu, cuMemHostRegister, base, room, CU_MEMHOSTREGISTER_PORTABLE)) {
		munmap(base, room);
		return failure(gpu, err);
	}
	gpu->hosts[gpu->n_hosts++] = (struct host_memory){base, room};
	*ret = base;
	return 0;
}

int gpu_upload(struct gpu *gpu, uint64_t to, uint64_t to_pitch, const void *from, uint64_t from_pitch, uint64_t width,
	       uint64_t rows, struct moe_error *err)
{
	const uint64_t total = (rows - 1) * to_pitch + width;
	int r = gpu->stage ? 0 : gpu_host(gpu, STAGE_BYTES, &gpu->stage, err);

	/* Byte by byte of what lies on the device, so that a row may be longer than the stage. */
	for (uint64_t at = 0; at < total && r == 0;) {
		uint64_t n = 0;

		while (n < STAGE_BYTES && at + n < total) {
			const uint64_t row = (at + n) / to_pitch, col = (at + n) % to_pitch;
			const uint64_t rest = MIN(to_pitch - col, MIN(STAGE_BYTES - n, total - at - n));
			const uint64_t there = col < width ? MIN(width - col, rest) : 0;

			memcpy((uint8_t *)gpu->stage + n, (const uint8_t *)from + row * from_pitch + (there ? col : 0),
			       there);
			memset((uint8_t *)gpu->stage + n + there, 0, rest - there);
			n += rest;
		}
		gpu_to_device(gpu, to + at, gpu->stage, n);
		r = gpu_wait(gpu, err);
		at += n;
	}
	return r;
}

/* -- commands ----------------------------------------------------------------------------------------------------- */

void gpu_launch(struct gpu *gpu, enum dense_kernel_id kernel, uint64_t blocks, const void *params)
{
	void *pointers[] = {(void *)(uintptr_t)params};

	if (blocks > BLOCKS_MAX)
		went_well(gpu, CUDA_ERROR_INVALID_VALUE, "a grid of 2^31 blocks or more");
	else if (blocks > 0)
		CALL(gpu, cuLaunchKernel, gpu->functions[kernel], (unsigned)blocks, 1, 1, DENSE_THREADS, 1, 1, 0,
		     gpu->stream, pointers, NULL);
}

void gpu_to_device(struct gpu *gpu, uint64_t to, const void *from, uint64_t bytes)
{
	CALL(gpu, cuMemcpyHtoDAsync, to, from, bytes, gpu->stream);
}

void gpu_to_host(struct gpu *gpu, void *to, uint64_t from, uint64_t bytes)
{
	CALL(gpu, cuMemcpyDtoHAsync, to, from, bytes, gpu->stream);
}

int gpu_wait(struct gpu *gpu, struct moe_error *err)
{
	CALL(gpu, cuStreamSynchronize, gpu->stream);
	return failure(gpu, err);
}

/* -- the graph ---------------------------------------------------------------------------------------------------- */

int gpu_capture_begin(struct gpu *gpu, struct moe_error *err)
{
	CALL(gpu, cuStreamBeginCapture, gpu->stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
	return failure(gpu, err);
}

int gpu_capture_end(struct gpu *gpu, struct moe_error *err)
{
	CUgraph graph = NULL;

	/* Also after a failure: the stream is to leave the capture. */
	went_well(gpu, gpu->cu.cuStreamEndCapture(gpu->stream, &graph), "cuStreamEndCapture");
	CALL(gpu, cuGraphInstantiate, &gpu->graph, graph, 0);
	if (graph)
		gpu->cu.cuGraphDestroy(graph);
	return failure(gpu, err);
}

void gpu_replay(struct gpu *gpu)
{
	CALL(gpu, cuGraphLaunch, gpu->graph, gpu->stream);
}
