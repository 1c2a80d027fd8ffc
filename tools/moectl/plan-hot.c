/* SPDX-License-Identifier: MIT */
#include "plan-hot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "placement/hot.h"

static json_t *copies_json(const struct hot_problem *p, const struct hot_plan *plan)
{
	json_t *nodes = json_array();

	for (uint32_t n = 0; n < p->nodes; n++) {
		json_t *slots = json_array();

		for (uint32_t s = 0; s < p->slots; s++)
			json_array_append_new(slots, json_integer(plan->at[n * p->slots + s]));
		json_array_append_new(nodes, slots);
	}
	return nodes;
}

static int plan_layer(json_t *shown, const struct hot_problem *p, struct moe_error *err)
{
	struct hot_plan plan;
	const int r = hot_plan(&plan, p, err);

	if (r < 0)
		return r;
	json_array_append_new(json_object_get(shown, "copies"), copies_json(p, &plan));
	json_array_append_new(json_object_get(shown, "covered"), json_real(plan.after.covered));
	json_array_append_new(json_object_get(shown, "per_layer_imbalance"), json_real(plan.after.balance));
	hot_plan_fini(&plan);
	return 0;
}

int plan_hot(json_t **ret, const struct plan_loads *loads, uint32_t nodes, uint32_t slots, struct moe_error *err)
{
	json_t *shown = json_pack("{s:s, s:[], s:[], s:[]}", "policy", "hot", "copies", "covered",
				  "per_layer_imbalance");
	_cleanup_free_ int32_t *now = malloc((size_t)slots * sizeof *now);
	int r = 0;

	if (!shown || !now)
		r = moe_error_set(err, -ENOMEM, "plan: no memory for the result");
	else if (slots % nodes != 0)
		r = moe_error_set(err, -EINVAL, "replicas: %u found, a multiple of the %u nodes expected", slots,
				  nodes);
	else
		memset(now, 0xff, (size_t)slots * sizeof *now); /* HOT_NONE */
	for (uint32_t l = 0; r == 0 && l < loads->layers; l++) {
		const struct hot_problem p = {.experts = loads->experts,
					      .nodes = nodes,
					      .slots = slots / nodes,
					      .weight = loads->weight + (size_t)l * loads->experts,
					      .now = now};

		r = plan_layer(shown, &p, err);
	}
	if (r == 0)
		*ret = shown;
	else
		json_decref(shown);
	return r;
}

void plan_hot_print(const json_t *shown, FILE *to)
{
	const json_t *covered = json_object_get(shown, "covered"), *one;
	const json_t *balance = json_object_get(shown, "per_layer_imbalance");
	size_t layer;

	fprintf(to, "layer  pairs whose expert has a copy  busiest node, over the mean\n");
	json_array_foreach (covered, layer, one)
		fprintf(to, "%5zu  %29.1f %%  %27.3f\n", layer, 100 * json_number_value(one),
			json_number_value(json_array_get(balance, layer)));
}
