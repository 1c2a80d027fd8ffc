/* SPDX-License-Identifier: MIT */
/* all - every kernel, for one fat binary. */
#include "kernels/cuda/group.cu"
#include "kernels/cuda/pack.cu"
#include "kernels/cuda/combine.cu"
#include "kernels/cuda/decode.cu"
#include "kernels/cuda/limits.cu"
#include "kernels/cuda/policy.cu"
#include "kernels/cuda/prefill.cu"
