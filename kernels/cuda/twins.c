/* SPDX-License-Identifier: MIT */
/* twins - the kernels' text compiled for the host. */
#include "kernels/cuda/all.cu"
#include "kernels/cuda/launch.h"

cuda_twin *const cuda_twins[CUDA_KERNEL_COUNT] = {
#define X(name, params) twin_##name,
	CUDA_KERNELS(X)
#undef X
};

void cuda_launch_twin(const struct cuda_launch *launch, enum cuda_twin_order order)
{
	cuda_twins[launch->kernel](&launch->params, launch->grid, launch->block, order);
}
