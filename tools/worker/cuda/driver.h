/* SPDX-License-Identifier: MIT */
/*
 * driver - the functions of the CUDA driver that the worker calls itself, found in libcuda.so.1 while it runs: the
 * program is linked with nothing of CUDA. The library that it uses has a table of its own, of what that calls.
 */
#ifndef WORKER_CUDA_DRIVER_H
#define WORKER_CUDA_DRIVER_H

#include <cuda.h>

#include "moe-error.h"

#define WORKER_DRIVER_FUNCTIONS(F)                                                                                     \
	F(cuInit)                                                                                                      \
	F(cuGetErrorName)                                                                                              \
	F(cuDeviceGetCount)                                                                                            \
	F(cuDeviceGet)                                                                                                 \
	F(cuDeviceGetName)                                                                                             \
	F(cuDevicePrimaryCtxRetain)                                                                                    \
	F(cuDevicePrimaryCtxRelease)                                                                                   \
	F(cuCtxPushCurrent)                                                                                            \
	F(cuCtxPopCurrent)                                                                                             \
	F(cuMemAlloc)                                                                                                  \
	F(cuMemFree)                                                                                                   \
	F(cuMemHostRegister)                                                                                           \
	F(cuMemHostUnregister)                                                                                         \
	F(cuMemcpyHtoDAsync)                                                                                           \
	F(cuMemcpyDtoHAsync)                                                                                           \
	F(cuStreamCreate)                                                                                              \
	F(cuStreamDestroy)                                                                                             \
	F(cuStreamSynchronize)                                                                                         \
	F(cuStreamBeginCapture)                                                                                        \
	F(cuStreamEndCapture)                                                                                          \
	F(cuGraphInstantiate)                                                                                          \
	F(cuGraphDestroy)                                                                                              \
	F(cuGraphExecDestroy)                                                                                          \
	F(cuGraphLaunch)                                                                                               \
	F(cuModuleLoadData)                                                                                            \
	F(cuModuleUnload)                                                                                              \
	F(cuModuleGetFunction)                                                                                         \
	F(cuFuncGetAttribute)                                                                                          \
	F(cuLaunchKernel)

struct driver {
#define WORKER_DRIVER_FIELD(name) __typeof__(&name) name;
	WORKER_DRIVER_FUNCTIONS(WORKER_DRIVER_FIELD)
#undef WORKER_DRIVER_FIELD
};

/* Loads the driver and initialises it. -ENODEV: there is none, it lacks a function, or it finds no GPU. */
int driver_load(struct driver *ret, struct moe_error *err);

#endif
