/* SPDX-License-Identifier: MIT */
#include "device/cuda-driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include "base/error.h"
#include "base/exports.h"
#include "base/util.h"

#define LIBRARY "libcuda.so.1"
#define NEEDED(function) EXPORT(struct cuda_driver, function)
#define OPTIONAL(function) EXPORT_OPTIONAL(struct cuda_driver, function)

static const struct export functions[] = {CUDA_DRIVER_FUNCTIONS(NEEDED) CUDA_DRIVER_OPTIONAL(OPTIONAL)};

/* Under the lock. A failed attempt is repeated by the next caller: it costs little, and a GPU may have come back. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_driver loaded;
static bool is_loaded;

const char *cuda_error_name(const struct cuda_driver *driver, CUresult result, char room[32])
{
	const char *name = NULL;

	if (driver->cuGetErrorName(result, &name) == CUDA_SUCCESS && name)
		return name;
	snprintf(room, 32, "CUDA error %d", (int)result);
	return room;
}

static int find_functions(struct cuda_driver *driver, void *library, struct moe_error *err)
{
	const char *missing = exports_find(library, functions, ARRAY_LEN(functions), driver);

	if (missing)
		return moe_error_set(err, -ENODEV, "%s has no %s: the library needs a driver for CUDA %d.%d or later",
				     LIBRARY, missing, CUDA_DRIVER_FLOOR / 1000, CUDA_DRIVER_FLOOR % 1000 / 10);
	if (!driver->cuEventElapsedTime) {
		void *function = dlsym(library, "cuEventElapsedTime");

		memcpy(&driver->cuEventElapsedTime, &function, sizeof function);
	}
	return driver->cuEventElapsedTime ? 0 : moe_error_set(err, -ENODEV, "%s has no cuEventElapsedTime", LIBRARY);
}

static int start_driver(struct cuda_driver *driver, struct moe_error *err)
{
	char room[32];
	CUresult result = driver->cuInit(0);

	if (result != CUDA_SUCCESS)
		return moe_error_set(err, -ENODEV, "cuInit: %s: no GPU that this process may use",
				     cuda_error_name(driver, result, room));
	result = driver->cuDriverGetVersion(&driver->version);
	if (result != CUDA_SUCCESS || driver->version < CUDA_DRIVER_FLOOR)
		return moe_error_set(err, -ENODEV, "%s is of CUDA %d.%d; expected %d.%d or later: update the driver",
				     LIBRARY, driver->version / 1000, driver->version % 1000 / 10,
				     CUDA_DRIVER_FLOOR / 1000, CUDA_DRIVER_FLOOR % 1000 / 10);
	return 0;
}

static int load_driver(struct moe_error *err)
{
	struct cuda_driver driver = {0};
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	int r;

	if (!library)
		return moe_error_set(err, -ENODEV, "no NVIDIA driver on this machine: %s", dlerror());
	r = find_functions(&driver, library, err);
	if (r == 0)
		r = start_driver(&driver, err);
	if (r < 0)
		return r;
	loaded = driver;
	is_loaded = true;
	return 0;
}

int cuda_driver_get(const struct cuda_driver **ret, struct moe_error *err)
{
	int r;

	pthread_mutex_lock(&lock);
	r = is_loaded ? 0 : load_driver(err);
	pthread_mutex_unlock(&lock);
	if (r == 0)
		*ret = &loaded;
	return r;
}
