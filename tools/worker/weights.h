/* SPDX-License-Identifier: MIT */
/*
 * weights - the published tensors of the dense part, found, checked and ready for arithmetic.
 *
 * The shards are mapped read-only, whole, for as long as the weights live; nothing is read before it is used. When all
 * dense matrices together are small they are widened to FP32 once; else they stay where they lie and are widened block
 * by block at each use. Norms and biases are always FP32. A shape or type that is not the config's is an error.
 */
#ifndef WORKER_WEIGHTS_H
#define WORKER_WEIGHTS_H

#include "tools/worker/arch.h"
#include "tools/worker/matrix.h"

struct gated_mlp {
	struct matrix gate, up, down;
};

struct layer_weights {
	const float *attention_norm, *mlp_norm;

	/* Grouped-query attention; o also with latent attention. */
	struct matrix q, k, v, o;
	const float *q_bias, *k_bias, *v_bias, *o_bias; /* NULL: none */
	const float *q_norm, *k_norm;

	/* Latent attention: q_a and q_b, or q when queries are not compressed. */
	struct matrix q_a, q_b, kv_a, kv_b;
	const float *q_a_bias, *kv_a_bias, *q_a_norm, *kv_a_norm;

	struct matrix router; /* MoE layers */
	const float *router_bias;
	struct gated_mlp mlp;      /* a dense layer's, or a MoE layer's shared experts; gate.data NULL: none */
	struct matrix shared_gate; /* one row */
};

struct weights_map {
	const uint8_t *data;
	uint64_t bytes;
};

struct weights {
	struct matrix embedding, output;
	const float *norm;
	struct layer_weights *layers;
	uint32_t n_layers;

	const struct model *model;
	struct weights_map *maps; /* [model->n_shards] */
	float **vectors;          /* everything that is owned in FP32 */
	size_t n_vectors;
	struct matrix **matrices; /* all matrices above, to widen them */
	size_t n_matrices;
};

/* The model must outlive the weights. */
int weights_load(struct weights **ret, const struct model *model, const struct arch *arch, struct moe_error *err);
struct weights *weights_free(struct weights *weights); /* takes NULL, returns NULL */

/* Maps a shard whole, read-only. */
int weights_map_shard(struct weights_map *ret, const struct shard *shard, struct moe_error *err);
void weights_unmap_shard(struct weights_map *map); /* takes a zeroed one */

/* A two-dimensional tensor as it lies in its shard; -EINVAL for element types other than BF16, F16 and F32. */
int weights_matrix(const struct weights *weights, const struct tensor *tensor, struct matrix *ret,
		   struct moe_error *err);

#endif
