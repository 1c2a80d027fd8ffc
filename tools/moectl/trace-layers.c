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

struct summary {
	uint32_t used; /* experts that anybody was asked for */
	int most;      /* the one that was asked for most, of equal ones the first; -1: nobody */
	uint64_t most_pairs;
};

static struct summary sum_up(const struct trace_layers *layers, const struct trace_layer *x)
{
	struct summary ret = {.most = -1};

	for (uint32_t e = 0; e < layers->experts; e++) {
		ret.used += x->loads[e] > 0;
		if (x->loads[e] > ret.most_pairs) {
			ret.most_pairs = x->loads[e];
			ret.most = (int)e;
		}
	}
	return ret;
}

static json_t *layer_json(const struct trace_layers *layers, uint32_t l)
{
	const struct trace_layer *x = &layers->layer[l];
	const struct summary sum = sum_up(layers, x);

	return json_pack("{s:i, s:I, s:I, s:I, s:I, s:i, s:i, s:I}", "layer", (int)l, "routes", (json_int_t)x->routes,
			 "tokens", (json_int_t)x->tokens, "pairs", (json_int_t)x->pairs, "distinct",
			 (json_int_t)x->distinct, "experts_used", (int)sum.used, "most_asked", sum.most,
			 "most_asked_pairs", (json_int_t)sum.most_pairs);
}

json_t *trace_layers_json(const struct trace_layers *layers)
{
	json_t *ret = json_array();

	for (uint32_t l = 0; l < layers->n; l++)
		if (layers->layer[l].loads)
			json_array_append_new(ret, layer_json(layers, l));
	return ret;
}

static void print_layer(const struct trace_layers *layers, uint32_t l)
{
	const struct trace_layer *x = &layers->layer[l];
	const struct summary sum = sum_up(layers, x);

	printf("%6u %8llu %8llu %10.2f %6u %4d (%3.0f %%)\n", l, (unsigned long long)x->routes,
	       (unsigned long long)x->tokens, (double)x->distinct / (double)x->routes, sum.used, sum.most,
	       x->pairs ? 100.0 * (double)sum.most_pairs / (double)x->pairs : 0.0);
}

void trace_layers_print(const struct trace_layers *layers)
{
	if (layers->places)
		printf("\n%6s %8s %8s %10s %6s %12s\n", "LAYER", "ROUTES", "TOKENS", "DISTINCT", "USED", "MOST ASKED");
	for (uint32_t l = 0; l < layers->n; l++)
		if (layers->layer[l].loads)
			print_layer(layers, l);
}
