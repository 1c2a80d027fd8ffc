/* SPDX-License-Identifier: MIT */
#include "tools/worker/cuda/driver.h"

#include <errno.h>

#include "base/error.h"
#include "base/exports.h"
#include "base/util.h"

#define LIBRARY "libcuda.so.1"
#define ENTRY(function) EXPORT(struct driver, function)

static const struct export functions[] = {WORKER_DRIVER_FUNCTIONS(ENTRY)};

/* Never closed: the driver's threads would outlive its code. */
int driver_load(struct driver *ret, struct moe_error *err)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	const char *missing;

	if (!library)
		return moe_error_set(err, -ENODEV, "no NVIDIA driver on this machine: %s", dlerror());
	missing = exports_find(library, functions, ARRAY_LEN(functions), ret);
	if (missing)
		return moe_error_set(err, -ENODEV, "%s has no %s: the worker needs a driver for CUDA 12 or later",
				     LIBRARY, missing);
	if (ret->cuInit(0) != CUDA_SUCCESS)
		return moe_error_set(err, -ENODEV, "cuInit: no GPU that this process may use");
	return 0;
}
