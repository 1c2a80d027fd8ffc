/* SPDX-License-Identifier: MIT */
/* worker-coroutines - the text of the worker's kernels compiled for coroutines: see test-worker-barriers.c. */
#define CUDA_COROUTINES
#include "tools/worker/cuda/all.cu"
