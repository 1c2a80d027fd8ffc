/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"

const struct kernels kernels_ref = {KERNELS_COMMON(ref), .variant = "ref",
				    .of = {[MOE_FORMAT_BF16... MOE_FORMAT_COUNT - 1] = &ops_ref}};
