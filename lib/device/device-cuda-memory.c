/* SPDX-License-Identifier: MIT */
/* Device memory comes from the virtual memory calls, so that it can be exported; host memory is registered in place. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/util.h"
#include "device/device-cuda.h"

#define PAGE 4096

/* -- device memory ------------------------------------------------------------------------------------------------ */

static CUmemAllocationProp memory_kind(const struct device *device)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = device->exports_slots ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
							      : CU_MEM_HANDLE_TYPE_NONE,
		.allocFlags = {.gpuDirectRDMACapable = device->dmabufs && device->rdma},
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->id},
	};
}

/* Address space for what exists, and the right to use it. */
static int map_memory(struct device *device, CUmemGenericAllocationHandle handle, uint64_t bytes, CUdeviceptr *ret)
{
	const CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->id},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUdeviceptr at;
	int r = CUDA_CALL(device, cuMemAddressReserve, &at, bytes, 0, 0, 0);

	if (r < 0)
		return r;
	r = CUDA_CALL(device, cuMemMap, at, bytes, 0, handle, 0);
	if (r == 0) {
		r = CUDA_CALL(device, cuMemSetAccess, at, bytes, &access, 1);
		if (r < 0)
			device->cu->cuMemUnmap(at, bytes);
	}
	if (r < 0)
		device->cu->cuMemAddressFree(at, bytes);
	else
		*ret = at;
	return r;
}

static int make_memory(struct device *device, uint64_t bytes, struct device_memory *ret)
{
	const CUmemAllocationProp kind = memory_kind(device);
	CUmemGenericAllocationHandle handle;
	uint64_t size;
	size_t unit;
	CUdeviceptr at;
	int r = CUDA_CALL(device, cuMemGetAllocationGranularity, &unit, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM);

	if (r < 0)
		return r;
	if (bytes == 0 || !checked_align(&size, bytes, unit))
		return -EINVAL;
	r = CUDA_CALL(device, cuMemCreate, &handle, size, &kind, 0);
	if (r < 0)
		return r;
	r = map_memory(device, handle, size, &at);
	if (r < 0) {
		device->cu->cuMemRelease(handle);
		return r;
	}
	*ret = (struct device_memory){.base = at, .bytes = size, .export_fd = -1, .handle = (void *)(uintptr_t)handle};
	return 0;
}

int cuda_alloc(struct device *device, uint64_t bytes, struct device_memory *ret, struct moe_error *err)
{
	size_t free_bytes = 0, total = 0;
	int r = cuda_enter(device);

	if (r == 0) {
		r = make_memory(device, bytes, ret);
		if (r == -ENOMEM)
			device->cu->cuMemGetInfo(&free_bytes, &total);
		cuda_leave(device);
	}
	if (r == -ENOMEM)
		return moe_error_set(err, r, "%s: %" PRIu64 " MiB wanted, %zu MiB of %zu are free", device->name,
				     bytes >> 20, free_bytes >> 20, total >> 20);
	return r < 0 ? cuda_refused(device, r, "cannot make device memory", err) : 0;
}

void cuda_free(struct device *device, struct device_memory *memory)
{
	const struct cuda_driver *cu = device->cu;

	if (memory->base && cuda_enter_to_free(device)) {
		cu->cuMemUnmap(memory->base, memory->bytes);
		cu->cuMemRelease((CUmemGenericAllocationHandle)(uintptr_t)memory->handle);
		cu->cuMemAddressFree(memory->base, memory->bytes);
		cuda_leave(device);
	}
	*memory = (struct device_memory){.export_fd = -1};
}

int cuda_share(struct device *device, const struct device_memory *memory, uint8_t ret_uuid[DEVICE_UUID_BYTES],
	       int *ret_fd, struct moe_error *err)
{
	CUuuid uuid;
	int r;

	if (!device->exports_slots)
		return moe_error_set(err, -ENOTSUP, "%s: its memory cannot have a file descriptor", device->name);
	r = CUDA_CALL(device, cuDeviceGetUuid, &uuid, device->id);
	if (r == 0)
		r = CUDA_CALL(device, cuMemExportToShareableHandle, ret_fd,
			      (CUmemGenericAllocationHandle)(uintptr_t)memory->handle,
			      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (r < 0)
		return cuda_refused(device, r, "cannot export memory", err);
	memcpy(ret_uuid, uuid.bytes, DEVICE_UUID_BYTES);
	return 0;
}

int cuda_dmabuf(struct device *device, const struct device_memory *memory, int *ret_fd, struct moe_error *err)
{
	int r;

	if (!device->dmabufs || !device->rdma)
		return moe_error_set(err, -EOPNOTSUPP,
				     "%s: its driver makes no dma-buf of such memory (it takes NVIDIA's open kernel "
				     "modules and a kernel that knows dma-buf)",
				     device->name);
	r = cuda_enter(device);
	if (r == 0) {
		r = CUDA_CALL(device, cuMemGetHandleForAddressRange, ret_fd, memory->base, memory->bytes,
			      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
		cuda_leave(device);
	}
	if (r == -ENOTSUP)
		r = -EOPNOTSUPP;
	return r < 0 ? cuda_refused(device, r, "cannot make a dma-buf", err) : 0;
}

/* The size is another process's word: as much as memory of this device can have. */
static int check_size(struct device *device, uint64_t bytes)
{
	const CUmemAllocationProp kind = memory_kind(device);
	size_t unit, free_bytes, total;
	int r = CUDA_CALL(device, cuMemGetAllocationGranularity, &unit, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM);

	if (r == 0)
		r = CUDA_CALL(device, cuMemGetInfo, &free_bytes, &total);
	if (r < 0)
		return r;
	return bytes == 0 || bytes % unit || bytes > total ? -EINVAL : 0;
}

static int map_import(struct device *device, int fd, uint64_t bytes, struct device_memory *ret)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	int r = check_size(device, bytes);

	if (r < 0)
		return r;
	r = CUDA_CALL(device, cuMemImportFromShareableHandle, &handle, (void *)(uintptr_t)fd,
		      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

	if (r < 0)
		return r;
	r = map_memory(device, handle, bytes, &at);
	if (r < 0)
		device->cu->cuMemRelease(handle);
	else
		*ret = (struct device_memory){
			.base = at, .bytes = bytes, .export_fd = -1, .handle = (void *)(uintptr_t)handle};
	return r;
}

int cuda_import(struct device *device, int fd, uint64_t bytes, struct device_memory *ret, struct moe_error *err)
{
	int r = cuda_enter(device);

	if (r == 0) {
		r = map_import(device, fd, bytes, ret);
		cuda_leave(device);
	}
	return r < 0 ? cuda_refused(device, r, "cannot import memory", err) : 0;
}

/* -- host memory -------------------------------------------------------------------------------------------------- */

/*
 * Whether no part of [begin, end) is a private mapping. Of such a one a driver that pins for writing makes a copy, page
 * by page: of a shared pool one copy for each process. Without /proc nothing is known and nothing refused.
 */
static bool is_shared(uintptr_t begin, uintptr_t end)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	uintptr_t from, to;
	char line[512], may[5];
	bool shared = true;

	while (maps && shared && fgets(line, sizeof line, maps))
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &from, &to, may) == 3 && from < end && to > begin)
			shared = may[3] == 's';
	if (maps)
		fclose(maps);
	return shared;
}

static int add_range(struct device *device, uint8_t *base, uint64_t bytes, CUdeviceptr address, bool pinned)
{
	struct cuda_range *ranges;
	int r = -ENOMEM;

	pthread_mutex_lock(&device->lock);
	ranges = realloc(device->ranges, (device->n_ranges + 1) * sizeof *ranges);
	if (ranges) {
		device->ranges = ranges;
		ranges[device->n_ranges++] = (struct cuda_range){base, bytes, address, pinned};
		r = 0;
	}
	pthread_mutex_unlock(&device->lock);
	return r;
}

static int register_here(struct device *device, void *base, uint64_t bytes, bool writes)
{
	const unsigned read_only = !writes && device->flags_read_only ? CU_MEMHOSTREGISTER_READ_ONLY : 0;
	CUdeviceptr address;
	int r;

	/* Its addresses are the device's too, and stay valid without the driver. */
	if (!writes && device->reads_pageable)
		return add_range(device, base, bytes, (CUdeviceptr)(uintptr_t)base, false);
	r = CUDA_CALL(device, cuMemHostRegister, base, bytes,
		      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | read_only);

	if (r < 0)
		return r;
	r = CUDA_CALL(device, cuMemHostGetDevicePointer, &address, base, 0);
	if (r == 0)
		r = add_range(device, base, bytes, address, true);
	if (r < 0)
		device->cu->cuMemHostUnregister(base);
	return r;
}

int cuda_register(struct device *device, void *base, uint64_t bytes, bool writes, struct moe_error *err)
{
	int r;

	if ((uintptr_t)base % PAGE || bytes == 0)
		return moe_error_set(err, -EINVAL, "%s: %" PRIu64 " bytes at %p are not whole pages", device->name,
				     bytes, base);
	if (!is_shared((uintptr_t)base, (uintptr_t)base + bytes))
		return moe_error_set(err, -EINVAL,
				     "%s: %" PRIu64 " bytes at %p are a private mapping: a driver would copy each page "
				     "of it; map it MAP_SHARED",
				     device->name, bytes, base);
	r = cuda_enter(device);
	if (r == 0) {
		r = register_here(device, base, bytes, writes);
		cuda_leave(device);
	}
	return r < 0 ? cuda_refused(device, r, "cannot register host memory", err) : 0;
}

/* The context is current; what the driver says does not matter. */
void cuda_unregister_all(struct device *device)
{
	while (device->n_ranges-- > 0)
		if (device->ranges[device->n_ranges].pinned)
			device->cu->cuMemHostUnregister(device->ranges[device->n_ranges].base);
	device->n_ranges = 0;
}

int cuda_find(struct device *device, const void *host, uint64_t bytes, CUdeviceptr *ret)
{
	const uint8_t *at = host;
	uint32_t i;
	int r = -EFAULT;

	pthread_mutex_lock(&device->lock);
	for (i = 0; i < device->n_ranges && r < 0; i++) {
		const struct cuda_range *range = &device->ranges[i];

		if (at >= range->base && checked_range((uint64_t)(at - range->base), bytes, range->bytes)) {
			*ret = range->device + (uint64_t)(at - range->base);
			r = 0;
		}
	}
	pthread_mutex_unlock(&device->lock);
	return r;
}

/* -- pages that the device reads by the host's page tables -------------------------------------------------------- */

/* The home of the pages stays the host: the CPU pool reads them too. With attribute 100 cuda.h says that the other two
 * change nothing; they are for drivers that know better. */
int cuda_pages_advise(struct device *device, const void *base, uint64_t bytes)
{
	const CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
	const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->id};
	const CUdeviceptr at = (CUdeviceptr)(uintptr_t)base;
	int r;

	if (!device->cu->cuMemAdvise_v2)
		return -EOPNOTSUPP;
	r = cuda_enter(device);
	if (r < 0)
		return r;
	r = CUDA_CALL(device, cuMemAdvise_v2, at, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, here);
	if (r == 0)
		r = CUDA_CALL(device, cuMemAdvise_v2, at, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host);
	if (r == 0)
		r = CUDA_CALL(device, cuMemAdvise_v2, at, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, here);
	cuda_leave(device);
	return r;
}

/* What was refused has brought nothing, and what is behind it reads the same bytes: no end of the device. */
int cuda_pages_fetch(struct device_stream *stream, const void *base, uint64_t bytes)
{
	struct device *device = stream->device;
	const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->id};
	CUdeviceptr at;
	int r = device->cu->cuMemPrefetchAsync_v2 ? cuda_find(device, base, bytes, &at) : -EOPNOTSUPP;

	if (r < 0)
		return r;
	return CUDA_WITHIN(device, CUDA_CALL(device, cuMemPrefetchAsync_v2, at, bytes, here, 0, stream->stream));
}
