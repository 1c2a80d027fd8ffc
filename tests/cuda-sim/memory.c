/* SPDX-License-Identifier: MIT */
/*
 * Device memory is a memfd that is mapped twice: at its device address, where nobody may touch it but kernels,
 * and where this library reads and writes it. Device addresses are never given twice.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/cuda-sim/sim.h"

#define PAGE 4096u
#define ARENA_BYTES (1ull << 38)
#define GRANULARITY (2ull << 20)

static uint8_t *arena; /* reserved addresses, made once in a process */
static uint64_t arena_used;

uint64_t sim_address_new(uint64_t bytes, uint64_t align)
{
	uint64_t base;

	if (!arena) {
		arena = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (arena == MAP_FAILED)
			abort();
	}
	base = ((uint64_t)(uintptr_t)arena + arena_used + align - 1) / align * align;
	arena_used = base + bytes - (uint64_t)(uintptr_t)arena;
	arena_used = (arena_used + PAGE - 1) / PAGE * PAGE + PAGE; /* a page that nobody has */
	if (arena_used > ARENA_BYTES)
		sim_violation("cuda-sim", "all %llu GiB of addresses have been given: a longer test needs more",
			      ARENA_BYTES >> 30);
	return base;
}

void sim_poison(uint8_t *memory, uint64_t bytes)
{
	static const uint32_t poison = SIM_POISON;
	uint64_t i;

	for (i = 0; i + 4 <= bytes; i += 4)
		memcpy(memory + i, &poison, 4);
	memcpy(memory + i, &poison, bytes - i);
}

/* -- physical memory ---------------------------------------------------------------------------------------------- */

static struct sim_physical *physical_of(int device, int fd, uint64_t bytes)
{
	struct sim_physical *p = calloc(1, sizeof *p);

	if (!p || fd < 0)
		abort();
	*p = (struct sim_physical){.fd = fd, .device = device, .bytes = bytes};
	p->alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p->alias == MAP_FAILED)
		abort();
	return p;
}

struct sim_physical *sim_physical_new(int device, uint64_t bytes)
{
	const uint64_t room = (bytes + PAGE - 1) / PAGE * PAGE;
	const int fd = memfd_create("cuda-sim", MFD_CLOEXEC);
	struct sim_physical *p;

	if (fd < 0 || ftruncate(fd, (off_t)room) < 0)
		abort();
	p = physical_of(device, fd, room);
	sim_poison(p->alias, room);
	return p;
}

void sim_physical_drop(struct sim_physical *physical)
{
	if (!physical->released || physical->mapped)
		return;
	munmap(physical->alias, physical->bytes);
	close(physical->fd);
	free(physical);
}

/* -- regions ------------------------------------------------------------------------------------------------------ */

struct sim_region *sim_region_new(int device, uint64_t base, uint64_t bytes, uint8_t *memory)
{
	struct sim_region *region = calloc(1, sizeof *region);

	if (!region)
		abort();
	*region = (struct sim_region){
		.next = sim.regions, .device = device, .base = base, .bytes = bytes, .memory = memory};
	sim.regions = region;
	sim.live++;
	return region;
}

void sim_region_free(struct sim_region *region, const char *call)
{
	struct sim_region **at = &sim.regions;

	sim_check_unused(region, call);
	sim_words_forget(region);
	while (*at != region)
		at = &(*at)->next;
	*at = region->next;
	free(region->accesses);
	free(region);
	sim.live--;
}

struct sim_region *sim_region_at(uint64_t address)
{
	struct sim_region *region;

	for (region = sim.regions; region; region = region->next)
		if (address >= region->base && address < region->base + region->bytes)
			return region;
	return NULL;
}

struct sim_region *sim_region_of_host(const void *host, size_t bytes)
{
	const uint64_t at = (uint64_t)(uintptr_t)host;
	struct sim_region *region;

	for (region = sim.regions; region; region = region->next)
		if (region->host && at < region->host + region->bytes && region->host < at + bytes)
			return region;
	return NULL;
}

/* Memory of the host that nobody has registered, where the device reads it all the same; whoever changes it meanwhile
 * is not seen. NULL: it does not, or there is none. Valid until the next call. */
static struct sim_region *pageable_at(uint64_t address, uint64_t bytes, bool write)
{
	static struct sim_region any;
	const uint64_t begin = address / 4096 * 4096;

	if (!sim.pageable || write || bytes == 0 ||
	    msync((void *)(uintptr_t)begin, address + bytes - begin, MS_ASYNC) < 0)
		return NULL;
	any.base = any.host = address;
	any.bytes = bytes;
	any.memory = (uint8_t *)(uintptr_t)address;
	any.readable = true;
	any.n_accesses = 0;
	return &any;
}

struct sim_region *sim_resolve(const char *call, uint64_t address, uint64_t bytes, bool write)
{
	struct sim_region *region = sim_region_at(address);

	if (!region)
		region = pageable_at(address, bytes, write);
	if (!region)
		sim_violation(call, "%#llx: no memory of the device is there, or not any more",
			      (unsigned long long)address);
	if (bytes > region->base + region->bytes - address)
		sim_violation(call, "%llu bytes at %#llx end %llu behind their %s", (unsigned long long)bytes,
			      (unsigned long long)address,
			      (unsigned long long)(address + bytes - region->base - region->bytes),
			      region->host ? "registration" : "allocation");
	if (write ? !region->writable : !region->readable)
		sim_violation(call, "%#llx: the device may not %s here", (unsigned long long)address,
			      write ? "write" : "read");
	return region;
}

struct sim_region *sim_resolve_host(const char *call, const void *host, uint64_t bytes, bool write)
{
	const uint64_t at = (uint64_t)(uintptr_t)host;
	struct sim_region *region = sim_region_of_host(host, bytes);

	if (!region)
		region = pageable_at(at, bytes, write);
	if (!region)
		sim_violation(call, "%p is not registered host memory", host);
	if (at < region->host || at + bytes > region->host + region->bytes)
		sim_violation(call, "%llu bytes at %p are not all of one registration", (unsigned long long)bytes,
			      host);
	if (write && !region->writable)
		sim_violation(call, "%p is registered for reading only", host);
	return region;
}

static void expose_region(struct sim_region *region, bool exposed)
{
	if (region->host || !region->readable || region->exposed == exposed)
		return;
	if (mprotect((void *)(uintptr_t)region->base, region->room ? region->room : region->bytes,
		     exposed ? PROT_READ | PROT_WRITE : PROT_NONE) < 0)
		abort();
	region->exposed = exposed;
}

void sim_expose(bool exposed)
{
	struct sim_region *region;

	for (region = sim.regions; region; region = region->next)
		expose_region(region, exposed);
}

void sim_check_ends(const char *what)
{
	const struct sim_region *region;
	uint64_t i;

	for (region = sim.regions; region; region = region->next)
		for (i = (region->bytes + 3) / 4 * 4; i + 4 <= region->room; i += 4)
			if (*(uint32_t *)(region->memory + i) != SIM_POISON)
				sim_violation(what, "it has written %llu bytes behind the end of an allocation of %llu",
					      (unsigned long long)(i - region->bytes),
					      (unsigned long long)region->bytes);
}

/* -- cuMemAlloc --------------------------------------------------------------------------------------------------- */

static uint64_t memory_used(int device)
{
	const struct sim_region *region;
	uint64_t used = 0;

	for (region = sim.regions; region; region = region->next)
		used += region->device == device && !region->host ? region->bytes : 0;
	return used;
}

#define MEMORY_BYTES (16ull << 30)

CUresult cuMemGetInfo(size_t *ret_free, size_t *ret_total)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		SIM_RULE(ret_free && ret_total, "both results are needed");
		*ret_free = MEMORY_BYTES - memory_used(sim_current());
		*ret_total = MEMORY_BYTES;
	}
	return sim_leave(r);
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_INIT);

	SIM_RULE(device >= 0 && device < sim.devices, "no such device: %d", device);
	*bytes = MEMORY_BYTES;
	return sim_leave(r);
}

/* Maps it at its device address, where kernels find it. */
static void map_device(uint64_t base, const struct sim_physical *physical)
{
	if (mmap((void *)(uintptr_t)base, physical->bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->fd, 0) ==
	    MAP_FAILED)
		abort();
}

static void unmap_device(uint64_t base, uint64_t bytes)
{
	if (mmap((void *)(uintptr_t)base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
		 0) == MAP_FAILED)
		abort();
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);
	struct sim_region *region;
	struct sim_physical *physical;

	if (r == CUDA_SUCCESS) {
		SIM_RULE(address && bytes, "an address and a size are needed");
		if (bytes > MEMORY_BYTES - memory_used(sim_current()))
			r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r == CUDA_SUCCESS) {
		physical = sim_physical_new(sim_current(), bytes);
		physical->released = true;
		physical->mapped = 1;
		*address = sim_address_new(physical->bytes, PAGE);
		map_device(*address, physical);
		region = sim_region_new(sim_current(), *address, bytes, physical->alias);
		region->physical = physical;
		region->room = physical->bytes;
		region->readable = region->writable = true;
	}
	return sim_leave(r);
}

static void unmap_region(struct sim_region *region, const char *call)
{
	struct sim_physical *physical = region->physical;

	unmap_device(region->base, physical->bytes);
	sim_region_free(region, call);
	physical->mapped--;
	sim_physical_drop(physical);
}

CUresult cuMemFree(CUdeviceptr address)
{
	CUresult r = sim_enter(__func__, SIM_RELEASES);
	struct sim_region *region = sim_region_at(address);

	SIM_RULE(region && region->base == address && (region->managed || (region->room && !region->host)),
		 "%#llx was not given by cuMemAlloc, or has been freed", (unsigned long long)address);
	if (r != CUDA_SUCCESS)
		return sim_leave(r);
	if (region->managed) {
		munmap((void *)(uintptr_t)region->base, region->bytes);
		sim_region_free(region, __func__);
	} else {
		unmap_region(region, __func__);
	}
	return sim_leave(r);
}

/* -- cuMemCreate, cuMemMap ---------------------------------------------------------------------------------------- */

static void check_prop(const char *call, const CUmemAllocationProp *prop)
{
	if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		sim_violation(call, "the type must be CU_MEM_ALLOCATION_TYPE_PINNED");
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id < 0 ||
	    prop->location.id >= sim.devices)
		sim_violation(call, "the location must be a device that there is");
	if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		sim_violation(call, "handle types %#x are not for Linux", (unsigned)prop->requestedHandleTypes);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
				       CUmemAllocationGranularity_flags option)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_INIT);

	if (r == CUDA_SUCCESS) {
		check_prop(__func__, prop);
		*granularity = GRANULARITY;
	}
	return sim_leave(r);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
		     unsigned long long flags)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_INIT);

	if (r == CUDA_SUCCESS) {
		check_prop(__func__, prop);
		SIM_RULE(flags == 0, "flags must be 0");
		SIM_RULE(bytes && bytes % GRANULARITY == 0, "%zu bytes are no multiple of the granularity", bytes);
		if (bytes > MEMORY_BYTES - memory_used(prop->location.id))
			r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r == CUDA_SUCCESS) {
		struct sim_physical *p = sim_physical_new(prop->location.id, bytes);

		p->exportable = prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
		p->rdma = prop->allocFlags.gpuDirectRDMACapable;
		*handle = sim_handle_new(SIM_PHYSICAL, p);
	}
	return sim_leave(r);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult r = sim_enter(__func__, SIM_RELEASES);

	if (r == CUDA_SUCCESS) {
		struct sim_physical *p = sim_handle_end(__func__, SIM_PHYSICAL, handle);

		p->released = true;
		sim_physical_drop(p);
	}
	return sim_leave(r);
}

CUresult cuMemExportToShareableHandle(void *shared, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
				      unsigned long long flags)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_INIT);

	if (r == CUDA_SUCCESS) {
		const struct sim_physical *p = SIM_GET(SIM_PHYSICAL, handle);

		SIM_RULE(flags == 0 && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, "only files can be exported");
		SIM_RULE(p->exportable, "the memory was not created for export");
		*(int *)shared = dup(p->fd);
	}
	return sim_leave(r);
}

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
				       unsigned long long flags)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);
	const struct sim_region *region = sim_region_at(address);

	SIM_RULE(type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, "there is no other type of handle");
	SIM_RULE((flags & ~(unsigned long long)CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE) == 0, "flags %#llx", flags);
	SIM_RULE(address % 4096 == 0 && bytes && bytes % 4096 == 0, "%zu bytes at %#llx are not whole pages", bytes,
		 (unsigned long long)address);
	SIM_RULE(region && region->physical && !region->host && address + bytes <= region->base + region->bytes,
		 "%#llx with %zu bytes is not all mapped device memory", (unsigned long long)address, bytes);
	SIM_RULE(region->physical->rdma, "the memory was not created with gpuDirectRDMACapable");
	if (r == CUDA_SUCCESS && sim.no_dma_buf)
		r = CUDA_ERROR_NOT_SUPPORTED;
	if (r == CUDA_SUCCESS) /* not a dma-buf but the memory itself, which a test maps */
		*(int *)handle = dup(region->physical->fd);
	return sim_leave(r);
}

/* Memory of another process, or of this one: what is in it stays. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared,
					CUmemAllocationHandleType type)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);
	const int fd = (int)(intptr_t)shared;
	struct stat st;

	SIM_RULE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, "only files can be imported");
	if (r == CUDA_SUCCESS && (fstat(fd, &st) < 0 || st.st_size == 0 || st.st_size % GRANULARITY))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		*handle = sim_handle_new(
			SIM_PHYSICAL, physical_of(sim_current(), fcntl(fd, F_DUPFD_CLOEXEC, 0), (uint64_t)st.st_size));
	return sim_leave(r);
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wish,
			     unsigned long long flags)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_INIT);

	if (r == CUDA_SUCCESS) {
		struct sim_reservation *v = malloc(sizeof *v);

		SIM_RULE(flags == 0, "flags must be 0");
		SIM_RULE(bytes && bytes % GRANULARITY == 0, "%zu bytes are no multiple of the granularity", bytes);
		SIM_RULE((alignment & (alignment - 1)) == 0, "alignment %zu is no power of two", alignment);
		if (!v)
			abort();
		*v = (struct sim_reservation){sim.reservations,
					      sim_address_new(bytes, alignment > GRANULARITY ? alignment : GRANULARITY),
					      bytes};
		sim.reservations = v;
		sim.live++;
		*address = v->base;
	}
	return sim_leave(r);
}

static bool any_region_in(uint64_t base, uint64_t bytes)
{
	const struct sim_region *region;

	for (region = sim.regions; region; region = region->next)
		if (region->base < base + bytes && base < region->base + region->bytes)
			return true;
	return false;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
	CUresult r = sim_enter(__func__, SIM_RELEASES);

	if (r == CUDA_SUCCESS) {
		struct sim_reservation **at = &sim.reservations, *v;

		while (*at && (*at)->base != address)
			at = &(*at)->next;
		v = *at;
		SIM_RULE(v && v->bytes == bytes, "%#llx with %zu bytes is no reservation", (unsigned long long)address,
			 bytes);
		SIM_RULE(!any_region_in(address, bytes), "memory is still mapped there");
		*at = v->next;
		free(v);
		sim.live--;
	}
	return sim_leave(r);
}

static bool is_reserved(uint64_t base, uint64_t bytes)
{
	const struct sim_reservation *v;

	for (v = sim.reservations; v; v = v->next)
		if (base >= v->base && base + bytes <= v->base + v->bytes)
			return true;
	return false;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
		  unsigned long long flags)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_INIT);

	if (r == CUDA_SUCCESS) {
		struct sim_physical *p = SIM_GET(SIM_PHYSICAL, handle);
		struct sim_region *region;

		SIM_RULE(flags == 0 && offset == 0, "flags and offset must be 0");
		SIM_RULE(is_reserved(address, bytes), "%#llx is not reserved", (unsigned long long)address);
		SIM_RULE(!any_region_in(address, bytes), "memory is mapped there already");
		if (bytes != p->bytes)
			return sim_leave(CUDA_ERROR_INVALID_VALUE);
		map_device(address, p);
		region = sim_region_new(p->device, address, bytes, p->alias);
		region->physical = p;
		p->mapped++;
	}
	return sim_leave(r);
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc, size_t count)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_INIT);

	if (r == CUDA_SUCCESS) {
		struct sim_region *region = sim_region_at(address);

		SIM_RULE(region && region->base == address && region->bytes == bytes && !region->room && !region->host,
			 "%#llx with %zu bytes is no mapping", (unsigned long long)address, bytes);
		SIM_RULE(desc && count == 1 && desc->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
				 desc->location.id == region->device,
			 "access is for the device that has the memory");
		expose_region(region, false); /* and no other: a kernel may be running */
		region->readable = desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
		region->writable = desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	}
	return sim_leave(r);
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	CUresult r = sim_enter(__func__, SIM_RELEASES);
	struct sim_region *region = sim_region_at(address);

	SIM_RULE(region && region->base == address && region->bytes == bytes && !region->room && !region->host,
		 "%#llx with %zu bytes is no mapping", (unsigned long long)address, bytes);
	if (r == CUDA_SUCCESS)
		unmap_region(region, __func__);
	return sim_leave(r);
}
