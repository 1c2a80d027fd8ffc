/* SPDX-License-Identifier: MIT */
/*
 * forward - one pass of some tokens through the model: embedding, layers, last norm.
 *
 * A forward has one context: steps append to it, a reset empties it. A step takes at most tokens_max tokens; longer
 * inputs go in several steps. Every rank of a group computes the dense part whole, and its share of the experts.
 */
#ifndef WORKER_FORWARD_H
#define WORKER_FORWARD_H

#include "tools/worker/attention.h"
#include "tools/worker/experts.h"
#include "tools/worker/group.h"

/* Most tokens of one step: what the sessions and all scratch memory are made for. */
#define FORWARD_TOKENS_MAX 512u

struct forward {
	const struct arch *arch;
	const struct weights *weights;
	struct experts *experts;
	struct group *group;
	struct attention *attention;
	uint32_t positions, tokens_max;
	uint32_t used;    /* positions of the context that are taken */
	uint64_t steps;   /* so far */
	uint64_t tokens;  /* through all steps */
	float *x;         /* [tokens_max][hidden]: the residual stream; after a step the normed output */
	float *normed;    /* [tokens_max][hidden] */
	float *part;      /* [tokens_max][hidden]: what a layer's part adds */
	float *scratch;   /* of dense and shared experts */
	float *scores;    /* [tokens_max][n_experts] */
	float *choice;    /* [n_experts] */
	float *shares;    /* [tokens_max][topk] */
	int32_t *choices; /* [tokens_max][topk] */
};

/* `weights` have been loaded for `arch`: its sizes are known to be those of real tensors. */
int forward_new(struct forward **ret, const struct arch *arch, const struct weights *weights, struct experts *experts,
		struct group *group, uint32_t positions, uint32_t tokens_max, struct moe_error *err);
struct forward *forward_free(struct forward *forward); /* takes NULL, returns NULL */

void forward_reset(struct forward *forward);

/* Appends tokens (1 .. tokens_max) to the context. */
int forward_step(struct forward *forward, const int32_t *ids, uint32_t tokens, enum moe_step_phase phase,
		 struct moe_error *err);

/* Logits [n][vocab] of tokens first .. first + n - 1 of the last step. */
void forward_logits(const struct forward *forward, uint32_t first, uint32_t n, float *logits);

#endif
