/* SPDX-License-Identifier: MIT */
#include "plan-hot.h"
#include "plan-show.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "moectl.h"
#include "placement/expert-map.h"

#define RATIO_DIGITS 9
#define LOAD_DIGITS 6

static json_t *rounded(double value, int digits)
{
	char text[400];

	snprintf(text, sizeof text, "%.*f", digits, value);
	return json_real(strtod(text, NULL));
}

/* [n[0]][n[1]]..., moving on through the numbers. */
static json_t *nested(const int32_t **at, const uint32_t *n, uint32_t depth)
{
	json_t *list = json_array();

	for (uint32_t i = 0; list && i < n[0]; i++)
		json_array_append_new(list, depth == 1 ? json_integer(*(*at)++) : nested(at, n + 1, depth - 1));
	return list;
}

static json_t *numbers(const int32_t *at, uint32_t a, uint32_t b, uint32_t c)
{
	return nested(&at, (const uint32_t[]){a, b, c}, c ? 3 : 2);
}

/* -- plans -------------------------------------------------------------------------------------------------------- */

json_t *plan_show_eplb(const struct eplb_problem *p, const struct eplb_plan *plan)
{
	json_t *ratios = json_array(), *loads = json_array();
	double sum = 0;

	for (uint32_t l = 0; l < p->layers; l++) {
		double most, ratio = eplb_balance(p, plan, l, &most);

		sum += ratio;
		json_array_append_new(ratios, rounded(ratio, RATIO_DIGITS));
		json_array_append_new(loads, rounded(most, LOAD_DIGITS));
	}
	return json_pack("{s:s, s:o, s:o, s:o, s:{s:o, s:o, s:o}}", "policy", plan->global ? "global" : "hierarchical",
			 "phy2log", numbers(plan->phy2log, p->layers, p->replicas, 0), "log2phy",
			 numbers(plan->log2phy, p->layers, p->experts, plan->columns), "logcnt",
			 numbers(plan->logcnt, p->layers, p->experts, 0), "balance", "per_layer_max_over_mean", ratios,
			 "per_layer_max_gpu_load", loads, "mean_max_over_mean", rounded(sum / p->layers, RATIO_DIGITS));
}

/* Of all layers: each one's, mean and largest. */
static json_t *imbalances(const struct balance_problem *p, const struct placement *placement, json_t *ret_mean_max)
{
	_cleanup_free_ double *load = calloc(placement->experts, sizeof *load);
	json_t *list = json_array();
	double sum = 0, most = 0;

	for (uint32_t l = 0; load && l < placement->layers; l++) {
		double found;

		balance_load(p, l, load);
		found = placement_imbalance(placement, l, load, NULL);
		sum += found;
		most = found > most ? found : most;
		json_array_append_new(list, rounded(found, LOAD_DIGITS));
	}
	json_array_append_new(ret_mean_max, rounded(sum / placement->layers, LOAD_DIGITS));
	json_array_append_new(ret_mean_max, rounded(most, LOAD_DIGITS));
	return list;
}

json_t *plan_show_balance(const struct balance_problem *p, const struct balance_plan *plan, const char *policy)
{
	const struct placement *to = &plan->to;
	json_t *before = json_array(), *after = json_array();
	json_t *each_before = imbalances(p, p->from, before), *each_after = imbalances(p, to, after);

	return json_pack("{s:s, s:i, s:o, s:o, s:I, s:o, s:o, s:o}", "policy", policy, "change", plan->change,
			 "placement", numbers(to->at, to->layers, to->ranks, to->slots), "mean_max_imbalance", after,
			 "moved_in", (json_int_t)placement_moved_in(p->from, to), "initial_mean_max_imbalance", before,
			 "per_layer_imbalance", each_after, "initial_per_layer_imbalance", each_before);
}

json_t *plan_show_map(const struct placement *p, uint32_t tp)
{
	_cleanup_free_ int32_t *found = calloc((size_t)p->ranks * p->experts, sizeof *found);
	json_t *layers = json_array();

	for (uint32_t l = 0; found && l < p->layers; l++) {
		json_t *slots, *choices;

		expert_map_slots(p, l, found);
		slots = numbers(found, p->ranks, p->experts, 0);
		expert_map_choices(p, l, tp, found);
		choices = numbers(found, p->ranks, p->experts, 0);
		json_array_append_new(layers, json_pack("{s:o, s:o, s:i}", "expert_map", slots, "log2phy", choices,
							"redundant", (int)(p->ranks * p->slots - p->experts)));
	}
	return json_pack("{s:i, s:i, s:i, s:o}", "device_count", (int)p->ranks, "slots", (int)p->slots, "experts",
			 (int)p->experts, "layers", layers);
}

json_t *plan_show_transfers(const struct transfer_plan *plan, enum transfer_rule rule)
{
	json_t *list = json_array();

	for (size_t i = 0; i < plan->n; i++) {
		const struct transfer *t = &plan->list[i];
		json_t *one = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i}", "layer", (int)t->layer, "expert",
					(int)t->expert, "from_rank", (int)t->from_rank, "from_slot", (int)t->from_slot,
					"to_rank", (int)t->to_rank, "to_slot", (int)t->to_slot);

		if (rule == TRANSFER_ASCEND)
			json_object_set_new(one, "buffer", json_integer(t->buffer));
		else if (t->from_rank != t->to_rank)
			json_object_set_new(one, "round", json_integer(t->round));
		else
			json_object_set_new(one, "after_receiving", json_boolean(t->of_new));
		json_array_append_new(list, one);
	}
	return list;
}

/* -- for a person ------------------------------------------------------------------------------------------------- */

static double element(const json_t *list, size_t i)
{
	return json_number_value(json_array_get(list, i));
}

static void print_eplb(const json_t *shown, FILE *to)
{
	const json_t *balance = json_object_get(shown, "balance");
	const json_t *ratios = json_object_get(balance, "per_layer_max_over_mean");
	const json_t *loads = json_object_get(balance, "per_layer_max_gpu_load");
	const json_t *counts = json_object_get(shown, "logcnt"), *count;
	double worst = 0;
	size_t l, e;

	fprintf(to, "%s\nLAYER  BALANCE  LARGEST LOAD  MOST COPIES\n", get_text(shown, "policy"));
	for (l = 0; l < json_array_size(ratios); l++) {
		json_int_t most = 0;

		json_array_foreach (json_array_get(counts, l), e, count)
			most = json_integer_value(count) > most ? json_integer_value(count) : most;
		worst = element(ratios, l) > worst ? element(ratios, l) : worst;
		fprintf(to, "%5zu  %7.4f  %12.1f  %11d\n", l, element(ratios, l), element(loads, l), (int)most);
	}
	fprintf(to, "largest load over mean: %.4f on average, %.4f at worst\n",
		get_number(balance, "mean_max_over_mean"), worst);
}

static void print_balance(const json_t *shown, FILE *to)
{
	const json_t *before = json_object_get(shown, "initial_per_layer_imbalance");
	const json_t *after = json_object_get(shown, "per_layer_imbalance");
	const json_t *was = json_object_get(shown, "initial_mean_max_imbalance");
	const json_t *is = json_object_get(shown, "mean_max_imbalance");

	fprintf(to, "%s\nLAYER   BEFORE    AFTER\n", get_text(shown, "policy"));
	for (size_t l = 0; l < json_array_size(after); l++)
		fprintf(to, "%5zu  %7.4f  %7.4f\n", l, element(before, l), element(after, l));
	fprintf(to,
		"largest load over mean: %.4f on average, %.4f at worst; before %.4f and %.4f\n"
		"%.0f experts come to ranks that did not have them; %s\n",
		element(is, 0), element(is, 1), element(was, 0), element(was, 1), get_number(shown, "moved_in"),
		get_number(shown, "change") > 0 ? "worth it" : "not worth it: the gain is below 5 %");
}

static void print_map(const json_t *shown, FILE *to)
{
	const json_t *layers = json_object_get(shown, "layers");

	fprintf(to, "%zu layers on %.0f devices of %.0f slots, %.0f experts, %.0f slots for more copies\n",
		json_array_size(layers), get_number(shown, "device_count"), get_number(shown, "slots"),
		get_number(shown, "experts"), get_number(json_array_get(layers, 0), "redundant"));
}

static void print_transfers(const json_t *list, FILE *to)
{
	const json_t *t;
	size_t i;

	fprintf(to, "%zu transfers\n", json_array_size(list));
	json_array_foreach (list, i, t) {
		fprintf(to, "layer %.0f: expert %.0f: rank %.0f slot %.0f to rank %.0f slot %.0f",
			get_number(t, "layer"), get_number(t, "expert"), get_number(t, "from_rank"),
			get_number(t, "from_slot"), get_number(t, "to_rank"), get_number(t, "to_slot"));
		if (json_object_get(t, "round"))
			fprintf(to, ", round %.0f", get_number(t, "round"));
		if (json_object_get(t, "buffer"))
			fprintf(to, ", buffer %.0f", get_number(t, "buffer"));
		if (json_is_true(json_object_get(t, "after_receiving")))
			fputs(", when it has come", to);
		fputc('\n', to);
	}
}

void plan_print(const json_t *shown, FILE *to)
{
	const json_t *valid = json_object_get(shown, "valid"), *transfers = json_object_get(shown, "transfers");

	if (json_object_get(shown, "id"))
		fprintf(to, "%s: ", get_text(shown, "id"));
	if (json_is_false(valid))
		fprintf(to, "%s\n", get_text(shown, "why"));
	else if (json_object_get(shown, "balance"))
		print_eplb(shown, to);
	else if (json_object_get(shown, "copies"))
		plan_hot_print(shown, to);
	else if (json_object_get(shown, "placement"))
		print_balance(shown, to);
	else
		print_map(shown, to);
	if (transfers)
		print_transfers(transfers, to);
}
