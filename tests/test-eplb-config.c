/* SPDX-License-Identifier: MIT */
/* additional_config.eplb_config: each key's type and limits, and what only the whole of it tells. */
#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "placement/eplb-config.h"
#include "tests/tap.h"

static const struct eplb_config_env none = {NULL, NULL}, on = {"true", NULL};

/* `within`: of the error's line; NULL: it is sound. */
static void check(const char *text, const struct eplb_config_env *env, uint32_t ranks, const char *within)
{
	json_t *document = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	struct eplb_config config;
	struct moe_error err = {0};
	const int r = document ? eplb_config_read(&config, "config.json", document, ranks, env, &err) : -ENOENT;

	if (within)
		ok(r == -EINVAL && strstr(err.text, within) && strstr(err.text, "config.json: "), "%s: %s", text,
		   err.text);
	else
		ok(r == 0, "%s is sound%s%s", text, r ? ": " : "", err.text);
	json_decref(document);
}

static void test_values(void)
{
	json_t *document = json_loads(
		"{\"additional_config\": {\"eplb_config\": {\"expert_map_record_path\": \"a.json\", "
		"\"num_redundant_experts\": 32, \"eplb_policy_type\": 3, \"load_collection_phase\": \"decode\"}}}",
		0, NULL);
	struct eplb_config config;
	json_t *shown;

	require(document && eplb_config_read(&config, "config.json", document, 8, &on, NULL) == 0, "it is read");
	ok(config.dynamic && !config.map && strcmp(config.record, "a.json") == 0, "recording a map makes it dynamic");
	ok(config.redundant == 32 && config.policy == EPLB_CONFIG_FLASHLB && strcmp(config.phase, "decode") == 0,
	   "what was given is there");
	ok(config.collect == 600 && config.compute == 50 && strcmp(config.stage, "all") == 0,
	   "what was not has its default");
	shown = eplb_config_json(&config);
	ok(shown && json_object_size(shown) == 9 && json_is_null(json_object_get(shown, "expert_map_path")),
	   "all nine keys are shown");
	json_decref(shown);
	json_decref(document);
}

int main(void)
{
	static const struct eplb_config_env one = {"1", NULL}, loud = {"TRUE", NULL}, yes = {"yes", NULL},
					    record = {NULL, "true"}, record_loud = {NULL, "True"};

	test_values();
	check("{}", &none, 0, NULL);
	check("{\"eplb_config\": {}}", &none, 0, NULL);
	check("{\"eplb_config\": []}", &none, 0, "an object expected");
	check("{\"additional_config\": {}}", &none, 0, "no eplb_config found");
	check("{\"dynamic_epbl\": true}", &on, 0, "eplb_config.dynamic_epbl found, one of dynamic_eplb,");

	check("{\"dynamic_eplb\": false}", &none, 1, NULL);
	check("{\"dynamic_eplb\": true}", &none, 0, "DYNAMIC_EPLB=true or 1");
	check("{\"dynamic_eplb\": true}", &yes, 0, "DYNAMIC_EPLB=true or 1");
	check("{\"dynamic_eplb\": true}", &on, 0, NULL);
	check("{\"dynamic_eplb\": true}", &one, 0, NULL);
	check("{\"dynamic_eplb\": true}", &loud, 0, NULL);
	check("{\"dynamic_eplb\": true}", &record, 0, NULL);
	check("{\"dynamic_eplb\": true}", &record_loud, 0, "EXPERT_MAP_RECORD=true");
	check("{\"dynamic_eplb\": true}", &on, 1, "1 rank of expert parallelism");
	check("{\"dynamic_eplb\": 1}", &on, 0, "true or false expected");

	check("{\"expert_map_path\": null}", &none, 1, NULL);
	check("{\"expert_map_path\": \"map.json\"}", &none, 0, NULL);
	check("{\"expert_map_path\": \"map.json\"}", &none, 1, "expert_map_path: 1 rank");
	check("{\"expert_map_path\": \"map.JSON\"}", &none, 0, "ends with .json");
	check("{\"expert_map_path\": \"json\"}", &none, 0, "ends with .json");
	check("{\"expert_map_path\": 7}", &none, 0, "ends with .json");
	check("{\"expert_map_record_path\": \"map.txt\"}", &on, 0, "expert_map_record_path: ");
	check("{\"expert_map_record_path\": \"map.json\"}", &none, 0, "expert_map_record_path: dynamic");
	check("{\"expert_map_record_path\": \"map.json\", \"dynamic_eplb\": false}", &record, 0, NULL);

	check("{\"expert_heat_collection_interval\": 0}", &none, 0, NULL);
	check("{\"expert_heat_collection_interval\": -1}", &none, 0, "an integer of 0 or more");
	check("{\"expert_heat_collection_interval\": 600.0}", &none, 0, "an integer of 0 or more");
	check("{\"algorithm_execution_interval\": 9223372036854775807}", &none, 0, NULL);
	check("{\"algorithm_execution_interval\": \"50\"}", &none, 0, "algorithm_execution_interval: ");
	check("{\"num_redundant_experts\": true}", &none, 0, "num_redundant_experts: ");
	check("{\"num_redundant_experts\": null}", &none, 0, "num_redundant_experts: ");

	check("{\"eplb_policy_type\": 0}", &none, 0, NULL);
	check("{\"eplb_policy_type\": 4}", &none, 0, "an integer from 0 to 3");
	check("{\"eplb_policy_type\": -1}", &none, 0, "an integer from 0 to 3");
	check("{\"eplb_heat_collection_stage\": \"prefill\"}", &none, 0, NULL);
	check("{\"eplb_heat_collection_stage\": \"ALL\"}", &none, 0, "\"all\", \"prefill\" or \"decode\"");
	check("{\"load_collection_phase\": null}", &none, 0, "load_collection_phase: ");
	return tap_done();
}
