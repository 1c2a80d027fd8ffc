/* SPDX-License-Identifier: MIT */
/* case-breaks - what CUDA forbids: each case breaks one rule. */
#ifndef TESTS_CUDA_SIM_CASE_BREAKS_H
#define TESTS_CUDA_SIM_CASE_BREAKS_H

#include "tests/cuda-sim/case.h"

static void race_of_copies(void)
{
	begin();
	good(cuMemcpyHtoDAsync(memory, host, 4096, a));
	good(cuMemcpyDtoHAsync(host + 8192, memory + 4095, 10, b));
	end();
}

/* However late the second one comes. */
static void race_of_copies_far_apart(void)
{
	begin();
	good(cuStreamWaitValue32(b, host_on_device, 1, CU_STREAM_WAIT_VALUE_GEQ));
	good(cuMemcpyDtoHAsync(host + 8192, memory, 64, b));
	good(cuMemcpyHtoDAsync(memory, host + 4096, 64, a));
	wait_runs(1);
	__atomic_store_n((uint32_t *)(void *)host, 1, __ATOMIC_RELEASE);
	cuStreamSynchronize(b); /* before the host sees the end of the first */
	end();
}

static void race_with_kernel(void)
{
	begin();
	launch(a, memory, memory + 8192, 64, 64);
	good(cuMemcpyHtoDAsync(memory + 8192 + 32, host, 4, b));
	end();
}

static void race_in_host_memory(void)
{
	begin();
	good(cuMemcpyHtoDAsync(memory, host, 64, a));
	good(cuMemcpyDtoHAsync(host + 32, memory + 4096, 64, b));
	end();
}

static void race_word_without_barrier(void)
{
	begin();
	good(cuMemcpyHtoDAsync(memory, host, 4, a));
	good(cuStreamWriteValue32(a, memory + 4096, 1, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER));
	good(cuStreamWaitValue32(b, memory + 4096, 1, CU_STREAM_WAIT_VALUE_EQ));
	good(cuMemcpyDtoHAsync(host + 4096, memory, 4, b));
	end();
}

/* The event's wait is left out when the environment says so. */
static void race_of_mutant(void)
{
	begin();
	good(cuMemcpyHtoDAsync(memory, host, 4096, a));
	good(cuEventRecord(event, a));
	good(cuStreamWaitEvent(b, event, 0));
	good(cuMemcpyDtoHAsync(host + 8192, memory, 4096, b));
	end();
}

static void source_changed(void)
{
	begin();
	good(cuMemcpyHtoDAsync(memory, host, 64, a));
	wait_runs(1);
	host[63]++;
	end();
}

static void unregistered(void)
{
	static uint8_t plain[64];

	begin();
	cuMemcpyHtoDAsync(memory, plain, 64, a);
}

static void straddling(void)
{
	uint8_t *two = shared_memory(8192, PROT_READ | PROT_WRITE);

	begin();
	good(cuMemHostRegister(two, 4096, 0));
	good(cuMemHostRegister(two + 4096, 4096, 0));
	cuMemcpyHtoDAsync(memory, two + 4000, 200, a);
}

static void read_only_written(void)
{
	uint8_t *read_only = shared_memory(4096, PROT_READ);

	begin();
	good(cuMemHostRegister(read_only, 4096, CU_MEMHOSTREGISTER_READ_ONLY | CU_MEMHOSTREGISTER_DEVICEMAP));
	good(cuMemcpyHtoDAsync(memory, read_only, 64, a));
	cuMemcpyDtoHAsync(read_only, memory, 64, a);
}

static void private_file(void)
{
	const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	void *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);

	must(map != MAP_FAILED);
	begin();
	cuMemHostRegister(map, 4096, 0);
}

static void host_address_for_device(void)
{
	begin();
	cuStreamWaitValue32(a, (uintptr_t)host, 1, CU_STREAM_WAIT_VALUE_GEQ);
}

static void unmapped_registration(void)
{
	uint8_t *map = shared_memory(4096, PROT_READ | PROT_WRITE);
	CUdeviceptr at;

	begin();
	good(cuMemHostRegister(map, 4096, CU_MEMHOSTREGISTER_PORTABLE));
	cuMemHostGetDevicePointer(&at, map, 0);
}

static void out_of_range(void)
{
	begin();
	cuMemcpyHtoDAsync(memory + BYTES - 63, host, 64, a);
}

static void use_after_free(void)
{
	CUdeviceptr other;

	begin();
	good(cuMemAlloc(&other, 64));
	good(cuStreamWaitValue32(a, host_on_device, 1, CU_STREAM_WAIT_VALUE_GEQ));
	good(cuMemcpyHtoDAsync(other, host + 64, 64, a));
	good(cuMemFree(other));
	__atomic_store_n((uint32_t *)(void *)host, 1, __ATOMIC_RELEASE);
	cuStreamSynchronize(a);
}

static void free_in_use(void)
{
	begin();
	good(cuMemcpyHtoDAsync(memory, host, 64, a));
	wait_runs(1);
	cuMemFree(memory);
}

static void unregister_in_use(void)
{
	begin();
	good(cuMemcpyHtoDAsync(memory, host, 64, a));
	wait_runs(1);
	cuMemHostUnregister(host);
}

static void freed_twice(void)
{
	begin();
	good(cuMemFree(memory));
	cuMemFree(memory);
}

static void stream_destroyed(void)
{
	begin();
	good(cuStreamDestroy(a));
	cuStreamQuery(a);
}

static void event_for_stream(void)
{
	begin();
	cuStreamQuery((CUstream)event);
}

static void default_stream(void)
{
	begin();
	cuMemcpyHtoDAsync(memory, host, 64, NULL);
}

static void no_context(void)
{
	begin();
	good(cuCtxPopCurrent(NULL));
	cuMemcpyHtoDAsync(memory, host, 64, a);
}

static void context_left(void)
{
	begin();
	good(cuCtxPopCurrent(NULL));
	cuDevicePrimaryCtxRelease(0);
}

static void after_fork(void)
{
	begin();
	if (fork() == 0)
		cuStreamQuery(a);
	else
		wait(&(int){0});
	must(false); /* the words are the child's */
}

static void untimed(void)
{
	CUevent other;
	float ms;

	begin();
	good(cuEventCreate(&other, CU_EVENT_DISABLE_TIMING));
	good(cuEventRecord(other, a));
	good(cuEventRecord(event, a));
	good(cuStreamSynchronize(a));
	cuEventElapsedTime(&ms, other, event);
}

static void odd_word(void)
{
	begin();
	cuStreamWriteValue32(a, host_on_device + 2, 1, CU_STREAM_WRITE_VALUE_DEFAULT);
}

static void large_block(void)
{
	struct cusim_copy p = {memory, memory, 0, 0};
	void *params[] = {&p};

	begin();
	cuLaunchKernel(kernel, 1, 1, 1, 1025, 1, 1, 0, a, params, NULL);
}

static void much_shared_memory(void)
{
	struct cusim_copy p = {memory, memory, 0, 0};
	void *params[] = {&p};

	begin();
	cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, (48 << 10) + 1, a, params, NULL);
}

static void not_a_fatbin(void)
{
	CUmodule other;

	begin();
	cuModuleLoadData(&other, "\177ELF....");
}

static void no_such_kernel(void)
{
	begin();
	cuModuleGetFunction(&kernel, module, "cusim_copy2");
}

static void module_in_use(void)
{
	begin();
	good(cuStreamWaitValue32(a, host_on_device, 1, CU_STREAM_WAIT_VALUE_GEQ));
	launch(a, memory, memory + 64, 64, 64);
	cuModuleUnload(module);
}

static void kernel_past_the_end(void)
{
	CUdeviceptr other;

	begin();
	good(cuMemAlloc(&other, 100));
	launch(a, other, host_on_device, 128, 100);
	cuStreamSynchronize(a);
}

static void granule_not_kept(void)
{
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle handle;

	begin();
	cuMemCreate(&handle, GRANULE + 4096, &prop, 0);
}

/* Memory that is mapped and that nobody has the right to use. */
static CUdeviceptr mapped(bool rdma)
{
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
					  .allocFlags = {.gpuDirectRDMACapable = rdma}};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;

	begin();
	good(cuMemCreate(&handle, GRANULE, &prop, 0));
	good(cuMemAddressReserve(&at, GRANULE, 0, 0, 0));
	good(cuMemMap(at, GRANULE, 0, handle, 0));
	return at;
}

static void mapped_without_access(void)
{
	const CUdeviceptr at = mapped(false);

	cuMemcpyHtoDAsync(at, host, 64, a);
}

static void dmabuf_not_meant(void)
{
	const CUdeviceptr at = mapped(false);
	int fd;

	cuMemGetHandleForAddressRange(&fd, at, GRANULE, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
}

static void dmabuf_of_part_of_a_page(void)
{
	const CUdeviceptr at = mapped(true);
	int fd;

	good(cuMemGetHandleForAddressRange(&fd, at, GRANULE, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	close(fd);
	cuMemGetHandleForAddressRange(&fd, at, 64, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
}

/* Unregistered memory may be read where the device knows the host's page tables, and not written. */
static void pageable_written(void)
{
	uint8_t *plain = shared_memory(4096, PROT_READ | PROT_WRITE);

	begin();
	good(cuMemcpyHtoDAsync(memory, plain, 64, a));
	cuMemcpyDtoHAsync(plain, memory, 64, a);
}

static const CUmemLocation on_device = {.type = CU_MEM_LOCATION_TYPE_DEVICE};

static void advised_unread(void)
{
	const CUdeviceptr plain = (CUdeviceptr)(uintptr_t)shared_memory(4096, PROT_READ);

	begin();
	cuMemAdvise(plain, 4096, CU_MEM_ADVISE_SET_ACCESSED_BY, on_device);
}

static void advised_registered(void)
{
	begin();
	cuMemAdvise((CUdeviceptr)(uintptr_t)host, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, on_device);
}

static void prefetched_nothing(void)
{
	uint8_t *plain = shared_memory(8192, PROT_READ);

	begin();
	good(cuMemAdvise((CUdeviceptr)(uintptr_t)plain, 8192, CU_MEM_ADVISE_SET_READ_MOSTLY, on_device));
	good(cuMemPrefetchAsync((CUdeviceptr)(uintptr_t)plain, 8192, on_device, 0, a));
	must(munmap(plain, 8192) == 0);
	cuMemPrefetchAsync((CUdeviceptr)(uintptr_t)plain, 8192, on_device, 0, a);
}

static void prefetched_nowhere(void)
{
	const CUmemLocation other = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
	const CUdeviceptr plain = (CUdeviceptr)(uintptr_t)shared_memory(4096, PROT_READ);

	begin();
	cuMemPrefetchAsync(plain, 4096, other, 0, a);
}

static void freed_while_mapped(void)
{
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;

	begin();
	good(cuMemCreate(&handle, GRANULE, &prop, 0));
	good(cuMemAddressReserve(&at, GRANULE, 0, 0, 0));
	good(cuMemMap(at, GRANULE, 0, handle, 0));
	cuMemAddressFree(at, GRANULE);
}

static void batch_order(void)
{
	CUdeviceptr to = memory, from = (uintptr_t)host;
	size_t bytes = 64, first = 0;
	CUmemcpyAttributes order = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY};

	begin();
	to = memory;
	from = (uintptr_t)host;
	cuMemcpyBatchAsync(&to, &from, &bytes, 1, &order, &first, 1, a);
}

static void host_reads_device(void)
{
	begin();
	must(*(volatile uint8_t *)(uintptr_t)memory == 0);
}

#endif
