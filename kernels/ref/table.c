/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"

const struct kernels kernels_ref = KERNELS_TABLE(ref);
