/* SPDX-License-Identifier: MIT */
/* all - every kernel of the worker, for one fat binary. */
#include "tools/worker/cuda/rows.cu"
#include "tools/worker/cuda/product.cu"
#include "tools/worker/cuda/attend.cu"
#include "tools/worker/cuda/route.cu"
