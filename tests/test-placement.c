/* SPDX-License-Identifier: MIT */
/* Published vectors of the planners and of expert maps: all of each, exactly. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "placement/balance.h"
#include "placement/eplb.h"
#include "placement/expert-map.h"
#include "tests/tap.h"

static json_t *load(const char *name)
{
	const char *source = getenv("MOE_SOURCE");
	json_error_t error;
	char path[4096];
	json_t *file;

	snprintf(path, sizeof path, "%s/tests/data/%s", source ? source : ".", name);
	file = json_load_file(path, 0, &error);
	require(file, "tests/data/%s is read%s%s", name, file ? "" : ": ", file ? "" : error.text);
	return file;
}

static uint32_t number(const json_t *object, const char *key)
{
	return (uint32_t)json_integer_value(json_object_get(object, key));
}

/* The numbers of nested lists, one after the other. */
static size_t flatten(const json_t *list, double *ret)
{
	const json_t *value;
	size_t i, n = 0;

	if (!json_is_array(list)) {
		if (ret)
			*ret = json_number_value(list);
		return 1;
	}
	json_array_foreach (list, i, value)
		n += flatten(value, ret ? ret + n : NULL);
	return n;
}

static double *numbers(const json_t *list, size_t *ret_n)
{
	double *ret;

	*ret_n = flatten(list, NULL);
	ret = calloc(*ret_n + 1, sizeof *ret);
	if (ret)
		flatten(list, ret);
	return ret;
}

static bool same(const json_t *want, const int32_t *found, size_t n)
{
	size_t wanted;
	double *list = numbers(want, &wanted);
	bool equal = list && wanted == n;

	for (size_t i = 0; equal && i < n; i++)
		equal = list[i] == found[i];
	free(list);
	return equal;
}

/* As far as the file has digits. */
static bool near(const json_t *want, double found, double digits)
{
	return fabs(json_number_value(want) - found) <= 0.5000001 * digits;
}

/* -- EPLB --------------------------------------------------------------------------------------------------------- */

static bool same_balance(const json_t *want, const struct eplb_problem *p, const struct eplb_plan *plan)
{
	double sum = 0;
	bool good = true;

	for (uint32_t l = 0; l < p->layers; l++) {
		double most, balance = eplb_balance(p, plan, l, &most);

		sum += balance;
		good = good &&
		       near(json_array_get(json_object_get(want, "per_layer_max_over_mean"), l), balance, 1e-9) &&
		       near(json_array_get(json_object_get(want, "per_layer_max_gpu_load"), l), most, 1e-6);
	}
	return good && near(json_object_get(want, "mean_max_over_mean"), sum / p->layers, 1e-9);
}

static void test_eplb_case(const json_t *one)
{
	size_t n;
	double *weight = numbers(json_object_get(one, "weight"), &n);
	struct eplb_problem p = {number(one, "layers"),
				 number(one, "experts"),
				 number(one, "num_replicas"),
				 number(one, "num_groups"),
				 number(one, "num_nodes"),
				 number(one, "num_gpus"),
				 weight};
	const char *id = json_string_value(json_object_get(one, "id"));
	struct moe_error err = {0};
	struct eplb_plan plan;

	require(eplb_plan(&plan, &p, &err) == 0, "eplb %s is planned %s", id, err.text);
	ok(strcmp(json_string_value(json_object_get(one, "policy")), plan.global ? "global" : "hierarchical") == 0 &&
		   same(json_object_get(one, "phy2log"), plan.phy2log, (size_t)p.layers * p.replicas) &&
		   same(json_object_get(one, "log2phy"), plan.log2phy, (size_t)p.layers * p.experts * plan.columns) &&
		   same(json_object_get(one, "logcnt"), plan.logcnt, (size_t)p.layers * p.experts),
	   "eplb %s: the published slots, places and copies", id);
	ok(same_balance(json_object_get(one, "balance"), &p, &plan), "eplb %s: the published balance", id);
	eplb_plan_fini(&plan);
	free(weight);
}

/* -- Ascend's ----------------------------------------------------------------------------------------------------- */

static void test_policy(const json_t *one, const struct balance_problem *p, enum balance_policy policy,
			const char *name)
{
	const json_t *want = json_object_get(json_object_get(one, "expected"), name);
	const json_t *imbalance = json_object_get(want, "mean_max_imbalance");
	const char *id = json_string_value(json_object_get(one, "id"));
	double *sums = calloc(p->from->experts, sizeof *sums), sum = 0, most = 0;
	struct moe_error err = {0};
	struct balance_plan plan;

	require(sums && balance_plan(&plan, policy, p, &err) == 0, "%s %s is planned %s", name, id, err.text);
	ok(same(json_object_get(want, "placement"), plan.to.at, (size_t)plan.to.layers * plan.to.ranks * plan.to.slots),
	   "%s %s: the published placement", name, id);
	for (uint32_t l = 0; l < plan.to.layers; l++) {
		balance_load(p, l, sums);
		const double found = placement_imbalance(&plan.to, l, sums, NULL);

		sum += found / plan.to.layers;
		most = found > most ? found : most;
	}
	ok(plan.change == (number(want, "change") == 1) &&
		   placement_moved_in(p->from, &plan.to) == number(want, "moved_in") &&
		   near(json_array_get(imbalance, 0), sum, 1e-6) && near(json_array_get(imbalance, 1), most, 1e-6),
	   "%s %s: change, imbalance and movement", name, id);
	balance_plan_fini(&plan);
	free(sums);
}

static void test_ascend_case(const json_t *one)
{
	struct placement from;
	struct balance_problem p = {.from = &from, .stages = 1};
	struct moe_error err = {0};
	double *places, *work;
	size_t n, n_work;

	places = numbers(json_object_get(one, "placement"), &n);
	work = numbers(json_object_get(one, "workload"), &n_work);
	require(placement_new(&from, number(one, "layers"), number(one, "ranks"), number(one, "slots"),
			      number(one, "experts"), &err) == 0 &&
			n == n_work,
		"a case %s", err.text);
	for (size_t i = 0; i < n; i++)
		from.at[i] = (int32_t)places[i];
	p.work = work;
	test_policy(one, &p, BALANCE_DYNAMIC, "dynamic_ep");
	test_policy(one, &p, BALANCE_SWIFT_UPSTREAM, "swift");
	placement_fini(&from);
	free(places);
	free(work);
}

/* -- expert maps -------------------------------------------------------------------------------------------------- */

static bool same_layers(const json_t *layers, const struct placement *p, uint32_t tp)
{
	const size_t n = (size_t)p->ranks * p->experts;
	int32_t *found = calloc(n, sizeof *found);
	const json_t *layer;
	bool good = found && json_array_size(layers) == p->layers;
	size_t i;

	json_array_foreach (layers, i, layer) {
		if (!good)
			break;
		expert_map_slots(p, (uint32_t)i, found);
		good = same(json_object_get(layer, "expert_map"), found, n);
		expert_map_choices(p, (uint32_t)i, tp, found);
		good = good && same(json_object_get(layer, "log2phy"), found, n) &&
		       number(layer, "redundant") == p->ranks * p->slots - p->experts;
	}
	free(found);
	return good;
}

static void test_map_case(const json_t *one)
{
	const json_t *map = json_object_get(one, "map"), *tp2 = json_object_get(one, "layers_tp2");
	const char *id = json_string_value(json_object_get(one, "id"));
	struct moe_error err = {0};
	struct placement p;
	json_t *written;
	int r = expert_map_read(&p, "map.json", map, number(one, "experts"), &err);

	if (!json_is_true(json_object_get(one, "valid"))) {
		ok(r == -EINVAL && strncmp(err.text, "map.json: l", 11) == 0, "%s is refused: %s", id, err.text);
		return;
	}
	require(r == 0, "%s is read %s", id, err.text);
	ok(same_layers(json_object_get(one, "layers"), &p, 1) && (!tp2 || same_layers(tp2, &p, 2)),
	   "%s: the published slots and choices", id);
	written = expert_map_json(&p);
	ok(json_equal(written, map), "%s: written as it was read", id);
	json_decref(written);
	placement_fini(&p);
}

static void test_file(const char *name, void (*test)(const json_t *))
{
	json_t *file = load(name), *one;
	size_t i;

	json_array_foreach (json_object_get(file, "cases"), i, one)
		test(one);
	ok(i >= 7, "%s: %zu cases", name, i);
	json_decref(file);
}

int main(void)
{
	test_file("eplb.json", test_eplb_case);
	test_file("eplb-ascend.json", test_ascend_case);
	test_file("expert-map.json", test_map_case);
	return tap_done();
}
