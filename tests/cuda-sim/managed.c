/* SPDX-License-Identifier: MIT */
/* Managed memory; what a driver may be told of it, and of memory of the host that the device reads by page tables. */
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/cuda-sim/sim.h"

#define PAGE 4096u

/* Managed memory is where it is: who reads it finds it, and bringing it somewhere changes nothing. */
CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		const uint64_t room = (bytes + PAGE - 1) / PAGE * PAGE;
		void *memory = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		struct sim_region *region;

		SIM_RULE(address && bytes && flags == CU_MEM_ATTACH_GLOBAL, "an address and a size are needed");
		if (memory == MAP_FAILED)
			abort();
		region = sim_region_new(sim_current(), (uintptr_t)memory, room, memory);
		region->host = region->base;
		region->managed = region->readable = region->writable = true;
		*address = region->base;
	}
	return sim_leave(r);
}

/* Managed memory, or memory of the host that nobody has registered, where devices read that. */
static void check_migratable(const char *call, uint64_t address, uint64_t bytes)
{
	struct sim_region *region = sim_region_at(address);

	if (!region)
		region = sim_region_of_host((void *)(uintptr_t)address, bytes);
	if (!bytes)
		sim_violation(call, "no bytes");
	if (region && !region->managed)
		sim_violation(call, "%#llx is not managed: it is registered, or the device's",
			      (unsigned long long)address);
	if (!region && !sim.pageable)
		sim_violation(call, "%#llx is not managed, and the device reads no other (attribute 88)",
			      (unsigned long long)address);
	sim_resolve(call, address, bytes, false);
}

static void check_location(const char *call, const CUmemLocation *to)
{
	if (to->type != CU_MEM_LOCATION_TYPE_HOST &&
	    (to->type != CU_MEM_LOCATION_TYPE_DEVICE || to->id < 0 || to->id >= sim.devices))
		sim_violation(call, "no such place");
}

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUmemLocation to, unsigned flags, CUstream stream)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		check_migratable(__func__, address, bytes);
		check_location(__func__, &to);
		SIM_RULE(flags == 0, "flags must be 0");
		sim_not_captured(__func__, SIM_GET(SIM_STREAM, stream));
	}
	return sim_leave(r);
}

CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation to)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		check_migratable(__func__, address, bytes);
		SIM_RULE(advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY,
			 "no such advice");
		if (advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice >= CU_MEM_ADVISE_SET_ACCESSED_BY)
			check_location(__func__, &to);
	}
	return sim_leave(r);
}
