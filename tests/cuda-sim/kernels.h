/* SPDX-License-Identifier: MIT */
#ifndef TESTS_CUDA_SIM_KERNELS_H
#define TESTS_CUDA_SIM_KERNELS_H

#include <stdint.h>

/* cusim_copy: copies `bytes`, and says that it writes `claimed` of them. */
struct cusim_copy {
	uint64_t to, from, bytes, claimed;
};

struct sim_kernel;

/* Of the library; NULL when there is none of that name. */
const struct sim_kernel *sim_kernel_find_moe(const char *name);
/* Of the sample worker; likewise. */
const struct sim_kernel *sim_kernel_find_worker(const char *name);

#endif
