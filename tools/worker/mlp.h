/* SPDX-License-Identifier: MIT */
/* mlp - the gated feed-forward network of dense layers and shared experts: y = down(act(gate x) * (up x)). */
#ifndef WORKER_MLP_H
#define WORKER_MLP_H

#include "tools/worker/weights.h"

/* `scratch` holds 2 * tokens * rows of gate floats. */
void mlp_run(const struct gated_mlp *mlp, enum moe_activation activation, const float *x, uint32_t tokens,
	     float *scratch, float *y);

#endif
