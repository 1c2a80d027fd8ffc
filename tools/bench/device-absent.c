/* SPDX-License-Identifier: MIT */
/* Stands for device.c where the build has no back-end for GPUs. */
#include <errno.h>

#include "base/error.h"
#include "bench.h"

int bench_device(const struct options *o)
{
	struct moe_error err = {0};

	moe_error_set(
		&err, -ENOTSUP,
		"device: built without CUDA: install a toolkit (nvcc and cuda.h), then 'meson setup --reconfigure "
		"-Dcuda=enabled' and build");
	return bench_fail(&err);
}
