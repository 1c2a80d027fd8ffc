/* SPDX-License-Identifier: MIT */
/*
 * eplb-config - vLLM Ascend's additional_config.eplb_config, read strictly.
 *
 * Law: pure; texts, not files. What is read is within its limits, and what was not given has the published default.
 * Any other key, a value of another type, a number that is none of those allowed is an error with the field, what was
 * found, what was expected and the way out. Whether a map can be read is asked by whoever has files.
 */
#ifndef EPLB_CONFIG_H
#define EPLB_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "moe-error.h"

/* eplb_policy_type. */
enum eplb_config_policy { EPLB_CONFIG_RANDOM, EPLB_CONFIG_DYNAMIC, EPLB_CONFIG_SWIFT, EPLB_CONFIG_FLASHLB };

struct eplb_config {
	bool dynamic;              /* dynamic_eplb, or a map is recorded */
	const char *map, *record;  /* expert_map_path, expert_map_record_path; of the document; NULL: none */
	uint64_t collect, compute; /* expert_heat_collection_interval, algorithm_execution_interval: steps */
	uint64_t redundant;        /* num_redundant_experts */
	enum eplb_config_policy policy;
	const char *stage, *phase; /* eplb_heat_collection_stage, load_collection_phase: all, prefill or decode */
};

/* What the worker will find in its environment; NULL: not set. */
struct eplb_config_env {
	const char *dynamic_eplb, *expert_map_record;
};

/* `document` is the object itself, or has it as eplb_config or additional_config.eplb_config. `ranks` are those of
 * expert parallelism, 0 if that is not known. `file` begins the line of an error. -EINVAL. */
int eplb_config_read(struct eplb_config *ret, const char *file, const json_t *document, uint32_t ranks,
		     const struct eplb_config_env *env, struct moe_error *err);

/* All of it with its defaults; NULL: no memory. */
json_t *eplb_config_json(const struct eplb_config *config);

#endif
