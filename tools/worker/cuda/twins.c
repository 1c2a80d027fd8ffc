/* SPDX-License-Identifier: MIT */
/* twins - the worker's kernels compiled for the host. */
#include "tools/worker/cuda/all.cu"

cuda_twin *const dense_twins[DENSE_KERNEL_COUNT] = {
#define X(name, params) twin_##name,
	DENSE_KERNELS(X)
#undef X
};
