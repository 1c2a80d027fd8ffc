/* SPDX-License-Identifier: MIT */
/*
 * Expert maps against a second reader: sound maps are damaged anywhere, a member or an element at a time, and both
 * readers have to agree on whether it still is one. What is refused has a line that names the place. Then what a rank
 * makes of a map: its own slots, and which copy it uses.
 */
#include <errno.h>
#include <jansson.h>

#include "placement/expert-map.h"
#include "tests/placements.h"

static unsigned long long seed;

/* -- the second reader -------------------------------------------------------------------------------------------- */

static bool is(const json_t *object, const char *key, size_t number)
{
	const json_t *value = json_object_get(object, key);

	return json_is_integer(value) && json_integer_value(value) == (json_int_t)number;
}

static json_int_t most_id(const json_t *layers)
{
	const json_t *layer, *device, *id;
	json_int_t most = 0;
	size_t l, d, s;

	json_array_foreach (layers, l, layer)
		json_array_foreach (json_object_get(layer, "device_list"), d, device)
			json_array_foreach (json_object_get(device, "device_expert"), s, id)
				most = json_integer_value(id) > most ? json_integer_value(id) : most;
	return most;
}

/* How often the id is in the list; SIZE_MAX: something else than an id below `experts` is. */
static size_t count_id(const json_t *list, json_int_t id, json_int_t experts)
{
	const json_t *one;
	size_t i, n = 0;

	json_array_foreach (list, i, one) {
		if (!json_is_integer(one) || json_integer_value(one) < 0 || json_integer_value(one) >= experts)
			return SIZE_MAX;
		n += json_integer_value(one) == id;
	}
	return n;
}

static bool sound_layer(const json_t *layer, size_t index, size_t ranks, size_t slots, json_int_t experts)
{
	const json_t *devices = json_object_get(layer, "device_list"), *device;
	size_t d;

	if (!is(layer, "layer_id", index) || !is(layer, "device_count", ranks) || !json_is_array(devices) ||
	    json_array_size(devices) != ranks)
		return false;
	for (json_int_t e = 0; e < experts; e++) {
		size_t all = 0;

		json_array_foreach (devices, d, device) {
			const json_t *list = json_object_get(device, "device_expert");
			const size_t n = count_id(list, e, experts);

			if (!is(device, "device_id", d) || !json_is_array(list) || json_array_size(list) != slots ||
			    n > 1)
				return false;
			all += n;
		}
		if (all == 0)
			return false;
	}
	return true;
}

/* experts: 0 where the map alone says it. */
static bool sound(const json_t *map, json_int_t experts)
{
	const json_t *layers = json_object_get(map, "layer_list"), *layer;
	const json_t *devices = json_object_get(json_array_get(layers, 0), "device_list");
	const json_t *list = json_object_get(json_array_get(devices, 0), "device_expert");
	bool good = json_is_array(layers) && json_array_size(layers) > 0 && json_is_array(devices) &&
		    json_array_size(devices) > 0 && json_is_array(list) && json_array_size(list) > 0 &&
		    is(map, "moe_layer_count", json_array_size(layers));
	size_t l;

	json_array_foreach (layers, l, layer)
		good = good && sound_layer(layer, l, json_array_size(devices), json_array_size(list),
					   experts ? experts : most_id(layers) + 1);
	return good;
}

/* -- damage ------------------------------------------------------------------------------------------------------- */

static json_t *draw_value(void)
{
	switch (draw_below(&seed, 8)) {
	case 0:
		return json_real(draw_below(&seed, 6));
	case 1:
		return json_string("3");
	case 2:
		return json_null();
	case 3:
		return json_array();
	case 4:
		return json_object();
	case 5:
		return json_true();
	default:
		return json_integer((json_int_t)draw_below(&seed, 9) - 1);
	}
}

static void damage_array(json_t *array, size_t at)
{
	json_t *value = json_array_get(array, at);

	switch (draw_below(&seed, 4)) {
	case 0:
		json_array_remove(array, at);
		break;
	case 1:
		json_array_insert_new(array, at, json_deep_copy(value));
		break;
	case 2:
		json_array_append_new(array, draw_value());
		break;
	default:
		json_array_set_new(array, at, draw_value());
	}
}

static void damage_object(json_t *object, const char *key)
{
	char *name = strdup(key); /* the object's goes with the member */

	switch (draw_below(&seed, 4)) {
	case 0:
		json_object_del(object, name);
		break;
	case 1:
		json_object_set_new(object, "comment", draw_value());
		break;
	default:
		json_object_set_new(object, name, draw_value());
	}
	free(name);
}

/* Goes down by chance. */
static void damage(json_t *value)
{
	const bool here = draw_below(&seed, 5) == 0;

	if (json_is_array(value) && json_array_size(value)) {
		const size_t at = draw_below(&seed, (uint32_t)json_array_size(value));
		json_t *inner = json_array_get(value, at);

		if (here || !(json_is_object(inner) || json_is_array(inner)))
			damage_array(value, at);
		else
			damage(inner);
	} else if (json_is_object(value) && json_object_size(value)) {
		void *member = json_object_iter(value);

		for (size_t i = draw_below(&seed, (uint32_t)json_object_size(value)); i > 0; i--)
			member = json_object_iter_next(value, member);
		if (here ||
		    !(json_is_object(json_object_iter_value(member)) || json_is_array(json_object_iter_value(member))))
			damage_object(value, json_object_iter_key(member));
		else
			damage(json_object_iter_value(member));
	}
}

/* -- both --------------------------------------------------------------------------------------------------------- */

static bool same(const json_t *map, const struct placement *p, bool given)
{
	struct placement again = {0};
	json_t *written = expert_map_json(p);
	bool good = expert_map_read(&again, "again", written, given ? p->experts : 0, NULL) == 0 &&
		    again.ranks == p->ranks && again.slots == p->slots && again.experts == p->experts &&
		    memcmp(again.at, p->at, (size_t)p->layers * p->ranks * p->slots * sizeof *p->at) == 0;

	for (uint32_t l = 0; good && l < p->layers; l++)
		for (uint32_t r = 0; r < p->ranks; r++) {
			const json_t *layer = json_array_get(json_object_get(map, "layer_list"), l);
			const json_t *list = json_object_get(json_array_get(json_object_get(layer, "device_list"), r),
							     "device_expert");

			for (uint32_t s = 0; s < p->slots; s++)
				good = good &&
				       json_integer_value(json_array_get(list, s)) == p->at[placement_row(p, l, r) + s];
		}
	json_decref(written);
	placement_fini(&again);
	return good;
}

static void test_random(void)
{
	uint32_t wrong = 0, refused = 0, taken = 0;

	for (uint32_t i = 0; i < 30000; i++) {
		struct placement p, found = {0};
		struct moe_error err = {0};
		json_t *map;
		uint32_t experts;
		int r;

		draw_placement(&seed, &p, i % 2);
		map = expert_map_json(&p);
		experts = draw_below(&seed, 2) ? p.experts : 0;
		for (uint32_t times = draw_below(&seed, 3); times > 0; times--)
			damage(map);
		r = expert_map_read(&found, "map", map, experts, &err);
		if ((r == 0) != sound(map, experts) ||
		    (r < 0 && (r != -EINVAL || strncmp(err.text, "map: ", 5) != 0)) ||
		    (r == 0 && !same(map, &found, experts))) {
			if (wrong++ == 0) {
				char *text = json_dumps(map, JSON_COMPACT);

				diag("%d (%s): %s", r, err.text, text);
				free(text);
			}
		}
		taken += r == 0;
		refused += r < 0;
		placement_fini(&found);
		placement_fini(&p);
		json_decref(map);
	}
	ok(wrong == 0 && taken > 5000 && refused > 5000, "%u maps are taken and %u refused as a second reader has it",
	   taken, refused);
}

/* Each member that is wrong is the one that is named. */
static void test_named(void)
{
	static const struct {
		const char *path[6]; /* members, and elements by their number */
		const char *says;
	} members[] = {
		{{"moe_layer_count"}, "map: moe_layer_count: "},
		{{"layer_list"}, "map: layer_list: "},
		{{"layer_list", "1", "layer_id"}, "map: layer_list[1].layer_id: "},
		{{"layer_list", "1", "device_count"}, "map: layer_list[1].device_count: "},
		{{"layer_list", "1", "device_list"}, "map: layer_list[1].device_list: "},
		{{"layer_list", "0", "device_list", "1", "device_id"}, "map: layer_list[0].device_list[1].device_id: "},
		{{"layer_list", "1", "device_list", "0", "device_expert"},
		 "map: layer_list[1].device_list[0].device_expert: "},
	};
	int32_t at[] = {0, 1, 2, 3, 3, 2, 1, 0};
	const struct placement p = {2, 2, 2, 4, at};
	uint32_t wrong = 0;

	for (size_t i = 0; i < sizeof members / sizeof *members; i++)
		for (uint32_t kind = 0; kind < 2; kind++) {
			json_t *map = expert_map_json(&p), *value = map;
			struct placement found = {0};
			struct moe_error err = {0};
			uint32_t k = 0;

			for (; members[i].path[k + 1]; k++)
				value = json_is_array(value) ? json_array_get(value, (size_t)atoi(members[i].path[k]))
							     : json_object_get(value, members[i].path[k]);
			if (kind)
				json_object_del(value, members[i].path[k]);
			else
				json_object_set_new(value, members[i].path[k], json_string("x"));
			if (expert_map_read(&found, "map", map, 0, &err) != -EINVAL ||
			    strncmp(err.text, members[i].says, strlen(members[i].says)) != 0) {
				diag("%s: %s", members[i].says, err.text);
				wrong++;
			}
			placement_fini(&found);
			json_decref(map);
		}
	ok(wrong == 0, "each member is named where it is missing or none");
}

/* -- what a rank makes of it -------------------------------------------------------------------------------------- */

/* The slot of its index-th copy, by rank and slot; the slots of all ranks are counted on. */
static int32_t copy_at(const struct placement *p, uint32_t layer, uint32_t expert, uint32_t index)
{
	for (uint32_t i = 0; i < p->ranks * p->slots; i++)
		if (p->at[placement_row(p, layer, 0) + i] == (int32_t)expert && index-- == 0)
			return (int32_t)i;
	return -1;
}

static bool same_choices(const struct placement *p, uint32_t layer, uint32_t tp)
{
	int32_t slots[8 * 48], choices[8 * 48];
	bool good = true;

	expert_map_slots(p, layer, slots);
	expert_map_choices(p, layer, tp, choices);
	for (uint32_t r = 0; r < p->ranks; r++)
		for (uint32_t e = 0; e < p->experts; e++) {
			const uint32_t at = r * p->experts + e, turn = tp > 1 ? r % tp + r / tp + e : r;
			uint32_t n = 0;
			int32_t own = -1;

			while (copy_at(p, layer, e, n) >= 0) {
				if ((uint32_t)copy_at(p, layer, e, n) / p->slots == r)
					own = copy_at(p, layer, e, n) % (int32_t)p->slots;
				n++;
			}
			good = good && slots[at] == own && choices[at] == copy_at(p, layer, e, turn % n);
		}
	return good;
}

/* Slots 0 to E - 1, then the copies from 0 on again; they are cut evenly. */
static bool is_initial(const struct placement *p)
{
	bool good = true;

	for (uint32_t l = 0; l < p->layers; l++)
		for (uint32_t r = 0; r < p->ranks; r++)
			for (uint32_t s = 0; s < p->slots; s++)
				good = good &&
				       p->at[placement_row(p, l, r) + s] == (int32_t)((r * p->slots + s) % p->experts);
	return good;
}

static void test_choices(void)
{
	uint32_t wrong = 0, strange = 0;

	for (uint32_t i = 0; i < 3000; i++) {
		struct placement p, initial;

		draw_placement(&seed, &p, i % 2);
		for (uint32_t l = 0; l < p.layers; l++)
			wrong += !same_choices(&p, l, draw_below(&seed, p.ranks + 1));
		must(placement_initial(&initial, p.layers, p.ranks, p.slots, p.experts, NULL) == 0, "there is a first");
		strange += !is_initial(&initial);
		placement_fini(&initial);
		placement_fini(&p);
	}
	ok(wrong == 0, "3000 placements: a rank's own slots and the copies it uses are as the rule says, %u are not",
	   wrong);
	ok(strange == 0, "and so is what there is without a map, %u are not", strange);
}

int main(void)
{
	seed = tap_seed();
	test_random();
	test_named();
	test_choices();
	return tap_done();
}
