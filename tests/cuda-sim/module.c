/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "tests/cuda-sim/sim.h"

#define FATBIN_MAGIC 0xba55ed50u /* of the container that nvcc --fatbin writes */
#define BLOCK_MAX 1024u
#define GRID_YZ_MAX 65535u
#define SHARED_MAX (48u << 10)
#define SHARED_OPT_IN_MAX (227u << 10)

struct module {
	uint64_t *functions;
	unsigned n_functions;
};

struct function {
	const struct sim_kernel *kernel;
	unsigned shared_max;
};

CUresult cuModuleLoadData(CUmodule *ret, const void *image)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		struct module *module = calloc(1, sizeof *module);
		uint32_t magic;

		SIM_RULE(image, "an image is needed");
		memcpy(&magic, image, sizeof magic);
		SIM_RULE(magic == FATBIN_MAGIC, "the image begins with %#x: not a fat binary", magic);
		if (!module)
			abort();
		*ret = (CUmodule)(uintptr_t)sim_handle_new(SIM_MODULE, module);
	}
	return sim_leave(r);
}

CUresult cuModuleUnload(CUmodule handle)
{
	CUresult r = sim_enter(__func__, SIM_RELEASES);

	if (r == CUDA_SUCCESS) {
		struct module *module = sim_handle_end(__func__, SIM_MODULE, (uint64_t)(uintptr_t)handle);
		const struct sim_stream *s;
		const struct sim_command *c;
		unsigned i;

		for (s = sim.streams; s; s = s->next)
			for (c = s->first; c; c = c->next)
				SIM_RULE(c->op != SIM_KERNEL, "%s is still to run", c->launch.kernel->name);
		for (i = 0; i < module->n_functions; i++)
			free(sim_handle_end(__func__, SIM_FUNCTION, module->functions[i]));
		free(module->functions);
		free(module);
	}
	return sim_leave(r);
}

CUresult cuModuleGetFunction(CUfunction *ret, CUmodule handle, const char *name)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		struct module *module = SIM_GET(SIM_MODULE, handle);
		const struct sim_kernel *kernel = sim_kernel_find(name);
		struct function *function = calloc(1, sizeof *function);

		SIM_RULE(kernel, "there is no kernel %s", name);
		module->functions = realloc(module->functions, (module->n_functions + 1) * sizeof(uint64_t));
		if (!module->functions || !function)
			abort();
		*function = (struct function){kernel, SHARED_MAX};
		module->functions[module->n_functions] = sim_handle_new(SIM_FUNCTION, function);
		*ret = (CUfunction)(uintptr_t)module->functions[module->n_functions++];
	}
	return sim_leave(r);
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		struct function *function = SIM_GET(SIM_FUNCTION, handle);

		if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
			SIM_RULE(value >= 0 && (unsigned)value <= SHARED_OPT_IN_MAX, "%d bytes of shared memory",
				 value);
			function->shared_max = (unsigned)value;
		} else {
			SIM_RULE(attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
				 "attribute %d cannot be set", (int)attribute);
		}
	}
	return sim_leave(r);
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		const struct function *function = SIM_GET(SIM_FUNCTION, handle);

		*value = 0;
		if (attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
			*value = BLOCK_MAX;
		if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
			*value = (int)function->shared_max;
	}
	return sim_leave(r);
}

/* Loads what is to be loaded before the first launch. */
CUresult cuFuncLoad(CUfunction handle)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS)
		SIM_GET(SIM_FUNCTION, handle);
	return sim_leave(r);
}

CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
			unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **params,
			void **extra)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		const struct function *function = SIM_GET(SIM_FUNCTION, handle);
		struct sim_stream *s = SIM_GET(SIM_STREAM, stream);
		const char *name = function->kernel->name;
		struct sim_command c = {
			.op = SIM_KERNEL,
			.call = __func__,
			.launch = {function->kernel,
				   malloc(function->kernel->params_bytes),
				   {grid_x, grid_y, grid_z},
				   {block_x, block_y, block_z},
				   shared},
		};

		SIM_RULE(grid_x && grid_x <= INT32_MAX && grid_y && grid_y <= GRID_YZ_MAX && grid_z &&
				 grid_z <= GRID_YZ_MAX,
			 "%s: grid %u %u %u", name, grid_x, grid_y, grid_z);
		SIM_RULE(block_x && block_y && block_z && block_z <= 64 &&
				 (uint64_t)block_x * block_y * block_z <= BLOCK_MAX,
			 "%s: block %u %u %u", name, block_x, block_y, block_z);
		SIM_RULE(shared <= function->shared_max, "%s: %u bytes of shared memory, %u allowed", name, shared,
			 function->shared_max);
		SIM_RULE(params && params[0] && !extra, "%s: one parameter is needed", name);
		if (!c.launch.params)
			abort();
		memcpy(c.launch.params, params[0], function->kernel->params_bytes);
		sim_give(s, &c);
	}
	return sim_leave(r);
}
