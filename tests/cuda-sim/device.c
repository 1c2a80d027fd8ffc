/* SPDX-License-Identifier: MIT */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "tests/cuda-sim/sim.h"

CUresult cuDriverGetVersion(int *version)
{
	*version = CUDA_VERSION;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_INIT);

	if (r == CUDA_SUCCESS)
		*count = sim.devices;
	return sim_leave(r);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_INIT);

	if (r == CUDA_SUCCESS && (ordinal < 0 || ordinal >= sim.devices))
		r = CUDA_ERROR_INVALID_DEVICE;
	if (r == CUDA_SUCCESS)
		*device = ordinal;
	return sim_leave(r);
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_INIT);

	SIM_RULE(device >= 0 && device < sim.devices, "no such device: %d", device);
	if (r == CUDA_SUCCESS)
		snprintf(name, (size_t)bytes, "Simulated GPU %d", device);
	return sim_leave(r);
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_INIT);

	SIM_RULE(uuid && device >= 0 && device < sim.devices, "no such device: %d", device);
	if (r == CUDA_SUCCESS)
		*uuid = (CUuuid){.bytes = {'s', 'i', 'm', (char)device}};
	return sim_leave(r);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	static const struct {
		CUdevice_attribute attribute;
		int value;
	} known[] = {
		{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
		{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
		{CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
		{CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
		{CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
		{CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
		{CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
		{CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, 0},
		{CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
		{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
		{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
		{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1},
		{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10},
		{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 227 << 10},
	};
	CUresult r = sim_enter(__func__, SIM_NEEDS_INIT);
	size_t i;

	SIM_RULE(value && device >= 0 && device < sim.devices, "no such device: %d", device);
	*value = 0;
	for (i = 0; i < sizeof known / sizeof *known; i++)
		if (known[i].attribute == attribute)
			*value = known[i].value;
	if (attribute == CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)
		*value = sim.read_only_register;
	if (attribute == CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS ||
	    attribute == CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES)
		*value = sim.pageable;
	if (attribute == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)
		*value = !sim.no_dma_buf;
	if (attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)
		*value = sim.same_pointers;
	return sim_leave(r);
}

static const struct {
	CUresult result;
	const char *name, *text;
} results[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
	{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
	 "no kernel image is available for execution on the device"},
	{CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
	{CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	{CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
	 "part or all of the requested memory range is already mapped"},
	{CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
	{CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

CUresult cuGetErrorName(CUresult error, const char **text)
{
	for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
		if (results[i].result == error) {
			*text = results[i].name;
			return CUDA_SUCCESS;
		}
	}
	*text = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
	for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
		if (results[i].result == error) {
			*text = results[i].text;
			return CUDA_SUCCESS;
		}
	}
	*text = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}
