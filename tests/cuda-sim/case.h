/* SPDX-License-Identifier: MIT */
/* case - what a case of test-cuda-sim begins and ends with: two streams, an event, memory on both sides, a kernel. */
#ifndef TESTS_CUDA_SIM_CASE_H
#define TESTS_CUDA_SIM_CASE_H

#include <cuda.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/cuda-sim/cuda-sim.h"
#include "tests/cuda-sim/kernels.h"

#define BYTES 65536
#define PINNED (1 << 20)
#define GRANULE (2u << 20)

static CUcontext context;
static CUstream a, b;
static CUevent event;
static CUdeviceptr memory;
static uint8_t *host; /* registered, shared */
static CUdeviceptr host_on_device;
static CUfunction kernel;
static CUmodule module;
static const uint32_t fatbin[] = {0xba55ed50u, 0};
static struct cuda_sim sim_control;

/* In a case: what must hold, or the case has failed. */
#define must(condition)                                                                                                \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: %s\n", __func__, __LINE__, #condition);                                \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)
#define good(call) must((call) == CUDA_SUCCESS)

static void *shared_memory(size_t bytes, int mode)
{
	void *map = mmap(NULL, bytes, mode, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	must(map != MAP_FAILED);
	return map;
}

static void begin(void)
{
	good(cuInit(0));
	good(cuDevicePrimaryCtxRetain(&context, 0));
	good(cuCtxPushCurrent(context));
	good(cuStreamCreateWithPriority(&a, CU_STREAM_NON_BLOCKING, 0));
	good(cuStreamCreateWithPriority(&b, CU_STREAM_NON_BLOCKING, -1));
	good(cuEventCreate(&event, CU_EVENT_DEFAULT));
	good(cuMemAlloc(&memory, BYTES));
	host = shared_memory(PINNED, PROT_READ | PROT_WRITE);
	good(cuMemHostRegister(host, PINNED, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE));
	good(cuMemHostGetDevicePointer(&host_on_device, host, 0));
	good(cuModuleLoadData(&module, fatbin));
	good(cuModuleGetFunction(&kernel, module, "cusim_copy"));
	must(cuda_sim_find(&sim_control));
}

static void end(void)
{
	good(cuStreamSynchronize(a));
	good(cuStreamSynchronize(b));
	good(cuStreamDestroy(a));
	good(cuStreamDestroy(b));
	good(cuEventDestroy(event));
	good(cuModuleUnload(module));
	good(cuMemFree(memory));
	good(cuMemHostUnregister(host));
	good(cuCtxPopCurrent(NULL));
	good(cuDevicePrimaryCtxRelease(0));
	must(sim_control.live() == 0);
}

static void launch(CUstream stream, CUdeviceptr to, CUdeviceptr from, uint64_t bytes, uint64_t claimed)
{
	struct cusim_copy p = {to, from, bytes, claimed};
	void *params[] = {&p};

	good(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
	memset(&p, 0xff, sizeof p); /* the driver has copied them */
}

/* Until so many commands have run, without asking the driver about any of them. */
static void wait_runs(unsigned long runs)
{
	while (sim_control.runs() < runs)
		nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

#endif
