/* SPDX-License-Identifier: MIT */
/*
 * Registered host memory. Its device address is another one than the host's where the memory can be mapped twice, so
 * that who mixes them up is seen.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/cuda-sim/sim.h"

#define PAGE 4096u
#define FLAGS_KNOWN (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY)

struct mapping {
	bool whole, readable, writable, shared, of_file;
};

/* What the kernel says of the range: it may lie in several mappings. */
static struct mapping ask_kernel(uint64_t begin, uint64_t end)
{
	struct mapping m = {.readable = true, .writable = true, .shared = true};
	FILE *file = fopen("/proc/self/maps", "re");
	char line[512], mode[5];
	uint64_t from, to, inode, at = begin;

	while (file && at < end && fgets(line, sizeof line, file)) {
		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*x %*s %" SCNu64, &from, &to, mode, &inode) != 4 ||
		    to <= at)
			continue;
		if (from > at)
			break;
		m.readable &= mode[0] == 'r';
		m.writable &= mode[1] == 'w';
		m.shared &= mode[3] == 's';
		m.of_file |= inode != 0;
		at = to;
	}
	if (file)
		fclose(file);
	m.whole = at >= end;
	return m;
}

/* The same memory at other addresses, or the same ones. */
static uint64_t device_address(void *host, size_t bytes, const struct mapping *m)
{
	void *other;

	if (sim.same_pointers || !m->shared || (uintptr_t)host % PAGE || bytes % PAGE)
		return (uintptr_t)host;
	other = mremap(host, 0, bytes, MREMAP_MAYMOVE); /* of size 0: a second mapping of shared memory */
	return other == MAP_FAILED ? (uintptr_t)host : (uintptr_t)other;
}

CUresult cuMemHostRegister(void *host, size_t bytes, unsigned flags)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);
	const bool read_only = flags & CU_MEMHOSTREGISTER_READ_ONLY;
	struct sim_region *region;
	struct mapping m;

	if (r != CUDA_SUCCESS)
		return sim_leave(r);
	SIM_RULE(host && bytes, "memory is needed");
	SIM_RULE((flags & ~(unsigned)FLAGS_KNOWN) == 0, "flags %#x", flags);
	SIM_RULE(bytes <= 64ull << 30, "%zu bytes: drivers fail above 64 GiB", bytes);
	m = ask_kernel((uintptr_t)host / PAGE * PAGE, (uintptr_t)host + bytes);
	SIM_RULE(m.whole, "%p with %zu bytes is not all mapped", host, bytes);
	SIM_RULE(m.shared || !m.of_file, "%p is a private mapping of a file: each page would be copied", host);
	if (read_only && !sim.read_only_register)
		r = CUDA_ERROR_NOT_SUPPORTED;
	else if (!m.readable || (!read_only && !m.writable))
		r = CUDA_ERROR_INVALID_VALUE; /* what the driver says to memory that cannot be written */
	else if (sim_region_of_host(host, bytes))
		r = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	if (r == CUDA_SUCCESS) {
		region = sim_region_new(sim_current(), device_address(host, bytes, &m), bytes, host);
		region->host = (uintptr_t)host;
		region->readable = true;
		region->writable = !read_only;
		region->mapped = flags & CU_MEMHOSTREGISTER_DEVICEMAP;
	}
	return sim_leave(r);
}

CUresult cuMemHostUnregister(void *host)
{
	CUresult r = sim_enter(__func__, SIM_RELEASES);
	struct sim_region *region = sim_region_of_host(host, 1);

	SIM_RULE(region && region->host == (uintptr_t)host && !region->managed,
		 "%p is not where registered memory begins", host);
	if (r == CUDA_SUCCESS) {
		if (region->base != region->host)
			munmap((void *)(uintptr_t)region->base, region->bytes);
		sim_region_free(region, __func__);
	}
	return sim_leave(r);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *address, void *host, unsigned flags)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		const struct sim_region *region = sim_resolve_host(__func__, host, 1, false);

		SIM_RULE(flags == 0, "flags must be 0");
		SIM_RULE(region->mapped, "%p was registered without CU_MEMHOSTREGISTER_DEVICEMAP", host);
		*address = region->base + ((uintptr_t)host - region->host);
	}
	return sim_leave(r);
}
