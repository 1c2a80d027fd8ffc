/* SPDX-License-Identifier: MIT */
/*
 * arch - everything that config.json says about the dense part of a model: what the families have in common and where
 * they differ, as their published implementations compute it.
 *
 * All numbers are checked against each other here; whoever reads a struct arch need not doubt it. What a config asks
 * for and this worker does not compute (sliding windows on some layers, unknown scores or rotary kinds) is refused by
 * name.
 */
#ifndef WORKER_ARCH_H
#define WORKER_ARCH_H

#include "model/model.h"
#include "tools/worker/rope.h"
#include "tools/worker/router.h"
#include "uapi/moe_manifest.h"
#include "uapi/moe_ring.h"

enum arch_norm {
	ARCH_NORM_NONE,
	ARCH_NORM_HEAD, /* queries and keys are normalised head by head */
	ARCH_NORM_FULL  /* over their whole width */
};

/* Grouped-query attention. */
struct arch_gqa {
	uint32_t heads, kv_heads, head_dim;
	bool bias, output_bias;
	enum arch_norm norm;
	float clip;      /* of queries, keys and values after the norm; 0: none */
	uint32_t window; /* a token sees this many positions, itself included; 0: all */
};

/* Multi-head latent attention. */
struct arch_mla {
	uint32_t heads, q_rank /* 0: queries are not compressed */, kv_rank;
	uint32_t plain_dim, rope_dim, value_dim; /* of one head */
	bool bias;                               /* of the projections into the latent spaces and of the output's */
};

#define ARCH_ENDS_MAX 16

struct arch {
	enum model_family family;
	uint32_t n_layers, hidden, vocab, positions;
	const bool *is_moe; /* [n_layers], the model's */
	uint32_t n_moe_layers;
	float epsilon; /* of the layers' norms */
	bool tied;     /* the output matrix is the embedding */
	bool latent;   /* mla counts, not gqa */
	struct arch_gqa gqa;
	struct arch_mla mla;
	float attention_scale;
	struct rope_config rope;
	struct router_config router;
	enum moe_activation activation;
	uint32_t expert_inter, dense_inter, shared_inter; /* 0: there is none */
	bool shared_gate;                                 /* the shared expert is weighted by a sigmoid */
	uint32_t n_ends;
	int32_t ends[ARCH_ENDS_MAX]; /* eos_token_id */
};

/* Reads the model's config; the model must outlive *ret. */
int arch_read(struct arch *ret, const struct model *model, struct moe_error *err);

#endif
