/* SPDX-License-Identifier: MIT */
/*
 * trace-layers - what routers have asked of each layer: how often, of how many experts, of which most.
 *
 * Law: told place by place (one layer of one step) and choice by choice; nothing is kept of the order.
 */
#ifndef TOOLS_TRACE_LAYERS_H
#define TOOLS_TRACE_LAYERS_H

#include <jansson.h>
#include <stdint.h>

#include "moe-error.h"

struct trace_layer {
	uint64_t routes, tokens, pairs, distinct; /* distinct: experts of each place, added up */
	uint64_t *loads;                          /* [experts] pairs; NULL: nobody has routed here */
};

struct trace_layers {
	uint32_t n, experts;
	struct trace_layer *layer; /* [n] */
	uint64_t *stamp;           /* [experts] the place that asked for it last */
	uint64_t places;
};

int trace_layers_init(struct trace_layers *ret, uint32_t n, uint32_t experts, const char *name, struct moe_error *err);
void trace_layers_fini(struct trace_layers *layers); /* one of zeroes, too */

/* The next place, of `tokens` tokens; then each choice in it, -1 for none. -ENOMEM. */
int trace_layers_place(struct trace_layers *layers, uint32_t layer, uint32_t tokens, const char *name,
		       struct moe_error *err);
void trace_layers_choice(struct trace_layers *layers, uint32_t layer, int32_t expert);

/* Layers that nobody has routed in are left out. */
json_t *trace_layers_json(const struct trace_layers *layers);
void trace_layers_print(const struct trace_layers *layers);

#endif
