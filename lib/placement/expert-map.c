/* SPDX-License-Identifier: MIT */
#include "placement/expert-map.h"

#include <errno.h>
#include <stdio.h>

#include "base/error.h"
#include "model/file.h"

#define PLACE 96
#define WORDS 96

/* Where in the file. */
struct reader {
	const char *file;
	char place[PLACE];
};

static int wrong(const struct reader *in, const char *key, const json_t *found, const char *expected,
		 struct moe_error *err)
{
	char words[WORDS];

	return moe_error_set(err, -EINVAL, "%s: %s%s: %s found, %s expected", in->file, in->place, key,
			     found ? file_describe(words, sizeof words, found) : "nothing", expected);
}

static int read_object(const struct reader *in, const json_t *value, const char *key, struct moe_error *err)
{
	return json_is_object(value) ? 0 : wrong(in, key, value, "an object", err);
}

static int read_number(const struct reader *in, const json_t *object, const char *key, uint32_t min, uint32_t max,
		       uint32_t *ret, struct moe_error *err)
{
	const json_t *value = json_object_get(object, key);
	const json_int_t n = json_integer_value(value);
	char expected[64];

	if (json_is_integer(value) && n >= min && n <= max) {
		*ret = (uint32_t)n;
		return 0;
	}
	if (min == max)
		snprintf(expected, sizeof expected, "%u", min);
	else
		snprintf(expected, sizeof expected, "an integer from %u to %u", min, max);
	return wrong(in, key, value, expected, err);
}

/* A list of exactly so many, as a count before it says. */
static int read_list(const struct reader *in, const json_t *object, const char *key, uint32_t n, const char *count,
		     const json_t **ret, struct moe_error *err)
{
	char expected[64];

	*ret = json_object_get(object, key);
	if (json_is_array(*ret) && json_array_size(*ret) == n)
		return 0;
	snprintf(expected, sizeof expected, "an array of %u, as %s says,", n, count);
	return wrong(in, key, *ret, expected, err);
}

/* The shape, and the highest id, of the first device: the others must have it too. */
static int read_shape(struct reader *in, const json_t *layers, uint32_t *ranks, uint32_t *slots, struct moe_error *err)
{
	const json_t *layer = json_array_get(layers, 0), *device, *list, *experts;
	int r;

	snprintf(in->place, sizeof in->place, "layer_list[0]");
	r = read_object(in, layer, "", err);
	snprintf(in->place, sizeof in->place, "layer_list[0].");
	if (r == 0)
		r = read_number(in, layer, "device_count", 1, PLACEMENT_SLOTS_MAX, ranks, err);
	if (r == 0)
		r = read_list(in, layer, "device_list", *ranks, "device_count", &list, err);
	if (r < 0)
		return r;
	device = json_array_get(list, 0);
	snprintf(in->place, sizeof in->place, "layer_list[0].device_list[0].");
	r = read_object(in, device, "", err);
	if (r < 0)
		return r;
	experts = json_object_get(device, "device_expert");
	if (!json_is_array(experts) || json_array_size(experts) < 1 ||
	    json_array_size(experts) > PLACEMENT_SLOTS_MAX / *ranks)
		return wrong(in, "device_expert", experts, "an array of expert ids", err);
	*slots = (uint32_t)json_array_size(experts);
	return 0;
}

static int read_device(struct reader *in, const json_t *device, uint32_t id, uint32_t experts, uint32_t slots,
		       int32_t *to, struct moe_error *err)
{
	const json_t *list = json_object_get(device, "device_expert"), *value;
	uint32_t ignored;
	char text[64];
	size_t i;
	int r = read_object(in, device, "", err);

	if (r == 0)
		r = read_number(in, device, "device_id", id, id, &ignored, err);
	if (r < 0)
		return r;
	if (!json_is_array(list) || json_array_size(list) != slots) {
		snprintf(text, sizeof text, "an array of %u slots, as the first device has,", slots);
		return wrong(in, "device_expert", list, text, err);
	}
	json_array_foreach (list, i, value) {
		const json_int_t e = json_integer_value(value);
		char key[48];

		if (json_is_integer(value) && e >= 0 && e < experts) {
			to[i] = (int32_t)e;
			continue;
		}
		snprintf(key, sizeof key, "device_expert[%zu]", i);
		snprintf(text, sizeof text, "an expert from 0 to %u", experts - 1);
		return wrong(in, key, value, text, err);
	}
	return 0;
}

static int read_layer(struct reader *in, const json_t *layer, uint32_t id, struct placement *p, uint32_t experts,
		      struct moe_error *err)
{
	const json_t *list, *device;
	uint32_t ignored;
	size_t i;
	int r;

	snprintf(in->place, sizeof in->place, "layer_list[%u]", id);
	r = read_object(in, layer, "", err);
	snprintf(in->place, sizeof in->place, "layer_list[%u].", id);
	if (r == 0)
		r = read_number(in, layer, "layer_id", id, id, &ignored, err);
	if (r == 0)
		r = read_number(in, layer, "device_count", 1, PLACEMENT_SLOTS_MAX, &ignored, err);
	if (r == 0)
		r = read_list(in, layer, "device_list", ignored, "device_count", &list, err);
	if (r == 0 && ignored != p->ranks) {
		char text[64];

		snprintf(text, sizeof text, "%u, as the first layer has,", p->ranks);
		return wrong(in, "device_count", json_object_get(layer, "device_count"), text, err);
	}
	if (r < 0)
		return r;
	json_array_foreach (list, i, device) {
		snprintf(in->place, sizeof in->place, "layer_list[%u].device_list[%zu].", id, i);
		r = read_device(in, device, (uint32_t)i, experts, p->slots, p->at + placement_row(p, id, (uint32_t)i),
				err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* One more than the highest id. */
static uint32_t count_experts(const struct placement *p)
{
	int32_t most = 0;

	for (size_t i = 0; i < (size_t)p->layers * p->ranks * p->slots; i++)
		most = p->at[i] > most ? p->at[i] : most;
	return (uint32_t)most + 1;
}

int expert_map_read(struct placement *ret, const char *file, const json_t *map, uint32_t experts, struct moe_error *err)
{
	const uint32_t bound = experts ? experts : PLACEMENT_EXPERTS_MAX;
	struct reader in = {.file = file};
	uint32_t layers, ranks = 0, slots = 0;
	struct placement p = {0};
	const json_t *list;
	int r = read_object(&in, map, "the map", err);

	if (r == 0)
		r = read_number(&in, map, "moe_layer_count", 1, PLACEMENT_LAYERS_MAX, &layers, err);
	if (r == 0)
		r = read_list(&in, map, "layer_list", layers, "moe_layer_count", &list, err);
	if (r == 0)
		r = read_shape(&in, list, &ranks, &slots, err);
	if (r == 0)
		r = placement_new(&p, layers, ranks, slots, bound, err);
	for (uint32_t i = 0; r == 0 && i < layers; i++)
		r = read_layer(&in, json_array_get(list, i), i, &p, bound, err);
	if (r == 0) {
		p.experts = experts ? experts : count_experts(&p);
		r = placement_check(&p, file, err);
	}
	if (r < 0)
		placement_fini(&p);
	else
		*ret = p;
	return r;
}

int expert_map_parse(struct placement *ret, const char *file, const char *text, size_t bytes, uint32_t experts,
		     struct moe_error *err)
{
	_cleanup_json_ json_t *map = NULL;
	const int r = file_parse_object(&map, file, text, bytes, err);

	return r < 0 ? r : expert_map_read(ret, file, map, experts, err);
}

/* -- written ------------------------------------------------------------------------------------------------------ */

static json_t *device_json(const struct placement *p, uint32_t layer, uint32_t rank)
{
	const int32_t *at = p->at + placement_row(p, layer, rank);
	json_t *experts = json_array();

	for (uint32_t s = 0; s < p->slots; s++)
		json_array_append_new(experts, json_integer(at[s]));
	return json_pack("{s:i, s:o}", "device_id", (int)rank, "device_expert", experts);
}

json_t *expert_map_json(const struct placement *p)
{
	json_t *layers = json_array();

	for (uint32_t l = 0; l < p->layers; l++) {
		json_t *devices = json_array();

		for (uint32_t r = 0; r < p->ranks; r++)
			json_array_append_new(devices, device_json(p, l, r));
		json_array_append_new(layers, json_pack("{s:i, s:i, s:o}", "layer_id", (int)l, "device_count",
							(int)p->ranks, "device_list", devices));
	}
	return json_pack("{s:i, s:o}", "moe_layer_count", (int)p->layers, "layer_list", layers);
}

/* -- as ranks use it ---------------------------------------------------------------------------------------------- */

void expert_map_slots(const struct placement *p, uint32_t layer, int32_t *ret)
{
	for (uint32_t r = 0; r < p->ranks; r++) {
		const int32_t *at = p->at + placement_row(p, layer, r);

		for (uint32_t e = 0; e < p->experts; e++)
			ret[(size_t)r * p->experts + e] = -1;
		for (uint32_t s = 0; s < p->slots; s++)
			ret[(size_t)r * p->experts + (uint32_t)at[s]] = (int32_t)s;
	}
}

void expert_map_choices(const struct placement *p, uint32_t layer, uint32_t tp, int32_t *ret)
{
	const int32_t *at = p->at + placement_row(p, layer, 0);

	for (uint32_t e = 0; e < p->experts; e++) {
		uint32_t n = 0;

		for (uint32_t i = 0; i < p->ranks * p->slots; i++)
			n += at[i] == (int32_t)e;
		for (uint32_t r = 0; r < p->ranks; r++) {
			uint32_t left = n ? (tp > 1 ? r % tp + r / tp + e : r) % n : 0;

			for (uint32_t i = 0; i < p->ranks * p->slots; i++)
				if (at[i] == (int32_t)e && left-- == 0)
					ret[(size_t)r * p->experts + e] = (int32_t)i;
		}
	}
}
