/* SPDX-License-Identifier: MIT */
/*
 * attention - causal self-attention with its cache of keys and values, in the two published forms.
 *
 * gqa: query heads share key/value heads; the cache holds keys (rotated) and values. mla (DeepSeek): the cache holds
 * one normalised latent row and one rotated key row per position; a head's plain query is carried into the latent
 * space and its value out of it, which gives the published sums in another order without ever unfolding the keys.
 *
 * Positions run from 0 without holes: a call gives `tokens` rows at positions `first` .. `first + tokens - 1` and may
 * look at the positions before them that earlier calls gave.
 */
#ifndef WORKER_ATTENTION_H
#define WORKER_ATTENTION_H

#include "tools/worker/arch.h"
#include "tools/worker/rope.h"
#include "tools/worker/weights.h"

struct attention {
	const struct arch *arch;
	struct rope *rope;
	uint32_t positions, tokens; /* capacities: of the cache, of one call */
	uint32_t key_width, value_width;
	float **keys, **values; /* [layer] -> [positions][width]; mla: latent rows and rotated rows */
	float *query, *mixed;   /* scratch: [tokens][heads x ...] */
	float *low, *carried;   /* scratch of mla */
	float *scores;          /* [positions] */
};

int attention_new(struct attention **ret, const struct arch *arch, uint32_t positions, uint32_t tokens,
		  struct moe_error *err);
struct attention *attention_free(struct attention *attention); /* takes NULL, returns NULL */

/* y [tokens][hidden] = attention of x [tokens][hidden], the layer's normed input. */
void attention_run(struct attention *attention, uint32_t layer, const struct layer_weights *w, const float *x,
		   uint32_t tokens, uint32_t first, float *y);

/* The two forms; attention_run chooses. */
void gqa_run(struct attention *attention, uint32_t layer, const struct layer_weights *w, const float *x,
	     uint32_t tokens, uint32_t first, float *y);
void mla_run(struct attention *attention, uint32_t layer, const struct layer_weights *w, const float *x,
	     uint32_t tokens, uint32_t first, float *y);

#endif
