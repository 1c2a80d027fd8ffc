/* SPDX-License-Identifier: MIT */
/* cuda-coroutines - the kernels' text compiled for coroutines: see test-cuda-barriers.c. */
#define CUDA_COROUTINES
#include "kernels/cuda/all.cu"
