/* SPDX-License-Identifier: MIT */
#include "placement/eplb-config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/util.h"
#include "model/file.h"

#define WORDS 96
#define KEYS                                                                                                           \
	"dynamic_eplb, expert_map_path, expert_map_record_path, expert_heat_collection_interval, "                     \
	"algorithm_execution_interval, num_redundant_experts, eplb_policy_type, eplb_heat_collection_stage, "          \
	"load_collection_phase"

/* One field of the object: its file, its name, its value (NULL: not given). */
struct field {
	const char *file, *name;
	const json_t *value;
};

static int wrong(const struct field *f, const char *expected, struct moe_error *err)
{
	char words[WORDS];

	return moe_error_set(err, -EINVAL, "%s: eplb_config.%s: %s found, %s", f->file, f->name,
			     file_describe(words, sizeof words, f->value), expected);
}

static int read_flag(const struct field *f, bool *ret, struct moe_error *err)
{
	if (!f->value)
		return 0;
	if (!json_is_boolean(f->value))
		return wrong(f, "true or false expected", err);
	*ret = json_is_true(f->value);
	return 0;
}

static int read_count(const struct field *f, uint64_t max, uint64_t *ret, struct moe_error *err)
{
	char expected[WORDS];

	if (!f->value)
		return 0;
	if (json_is_integer(f->value) && json_integer_value(f->value) >= 0 &&
	    (uint64_t)json_integer_value(f->value) <= max) {
		*ret = (uint64_t)json_integer_value(f->value);
		return 0;
	}
	if (max == INT64_MAX)
		snprintf(expected, sizeof expected, "an integer of 0 or more expected");
	else
		snprintf(expected, sizeof expected, "an integer from 0 to %" PRIu64 " expected", max);
	return wrong(f, expected, err);
}

/* null is as good as nothing, as the published default is None. */
static int read_path(const struct field *f, const char **ret, struct moe_error *err)
{
	const char *text = json_string_value(f->value);
	const size_t n = text ? strlen(text) : 0;

	if (!f->value || json_is_null(f->value))
		return 0;
	if (n < 5 || strcmp(text + n - 5, ".json") != 0)
		return wrong(f, "a path that ends with .json, in lower case, expected", err);
	*ret = text;
	return 0;
}

static int read_phase(const struct field *f, const char **ret, struct moe_error *err)
{
	static const char *const phases[] = {"all", "prefill", "decode"};
	const char *text = json_string_value(f->value);

	if (!f->value)
		return 0;
	for (size_t i = 0; text && i < ARRAY_LEN(phases); i++) {
		if (strcmp(text, phases[i]) != 0)
			continue;
		*ret = phases[i];
		return 0;
	}
	return wrong(f, "\"all\", \"prefill\" or \"decode\" expected", err);
}

static int read_field(struct eplb_config *ret, const struct field *f, struct moe_error *err)
{
	uint64_t policy = EPLB_CONFIG_SWIFT;
	char words[65];
	int r;

	if (strcmp(f->name, "dynamic_eplb") == 0)
		return read_flag(f, &ret->dynamic, err);
	if (strcmp(f->name, "expert_map_path") == 0)
		return read_path(f, &ret->map, err);
	if (strcmp(f->name, "expert_map_record_path") == 0)
		return read_path(f, &ret->record, err);
	if (strcmp(f->name, "expert_heat_collection_interval") == 0)
		return read_count(f, INT64_MAX, &ret->collect, err);
	if (strcmp(f->name, "algorithm_execution_interval") == 0)
		return read_count(f, INT64_MAX, &ret->compute, err);
	if (strcmp(f->name, "num_redundant_experts") == 0)
		return read_count(f, INT64_MAX, &ret->redundant, err);
	if (strcmp(f->name, "eplb_heat_collection_stage") == 0)
		return read_phase(f, &ret->stage, err);
	if (strcmp(f->name, "load_collection_phase") == 0)
		return read_phase(f, &ret->phase, err);
	if (strcmp(f->name, "eplb_policy_type") != 0)
		return moe_error_set(err, -EINVAL, "%s: eplb_config.%s found, one of %s expected: leave it out",
				     f->file, file_clean(words, sizeof words, f->name), KEYS);
	r = read_count(f, EPLB_CONFIG_FLASHLB, &policy, err);
	ret->policy = (enum eplb_config_policy)policy;
	return r;
}

/* What only the whole of it tells. */
static int check_whole(const struct eplb_config *c, const char *file, uint32_t ranks, const struct eplb_config_env *env,
		       struct moe_error *err)
{
	const char *is = env->dynamic_eplb, *records = env->expert_map_record;
	const bool may = (is && (strcasecmp(is, "true") == 0 || strcmp(is, "1") == 0)) ||
			 (records && strcmp(records, "true") == 0);

	if (c->dynamic && !may)
		return moe_error_set(err, -EINVAL,
				     "%s: eplb_config.%s: dynamic balancing found, DYNAMIC_EPLB=true or 1, or "
				     "EXPERT_MAP_RECORD=true, expected in the environment: set one of them",
				     file, c->record ? "expert_map_record_path" : "dynamic_eplb");
	if ((c->dynamic || c->map) && ranks == 1)
		return moe_error_set(err, -EINVAL,
				     "%s: eplb_config.%s: 1 rank of expert parallelism found, 2 or more expected: one "
				     "rank has nothing to balance",
				     file, c->map ? "expert_map_path" : "dynamic_eplb");
	return 0;
}

int eplb_config_read(struct eplb_config *ret, const char *file, const json_t *document, uint32_t ranks,
		     const struct eplb_config_env *env, struct moe_error *err)
{
	const json_t *outer = json_object_get(document, "additional_config");
	const json_t *object = json_object_get(outer ? outer : document, "eplb_config");
	struct eplb_config c = {
		.collect = 600, .compute = 50, .policy = EPLB_CONFIG_SWIFT, .stage = "all", .phase = "all"};
	struct field field = {.file = file};
	int r;

	if (!object && !outer)
		object = document;
	if (!json_is_object(object))
		return moe_error_set(err, -EINVAL, "%s: no eplb_config found, an object expected", file);
	for (void *at = json_object_iter((json_t *)object); at; at = json_object_iter_next((json_t *)object, at)) {
		field.name = json_object_iter_key(at);
		field.value = json_object_iter_value(at);
		r = read_field(&c, &field, err);
		if (r < 0)
			return r;
	}
	c.dynamic |= c.record != NULL;
	r = check_whole(&c, file, ranks, env, err);
	if (r == 0)
		*ret = c;
	return r;
}

json_t *eplb_config_json(const struct eplb_config *c)
{
	return json_pack("{s:b, s:s?, s:s?, s:I, s:I, s:I, s:i, s:s, s:s}", "dynamic_eplb", c->dynamic,
			 "expert_map_path", c->map, "expert_map_record_path", c->record,
			 "expert_heat_collection_interval", (json_int_t)c->collect, "algorithm_execution_interval",
			 (json_int_t)c->compute, "num_redundant_experts", (json_int_t)c->redundant, "eplb_policy_type",
			 (int)c->policy, "eplb_heat_collection_stage", c->stage, "load_collection_phase", c->phase);
}
