/* SPDX-License-Identifier: MIT */
/*
 * pass - the dense part of a forward pass as commands for a GPU's stream: what forward-host.c, attention.c and router.c
 * do, on memory of the device that is made once.
 *
 * Law: what a call gives to the stream depends on the layer and the number of tokens only. Token ids and the position
 * of the first token lie in `input`, which whoever begins a step copies there; so a captured step may be replayed.
 */
#ifndef WORKER_CUDA_PASS_H
#define WORKER_CUDA_PASS_H

#include "tools/worker/cuda/placed.h"

#define PASS_LOGITS_MAX 16u /* tokens whose logits are held at a time */

/* On the device and, to be copied there, on the host. */
struct pass_input {
	uint32_t position; /* of the first token */
	uint32_t failed;   /* 0; by worker_route: layer + 1 */
	uint32_t reserved[2];
	int32_t ids[]; /* [tokens] */
};

/* Device addresses; floats unless said otherwise. */
struct pass {
	struct gpu *gpu;
	const struct arch *arch;
	const struct placed *placed;
	uint32_t positions, tokens_max, choice_pitch;
	uint32_t key_width, value_width;   /* mla: latent and rotated rows */
	uint64_t input;                    /* struct pass_input */
	uint64_t x, normed, out;           /* [tokens][hidden]: residual stream, layer's input, what a part adds */
	uint64_t part;                     /* [tokens][hidden]: the routed experts' answer */
	uint64_t gate, up, share;          /* of dense and shared experts; [tokens] */
	uint64_t query, key, value, mixed; /* [tokens][heads x ...] */
	uint64_t low, latent, gathered;    /* of mla */
	uint64_t scores;                   /* [tokens][n_experts] */
	uint64_t choices;                  /* int32 [tokens][topk]; or, a token each, [n_moe_layers][choice_pitch] */
	uint64_t shares;                   /* the same */
	uint64_t keys, values;             /* [layer][positions][width] */
	uint64_t logits;                   /* [PASS_LOGITS_MAX][vocab] */
};

/* -ENOTSUP: the kernels cannot compute this model. All three outlive the pass. */
int pass_new(struct pass **ret, struct gpu *gpu, const struct arch *arch, const struct placed *placed,
	     uint32_t positions, uint32_t tokens_max, struct moe_error *err);
struct pass *pass_free(struct pass *pass); /* takes NULL, returns NULL */

void pass_embed(const struct pass *p, uint32_t tokens);

/* x += attention(norm(x)); normed = norm(x). */
void pass_attend(const struct pass *p, uint32_t layer, uint32_t tokens);

/* choices, shares = router(normed), at row `row` of them. */
void pass_route(const struct pass *p, uint32_t layer, uint32_t tokens, uint32_t row);
uint64_t pass_row(const struct pass *p, uint32_t row); /* its bytes from the beginning of both */

/* x += the dense layer's, or the shared experts', answer to normed; nothing where there are none. */
void pass_mlp(const struct pass *p, uint32_t layer, uint32_t tokens);

/* x += part */
void pass_join(const struct pass *p, uint32_t tokens);

/* x = the last norm of x. */
void pass_end(const struct pass *p, uint32_t tokens);

/* logits of tokens first .. first + n - 1, n <= PASS_LOGITS_MAX. */
void pass_output(const struct pass *p, uint32_t first, uint32_t n);

#endif
