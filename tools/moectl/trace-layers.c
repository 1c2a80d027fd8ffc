/* SPDX-License-Identifier: MIT */
#include "trace-layers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

int trace_layers_init(struct trace_layers *ret, uint32_t n, uint32_t experts, const char *name, struct moe_error *err)
{
	*ret = (struct trace_layers){.n = n, .experts = experts};
	ret->layer = calloc(n, sizeof *ret->layer);
	ret->stamp = calloc(experts, sizeof *ret->stamp);
	if (ret->layer && ret->stamp)
		return 0;
	trace_layers_fini(ret);
	return moe_error_set(err, -ENOMEM, "%s: no memory", name);
}

void trace_layers_fini(struct trace_layers *layers)
{
	for (uint32_t l = 0; l < layers->n && layers->layer; l++)
		free(layers->layer[l].loads);
	free(layers->layer);
	free(layers->stamp);
	*layers = (struct trace_layers){0};
}

int trace_layers_place(struct trace_layers *layers, uint32_t layer, uint32_t tokens, const char *name,
		       struct moe_error *err)
{
	struct trace_layer *x = &layers->layer[layer];

	if (!x->loads)
		x->loads = calloc(layers->experts, sizeof *x->loads);
	if (!x->loads)
		return moe_error_set(err, -ENOMEM, "%s: no memory", name);
	layers->places++;
	x->routes++;
	x->tokens += tokens;
	return 0;
}

void trace_layers_choice(struct trace_layers *layers, uint32_t layer, int32_t expert)
{
	struct trace_layer *x = &layers->layer[layer];

	if (expert < 0)
		return;
	x->pairs++;
	x->loads[expert]++;
	x->distinct += layers->stamp[expert] != layers->places;
	layers->stamp[expert] = layers->places;
}

/* Its pairs; 0 and -1: nobody was asked for. */
static uint64_t most_asked(const struct trace_layers *layers, const struct trace_layer *x, uint32_t *ret_used,
			   int *ret_expert)
{
	uint64_t most = 0;

	*ret_used = 0;
	*ret_expert = -1;
	for (uint32_t e = 0; e < layers->experts; e++) {
		*ret_used += x->loads[e] > 0;
		if (x->loads[e] > most) {
			most = x->loads[e];
			*ret_expert = (int)e;
		}
	}
	return most;
}

json_t *trace_layers_json(const struct trace_layers *layers)
{
	json_t *ret = json_array();

	for (uint32_t l = 0; l < layers->n; l++) {
		const struct trace_layer *x = &layers->layer[l];
		uint64_t most;
		uint32_t used;
		int expert;

		if (!x->loads)
			continue;
		most = most_asked(layers, x, &used, &expert);
		json_array_append_new(ret, json_pack("{s:i, s:I, s:I, s:I, s:I, s:i, s:i, s:I}", "layer", (int)l,
						     "routes", (json_int_t)x->routes, "tokens", (json_int_t)x->tokens,
						     "pairs", (json_int_t)x->pairs, "distinct", (json_int_t)x->distinct,
						     "experts_used", (int)used, "most_asked", expert,
						     "most_asked_pairs", (json_int_t)most));
	}
	return ret;
}

void trace_layers_print(const struct trace_layers *layers)
{
	if (layers->places)
		printf("\n%6s %8s %8s %10s %6s %12s\n", "LAYER", "ROUTES", "TOKENS", "DISTINCT", "USED", "MOST ASKED");
	for (uint32_t l = 0; l < layers->n; l++) {
		const struct trace_layer *x = &layers->layer[l];
		uint64_t most;
		uint32_t used;
		int expert;

		if (!x->loads)
			continue;
		most = most_asked(layers, x, &used, &expert);
		printf("%6u %8llu %8llu %10.2f %6u %4d (%3.0f %%)\n", l, (unsigned long long)x->routes,
		       (unsigned long long)x->tokens, (double)x->distinct / (double)x->routes, used, expert,
		       x->pairs ? 100.0 * (double)most / (double)x->pairs : 0.0);
	}
}
