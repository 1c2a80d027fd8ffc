/* SPDX-License-Identifier: MIT */
#include "tools/worker/mlp.h"

#include "tools/worker/vector.h"

void mlp_run(const struct gated_mlp *mlp, enum moe_activation activation, const float *x, uint32_t tokens,
	     float *scratch, float *y)
{
	const uint32_t inter = mlp->gate.rows, hidden = mlp->gate.cols;
	float *gate = scratch, *up = scratch + (size_t)tokens * inter;

	matrix_multiply(gate, inter, x, hidden, tokens, &mlp->gate, NULL);
	matrix_multiply(up, inter, x, hidden, tokens, &mlp->up, NULL);
	vector_gate(gate, up, (size_t)tokens * inter, activation);
	matrix_multiply(y, hidden, gate, inter, tokens, &mlp->down, NULL);
}
