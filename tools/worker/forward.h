/* SPDX-License-Identifier: MIT */
/*
 * forward - one pass of some tokens through the model: embedding, layers, last norm.
 *
 * A forward has one context: steps append to it, a reset empties it. A step takes at most tokens_max tokens; longer
 * inputs go in several steps. Every rank of a group computes the dense part whole, and its share of the experts.
 *
 * Back-ends are alternative files with one constructor each: forward-host.c, cuda/forward-cuda.c.
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
	const char *where; /* what computes it, for people: "the CPU", or a GPU's name */
	bool on_device;
	uint32_t positions, tokens_max;
	uint32_t used;    /* positions of the context that are taken */
	uint64_t steps;   /* so far */
	uint64_t tokens;  /* through all steps */
	uint64_t replays; /* of the steps: of a captured graph */

	/* The back-end's. step: 1 .. tokens_max tokens, that fit; logits: as forward_logits. */
	int (*step)(struct forward *forward, const int32_t *ids, uint32_t tokens, enum moe_step_phase phase,
		    struct moe_error *err);
	int (*logits)(struct forward *forward, uint32_t first, uint32_t n, float *logits, struct moe_error *err);
	struct forward *(*free)(struct forward *forward);
};

/* `weights` have been loaded for `arch`: its sizes are known to be those of real tensors. */
int forward_host_new(struct forward **ret, const struct arch *arch, const struct weights *weights,
		     struct experts *experts, struct group *group, uint32_t positions, uint32_t tokens_max,
		     struct moe_error *err);

/* On the GPU that `device` ("cuda", "cuda:N") names, as are the experts' slots. graph: decode steps of one token are
 * captured once and replayed; `group` is of one then. -ENODEV: there is none, or this program was built without CUDA;
 * -ENOTSUP: this model cannot be computed there. */
int forward_cuda_new(struct forward **ret, const char *device, bool graph, const struct arch *arch,
		     const struct weights *weights, struct experts *experts, struct group *group, uint32_t positions,
		     uint32_t tokens_max, struct moe_error *err);

/* Whether `forward_cuda_new` would find a GPU. */
bool forward_cuda_finds(const char *device);

static inline struct forward *forward_free(struct forward *forward)
{
	return forward ? forward->free(forward) : NULL;
}

void forward_reset(struct forward *forward);

/* Appends tokens (1 .. tokens_max) to the context. */
int forward_step(struct forward *forward, const int32_t *ids, uint32_t tokens, enum moe_step_phase phase,
		 struct moe_error *err);

/* Logits [n][vocab] of tokens first .. first + n - 1 of the last step. */
int forward_logits(struct forward *forward, uint32_t first, uint32_t n, float *logits, struct moe_error *err);

#endif
