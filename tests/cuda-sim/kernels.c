/* SPDX-License-Identifier: MIT */
/* Kernels for the simulation's own test; kernels-moe.c has the library's, kernels-worker.c the worker's. */
#include <string.h>

#include "tests/cuda-sim/kernels.h"
#include "tests/cuda-sim/sim.h"

static void copy_run(const void *params, const struct sim_launch *launch)
{
	const struct cusim_copy *p = params;

	memcpy((void *)(uintptr_t)p->to, (const void *)(uintptr_t)p->from, p->bytes);
}

static void copy_ranges(const void *params, const struct sim_launch *launch,
			void (*touch)(void *arg, uint64_t begin, uint64_t bytes, bool write), void *arg)
{
	const struct cusim_copy *p = params;

	touch(arg, p->from, p->bytes, false);
	touch(arg, p->to, p->claimed, true);
}

static const struct sim_kernel copy = {"cusim_copy", sizeof(struct cusim_copy), copy_run, copy_ranges};

const struct sim_kernel *sim_kernel_find(const char *name)
{
	const struct sim_kernel *found = strcmp(name, copy.name) == 0 ? &copy : sim_kernel_find_moe(name);

	return found ? found : sim_kernel_find_worker(name);
}
