/* SPDX-License-Identifier: MIT */
/*
 * cuda-driver - the functions of the CUDA driver that this library calls, found in libcuda.so.1 while it runs.
 *
 * Law: the library is built with cuda.h and linked with nothing of CUDA, so the same file works on machines without a
 * GPU. Each function is looked up under the exact name that cuda.h gives it (cuMemAlloc is cuMemAlloc_v2 there): that
 * name says its ABI, where cuGetProcAddress would hand out whatever the driver thinks fits a version. What a driver of
 * DRIVER_FLOOR lacks is optional and NULL; without any other function there is no CUDA, and the error says which one
 * was missing. The driver is opened once in a process and never closed: its threads would outlive its code.
 */
#ifndef LIB_DEVICE_CUDA_DRIVER_H
#define LIB_DEVICE_CUDA_DRIVER_H

#include <cuda.h>

#include "moe-error.h"

#define CUDA_DRIVER_FLOOR 12000 /* CUDA 12.0, driver 525: stream memory operations without a module parameter */

/* What the library cannot do without. */
#define CUDA_DRIVER_FUNCTIONS(F)                                                                                       \
	F(cuInit)                                                                                                      \
	F(cuDriverGetVersion)                                                                                          \
	F(cuGetErrorName)                                                                                              \
	F(cuDeviceGetCount)                                                                                            \
	F(cuDeviceGet)                                                                                                 \
	F(cuDeviceGetName)                                                                                             \
	F(cuDeviceGetUuid)                                                                                             \
	F(cuDeviceGetAttribute)                                                                                        \
	F(cuDevicePrimaryCtxRetain)                                                                                    \
	F(cuDevicePrimaryCtxRelease)                                                                                   \
	F(cuCtxPushCurrent)                                                                                            \
	F(cuCtxPopCurrent)                                                                                             \
	F(cuCtxGetStreamPriorityRange)                                                                                 \
	F(cuMemGetInfo)                                                                                                \
	F(cuMemHostRegister)                                                                                           \
	F(cuMemHostUnregister)                                                                                         \
	F(cuMemHostGetDevicePointer)                                                                                   \
	F(cuMemGetAllocationGranularity)                                                                               \
	F(cuMemCreate)                                                                                                 \
	F(cuMemRelease)                                                                                                \
	F(cuMemExportToShareableHandle)                                                                                \
	F(cuMemImportFromShareableHandle)                                                                              \
	F(cuMemGetHandleForAddressRange)                                                                               \
	F(cuMemAddressReserve)                                                                                         \
	F(cuMemAddressFree)                                                                                            \
	F(cuMemMap)                                                                                                    \
	F(cuMemUnmap)                                                                                                  \
	F(cuMemSetAccess)                                                                                              \
	F(cuMemcpyHtoDAsync)                                                                                           \
	F(cuMemcpyDtoHAsync)                                                                                           \
	F(cuMemcpy2DAsync)                                                                                             \
	F(cuStreamCreateWithPriority)                                                                                  \
	F(cuStreamDestroy)                                                                                             \
	F(cuStreamSynchronize)                                                                                         \
	F(cuStreamQuery)                                                                                               \
	F(cuStreamGetCtx)                                                                                              \
	F(cuStreamIsCapturing)                                                                                         \
	F(cuThreadExchangeStreamCaptureMode)                                                                           \
	F(cuStreamWaitEvent)                                                                                           \
	F(cuStreamWaitValue32)                                                                                         \
	F(cuStreamWriteValue32)                                                                                        \
	F(cuStreamBatchMemOp)                                                                                          \
	F(cuEventCreate)                                                                                               \
	F(cuEventDestroy)                                                                                              \
	F(cuEventRecord)                                                                                               \
	F(cuEventQuery)                                                                                                \
	F(cuModuleLoadData)                                                                                            \
	F(cuModuleUnload)                                                                                              \
	F(cuModuleGetFunction)                                                                                         \
	F(cuFuncGetAttribute)                                                                                          \
	F(cuLaunchKernel)

/*
 * Optional: NULL where the driver has none. cuEventElapsedTime is _v2 in a header of CUDA 12.8 or later; the function
 * without suffix has the same parameters and stands in for it.
 */
#define CUDA_DRIVER_OPTIONAL(F)                                                                                        \
	F(cuFuncLoad)                                                                                                  \
	F(cuEventElapsedTime)                                                                                          \
	F(cuMemcpyBatchAsync)                                                                                          \
	F(cuMemAdvise_v2)                                                                                              \
	F(cuMemPrefetchAsync_v2)

struct cuda_driver {
	int version; /* cuDriverGetVersion: 1000 * major + 10 * minor */
#define CUDA_DRIVER_FIELD(name) __typeof__(&name) name;
	CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_FIELD)
	CUDA_DRIVER_OPTIONAL(CUDA_DRIVER_FIELD)
#undef CUDA_DRIVER_FIELD
};

/* Loads the driver and initialises it, once in a process; any thread. *ret lives as long as the process. -ENODEV: there
 * is no driver, or none that will do, or it finds no GPU; the text says which. */
int cuda_driver_get(const struct cuda_driver **ret, struct moe_error *err);

/* The code's name, or its number; static memory or `room` (32 bytes). */
const char *cuda_error_name(const struct cuda_driver *driver, CUresult result, char room[32]);

#endif
