/* SPDX-License-Identifier: MIT */
/* case-works - what CUDA allows. */
#ifndef TESTS_CUDA_SIM_CASE_WORKS_H
#define TESTS_CUDA_SIM_CASE_WORKS_H

#include "tests/cuda-sim/case.h"

static void works_round_trip(void)
{
	int i;

	begin();
	for (i = 0; i < 4096; i++)
		host[i] = (uint8_t)(i * 7);
	good(cuMemcpyHtoDAsync(memory, host, 4096, a));
	launch(a, memory + 8192, memory, 4096, 4096);
	good(cuMemcpyDtoDAsync(memory + 16384, memory + 8192, 4096, a));
	good(cuMemcpyDtoHAsync(host + 8192, memory + 16384, 4096, a));
	good(cuStreamSynchronize(a));
	must(memcmp(host, host + 8192, 4096) == 0);
	end();
}

static void works_rows_and_batch(void)
{
	CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_HOST,
			      .srcPitch = 100,
			      .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			      .dstPitch = 33,
			      .WidthInBytes = 33,
			      .Height = 10};
	CUdeviceptr to[2], from[2];
	size_t bytes[2] = {330, 64}, first = 0;
	CUmemcpyAttributes order = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	int i;

	begin();
	for (i = 0; i < 1000; i++)
		host[i] = (uint8_t)i;
	rows.srcHost = host;
	rows.dstDevice = memory;
	good(cuMemcpy2DAsync(&rows, a));
	to[0] = (CUdeviceptr)(uintptr_t)(host + 4096);
	from[0] = memory;
	to[1] = memory + 4096;
	from[1] = (CUdeviceptr)(uintptr_t)host;
	good(cuMemcpyBatchAsync(to, from, bytes, 2, &order, &first, 1, a));
	good(cuStreamSynchronize(a));
	for (i = 0; i < 330; i++)
		must(host[4096 + i] == host[i / 33 * 100 + i % 33]);
	end();
}

static void works_events(void)
{
	CUevent other;
	float ms = -1;

	begin();
	good(cuEventCreate(&other, CU_EVENT_DEFAULT));
	must(cuEventQuery(event) == CUDA_SUCCESS && cuEventSynchronize(event) == CUDA_SUCCESS);
	good(cuStreamWaitEvent(a, event, 0)); /* never recorded: holds nobody */
	good(cuEventRecord(event, a));
	good(cuStreamWaitEvent(b, event, 0)); /* holds for the record before ... */
	good(cuStreamWaitValue32(a, host_on_device, 1, CU_STREAM_WAIT_VALUE_GEQ));
	good(cuEventRecord(event, a)); /* ... not for this one */
	good(cuEventRecord(other, b));
	good(cuEventSynchronize(other));
	must(cuEventQuery(event) == CUDA_ERROR_NOT_READY && cuStreamQuery(a) == CUDA_ERROR_NOT_READY);
	must(cuEventElapsedTime(&ms, other, event) == CUDA_ERROR_NOT_READY);
	__atomic_store_n((uint32_t *)(void *)host, 1, __ATOMIC_RELEASE);
	good(cuEventSynchronize(event));
	good(cuEventElapsedTime(&ms, other, event));
	must(ms >= 0 && ms < 60000);
	good(cuEventDestroy(other));
	end();
}

/* One round of: a writes, an event, b reads. Random delays find no way around an event. */
static void works_ordered(void)
{
	uint32_t i;

	begin();
	for (i = 1; i <= 200; i++) {
		memcpy(host, &i, 4);
		good(cuMemcpyHtoDAsync(memory, host, 4, a));
		good(cuEventRecord(event, a));
		good(cuStreamWaitEvent(b, event, 0));
		good(cuMemcpyDtoHAsync(host + 4096, memory, 4, b));
		good(cuStreamSynchronize(b));
		must(memcmp(host + 4096, &i, 4) == 0);
	}
	end();
}

static void works_words(void)
{
	uint32_t i;

	begin();
	for (i = 1; i <= 50; i++) {
		memcpy(host, &i, 4);
		good(cuMemcpyHtoDAsync(memory, host, 4, a));
		good(cuStreamWriteValue32(a, host_on_device + 64, i, CU_STREAM_WRITE_VALUE_DEFAULT));
		good(cuStreamWaitValue32(b, host_on_device + 64, i, CU_STREAM_WAIT_VALUE_GEQ));
		good(cuMemcpyDtoHAsync(host + 4096, memory, 4, b));
		good(cuStreamWriteValue32(b, host_on_device + 128, i, CU_STREAM_WRITE_VALUE_DEFAULT));
		while (__atomic_load_n((uint32_t *)(void *)(host + 128), __ATOMIC_ACQUIRE) != i)
			nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
		must(memcmp(host + 4096, &i, 4) == 0); /* a word that is written behind a copy says that it is over */
	}
	end();
}

static void works_late_arrival(void)
{
	begin();
	memcpy(host, "arrived", 8);
	good(cuMemcpyHtoDAsync(memory, host, 8, a));
	good(cuMemcpyDtoHAsync(host + 4096, memory, 8, a));
	good(cuEventRecord(event, a));
	wait_runs(2);
	nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
	must(isnan(*(float *)(void *)(host + 4096))); /* long over, but nobody has asked */
	good(cuEventSynchronize(event));
	must(strcmp((char *)host + 4096, "arrived") == 0);
	end();
}

static void works_mapped_memory(void)
{
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					  .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	const CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	size_t granule;
	int fd = -1;

	begin();
	good(cuMemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	must(granule == GRANULE);
	good(cuMemCreate(&handle, granule, &prop, 0));
	good(cuMemAddressReserve(&at, 2 * granule, 0, 0, 0));
	good(cuMemMap(at + granule, granule, 0, handle, 0));
	good(cuMemSetAccess(at + granule, granule, &access, 1));
	good(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	must(fd >= 0 && close(fd) == 0);
	good(cuMemRelease(handle)); /* the mapping keeps it */
	good(cuMemsetD32Async(at + granule, 7, granule / 4, a));
	good(cuMemcpyDtoHAsync(host, at + 2 * granule - 4096, 4096, a));
	good(cuStreamSynchronize(a));
	must(host[4092] == 7);
	good(cuMemUnmap(at + granule, granule));
	good(cuMemAddressFree(at, 2 * granule));
	end();
}

static void works_refusals(void)
{
	const size_t huge = (size_t)1 << 40;
	CUdeviceptr at;
	CUdevice device;
	void *read_only;
	int value;

	must(cuDeviceGet(&device, 0) == CUDA_ERROR_NOT_INITIALIZED);
	begin();
	read_only = shared_memory(4096, PROT_READ);
	must(cuMemAlloc(&at, huge) == CUDA_ERROR_OUT_OF_MEMORY);
	must(cuDeviceGet(&device, 1) == CUDA_ERROR_INVALID_DEVICE);
	must(cuMemHostRegister(host + 4096, 4096, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	must(cuMemHostRegister(read_only, 4096, 0) == CUDA_ERROR_INVALID_VALUE);
	must(cuMemHostRegister(read_only, 4096, CU_MEMHOSTREGISTER_READ_ONLY) == CUDA_ERROR_NOT_SUPPORTED);
	good(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 0));
	must(value == 0 && host_on_device != (uintptr_t)host);
	end();
}

static void works_failing_call(void)
{
	CUdeviceptr at;

	begin();
	sim_control.fail("cuMemAlloc:2");
	good(cuMemAlloc(&at, 64));
	good(cuMemFree(at));
	must(cuMemAlloc(&at, 64) == CUDA_ERROR_OUT_OF_MEMORY);
	good(cuMemAlloc(&at, 64));
	good(cuMemFree(at));
	sim_control.fail("*:3+");
	good(cuStreamQuery(a));
	good(cuStreamQuery(a));
	must(cuStreamQuery(a) != CUDA_SUCCESS && cuStreamQuery(a) != CUDA_SUCCESS && sim_control.calls() == 4);
	sim_control.fail(NULL);
	good(cuStreamQuery(a));
	end();
}

/* A command that fails while it runs is the end of the context: no wait holds any more, no call succeeds. */
static void works_failing_run(void)
{
	begin();
	sim_control.fail("run:2");
	good(cuStreamWaitValue32(a, host_on_device, 1, CU_STREAM_WAIT_VALUE_GEQ));
	good(cuMemcpyHtoDAsync(memory, host + 64, 64, a));
	good(cuMemcpyHtoDAsync(memory, host + 64, 64, a));
	good(cuEventRecord(event, a));
	__atomic_store_n((uint32_t *)(void *)host, 1, __ATOMIC_RELEASE);
	must(cuEventSynchronize(event) == CUDA_ERROR_LAUNCH_FAILED);
	must(cuMemcpyHtoDAsync(memory, host, 64, b) == CUDA_ERROR_LAUNCH_FAILED && cuEventQuery(event) != CUDA_SUCCESS);
	must(cuStreamDestroy(a) != CUDA_SUCCESS && cuStreamDestroy(b) != CUDA_SUCCESS);
	must(cuEventDestroy(event) != CUDA_SUCCESS && cuModuleUnload(module) != CUDA_SUCCESS);
	must(cuMemFree(memory) != CUDA_SUCCESS && cuMemHostUnregister(host) != CUDA_SUCCESS);
	cuCtxPopCurrent(NULL);
	cuDevicePrimaryCtxRelease(0);
	must(sim_control.live() == 0); /* what was released is gone all the same */
}

#endif
