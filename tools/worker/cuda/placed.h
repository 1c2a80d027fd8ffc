/* SPDX-License-Identifier: MIT */
/*
 * placed - the dense weights in a GPU's memory, in the element types in which the worker holds them, and the rotary
 * tables. All in one allocation; rows begin at multiples of 16 bytes, tensors at multiples of 256.
 */
#ifndef WORKER_CUDA_PLACED_H
#define WORKER_CUDA_PLACED_H

#include "tools/worker/cuda/gpu.h"
#include "tools/worker/weights.h"

struct placed_mlp {
	struct dense_matrix gate, up, down;
};

/* As struct layer_weights; addresses of vectors, 0 where there is none. */
struct placed_layer {
	uint64_t attention_norm, mlp_norm;
	struct dense_matrix q, k, v, o;
	uint64_t q_bias, k_bias, v_bias, o_bias, q_norm, k_norm;
	struct dense_matrix q_a, q_b, kv_a, kv_b;
	uint64_t q_a_bias, kv_a_bias, q_a_norm, kv_a_norm;
	struct dense_matrix router, shared_gate;
	uint64_t router_bias;
	struct placed_mlp mlp;
};

struct placed {
	struct dense_matrix embedding, output;
	uint64_t norm, cos, sin;
	struct placed_layer *layers;
	uint64_t bytes; /* of the device's memory */
};

/* Copies them; they may be freed then. The device's memory is the gpu's. */
int placed_new(struct placed **ret, struct gpu *gpu, const struct arch *arch, const struct weights *weights,
	       uint32_t positions, struct moe_error *err);
struct placed *placed_free(struct placed *placed); /* takes NULL, returns NULL */

#endif
