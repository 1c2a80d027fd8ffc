/* SPDX-License-Identifier: MIT */
#include "tools/worker/cuda/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"

#define LIBRARY "libcuda.so.1"

/* As the driver exports it: cuda.h names the current version of a function (cuMemAlloc is cuMemAlloc_v2 there). */
#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define ENTRY(function) {TEXT(function), offsetof(struct driver, function)},

static const struct entry {
	const char *name;
	size_t at;
} entries[] = {WORKER_DRIVER_FUNCTIONS(ENTRY)};

/* Never closed: the driver's threads would outlive its code. */
int driver_load(struct driver *ret, struct moe_error *err)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return moe_error_set(err, -ENODEV, "no NVIDIA driver on this machine: %s", dlerror());
	for (size_t i = 0; i < ARRAY_LEN(entries); i++) {
		void *function = dlsym(library, entries[i].name);

		if (!function)
			return moe_error_set(err, -ENODEV,
					     "%s has no %s: the worker needs a driver for CUDA 12 or later", LIBRARY,
					     entries[i].name);
		memcpy((uint8_t *)ret + entries[i].at, &function, sizeof(function));
	}
	if (ret->cuInit(0) != CUDA_SUCCESS)
		return moe_error_set(err, -ENODEV, "cuInit: no GPU that this process may use");
	return 0;
}
