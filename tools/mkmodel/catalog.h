/* SPDX-License-Identifier: MIT */
/*
 * catalog - every tensor of a model by its published name: shape, type and how its values are drawn.
 *
 * The order is the model's own: embedding, layers, final norm, head, next-token predictors.
 */
#ifndef MKMODEL_CATALOG_H
#define MKMODEL_CATALOG_H

#include <stdint.h>

#include "tools/mkmodel/spec.h"

enum draw {
	DRAW_NORMAL, /* numbers of the normal distribution with `mean` and `deviation` */
	DRAW_BYTES   /* `first` plus a random byte & `mask` */
};

#define ITEM_DIMS_MAX 4

struct item {
	char *name;
	enum tensor_type type;
	uint32_t n_dims;
	uint64_t dims[ITEM_DIMS_MAX];
	uint64_t bytes;
	enum draw draw;
	float mean, deviation;
	uint8_t first, mask;
};

struct catalog {
	struct item *items;
	uint64_t n_items;
	uint64_t bytes; /* of all tensors */
};

/* `spec` has passed spec_check. */
int catalog_new(struct catalog **ret, const struct spec *spec, struct moe_error *err);
struct catalog *catalog_free(struct catalog *catalog); /* takes NULL, returns NULL */

#endif
