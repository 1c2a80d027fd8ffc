/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"

const struct kernels kernels_avx2 = KERNELS_TABLE(avx2);
