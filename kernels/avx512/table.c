/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"

const struct kernels kernels_avx512 = KERNELS_TABLE(avx512);
