/* SPDX-License-Identifier: MIT */
/*
 * dense-kernels - what the sample worker computes on a GPU: everything of a model but its routed experts.
 *
 * They are written in the words of kernels/cuda/dialect.h and keep the law of kernels/cuda/cuda-kernels.h: one
 * argument, a struct of numbers; no dynamic shared memory; no floating-point atomics, so the same inputs give the same
 * bits; and a twin on the host. What changes from one decode step to the next is read from device memory (`position`,
 * ids): the same launches serve every step, so they may be captured once.
 *
 * Simple before fast: no tensor cores, a product reads the weights once for DENSE_TOKENS tokens. All arithmetic is
 * FP32, weights are widened in registers. Rows of floats are told by pitches in floats, matrices by pitches in bytes.
 * Each kernel is launched with DENSE_THREADS threads a block.
 */
#ifndef WORKER_CUDA_DENSE_KERNELS_H
#define WORKER_CUDA_DENSE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/cuda-kernels.h"

#define DENSE_THREADS 256
#define DENSE_ROWS 16          /* of a matrix, by one block of worker_product */
#define DENSE_TOKENS 4         /* for which it reads them once */
#define DENSE_VALUE_MAX 1024   /* width of what worker_attend mixes */
#define DENSE_EXPERTS_MAX 4096 /* of worker_route */
#define DENSE_GROUPS_MAX 256

enum dense_type { DENSE_F32, DENSE_BF16, DENSE_F16 };
enum dense_activation { DENSE_SILU, DENSE_GELU, DENSE_GELU_TANH };
enum dense_score { DENSE_SOFTMAX, DENSE_SIGMOID };
enum dense_group { DENSE_GROUP_NONE, DENSE_GROUP_MAX, DENSE_GROUP_TOP2 };

/* On the device; rows begin at multiples of 16 bytes. */
struct dense_matrix {
	uint64_t data; /* 0: there is no such matrix */
	uint64_t pitch;
	uint32_t type, rows, cols, reserved;
};

/* worker_embed: x[t] = row ids[t] of the matrix. A block for each token. */
struct dense_embed {
	uint64_t x, ids; /* float [tokens][matrix.cols], const int32_t [tokens] */
	struct dense_matrix matrix;
};

/* worker_norm: y[r] = x[r] / sqrt(mean(x[r]^2) + epsilon) * weight. A block for each row. In place if y is x. */
struct dense_norm {
	uint64_t y, x, weight;
	uint64_t position; /* uint32_t by which rows of y are moved on, or 0 */
	uint64_t x_pitch, y_pitch;
	uint32_t cols;
	float epsilon;
};

/*
 * worker_product: y[t] = matrix x[t] + bias, and that for `batches` of them side by side, each x_batch, y_batch floats
 * and w_batch bytes behind the one before. batches * tiles * groups blocks: tiles of rows, groups of tokens.
 */
struct dense_product {
	uint64_t y, x, bias; /* bias: float [rows], or 0 */
	struct dense_matrix w;
	uint64_t y_pitch, x_pitch, y_batch, x_batch, w_batch;
	uint32_t tokens, tiles, groups, reserved;
};

/*
 * worker_carry: y[t][c] = sum over rows r of x[t][r] * w[r][c], in batches as worker_product. batches * tokens * tiles
 * blocks: tiles of DENSE_THREADS columns.
 */
struct dense_carry {
	uint64_t y, x;
	struct dense_matrix w;
	uint64_t y_pitch, x_pitch, y_batch, x_batch, w_batch;
	uint32_t tokens, tiles;
};

/*
 * worker_rotate: `heads` rows of `dim` floats side by side, of each token: clipped to +-clip (0: not), then elements
 * offset .. offset + rope - 1 rotated by the angles of the token's position (the first token's is *position). They go
 * to y; y may be x. A block for each token.
 */
struct dense_rotate {
	uint64_t y, x;
	uint64_t cos, sin; /* const float [positions][rope / 2] */
	uint64_t position; /* const uint32_t */
	uint64_t x_pitch, y_pitch;
	uint32_t heads, dim, offset, rope; /* rope 0: nothing is rotated */
	uint32_t interleaved;              /* pairs are 2i and 2i + 1, not i and i + rope / 2 */
	uint32_t moves;                    /* y is a cache: token t has row *position + t */
	float clip;
	uint32_t reserved;
};

/*
 * worker_attend: out = softmax over positions p of (query . key[p] + turned . extra[p]) * scale, times value[p]. A
 * block for each token and head: block token * heads + head. Token t is at position *position + t and sees the `window`
 * positions up to its own (0: all). Head h has its query at query + h * query_step, its keys at keys + h / group *
 * key_step, likewise the others. value_dim <= DENSE_VALUE_MAX.
 */
struct dense_attend {
	uint64_t out, query, turned; /* of each token; turned: 0 when extra_dim is */
	uint64_t keys, values, extra;
	uint64_t position; /* const uint32_t */
	uint64_t out_pitch, query_pitch, turned_pitch, key_pitch, value_pitch, extra_pitch;
	uint32_t out_step, query_step, turned_step, key_step, value_step; /* floats from head to head */
	uint32_t heads, group, key_dim, extra_dim, value_dim;
	uint32_t window;
	float scale;
};

/*
 * worker_route: the rule of tools/worker/router.h for each token, equal experts in the order of their numbers. A block
 * for each token. ids and shares have `pitch` numbers a token. Where the scores are not numbers ids end with -1, and
 * *failed, if it was 0, becomes layer + 1.
 */
struct dense_route {
	uint64_t logits; /* const float [tokens][n_experts] */
	uint64_t bias;   /* const float [n_experts], or 0 */
	uint64_t ids;    /* int32_t [tokens][pitch] */
	uint64_t shares; /* float [tokens][pitch] */
	uint64_t failed; /* uint32_t */
	uint32_t n_experts, topk, pitch, layer;
	uint32_t score, group, n_groups, topk_groups;
	uint32_t renormalise;
	float epsilon, scale;
	uint32_t reserved;
};

/* worker_gate: gate[i] = act(gate[i]) * up[i], i < n. Any number of blocks. */
struct dense_gate {
	uint64_t gate, up, n;
	uint32_t activation, reserved;
};

/* worker_join: x[t] += y[t], times the sigmoid of share[t] where there is one. A block for each token. */
struct dense_join {
	uint64_t x, y, share; /* share: const float [tokens], or 0 */
	uint64_t cols;
};

#define DENSE_KERNELS(X)                                                                                               \
	X(worker_embed, dense_embed)                                                                                   \
	X(worker_norm, dense_norm)                                                                                     \
	X(worker_product, dense_product)                                                                               \
	X(worker_carry, dense_carry)                                                                                   \
	X(worker_rotate, dense_rotate)                                                                                 \
	X(worker_attend, dense_attend)                                                                                 \
	X(worker_route, dense_route)                                                                                   \
	X(worker_gate, dense_gate)                                                                                     \
	X(worker_join, dense_join)

enum dense_kernel_id {
#define X(name, params) DENSE_KERNEL_##name,
	DENSE_KERNELS(X)
#undef X
		DENSE_KERNEL_COUNT
};

#ifdef __cplusplus
extern "C" {
#endif

/* In a library of their own, for tests and the simulated driver. */
extern cuda_twin *const dense_twins[DENSE_KERNEL_COUNT];

/* The fat binary of all of them; only where the build has nvcc. */
extern const unsigned char dense_fatbin[];
extern const size_t dense_fatbin_bytes;

#ifdef __cplusplus
}
#endif

#endif
