/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "tests/cuda-sim/sim.h"

/* Looks the places up at once, so that a wrong one is told where it was given; the thread does so again. */
static void give_copy(const char *call, CUstream stream, struct sim_command *c)
{
	struct sim_stream *s = sim_handle_get(call, SIM_STREAM, (uint64_t)(uintptr_t)stream);
	const uint64_t span = c->copy.pitch * (c->copy.rows - 1) + c->copy.width, bytes = c->copy.rows * c->copy.width;

	c->op = SIM_COPY;
	c->call = call;
	if (c->copy.from_host)
		sim_resolve_host(call, (void *)(uintptr_t)c->copy.from, span, false);
	else
		sim_resolve(call, c->copy.from, span, false);
	if (c->copy.to_host)
		sim_resolve_host(call, (void *)(uintptr_t)c->copy.to, bytes, true);
	else
		sim_resolve(call, c->copy.to, bytes, true);
	sim_give(s, c);
}

/* No bytes are no copy. */
static void give_bytes(const char *call, CUstream stream, uint64_t to, bool to_host, uint64_t from, bool from_host,
		       size_t bytes)
{
	struct sim_command c = {.copy = {to, from, to_host, from_host, bytes, bytes, 1}};

	if (bytes)
		give_copy(call, stream, &c);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS)
		give_bytes(__func__, stream, to, false, (uintptr_t)from, true, bytes);
	return sim_leave(r);
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS)
		give_bytes(__func__, stream, (uintptr_t)to, true, from, false, bytes);
	return sim_leave(r);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS)
		give_bytes(__func__, stream, to, false, from, false, bytes);
	return sim_leave(r);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *copy, CUstream stream)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		struct sim_command c = {0};

		SIM_RULE(copy && copy->srcMemoryType == CU_MEMORYTYPE_HOST &&
				 copy->dstMemoryType == CU_MEMORYTYPE_DEVICE,
			 "only copies from host to device are simulated");
		SIM_RULE(copy->WidthInBytes <= copy->srcPitch && copy->WidthInBytes <= copy->dstPitch,
			 "%zu bytes wide, but rows are %zu and %zu apart", copy->WidthInBytes, copy->srcPitch,
			 copy->dstPitch);
		SIM_RULE(copy->dstPitch == copy->WidthInBytes || copy->Height == 1,
			 "rows must be packed at the device");
		c.copy.to = copy->dstDevice + copy->dstY * copy->dstPitch + copy->dstXInBytes;
		c.copy.from = (uintptr_t)copy->srcHost + copy->srcY * copy->srcPitch + copy->srcXInBytes;
		c.copy.from_host = true;
		c.copy.pitch = copy->srcPitch;
		c.copy.width = copy->WidthInBytes;
		c.copy.rows = copy->Height;
		if (copy->WidthInBytes && copy->Height)
			give_copy(__func__, stream, &c);
	}
	return sim_leave(r);
}

/* Which kind of place a number is: device memory, or registered memory under its host's or its device's address. */
static uint64_t place_of(const char *call, CUdeviceptr address, bool *ret_host)
{
	const struct sim_region *region = sim_region_of_host((void *)(uintptr_t)address, 1);

	*ret_host = region != NULL;
	if (region)
		return address;
	region = sim_resolve(call, address, 1, false);
	*ret_host = region->host != 0;
	return region->host ? region->host + (address - region->base) : address;
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
			    CUmemcpyAttributes *attributes, size_t *first, size_t n_attributes, CUstream stream)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);
	size_t i;

	if (r != CUDA_SUCCESS)
		return sim_leave(r);
	SIM_RULE(to && from && bytes && count && attributes && first && n_attributes && n_attributes <= count,
		 "all lists are needed");
	SIM_RULE(first[0] == 0, "the first attributes must be those of the first copy");
	for (i = 0; i < n_attributes; i++) {
		SIM_RULE(i == 0 || first[i] > first[i - 1], "the attributes' first copies must ascend");
		SIM_RULE(first[i] < count, "attributes of a copy that there is not");
		SIM_RULE(attributes[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
			 "a source that is not read in the stream's order may be changed too early");
	}
	for (i = 0; i < count; i++) {
		bool to_host, from_host;
		const uint64_t a = place_of(__func__, to[i], &to_host), b = place_of(__func__, from[i], &from_host);

		SIM_RULE(bytes[i], "copy %zu has no bytes", i);
		SIM_RULE(!(to_host && from_host), "copy %zu is from host to host", i);
		sim_not_captured(__func__, SIM_GET(SIM_STREAM, stream));
		give_bytes(__func__, stream, a, to_host, b, from_host, bytes[i]);
	}
	return sim_leave(r);
}

static void give_fill(const char *call, CUstream stream, uint64_t to, uint32_t value, uint32_t unit, size_t count)
{
	struct sim_stream *s = sim_handle_get(call, SIM_STREAM, (uint64_t)(uintptr_t)stream);

	if (to % unit)
		sim_violation(call, "%#llx is not aligned", (unsigned long long)to);
	sim_resolve(call, to, count * unit, true);
	sim_give(s, &(struct sim_command){.op = SIM_FILL, .call = call, .fill = {to, count, value, unit}});
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS)
		give_fill(__func__, stream, to, value, 4, count);
	return sim_leave(r);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS)
		give_fill(__func__, stream, to, value, 1, count);
	return sim_leave(r);
}
