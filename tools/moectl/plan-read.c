/* SPDX-License-Identifier: MIT */
#include "plan-read.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "heat-lasts.h"
#include "model/file.h"
#include "model/json-memory.h"

#define FIELD 160
#define MOST 1e30
#define MOST_WHOLE 9007199254740992.0 /* 2^53: beyond it a double skips whole numbers */

int plan_parse(json_t **ret, const char *file, const char *text, size_t bytes, struct moe_error *err)
{
	char words[128];
	json_error_t why;
	int r = json_memory_parse_any(ret, text, bytes, JSON_REJECT_DUPLICATES, &why);

	if (r == -EINVAL)
		return moe_error_set(err, r, "%s: line %d, column %d: %s; JSON expected", file, why.line, why.column,
				     file_clean(words, sizeof words, why.text));
	return r < 0 ? moe_error_set(err, r, "%s: no memory for %zu bytes of JSON", file, bytes) : 0;
}

static int wrong(const char *file, const char *place, const char *field, const json_t *found, const char *expected,
		 struct moe_error *err)
{
	char words[96];

	return moe_error_set(err, -EINVAL, "%s: %s%s: %s found, %s expected", file, place, field,
			     found ? file_describe(words, sizeof words, found) : "nothing", expected);
}

/* An integer, or as other languages write one: 16.0. */
static bool whole(const json_t *value, json_int_t *ret)
{
	const double number = json_number_value(value);

	if (!json_is_number(value) || !(fabs(number) <= MOST_WHOLE) || number != floor(number))
		return false;
	*ret = (json_int_t)number;
	return true;
}

/* -- nested lists ------------------------------------------------------------------------------------------------- */

/* How deep it is and how long, by the first of each list. */
static int measure(struct tensor *ret, const char *file, const char *place, const char *field, const json_t *value,
		   uint32_t min, uint32_t max, struct moe_error *err)
{
	const json_t *list = value;
	char expected[64];

	for (; json_is_array(list) && ret->depth < max; list = json_array_get(list, 0)) {
		if (json_array_size(list) < 1 || json_array_size(list) > PLACEMENT_SLOTS_MAX)
			return wrong(file, place, field, list, "1 to 65536 in each list", err);
		ret->n[ret->depth++] = (uint32_t)json_array_size(list);
	}
	if (ret->depth >= min && !json_is_array(list))
		return 0;
	if (min == max)
		snprintf(expected, sizeof expected, "lists of numbers, %u deep,", min);
	else
		snprintf(expected, sizeof expected, "lists of numbers, %u or %u deep,", min, max);
	return wrong(file, place, field, ret->depth ? list : value, expected, err);
}

/* One list at `level`, and all in it; *at moves on. */
static int fill(const struct tensor *t, const char *file, const char *field, const json_t *value, uint32_t level,
		double **at, struct moe_error *err)
{
	const json_t *item;
	char inner[FIELD], expected[48];
	size_t i;
	int r = 0;

	if (level == t->depth && t->ids) {
		json_int_t id;

		if (!whole(value, &id) || id < 0 || id >= PLACEMENT_EXPERTS_MAX) {
			snprintf(expected, sizeof expected, "the id of an expert, 0 to %u,", PLACEMENT_EXPERTS_MAX - 1);
			return wrong(file, "", field, value, expected, err);
		}
		*(*at)++ = (double)id;
		return 0;
	}
	if (level == t->depth) {
		if (!json_is_number(value) || !(json_number_value(value) >= 0 && json_number_value(value) <= MOST))
			return wrong(file, "", field, value, "a number from 0 to 1e30", err);
		*(*at)++ = json_number_value(value);
		return 0;
	}
	if (!json_is_array(value) || json_array_size(value) != t->n[level]) {
		snprintf(expected, sizeof expected, "an array of %u as in the first", t->n[level]);
		return wrong(file, "", field, value, expected, err);
	}
	json_array_foreach (value, i, item) {
		snprintf(inner, sizeof inner, "%s[%zu]", field, i);
		r = fill(t, file, inner, item, level + 1, at, err);
		if (r < 0)
			return r;
	}
	return r;
}

static int read_tensor(struct tensor *ret, bool ids, const char *file, const char *place, const char *field,
		       const json_t *value, uint32_t min, uint32_t max, struct moe_error *err)
{
	struct tensor t = {.ids = ids};
	uint64_t n = 1;
	char name[FIELD];
	double *at;
	int r = measure(&t, file, place, field, value, min, max, err);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < t.depth; i++)
		if (!checked_mul(&n, n, t.n[i]) || n > PLAN_FILE_MAX)
			return wrong(file, place, field, value, "fewer numbers than there are in a file", err);
	at = t.at = calloc(n, sizeof *t.at);
	if (!at)
		return moe_error_set(err, -ENOMEM, "%s: %s%s: no memory for %llu numbers", file, place, field,
				     (unsigned long long)n);
	snprintf(name, sizeof name, "%s%s", place, field);
	r = fill(&t, file, name, value, 0, &at, err);
	if (r < 0)
		free(t.at);
	else
		*ret = t;
	return r;
}

int plan_read_tensor(struct tensor *ret, const char *file, const char *place, const char *field, const json_t *value,
		     uint32_t min, uint32_t max, struct moe_error *err)
{
	return read_tensor(ret, false, file, place, field, value, min, max, err);
}

/* A count that may be there must be the one that the lists have. */
static int check_count(const char *file, const char *place, const char *field, const json_t *one, uint32_t count,
		       struct moe_error *err)
{
	const json_t *value = json_object_get(one, field);
	char expected[64];
	json_int_t n;

	if (!value || (whole(value, &n) && n == count))
		return 0;
	snprintf(expected, sizeof expected, "%u as the lists have", count);
	return wrong(file, place, field, value, expected, err);
}

/* `otherwise`, unless that is 0, where the case does not say. */
static int read_count(const char *file, const char *place, const char *field, const json_t *one, uint32_t otherwise,
		      uint32_t *ret, struct moe_error *err)
{
	const json_t *value = json_object_get(one, field);
	json_int_t n = otherwise;

	if ((value || !otherwise) && (!whole(value, &n) || n < 1 || n > PLACEMENT_SLOTS_MAX))
		return wrong(file, place, field, value, "an integer from 1 to 65536", err);
	*ret = (uint32_t)n;
	return 0;
}

/* -- loads -------------------------------------------------------------------------------------------------------- */

void plan_loads_fini(struct plan_loads *loads)
{
	free(loads->weight);
	*loads = (struct plan_loads){0};
}

/* One list of numbers, added to those of the layer; the first list says how many experts there are. */
static int add_heat(struct plan_loads *to, const char *file, size_t at, const json_t *layer, const char *field,
		    struct moe_error *err)
{
	struct tensor t = {0};
	char place[64];
	int r;

	snprintf(place, sizeof place, "layers[%zu].", at);
	r = plan_read_tensor(&t, file, place, field, json_object_get(layer, field), 1, 1, err);
	if (r < 0)
		return r;
	if (!to->weight) {
		to->experts = t.n[0];
		to->weight = calloc((size_t)to->layers * t.n[0], sizeof *to->weight);
	}
	if (!to->weight)
		r = moe_error_set(err, -ENOMEM, "%s: no memory for %u layers", file, to->layers);
	else if (t.n[0] != to->experts)
		r = wrong(file, place, field, json_object_get(layer, field), "as many experts everywhere", err);
	for (uint32_t e = 0; r == 0 && e < to->experts; e++)
		to->weight[at * to->experts + e] += t.at[e];
	free(t.at);
	return r;
}

/* What moectl heat prints. */
static int read_heat(struct plan_loads *ret, const char *file, const json_t *layers, struct moe_error *err)
{
	struct plan_loads loads = {.stages = 1, .layers = (uint32_t)json_array_size(layers)};
	const bool lasts = heat_lasts(layers);
	const json_t *layer;
	size_t i;
	int r = 0;

	if (loads.layers < 1 || json_array_size(layers) > PLACEMENT_LAYERS_MAX)
		return wrong(file, "", "layers", layers, "1 to 4096 layers", err);
	json_array_foreach (layers, i, layer) {
		if (r == 0)
			r = add_heat(&loads, file, i, layer, lasts ? "heat" : "pairs", err);
		if (r == 0 && !lasts)
			r = add_heat(&loads, file, i, layer, "copies", err);
	}
	if (r < 0)
		plan_loads_fini(&loads);
	else
		*ret = loads;
	return r;
}

int plan_read_loads(struct plan_loads *ret, const char *file, const json_t *document, struct moe_error *err)
{
	const json_t *models = json_object_get(document, "models"), *weight, *layers;
	struct tensor t;
	int r;

	*ret = (struct plan_loads){0};
	/* What the daemon itself says of all models, of which there is one. */
	if (json_is_array(models) && json_array_size(models) != 1)
		return wrong(file, "", "models", models, "one model", err);
	if (json_is_array(models))
		document = json_array_get(models, 0);
	weight = json_object_get(document, "weight");
	layers = json_object_get(document, "layers");
	if (!weight && json_is_array(layers))
		return read_heat(ret, file, layers, err);
	if (json_is_object(document) && !weight)
		return wrong(file, "", "weight", NULL, "layers of numbers, or what moectl heat --json prints,", err);
	r = plan_read_tensor(&t, file, "", "weight", json_is_object(document) ? weight : document, 2, 3, err);
	if (r < 0)
		return r;
	*ret = (struct plan_loads){t.depth == 3 ? t.n[0] : 1, t.n[t.depth - 2], t.n[t.depth - 1], t.at};
	return 0;
}

/* -- cases -------------------------------------------------------------------------------------------------------- */

int plan_read_eplb(struct eplb_problem *ret, const char *file, const char *place, const json_t *one,
		   struct moe_error *err)
{
	struct eplb_problem p = {0};
	struct tensor t = {0};
	int r = plan_read_tensor(&t, file, place, "weight", json_object_get(one, "weight"), 2, 2, err);

	p.layers = t.n[0];
	p.experts = t.n[1];
	p.weight = t.at;
	if (r == 0)
		r = check_count(file, place, "layers", one, p.layers, err);
	if (r == 0)
		r = check_count(file, place, "experts", one, p.experts, err);
	if (r == 0)
		r = read_count(file, place, "num_replicas", one, p.experts, &p.replicas, err);
	if (r == 0)
		r = read_count(file, place, "num_groups", one, 1, &p.groups, err);
	if (r == 0)
		r = read_count(file, place, "num_nodes", one, 1, &p.nodes, err);
	if (r == 0)
		r = read_count(file, place, "num_gpus", one, 0, &p.gpus, err);
	if (r < 0)
		free(t.at);
	else
		*ret = p;
	return r;
}

void plan_state_fini(struct plan_state *state)
{
	placement_fini(&state->from);
	free(state->work);
	state->work = NULL;
}

/* Ids are whole numbers; there are as many experts as the first layer has. */
static int read_placement(struct placement *ret, const char *file, const char *place, const json_t *one,
			  struct moe_error *err)
{
	const json_t *value = json_object_get(one, "placement");
	struct tensor t = {0};
	double most = 0;
	int r = read_tensor(&t, true, file, place, "placement", value, 3, 3, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < (size_t)t.n[0] * t.n[1] * t.n[2]; i++)
		most = fmax(most, t.at[i]);
	r = placement_new(ret, t.n[0], t.n[1], t.n[2], (uint32_t)most + 1, err);
	for (size_t i = 0; r == 0 && i < (size_t)t.n[0] * t.n[1] * t.n[2]; i++)
		ret->at[i] = (int32_t)t.at[i];
	free(t.at);
	return r;
}

int plan_read_state(struct plan_state *ret, const char *file, const char *place, const json_t *one,
		    struct moe_error *err)
{
	struct plan_state s = {0};
	struct tensor t = {0};
	int r = read_placement(&s.from, file, place, one, err);

	if (r == 0)
		r = plan_read_tensor(&t, file, place, "workload", json_object_get(one, "workload"), 3, 4, err);
	s.work = t.at;
	s.stages = t.depth == 4 ? t.n[0] : 1;
	if (r == 0 &&
	    (t.n[t.depth - 3] != s.from.layers || t.n[t.depth - 2] != s.from.ranks || t.n[t.depth - 1] != s.from.slots))
		r = moe_error_set(err, -EINVAL,
				  "%s: %sworkload: %u layers of %u ranks of %u slots found, %u of %u of %u expected "
				  "as in placement",
				  file, place, t.n[t.depth - 3], t.n[t.depth - 2], t.n[t.depth - 1], s.from.layers,
				  s.from.ranks, s.from.slots);
	if (r == 0)
		r = check_count(file, place, "layers", one, s.from.layers, err);
	if (r == 0)
		r = check_count(file, place, "ranks", one, s.from.ranks, err);
	if (r == 0)
		r = check_count(file, place, "slots", one, s.from.slots, err);
	if (r == 0)
		r = check_count(file, place, "experts", one, s.from.experts, err);
	if (r < 0)
		plan_state_fini(&s);
	else
		*ret = s;
	return r;
}

int plan_share_loads(struct plan_state *ret, const struct placement *from, const struct plan_loads *loads,
		     struct moe_error *err)
{
	const size_t all = (size_t)from->ranks * from->slots;
	_cleanup_free_ uint32_t *copies = calloc(from->experts, sizeof *copies);
	struct plan_state s = {.stages = loads->stages};
	int r;

	if (loads->layers != from->layers || loads->experts != from->experts)
		return moe_error_set(err, -EINVAL,
				     "weight: %u layers of %u experts found, %u of %u expected as the map has",
				     loads->layers, loads->experts, from->layers, from->experts);
	r = copies ? placement_copy(&s.from, from, err) : moe_error_set(err, -ENOMEM, "no memory");
	if (r < 0)
		return r;
	s.work = calloc(loads->stages * from->layers * all, sizeof *s.work);
	if (!s.work) {
		plan_state_fini(&s);
		return moe_error_set(err, -ENOMEM, "no memory for %u stages", loads->stages);
	}
	for (uint32_t l = 0; l < from->layers; l++) {
		const int32_t *at = from->at + l * all;

		placement_copies(from, l, copies);
		for (uint32_t stage = 0; stage < loads->stages; stage++) {
			const size_t layer = (size_t)stage * from->layers + l;

			for (size_t i = 0; i < all; i++)
				s.work[layer * all + i] = loads->weight[layer * loads->experts + (uint32_t)at[i]] /
							  copies[at[i]];
		}
	}
	*ret = s;
	return 0;
}
