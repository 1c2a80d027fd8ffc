/* SPDX-License-Identifier: MIT */
/* absent - what stands for forward-cuda.c in a build without CUDA. */
#include <errno.h>

#include "base/error.h"
#include "tools/worker/forward.h"

bool forward_cuda_finds(const char *device)
{
	return false;
}

int forward_cuda_new(struct forward **ret, const char *device, bool graph, const struct arch *arch,
		     const struct weights *weights, struct experts *experts, struct group *group, uint32_t positions,
		     uint32_t tokens_max, struct moe_error *err)
{
	return moe_error_set(err, -ENODEV, "--device %s: moe-worker was built without CUDA", device);
}
