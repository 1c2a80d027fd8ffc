/* SPDX-License-Identifier: MIT */
/*
 * family - how each published model family spells the same things: one table row per family, no code elsewhere asks
 * which family it is.
 */
#ifndef MODEL_FAMILY_H
#define MODEL_FAMILY_H

#include "model/model.h"

/* How config.json says which layers carry experts. */
enum layer_rule {
	LAYERS_ALL,         /* every one */
	LAYERS_SPARSE_STEP, /* (layer + 1) % decoder_sparse_step == 0 and layer not in mlp_only_layers */
	LAYERS_FIRST_DENSE  /* layer >= first_k_dense_replace and layer % moe_layer_freq == 0 */
};

struct family_spec {
	const char *model_type;    /* of config.json */
	const char *experts;       /* field: number of routed experts */
	const char *experts_alias; /* the name that newer writers of the same family use for it, or NULL */
	const char *inter;         /* field: intermediate size of one routed expert */
	enum layer_rule layers;
	const char *module;      /* "model.layers.N.<module>.experts.M.<part>.weight" */
	const char *part[PARTS]; /* gate, up, down */
	bool fused;   /* "...<module>.experts.<part>": all experts in one tensor, gate's and up's rows in turn */
	bool clamped; /* SWIGLU_CLAMPED with the field swiglu_limit */
};

const struct family_spec *family_spec(enum model_family family);

/* 0, or -ENOTSUP when no family has this model_type. */
int family_from_model_type(enum model_family *ret, const char *model_type);

/* "mixtral, qwen2_moe, ...": for error texts. */
void family_list(char *ret, size_t size);

#endif
